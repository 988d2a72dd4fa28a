"""A secret in every prompt, models that fail with it, and a reporter that looks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import dpfewshot as dpf
from dpfewshot.backends.protocol import PromptBlock, ReplayedBlock
from dpfewshot.values import Record
from tests.support import factory
from tests.support.crash_reporter import collected
from tests.support.scripts import WORDS, Sentence

SECRET = "swordfish"
RECORDS = [Record(f"my secret is {SECRET}", label) for label in ("refund", "delivery") for _ in range(60)]
TOKENS = str([WORDS.index(" my"), WORDS.index(" secret"), WORDS.index(" is")])[1:-1]
"""How the record stands in every prompt."""
CANARIES = (SECRET, TOKENS, "-0.3141")


class OwnBlock(ReplayedBlock):
    """Lets every error of its backend out."""

    def next_token_logprobs(self, support: Any = None) -> Any:
        return self._backend.next_token_logprobs(self._prompts, support)


class Failing(Sentence):
    """Answers private prompts with a probability like no other, until it raises what a test wants.

    Args:
        failure: makes the error of the prompts at hand; what it returns is raised.
        answers: how many times private prompts are answered before.
    """

    def __init__(self, failure: Callable[[str], BaseException | None], answers: int = 2) -> None:
        super().__init__()
        self.failure = failure
        self.answers = answers

    def open_block(self, prefix: Any, suffixes: Any, tokens: int, *, public: bool = False) -> PromptBlock:
        """A block of its own, whose errors are not held against single prompts."""
        del tokens
        return OwnBlock(self, prefix, suffixes, public=public)

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        rows = super().next_token_logprobs(prompts, support)
        if support is None:
            return rows
        rows[:, 0] = -0.3141
        self.answers -= 1
        if self.answers < 0:
            quoted = f"cannot evaluate my secret is {SECRET}: {[*map(list, prompts)]} gave {rows.tolist()}"
            failure = self.failure(quoted)
            if failure is not None:
                raise failure
            return np.full((len(prompts), 1), np.nan, dtype=np.float32)  # of a wrong shape
        return rows


Quoting = partial(Failing, RuntimeError)


class OwnError(dpf.BackendError):
    """A backend's own kind of error, which carries what it failed on."""

    def __init__(self, quoted: str) -> None:
        super().__init__("the server is gone", retryable=True)
        self.prompts = quoted
        self.add_note(quoted)


class Killed(BaseException):
    """What ends a thread or a task, and no `except Exception` catches."""


PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
"""What a library in Rust raises, no `Exception` either."""
FAILURES: dict[str, tuple[Callable[[str], BaseException | None], type[BaseException]]] = {
    "the server is gone": (lambda _: dpf.BackendError("gone", retryable=True), dpf.BackendError),
    "an error of the backend's own": (OwnError, dpf.BackendError),
    "a message that quotes": (RuntimeError, dpf.BackendError),
    "a group": (lambda quoted: ExceptionGroup(quoted, [ValueError(quoted)]), dpf.BackendError),
    "a group of interrupts": (
        lambda quoted: BaseExceptionGroup(quoted, [KeyboardInterrupt(quoted)]),
        dpf.BackendError,
    ),
    "another shape": (lambda _: None, dpf.BackendError),
    "no memory": (MemoryError, dpf.BackendError),
    "an interrupt": (KeyboardInterrupt, KeyboardInterrupt),
    "an exit": (SystemExit, SystemExit),
    "an end": (Killed, Killed),
    "a panic": (PanicException, dpf.BackendError),
}
synthesizer = partial(factory.synthesizer, records=RECORDS, prompts_per_draw=30)


def raised_by(call: Callable[[], object]) -> BaseException:
    """What a call raises, as a service's outermost handler holds it."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - interrupts too
        return error
    raise AssertionError("nothing was raised")


def assert_says_nothing(error: BaseException, canaries: tuple[str, ...] = CANARIES) -> None:
    told = collected(error)
    assert not [canary for canary in canaries if canary in told]


DEMONSTRATION = factory.demonstration()
