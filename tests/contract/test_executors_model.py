"""The packaged model on Ray: a cluster of its own, which keeps records in memory, and one that takes over."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from tests.support import fleet

pytestmark = [pytest.mark.model, pytest.mark.soak]


class KilledModel(dpf.backends.LlamaCpp):
    """Kills its process with -9 after the charge of its first draw, once for all workers."""

    def __init__(self, folder: str, **options: Any) -> None:
        self._folder: Path | None = None
        super().__init__(dpf.backends.packaged_model_path(), **options)
        self._folder = Path(folder)

    def open_block(self, *arguments: Any, public: bool = False, **named: Any) -> Any:
        if self._folder is not None and not public:
            fleet.die_once(self._folder)
        return super().open_block(*arguments, public=public, **named)


def test_two_ray_workers_with_the_packaged_model_survive_the_death_of_one(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    options: dict[str, Any] = {"context_tokens": 256, "threads": 1}
    synthesizer = dpf.Synthesizer(
        SUPPORT_TICKETS,
        support_tickets(),
        dpf.backends.LlamaCpp(dpf.backends.packaged_model_path(), **options),
        budget=dpf.PrivacyBudget(epsilon=4, delta=1e-5),
        labels=["Refund", "Delivery"],
        max_tokens=6,
        ledger=f"sqlite:///{tmp_path / 'budget.db'}",
        settings=dpf.Settings(prompts_per_draw=10, tokens_per_draw=3),
    )
    with synthesizer, dpf.RayExecutor() as executor:
        made = synthesizer.generate_all(
            executor=executor, worker_backend=partial(KilledModel, str(tmp_path), **options)
        )
    assert (tmp_path / "killed").exists()
    assert [one.label for one in made] == ["Refund", "Delivery"]
    assert sorted(one.token_count for one in made) in ([3, 6], [6, 6])
    with dpf.BudgetLedger.open(f"sqlite:///{tmp_path / 'budget.db'}") as ledger:
        account = ledger.account("tickets")
        assert account.verify().problems == ()
        assert [row["act"] for row in account.history()].count("resume") == 1
