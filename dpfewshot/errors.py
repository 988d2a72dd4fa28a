"""Every exception that the package raises on purpose.

DPFewShotError
├── InvalidRecords            a file, a record or a text that cannot be used; for the operator alone
├── InvalidTask               a task that is not well formed, or a label that it does not have
├── InvalidPlan               settings that no plan can honour
├── BudgetExceeded            the privacy budget does not allow what was asked for
├── BackendError              the language model or its server failed; `.retryable`
│   └── BackendNotBatchInvariant   one prompt's answer depends on its neighbours
├── LedgerError               the durable budget cannot be read or written
│   └── RunTakenOver               another process resumed the run, and makes the rest of it
├── AccountingError           the accountant contradicts itself, and certifies nothing
├── InvalidReport             a file that a report is to be made of cannot be used
└── MissingExtra              an optional dependency is not installed

No message holds private text or anything computed from it: after loading, a record that misbehaves
contributes a zero vector and never an error (docs/decisions/redaction.md). Errors that leave the package
carry no private variable, message or chain (dpfewshot/runtime/redaction.py).
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

INSTALL: Final = "in a checkout of dpfewshot, run pip install '.[{extra}]'"
"""How to get an extra. No release was made: whatever an index has under the name is somebody else's."""


class DPFewShotError(Exception):
    """Root of the tree: catch it to catch everything that this package raises on purpose."""


class InvalidRecords(DPFewShotError, ValueError):
    """Records could not be loaded, or a text not be labelled. Names the line or position, never the text."""


class InvalidTask(DPFewShotError, ValueError):
    """A task is not well formed, or was asked for a label that it does not have."""


class InvalidPlan(DPFewShotError, ValueError):
    """Settings that no plan can honour. Speaks of public numbers only."""


class BudgetExceeded(DPFewShotError):
    """The privacy budget does not allow this. This call drew nothing for what it refuses.

    Attributes:
        asked: (ε, δ) that the refused plan needs; None where no account refused it.
        remaining: (ε, δ) that a plan over the same units may still cost; None likewise.
        remaining_by_scope: likewise for each scope that has spent, as the ledger names them; the key None is
            the whole data set.
    """

    asked: tuple[float, float] | None = None
    remaining: tuple[float, float] | None = None
    remaining_by_scope: Mapping[str | None, tuple[float, float]] | None = None

    def saying(self, message: str) -> BudgetExceeded:
        """Return the same refusal with another message."""
        other = BudgetExceeded(message)
        vars(other).update(vars(self))
        return other


class BackendError(DPFewShotError):
    """The language model or its server failed.

    Attributes:
        retryable: whether the same call may succeed later. Of the class too: a subclass need not call
            this initialiser.
    """

    retryable = False

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class BackendNotBatchInvariant(BackendError):
    """A prompt's answer depends on its neighbours, so one record could move every vector."""


class LedgerError(DPFewShotError):
    """The durable budget could not be read or written. Nothing is released without it."""


class RunTakenOver(LedgerError):
    """Another process resumed this run. Here it draws and releases nothing more."""


class AccountingError(DPFewShotError):
    """The accountant contradicts itself: a fault of the program. Nothing is certified, and nothing drawn."""


class InvalidReport(DPFewShotError, ValueError):
    """A file that a report is to be made of could not be used. Names the file and what is wrong with it."""


class MissingExtra(DPFewShotError, ImportError):
    """An optional dependency is not installed. Says what to install."""

    def __init__(self, what: str, extra: str = "", *, install: str = "") -> None:
        how = f"pip install {install}" if install else INSTALL.format(extra=extra)
        super().__init__(f"{what} needs an optional dependency: {how}")

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the message, which is not what the initialiser takes."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raise `MissingExtra`, which names what needs it, where an import of the block fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(what, extra) from error
