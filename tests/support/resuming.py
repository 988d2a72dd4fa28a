"""Runs that are interrupted and resume from a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from tests.support import factory
from tests.support.scripts import Sentence


class Interrupted(BaseException):
    """What a test throws into a run."""


class Dying(Sentence):
    """Is gone after so many answers to private prompts."""

    def __init__(self, answers: int | None = None, error: BaseException | None = None) -> None:
        super().__init__(sure=0.999999)
        self.answers = answers
        self.error = error or dpf.BackendError("the server is gone", retryable=True)
        self.draws = 0

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            if self.answers == 0:
                raise self.error
            self.answers = None if self.answers is None else self.answers - 1
            self.draws += 1
        return super().next_token_logprobs(prompts, support)


def synthesizer(backend: Any = None, **options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(backend or Dying(), **({"prompts_per_draw": 100} | options))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


@pytest.fixture
def ledger(tmp_path: Path) -> dict[str, Any]:
    return {"ledger": f"sqlite:///{tmp_path / 'budget.db'}", "dataset": "tickets", "create": True}


def draws_in(path: Path) -> Counter[int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return Counter(line["part"] for line in lines if line.get("checkpoint") == "draw")


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    from tests.conftest import new_ledger

    return {"ledger": new_ledger(request, tmp_path), "dataset": "tickets", "create": True}


def interrupted(path: Path, answers: int = 3, **options: Any) -> dpf.Synthesizer:
    made = synthesizer(Dying(answers), **options)
    with pytest.raises(dpf.BackendError):
        made.generate_all(checkpoint=path)
    return made
