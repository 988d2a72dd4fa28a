"""Interrupted runs: what is checkpointed and paid for (docs/proofs/resuming.md)."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.reservation import Reservation
from tests.support.resuming import Dying, Interrupted, draws_in, ledger, path, shared, synthesizer

FIXTURES = (ledger, path, shared)


# ---- what is kept ----------------------------------------------------------------------------------------


def test_a_finished_run_is_there_for_nothing(path: Path, ledger: dict[str, str]) -> None:
    first = synthesizer(**ledger, shots_per_label=2).generate_all(checkpoint=path)
    assert [one.label for one in first] == ["refund", "delivery"] * 2
    again = synthesizer(**ledger, shots_per_label=2)
    seen: list[dpf.Demonstration] = []
    assert again.generate_all(checkpoint=path, on_demonstration=seen.append) == first
    assert seen == []
    assert again.set_up.backend.draws == 0
    assert again.spent.epsilon <= 4.0
    assert dpf.Demonstrations.from_jsonl(path).items == first.items


@pytest.mark.parametrize("answers", [1, 3, 7])
def test_an_interrupted_demonstration_resumes_from_its_tokens(
    path: Path, ledger: dict[str, str], answers: int
) -> None:
    made = synthesizer(Dying(answers), **ledger)
    with pytest.raises(dpf.BackendError):
        made.generate_all(checkpoint=path)
    spent = made.spent
    later = synthesizer(**ledger)
    demonstrations = later.generate_all(checkpoint=path)
    assert [one.text for one in demonstrations] == ["my parcel is late"] * 2
    assert [one.label for one in demonstrations] == ["refund", "delivery"]
    assert later.set_up.backend.draws == 10 - answers
    assert draws_in(path) == {0: 5 + (answers < 5), 1: 5 + (answers > 5)}
    assert later.spent.epsilon == pytest.approx(spent.epsilon, abs=0.1)  # the labels' plans differ a hair
    assert all(one.spent is not None and one.spent.epsilon <= 4.0 for one in demonstrations)


def test_the_same_synthesizer_resumes_too(path: Path) -> None:
    backend = Dying(3)
    made = synthesizer(backend)
    with pytest.raises(dpf.BackendError):
        made.generate_all(checkpoint=path)
    backend.answers = None
    assert [one.text for one in made.generate_all(checkpoint=path)] == ["my parcel is late"] * 2
    assert made.generate_all(checkpoint=path) == made.generate_all(checkpoint=path)


def test_a_budget_in_memory_counts_what_the_checkpoint_says(path: Path) -> None:
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(7)).generate_all(checkpoint=path)
    shared = Account.in_memory(dpf.PrivacyBudget(4.0, 1e-5))
    later = synthesizer(ledger=shared)
    later.generate_all(checkpoint=path)
    assert 3.9 < shared.spent.epsilon <= 4.0
    poor = Account.in_memory(dpf.PrivacyBudget(2.0, 1e-5))
    with pytest.raises(dpf.BudgetExceeded):
        synthesizer(ledger=poor).generate_all(checkpoint=path)


def test_an_interrupted_draw_is_lost_and_its_tokens_are_not(path: Path) -> None:
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(2), tokens_per_draw=8).generate_all(checkpoint=path)
    demonstrations = synthesizer(tokens_per_draw=8).generate_all(checkpoint=path)
    assert [one.text for one in demonstrations] == ["my parcel", "my parcel is late"]
    assert draws_in(path) == {0: 1, 1: 1}


def test_a_draw_that_released_nothing_is_not_repeated(path: Path) -> None:
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(0), tokens_per_draw=8).generate_all(checkpoint=path)
    with pytest.raises(dpf.BudgetExceeded, match=r"1 of 'refund' cannot be made.*interrupted"):
        synthesizer(tokens_per_draw=8).generate_all(checkpoint=path)
    assert draws_in(path) == {0: 1, 1: 1}  # the other label has its own


def test_others_have_the_draws_that_were_planned_for_them(path: Path) -> None:
    """Without slack: no demonstration ends before its eighth token."""

    class Endless(Dying):
        def answer(self, prompt: list[int]) -> list[float]:
            del prompt
            return [0.999993, *[1e-6] * 7]

    for answers in (3, 2, 9):
        with pytest.raises(dpf.BackendError):
            synthesizer(Endless(answers), shots_per_label=3, labels=["refund"]).generate_all(checkpoint=path)
    done = synthesizer(Endless(), shots_per_label=3, labels=["refund"]).generate_all(checkpoint=path)
    assert [one.token_count for one in done] == [6, 8, 7]
    assert draws_in(path) == {0: 24}


def test_draws_of_others_are_counted(path: Path) -> None:
    made = synthesizer(shots_per_label=2)

    def interrupt(one: dpf.Demonstration) -> None:
        made.generate(one.label)
        raise Interrupted

    with pytest.raises(Interrupted):
        made.generate_all(checkpoint=path, on_demonstration=interrupt)
    assert draws_in(path) == {0: 10}
    with pytest.raises(dpf.BudgetExceeded, match=r"1 of 'refund' cannot be made.*other callers"):
        synthesizer(shots_per_label=2).generate_all(checkpoint=path)
    assert draws_in(path) == {0: 10, 1: 10}


def test_with_disjoint_parts_all_count_as_far_as_the_furthest(path: Path) -> None:
    options: dict[str, Any] = {
        "disjoint_parts": 4, "shots_per_label": 12, "prompts_per_draw": 25, "labels": ["refund"]
    }  # fmt: skip
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(23), **options).generate_all(checkpoint=path)
    later = synthesizer(**options)
    later.generate_all(checkpoint=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first, second, last = (place for place, line in enumerate(lines) if line.get("checkpoint") == "reserved")
    drawn = Counter(line["of"] for line in lines[first:second] if line.get("checkpoint") == "draw")
    assert lines[first]["blocks"] == [24] * 4
    assert len(set(drawn.values())) > 1
    assert lines[second]["blocks"] == [24 - max(drawn.values())] * 4
    assert lines[last]["blocks"] == [0] * 4  # a finished run keeps nothing for another


# ---- any course of interruptions -------------------------------------------------------------------------


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stops=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=6),
    tokens_per_draw=st.sampled_from([1, 3, 8]),
    shots=st.integers(1, 3),
)
def test_any_interruptions_draw_no_more_than_was_planned(
    stops: list[tuple[int, bool]],
    tokens_per_draw: int,
    shots: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Backends that die and processes that are cut short: draws ≤ blocks, spend = what the parts reserved."""
    folder = tmp_path_factory.mktemp("run")
    path = folder / "run.jsonl"
    account = {"ledger": f"sqlite:///{folder}/budget.db", "dataset": "d", "create": True}
    drawn: Counter[int] = Counter()

    def counted(self: Reservation, part: int = 0) -> object:
        permit = draw(self, part)
        drawn[self.entry] += 1
        return permit

    draw = Reservation.draw
    options = {"tokens_per_draw": tokens_per_draw, "shots_per_label": shots, **account}
    finished: list[dpf.Demonstration] = []
    with monkeypatch.context() as patch:
        patch.setattr(Reservation, "draw", counted)
        for answers, cut in [*stops, (None, False)]:
            made = synthesizer(Dying(answers, Interrupted() if cut else None), **options)
            with suppress(Interrupted, dpf.BackendError, dpf.BudgetExceeded):
                made.generate_all(checkpoint=path, on_demonstration=finished.append)
            plan, spent = made.plan, made.spent
            assert spent.epsilon <= 4.0
    assert len(drawn) <= 2
    assert all(number <= plan.steps for number in drawn.values())
    assert dpf.Demonstrations.from_jsonl(path).items == tuple(finished)  # each once, none made twice
    assert Counter(draws_in(path).values()) == Counter(drawn.values())
