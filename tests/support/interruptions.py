"""Models and ledgers that fail at the worst moments of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from tests.support import factory, resuming
from tests.support.scripts import Sentence

GONE = dpf.BackendError("the server is gone", retryable=True)


class Failing(Sentence):
    """Calls a hook with the number of each private prompt, which may raise."""

    def __init__(self, hook: Callable[[int], object] = lambda _number: None) -> None:
        super().__init__(sure=0.999999)
        self.hook = hook
        self.asked = 0

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            self.asked += 1
            self.hook(self.asked)
        return super().next_token_logprobs(prompts, support)


def fails_at(*numbers: int) -> Failing:
    def hook(number: int) -> None:
        if number in numbers:
            raise GONE

    return Failing(hook)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., dpf.Synthesizer]:
    def made(backend: Any = None, **options: Any) -> dpf.Synthesizer:
        settings: dict[str, Any] = {
            "prompts_per_draw": 100,
            "labels": ["refund"],
            "ledger": f"sqlite:///{tmp_path}/budget.db?timeout=0.2",
        }
        return factory.synthesizer(backend or Failing(), **(settings | options))

    return made


def acts(folder: Path) -> list[object]:
    """What happened to the account of `make`."""
    return resuming.acts(f"sqlite:///{folder}/budget.db")
