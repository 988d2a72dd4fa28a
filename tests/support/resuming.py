"""Models and ledgers that fail at the worst moments of a run, and runs that resume from the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from tests.support import factory
from tests.support.scripts import Hooked

GONE = dpf.BackendError("the server is gone", retryable=True)


def fails_at(*numbers: int) -> Hooked:
    def hook(number: int) -> None:
        if number in numbers:
            raise GONE

    return Hooked(hook)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., dpf.Synthesizer]:
    def made(backend: Any = None, **options: Any) -> dpf.Synthesizer:
        settings: dict[str, Any] = {
            "prompts_per_draw": 100,
            "labels": ["refund"],
            "ledger": f"sqlite:///{tmp_path}/budget.db?timeout=0.2",
        }
        return factory.synthesizer(backend or Hooked(), **(settings | options))

    return made


def fails_once(patch: pytest.MonkeyPatch, act: str, *, after: bool, times: int = 1) -> None:
    """The first such act of an account, or the first ones, is refused, or made, and its answer is lost."""
    inner, begun = getattr(Account, act), list[str]()

    def outer(self: Account, *arguments: Any, **named: Any) -> Any:
        begun.append(act)
        if len(begun) <= times and not after:
            raise dpf.LedgerError("locked")
        answer = inner(self, *arguments, **named)
        if len(begun) <= times:
            raise dpf.LedgerError("the connection was lost at COMMIT")
        return answer

    patch.setattr(Account, act, outer)


class Interrupted(BaseException):
    """What a test throws into a run."""


class Dying(Hooked):
    """Is gone after so many answers to private prompts."""

    def __init__(self, answers: int | None = None, error: BaseException | None = None) -> None:
        super().__init__(self._draw)
        self.answers = answers
        self.error = error or GONE
        self.draws = 0

    def _draw(self, _number: int) -> None:
        if self.draws == self.answers:
            raise self.error
        self.draws += 1


def synthesizer(backend: Any = None, **options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(backend or Dying(), **({"prompts_per_draw": 100} | options))


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'budget.db'}"


def interrupted(answers: int | Dying, *, resume: bool = False, **options: Any) -> dpf.Synthesizer:
    """A run whose backend died, as it is in memory, with what it charged ahead."""
    made = synthesizer(answers if isinstance(answers, Dying) else Dying(answers), **options)
    with pytest.raises(dpf.BackendError):
        made.generate_all(resume=resume)
    return made


def account(url: str) -> dpf.Account:
    found = dpf.open_account(url, "tickets")
    assert found.verify().problems == ()
    return found


def acts(where: str | Path) -> list[object]:
    """Of the ledger of a URL, or of a folder."""
    url = where if isinstance(where, str) else f"sqlite:///{where}/budget.db"
    return [row["act"] for row in account(url).history()]


def draws_left(url: str) -> list[int]:
    """Of each entry that was not cancelled."""
    entries: Any = account(url).export()["entries"]
    return [entry["draws_left"] for entry in entries if entry["state"] != "cancelled"]
