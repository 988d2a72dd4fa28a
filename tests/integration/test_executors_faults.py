"""`generate_all(executor=...)` when a run is stopped, when workers die, and when an answer is lost."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.generation.draw_task import make_draw
from dpfewshot.generation.workers import Workers
from tests.support import factory, fleet
from tests.support.resuming import draws_in
from tests.support.scripts import Sentence

TOKENS, PLANNED = 5, 8
OPTIONS: dict[str, Any] = {"prompts_per_draw": 20, "labels": ["refund"]}


def synthesizer(**options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(fleet.sure(), **(OPTIONS | options))


def endless(**options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(Sentence([" my"], sure=0.999999), **(OPTIONS | options))


# ---- a run is stopped ------------------------------------------------------------------------------------


class LastOfTwo(ThreadPoolExecutor):
    """Begins the draws of two labels together, and returns the second label's once the run is stopped."""

    def __init__(self) -> None:
        super().__init__(2)
        self.both = threading.Barrier(2, timeout=20)
        self.stopped = threading.Event()

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        def later(task: Any) -> Any:
            self.both.wait()
            drawn = fn(task)
            if task.label == "delivery":
                self.stopped.wait(20)
            return drawn

        return super().submit(later, *arguments)


def test_what_a_worker_released_is_kept_when_the_run_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = tmp_path / "run.jsonl", {"labels": ["refund", "delivery"], "tokens_per_draw": PLANNED}
    cancel = Workers.cancel

    class Interrupted(Exception):
        pass

    def interrupt(_: dpf.Demonstration) -> None:
        raise Interrupted

    with LastOfTwo() as pool, synthesizer(**options) as made:

        def cancelled(workers: Workers) -> None:
            cancel(workers)
            pool.stopped.set()

        monkeypatch.setattr(Workers, "cancel", cancelled)
        with pytest.raises(Interrupted):
            made.generate_all(executor=pool, checkpoint=path, on_demonstration=interrupt)
    with synthesizer(**options) as made:
        assert {one.text for one in made.generate_all(checkpoint=path)} == {"my parcel is late"}


# ---- workers die -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shots", "parts"), [(2, 1), (4, 2), (3, 3)])
def test_a_death_shortens_its_own_demonstration_alone(tmp_path: Path, shots: int, parts: int) -> None:
    with endless(shots_per_label=shots, disjoint_parts=parts) as made:
        released = made.generate_all(executor=fleet.Mortal({2: True}), checkpoint=tmp_path / "run.jsonl")
    assert [one.token_count for one in released] == [PLANNED - 1, *[PLANNED] * (shots - 1)]


def test_a_demonstration_without_a_token_goes_on_in_another_part(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    made = endless(shots_per_label=2, disjoint_parts=2, tokens_per_draw=PLANNED)
    with made, pytest.raises(dpf.BudgetExceeded, match="1 of 'refund' cannot be made"):
        made.generate_all(executor=fleet.Mortal({0: True}), checkpoint=path)
    assert [one.token_count for one in dpf.Demonstrations.from_jsonl(path)] == [PLANNED]


def test_a_label_whose_draws_died_leaves_the_other_labels_running(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    made = endless(labels=["refund", "delivery"], tokens_per_draw=PLANNED)
    with made, pytest.raises(dpf.BudgetExceeded, match=r"1 of '\w+' cannot be made"):
        made.generate_all(executor=fleet.Mortal({0: True}), checkpoint=path)
    assert len(dpf.Demonstrations.from_jsonl(path)) == 1


# ---- without a ledger nobody else counts -----------------------------------------------------------------


class Loses(ThreadPoolExecutor):
    """Loses every answer, as wrappers of executors do that give each task a deadline.

    Args:
        runs: whether the task is run before.
    """

    def __init__(self, *, runs: bool = True) -> None:
        super().__init__(1)
        self.runs = runs
        self.tasks: list[Any] = []
        self.charged = 0

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        def loses(task: Any) -> None:
            self.tasks.append(task)
            if self.runs:
                self.charged += fn(task).charged
            raise TimeoutError

        return super().submit(loses, *arguments)


def test_draws_whose_answers_are_lost_count_as_made_without_a_ledger(tmp_path: Path) -> None:
    path, pool = tmp_path / "run.jsonl", Loses()
    for _ in range(PLANNED):
        with synthesizer() as made, pytest.raises(dpf.BackendError, match="TimeoutError"):
            made.generate_all(executor=pool, checkpoint=path)
    with synthesizer() as made, pytest.raises(dpf.BudgetExceeded):
        made.generate_all(executor=pool, checkpoint=path)
    assert pool.charged == PLANNED


def test_a_draw_that_was_taken_back_cannot_be_charged_later(tmp_path: Path) -> None:
    path, pool = tmp_path / "run.jsonl", Loses(runs=False)
    with synthesizer() as made:
        with pytest.raises(dpf.BackendError, match="TimeoutError"):
            made.generate_all(executor=pool, checkpoint=path)
        late = make_draw(pool.tasks[0])
    assert isinstance(late.error, dpf.LedgerError)
    assert (late.charged, late.tokens) == (False, ())


def test_a_task_that_is_run_twice_is_charged_once_without_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with fleet.Twice(1) as pool, synthesizer() as made, pytest.raises(dpf.LedgerError, match="charged"):
        made.generate_all(executor=pool, checkpoint=path)
    lines = [json.loads(line).get("checkpoint") for line in path.read_text().splitlines()]
    assert (lines.count("draw"), lines.count("not drawn")) == (1, 0)


class Times(ThreadPoolExecutor):
    """Returns the seconds with each answer, as wrappers do that measure their tasks."""

    charged = 0

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        def timed(task: Any) -> Any:
            drawn = fn(task)
            self.charged += drawn.charged
            return drawn, 0.1

        return super().submit(timed, *arguments)


def test_a_draw_whose_answer_is_wrapped_counts_as_made(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Times(1) as pool:
        for _ in range(2):
            with synthesizer() as made, pytest.raises(dpf.BackendError, match="of type tuple"):
                made.generate_all(executor=pool, checkpoint=path)
        assert pool.charged == 2
    with synthesizer() as made:
        made.generate_all(checkpoint=path)
    assert draws_in(path)[0] == pool.charged + TOKENS


# ---- the model fails -------------------------------------------------------------------------------------


class Unreachable(Sentence):
    """A server of which the tokenizer is part, and which may be down."""

    down = False

    def tokenize(self, text: str) -> list[int]:
        if self.down:
            raise dpf.BackendError("the server is down", retryable=True)
        return super().tokenize(text)


@pytest.mark.parametrize("has_executor", [False, True])
def test_a_tokenizer_that_is_down_costs_no_draw(tmp_path: Path, has_executor: bool) -> None:
    backend = Unreachable([" my"], sure=0.999999)
    with ThreadPoolExecutor(1) as pool, factory.synthesizer(backend, **OPTIONS, shots_per_label=2) as made:
        run: dict[str, Any] = {"checkpoint": tmp_path / "run.jsonl"}
        run |= {"executor": pool} if has_executor else {}

        def goes_down(_: dpf.Demonstration) -> None:
            backend.down = True

        for _ in range(2):
            with pytest.raises(dpf.BackendError, match="down"):
                made.generate_all(on_demonstration=goes_down, **run)
        backend.down = False
        assert [one.token_count for one in made.generate_all(**run)] == [PLANNED, PLANNED]


class FindsItselfVariant(Sentence):
    """Finds at its first public answer that it mixes batches, as a client of a server may."""

    private_answers = 0

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        self.batch_invariant = False
        self.private_answers += support is not None
        return super().next_token_logprobs(prompts, support)


@pytest.mark.parametrize("has_executor", [False, True])
def test_a_backend_that_finds_itself_variant_at_a_public_answer_draws_nothing(has_executor: bool) -> None:
    backend = FindsItselfVariant(sure=0.999999)
    with ThreadPoolExecutor(1) as pool, factory.synthesizer(backend, **OPTIONS) as made:
        with pytest.raises(dpf.BackendNotBatchInvariant):
            made.generate_all(executor=pool if has_executor else None)
        assert made.spent.epsilon == 0
    assert backend.private_answers == 0
