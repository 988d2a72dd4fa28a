"""`generate_all(executor=...)`: what a death, a copy or a failure costs, and that it costs no more."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import traceback
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dpfewshot.generation.draw_task import make_draw

import dpfewshot as dpf
from tests.support import factory, fleet, inside
from tests.support.resuming import draws_in
from tests.support.scripts import Sentence

TOKENS, PLANNED = 5, 8
OPTIONS: dict[str, Any] = {"prompts_per_draw": 100, "labels": ["refund", "delivery"]}


@pytest.fixture
def account(tmp_path: Path) -> dict[str, Any]:
    return {"ledger": f"sqlite:///{tmp_path / 'budget.db'}"}


def synthesizer(**options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(fleet.sure(), **(OPTIONS | options))


def draws_left(account: dict[str, Any]) -> list[int]:
    """The draws that each entry has left, as the ledger counts them."""
    with dpf.BudgetLedger.open(account["ledger"]) as ledger:
        stored = ledger.account(account["dataset"])
        assert stored.verify().problems == ()
        rows = stored.export()["entries"]
        return sorted(sum(json.loads(row["blocks"])) for row in rows)  # type: ignore[attr-defined]


# ---- a worker dies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("draws", "cost"), [(False, 0), (True, 1)])
def test_a_death_costs_the_draw_that_was_charged_and_nothing_more(
    account: dict[str, Any], tmp_path: Path, draws: bool, cost: int
) -> None:
    path = tmp_path / "run.jsonl"
    made = synthesizer(**account, labels=["refund"]).generate_all(
        executor=fleet.Mortal({2: draws}), checkpoint=path
    )
    assert [one.token_count for one in made] == [TOKENS]
    assert draws_left(account) == [PLANNED - TOKENS - cost]


def test_the_worker_that_was_taken_for_dead_draws_no_more(account: dict[str, Any]) -> None:
    executor = fleet.Mortal({2: False})
    synthesizer(**account, labels=["refund"]).generate_all(executor=executor)
    zombie = make_draw(executor.tasks[2])
    assert isinstance(zombie.error, dpf.LedgerError)
    assert (zombie.charged, zombie.tokens) == (False, ())


def test_workers_that_keep_dying_end_the_run_and_a_later_one_resumes_it(
    account: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(dpf.BackendError, match="3 workers died in a row") as raised:
        synthesizer(**account).generate_all(
            executor=fleet.Mortal(dict.fromkeys(range(2, 20), False)), checkpoint=path
        )
    assert raised.value.retryable
    made = synthesizer(**account).generate_all(checkpoint=path)
    assert [one.label for one in made] == OPTIONS["labels"]
    assert draws_left(account) == [PLANNED - TOKENS] * 2


def test_a_demonstration_whose_draws_died_is_shorter_and_leaves_the_others_theirs(
    account: dict[str, Any],
) -> None:
    endless = Sentence([" my"], sure=0.999999)
    made = factory.synthesizer(
        endless, **(OPTIONS | {"labels": ["refund"], "shots_per_label": 2, **account})
    ).generate_all(executor=fleet.Mortal({3: True, 5: True}))
    assert [one.token_count for one in made] == [PLANNED - 2, PLANNED]
    assert draws_left(account) == [0]


def test_with_disjoint_parts_a_death_costs_one_draw_of_its_part(account: dict[str, Any]) -> None:
    options: dict[str, Any] = {"labels": ["refund"], "disjoint_parts": 2, "prompts_per_draw": 50}
    with synthesizer(**account, **options, shots_per_label=2) as made:
        made.generate_all(executor=fleet.Mortal({2: True}))
        assert inside.draws_left(made) == [(2, 3)]


def test_a_broken_pool_of_processes_is_a_retryable_error_and_the_checkpoint_resumes(
    account: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    with fleet.processes(1) as pool, pytest.raises(dpf.BackendError, match="new pool") as raised:
        synthesizer(**account, labels=["refund"]).generate_all(
            executor=pool, worker_backend=fleet.killed(tmp_path), checkpoint=path
        )
    assert raised.value.retryable
    made = synthesizer(**account, labels=["refund"]).generate_all(checkpoint=path)
    assert [one.token_count for one in made] == [TOKENS]
    assert draws_left(account) == [PLANNED - TOKENS - 1]


# ---- copies of a task ------------------------------------------------------------------------------------


def test_a_task_that_is_run_twice_is_charged_twice_and_never_beyond_the_plan(
    account: dict[str, Any],
) -> None:
    with fleet.Twice(1) as pool, pytest.raises(dpf.BudgetExceeded):
        synthesizer(**account, labels=["refund"]).generate_all(executor=pool)
    assert draws_left(account) == [0]


def test_a_worker_refuses_a_plan_that_states_less_than_it_costs(account: dict[str, Any]) -> None:
    executor = fleet.Mortal({})
    synthesizer(**account, labels=["refund"]).generate_all(executor=executor)
    task = executor.tasks[0]
    [stratum] = task.plan.strata
    for lie in (
        replace(stratum, noise_multiplier=stratum.noise_multiplier / 2),
        replace(stratum, cost=replace_cost(stratum.cost)),
    ):
        drawn = make_draw(replace(task, plan=replace(task.plan, strata=(lie,))))
        assert isinstance(drawn.error, dpf.InvalidPlan)
        assert not drawn.asked


def replace_cost(cost: Any) -> Any:
    return type(cost)(cost.epsilon // 2, cost.delta)


def test_a_worker_refuses_another_model(threads: Executor) -> None:
    made = synthesizer()
    with pytest.raises(dpf.InvalidPlan, match="same model"):
        made.generate_all(executor=threads, worker_backend=fleet.OtherModel)
    assert made.spent.epsilon == 0


def test_a_worker_refuses_a_backend_that_mixes_batches(threads: Executor, account: dict[str, Any]) -> None:
    made = synthesizer(**account)
    with made, pytest.raises(dpf.BackendNotBatchInvariant):
        made.generate_all(executor=threads, worker_backend=fleet.Mixing)
    assert draws_left(account) == [PLANNED] * 2
    assert made.spent.epsilon == 0


# ---- what cannot be sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("has_ledger", "worker_backend", "error", "words"),
    [
        (False, fleet.sure, dpf.LedgerError, "open_account"),
        (True, None, dpf.InvalidPlan, "worker_backend="),
        (True, lambda: Sentence(sure=0.9), dpf.BackendError, "can import"),
    ],
    ids=["memory", "no backend", "closure"],
)
def test_what_processes_cannot_have_is_one_clear_error_and_costs_nothing(
    account: dict[str, Any], has_ledger: bool, worker_backend: Any, error: Any, words: str
) -> None:
    made = synthesizer(**(account if has_ledger else {}))
    with fleet.processes(1) as pool, pytest.raises(error, match=words):
        made.generate_all(executor=pool, worker_backend=worker_backend)
    made.close()
    assert made.spent.epsilon == 0


def test_an_executor_that_was_shut_down_costs_nothing(account: dict[str, Any], tmp_path: Path) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    path = tmp_path / "run.jsonl"
    with synthesizer(**account) as made, pytest.raises(dpf.BackendError, match="shut down"):
        made.generate_all(executor=pool, checkpoint=path)
    assert made.spent.epsilon == 0
    assert all(left == 1 for left in draws_in(path).values())  # lines of draws, each taken back


def test_an_executor_that_drops_tasks_during_a_run_ends_it_with_one_error() -> None:
    pool = ThreadPoolExecutor(1)

    def draw() -> Sentence:
        pool.shutdown(wait=False, cancel_futures=True)
        return fleet.sure()

    with synthesizer() as made, pytest.raises(dpf.BackendError, match="shut down"):
        made.generate_all(executor=pool, worker_backend=draw)


def test_worker_backend_without_executor_is_refused() -> None:
    with pytest.raises(dpf.InvalidPlan, match="executor="):
        synthesizer().generate_all(worker_backend=fleet.sure)


def test_an_account_of_a_ledger_pickles_as_its_address(account: dict[str, Any]) -> None:
    with dpf.BudgetLedger.open(account["ledger"]) as ledger:
        stored = ledger.create("tickets", dpf.PrivacyBudget(1.0, 1e-6))
        copy = pickle.loads(pickle.dumps(stored))  # noqa: S301 - our own
        assert (copy.dataset, copy.budget, copy.chain_tip) == (
            stored.dataset,
            stored.budget,
            stored.chain_tip,
        )


# ---- errors, cancellation and closing --------------------------------------------------------------------


def test_an_error_of_a_worker_is_that_of_a_local_run_and_holds_nothing_private(threads: Executor) -> None:
    raised = []
    for options in ({}, {"executor": threads}):
        with pytest.raises(dpf.BackendError) as caught:
            factory.synthesizer(fleet.Failing(), **OPTIONS).generate_all(**options)
        raised.append(caught.value)
        shown = "".join(
            traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()
        )
        assert fleet.SECRET not in shown
    assert str(raised[0]) == str(raised[1])


def test_one_failure_stops_the_others(threads: Executor, tmp_path: Path) -> None:
    class Stubborn(Exception):
        pass

    def fails(one: dpf.Demonstration) -> None:
        raise Stubborn(one.label)

    made = synthesizer(shots_per_label=20)
    with pytest.raises(Stubborn):
        made.generate_all(executor=threads, worker_backend=fleet.slow(tmp_path, 0.01), on_demonstration=fails)
    assert fleet.notes(tmp_path / "begun") == fleet.notes(tmp_path / "ended") < 2 * 2 * TOKENS + 2


def test_a_cancelled_run_ends_with_its_draws_and_leaves_nothing_running(
    threads: Executor, tmp_path: Path
) -> None:
    made = synthesizer(shots_per_label=20)

    async def cancelled() -> None:
        running = asyncio.create_task(
            made.agenerate_all(executor=threads, worker_backend=fleet.slow(tmp_path))
        )
        while not fleet.notes(tmp_path / "begun"):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert fleet.notes(tmp_path / "begun") == fleet.notes(tmp_path / "ended") <= 2
    made.close()
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        made.generate_all(executor=threads)


def test_closing_ends_a_run(threads: Executor) -> None:
    made = synthesizer(shots_per_label=200)
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        made.generate_all(executor=threads, on_demonstration=lambda _: made.close())


# ---- checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", ["alone", "executor"])
def test_a_run_that_leaves_several_demonstrations_unfinished_resumes(
    account: dict[str, Any], tmp_path: Path, threads: Executor, later: str
) -> None:
    path = tmp_path / "run.jsonl"
    first = synthesizer(**account)
    both = threading.Barrier(2, timeout=20)

    class Stops(Sentence):
        """Answers twice for each of two workers, and then fails for both."""

        answers = 0

        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if support is not None:
                self.answers += 1
                if self.answers == 3:
                    both.wait()
                    raise dpf.BackendError("the server is gone", retryable=True)
            return super().next_token_logprobs(prompts, support)

    with pytest.raises(dpf.BackendError, match="gone"):
        first.generate_all(executor=threads, worker_backend=lambda: Stops(sure=0.999999), checkpoint=path)
    drawn = draws_in(path)  # either worker may have made a draw: only their number is known
    assert set(drawn) == {0, 1}
    assert sum(drawn.values()) == 6
    options = {"executor": threads} if later == "executor" else {}
    done = synthesizer(**account).generate_all(checkpoint=path, **options)  # type: ignore[arg-type]
    assert sorted(one.label for one in done) == sorted(OPTIONS["labels"])
    assert {one.text for one in done} == {"my parcel is late"}
    assert draws_left(account) == [PLANNED - TOKENS - 1] * 2
