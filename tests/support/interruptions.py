"""Models and ledgers that fail at the worst moments of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from tests.support import factory, resuming
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

    def outer(self: Account, *arguments: Any) -> Any:
        begun.append(act)
        if len(begun) <= times and not after:
            raise dpf.LedgerError("locked")
        answer = inner(self, *arguments)
        if len(begun) <= times:
            raise dpf.LedgerError("the connection was lost at COMMIT")
        return answer

    patch.setattr(Account, act, outer)


def acts(folder: Path) -> list[object]:
    return resuming.acts(f"sqlite:///{folder}/budget.db")
