"""`dpfewshot.search`: rounds that build on each other, each on units of its own."""

import random
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.records.units import each_a_unit
from dpfewshot.releases.choosing import parts_of
from dpfewshot.releases.selection import GRID, Outcomes, scores_of
from dpfewshot.values import PrivacySpend
from tests.releases.test_choosing import BUDGET, HELPFUL, MISLEADING, Follower, private_records
from tests.releases.test_scoring import TASK
from tests.support.factory import demonstration


def search(proposer: Any, backend: Any = None, **options: Any) -> dpf.Choice:
    return dpf.search(
        TASK,
        private_records(),
        Follower() if backend is None else backend,
        proposer=proposer,
        **({"budget": BUDGET, "rounds": 2} | options),
    )


class Improving:
    """Tries what misleads first, and what helps after that has won against nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[dpf.Candidate, ...]] = []

    def __call__(self, winners: Sequence[dpf.Candidate]) -> list[Any]:
        self.told.append(tuple(winners))
        return [dpf.Candidate(HELPFUL if winners else MISLEADING, calibrated=False)]


def test_what_a_round_chose_leads_to_what_the_next_one_tries() -> None:
    account, proposer = dpf.Account.in_memory(BUDGET), Improving()
    choice = search(proposer, account=account)
    assert [len(winners) for winners in proposer.told] == [0, 1]
    assert list(choice.demonstrations) == HELPFUL
    assert choice.index == 1
    assert choice.accuracy.low > 0.9 > choice.baseline.high
    assert choice.spent == account.spent == PrivacySpend(2.0, 0.0)  # of one choice, for both rounds
    assert choice.certified


def test_a_winner_stays_until_it_is_beaten() -> None:
    def worse(winners: Sequence[dpf.Candidate]) -> list[Any]:
        return [dpf.Candidate(MISLEADING if winners else HELPFUL, calibrated=False)]

    choice = search(worse, rounds=3, scored_units=2000)
    assert choice.index == 0
    assert list(choice.demonstrations) == HELPFUL


def test_one_unit_moves_the_scores_of_one_round_alone() -> None:
    """Neighbours: the record of one unit is replaced by one that the model has no answer for."""
    records = private_records(60)
    moved = set()
    for unit in range(60):
        neighbour = [*records[:unit], dpf.Record("nothing", "refund"), *records[unit + 1 :]]
        sums = []
        for each in (records, neighbour):
            parts = parts_of(each_a_unit(each), {}, Fraction(1), 3, random.Random(7).randbytes)
            sums.append(
                [scores_of(right(part.records), part.weights, part.sizes, likelihood=False) for part in parts]
            )
        differences = [before - after for before, after in zip(*sums, strict=True)]
        assert sorted(map(abs, differences)) in ([0, 0, 0], [0, 0, GRID])
        moved |= {part for part, difference in enumerate(differences) if difference}
    assert moved == {0, 1, 2}


def right(records: Sequence[dpf.Record | None]) -> Outcomes:
    """A model that answers all but "nothing"."""
    import numpy as np

    answers = [-1 if one is None or one.text == "nothing" else 1 for one in records]
    found = np.array(answers, dtype=np.int8).reshape(-1, 1)
    return Outcomes(found, (found == 1).astype(np.float64))


def test_a_proposer_that_fails_after_the_first_round_loses_nothing() -> None:
    def failing(winners: Sequence[dpf.Candidate]) -> list[Any]:
        if winners:
            raise ConnectionResetError("the hosted model is gone")
        return [HELPFUL]

    with pytest.warns(UserWarning, match="failed with ConnectionResetError"):
        choice = search(failing)
    assert list(choice.demonstrations) == HELPFUL


@pytest.mark.parametrize(
    ("proposed", "says"),
    [
        ("money", "a candidate is a sequence of demonstrations"),
        ([demonstration("money", "parcel")], "no such label"),
    ],
)
def test_a_candidate_that_cannot_be_used_is_left_out(proposed: Any, says: str) -> None:
    with pytest.warns(UserWarning, match=says):
        choice = search(lambda winners: [proposed, HELPFUL] if winners else [[]])
    assert list(choice.demonstrations) == HELPFUL


class Unsayable(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_what_a_proposer_does_wrong_never_loses_what_is_paid() -> None:
    def faulty() -> Any:
        yield HELPFUL[0]
        raise ValueError

    def proposer(winners: Sequence[dpf.Candidate]) -> list[Any]:
        if len(winners) == 2:
            raise Unsayable
        return [faulty(), *[MISLEADING] * 1024] if winners else [HELPFUL]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choice = search(proposer, rounds=3, scored_units=10)
    assert [str(one.message) for one in caught][1:] == [  # after that of few units
        "the proposer named 1025 candidates: the first 1024 are tried",
        "a proposed candidate is left out: ValueError",
        "the proposer failed with Unsayable: its round keeps the winner",
    ]
    assert choice.certified
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert search(proposer, rounds=3, scored_units=10).certified


def test_a_proposer_that_fails_at_once_costs_nothing() -> None:
    account = dpf.Account.in_memory(BUDGET)

    def failing(_: Sequence[dpf.Candidate]) -> list[Any]:
        raise ConnectionResetError("the hosted model is gone")

    with pytest.raises(dpf.InvalidPlan, match="proposer failed with ConnectionResetError; nothing is spent"):
        search(failing, account=account)
    assert account.spent == PrivacySpend(0.0, 0.0)


@pytest.mark.parametrize(
    ("proposer", "rounds", "says"),
    [
        ([HELPFUL], 2, "rounds=2 needs a proposer"),
        (lambda _: [], 2, "0 candidates"),
        (lambda _: [HELPFUL], 0, "rounds"),
        (lambda _: [HELPFUL], 101, "rounds must be at most 100"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_spent(proposer: Any, rounds: int, says: str) -> None:
    account = dpf.Account.in_memory(BUDGET)
    with pytest.raises(dpf.InvalidPlan, match=says):
        search(proposer, rounds=rounds, account=account)
    assert account.spent == PrivacySpend(0.0, 0.0)


class DyingWith(Follower):
    """Dies once it is asked with a demonstration in the prompt."""

    def answer(self, prompt: list[int]) -> list[float]:
        if 3 in prompt[: max(i for i, token in enumerate(prompt) if token in (6, 8))]:
            raise dpf.BackendError("the server is gone")
        return super().answer(prompt)


@pytest.mark.parametrize(("fails_in", "spent"), [(1, 0.0), (2, 2.0)])
def test_a_model_that_fails_later_leaves_the_charge(fails_in: int, spent: float) -> None:
    account = dpf.Account.in_memory(BUDGET)

    def proposer(winners: Sequence[dpf.Candidate]) -> list[Any]:
        shown = MISLEADING if len(winners) == fails_in - 1 else []
        return [dpf.Candidate(shown, calibrated=False)]

    with pytest.raises(dpf.BackendError, match="gone"):
        search(proposer, DyingWith(), account=account)
    assert account.spent == PrivacySpend(spent, 0.0)


# ---- variations ------------------------------------------------------------------------------------------

POOL = [demonstration(f"{word} {number}", word) for word in ("refund", "delivery") for number in (1, 2, 3)]


def test_variations_begin_with_none_and_with_a_text_a_label() -> None:
    first = dpf.Variations(POOL)([])
    assert [[one.text for one in each.demonstrations] for each in first] == [
        *([], ["refund 1", "delivery 1"], ["delivery 1", "refund 1"]),
        *(["refund 1", "delivery 1"], ["refund 2", "delivery 2"], ["refund 3", "delivery 3"]),
    ]
    assert [each.calibrated for each in first] == [True, True, True, False, True, True]
    assert [each.name for each in dpf.Variations([])([])] == ["no demonstrations"]


def test_variations_change_one_thing_of_the_winner() -> None:
    winner = dpf.Variations(POOL)([])[4]
    further = dpf.Variations(POOL)([winner])
    texts = [[one.text for one in each.demonstrations] for each in further]
    assert texts == [
        *(["delivery 2", "refund 2"], ["refund 2", "delivery 2"], ["refund 1", "delivery 2"]),
        *(["refund 3", "delivery 2"], ["delivery 2"], ["refund 2", "delivery 1"]),
        *(["refund 2", "delivery 3"], ["refund 2"]),
    ]
    names = [each.name for each in further]
    assert len(set(names)) == len(names)
    assert [each.name for each in dpf.Variations(POOL, most=4)([winner])] == names[::2]
    with pytest.raises(dpf.InvalidPlan, match="most"):
        dpf.Variations(POOL, most=0)
