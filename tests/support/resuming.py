"""Runs that are interrupted and resume from the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from tests.support import factory
from tests.support.scripts import Hooked


class Interrupted(BaseException):
    """What a test throws into a run."""


class Dying(Hooked):
    """Is gone after so many answers to private prompts."""

    def __init__(self, answers: int | None = None, error: BaseException | None = None) -> None:
        super().__init__(self._draw)
        self.answers = answers
        self.error = error or dpf.BackendError("the server is gone", retryable=True)
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


def acts(url: str) -> list[object]:
    return [row["act"] for row in account(url).history()]


def draws_left(url: str) -> list[int]:
    """Of each entry that was not cancelled."""
    entries: Any = account(url).export()["entries"]
    return [entry["draws_left"] for entry in entries if entry["state"] != "cancelled"]
