"""After `close` nothing is generated, in any way."""

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from tests.support import factory, inside
from tests.support.processes import in_child
from tests.support.scripts import Sentence

WAYS: dict[str, Callable[[dpf.Synthesizer], object]] = {
    "generate": lambda made: made.generate("refund"),
    "generate_all": lambda made: made.generate_all(),
    "agenerate": lambda made: asyncio.run(made.agenerate("refund")),
    "agenerate_all": lambda made: asyncio.run(made.agenerate_all()),
}
synthesizer = partial(factory.synthesizer, shots_per_label=2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("options", [{}, {"budget": dpf.NO_PRIVACY}, {"random_source": os.urandom}])
def test_a_closed_synthesizer_refuses(way: str, drawn: bool, options: dict[str, Any]) -> None:
    backend = Sentence()
    made = synthesizer(backend, **options)
    if drawn:
        made.generate("refund")
    made.close()
    asked, spent = backend.prompts, made.spent
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        WAYS[way](made)
    assert (backend.prompts, made.spent) == (asked, spent)
    made.close()


def test_a_run_that_released_everything_is_refused_too(tmp_path: Path) -> None:
    made = synthesizer(ledger=f"sqlite:///{tmp_path}/budget.db")
    made.generate_all()
    made.close()
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        made.generate_all(resume=True)


def test_a_with_block_closes_it() -> None:
    with synthesizer() as made:
        made.generate("refund")
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        made.generate("refund")


def test_who_waits_for_a_turn_is_refused_when_it_comes() -> None:
    made = synthesizer()
    refused: list[Exception] = []

    def ask() -> None:
        try:
            made.generate("refund")
        except dpf.BudgetExceeded as error:
            refused.append(error)

    with inside.turn(made, "refund"):
        waiting = threading.Thread(target=ask)
        waiting.start()
        made.close()
    waiting.join()
    assert "closed" in str(refused)
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_is_closed_with_its_parent_before_the_fork_and_alone_after_it(tmp_path: Path) -> None:
    durable = {"ledger": f"sqlite:///{tmp_path}/budget.db"}
    made = synthesizer(**durable, budget=dpf.PrivacyBudget(1.0, 1e-6))
    assert "closed" in in_child(lambda: (made.close(), made.generate("refund")))
    assert made.generate("refund").certified
    made.close()
    assert "closed" in in_child(lambda: made.generate("delivery"))
