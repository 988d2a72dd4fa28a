"""Releases of labels: votes, refusals, and what is charged before anything is drawn."""

import random
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.account.account import Reserved
from dpfewshot.account.amounts import Amount
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.history import Details
from dpfewshot.account.permit import Permit
from dpfewshot.releases.labels import _NoisyMax, _StabilityHistogram, smallest_threshold, votes_of
from dpfewshot.values import PrivacySpend, Record

SECRET = "swordfish"
BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)


def records_of(votes: Mapping[str, int]) -> list[Record]:
    return [Record(f"{SECRET} {i}", label) for label, count in votes.items() for i in range(count)]


MANY = records_of({"drama": 300, "comedy": 200, "western": 100, SECRET: 1})


class Watched(dpf.Account):
    """Remembers what it was asked for."""

    def __init__(self, *, fails: bool = False, relation: str = "zero-out", unit: str | None = None) -> None:
        super().__init__(dpf.Account.in_memory(BUDGET)._store)  # noqa: SLF001 - of its own class
        self.bind(frozenset({relation}), unit)
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []

    def reserve(
        self, scope: str | None, cost: Any, details: Details, draws: DrawCounts | None = None
    ) -> Reserved:
        self.calls.append(("reserve", scope, Amount.of_cost(cost).as_spend(), dict(details)))
        return super().reserve(scope, cost, details, draws)

    def draw(self, entry: int, lease: str, progress: str = "") -> None:
        self.calls.append(("charge",))
        if self.fails:
            raise dpf.LedgerError("the disk is gone")
        super().draw(entry, lease, progress)

    def cancel(self, entry: int) -> None:
        self.calls.append(("cancel",))
        super().cancel(entry)


# ---- votes --------------------------------------------------------------------------------------------


def test_the_labels_of_most_votes_come_out() -> None:
    release = dpf.release_labels(MANY, count=2, epsilon=2.0, delta=1e-6)
    assert release == dpf.LabelRelease(("drama", "comedy"), PrivacySpend(2.0, 1e-6), "add-remove", None, True)
    public = ["western", "musical", "drama"]
    release = dpf.release_labels(MANY, count=2, epsilon=2.0, candidates=public)
    assert release == dpf.LabelRelease(("drama", "western"), PrivacySpend(2.0, 0.0), "add-remove", None, True)
    rows = [{"text": "a", "label": label} for label in "abc"]  # there may be fewer, but not of candidates
    assert dpf.release_labels(iter(rows), count=2, epsilon=1.0, delta=1e-18).labels == ()
    assert len(dpf.release_labels(MANY, count=9, epsilon=8.0, delta=1e-18).labels) == 3
    others = dpf.release_labels(rows, count=3, epsilon=1.0, candidates=["p", "q", "r"])
    assert sorted(others.labels) == [*"pqr"]


@pytest.mark.parametrize("options", [{"delta": 0.4}, {"candidates": ["b", "a", "c", "d"]}])
def test_the_order_of_records_does_not_matter(options: dict[str, Any]) -> None:
    records = records_of({"a": 3, "b": 2, "c": 4, "d": 3})
    releases = set()
    for seed in range(5):
        random.Random(seed).shuffle(records)
        source = random.Random(7).randbytes
        releases.add(dpf.release_labels(records, count=3, epsilon=0.7, random_source=source, **options))
    assert len(releases) == 1


# What a release shows, its order too, is a function of what its noised steps gave, and of no true vote.

LABELS = "abcdef"
counts = st.lists(st.integers(1, 9), min_size=len(LABELS), max_size=len(LABELS))


def released_for(
    votes: Mapping[str, int], noisy: Mapping[str, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What a histogram releases of these votes where the noise makes these numbers of them."""
    labels = iter(sorted(votes))  # noise is drawn in this order

    def noise(*_: object) -> int:
        label = next(labels)
        return noisy[label] - votes[label]

    monkeypatch.setattr("dpfewshot.releases.labels.discrete_laplace", noise)
    return _StabilityHistogram(count, 1.0, 0.05).choose(votes, Permit(1, 1.0), None)


@given(true=counts, others=counts, noisy=counts, count=st.integers(1, len(LABELS)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_true_votes_move_nothing_that_their_noisy_numbers_do_not(
    monkeypatch: pytest.MonkeyPatch, true: list[int], others: list[int], noisy: list[int], count: int
) -> None:
    numbers = dict(zip(LABELS, noisy, strict=True))
    first, second = (
        released_for(dict(zip(LABELS, votes, strict=True)), numbers, count, monkeypatch)
        for votes in (true, others)
    )
    assert first == second
    assert first == sorted(first, key=lambda label: (-numbers[label], label))
    assert min((numbers[label] for label in first), default=9) >= 4  # the threshold of (1, 0.05)


@given(true=counts, others=counts, winners=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_with_candidates_the_labels_are_the_rounds_winners_in_their_order(
    monkeypatch: pytest.MonkeyPatch, true: list[int], others: list[int], winners: st.DataObject
) -> None:
    drawn = [winners.draw(st.integers(0, len(LABELS) - 1 - turn)) for turn in range(4)]
    left = list(LABELS)
    expected = [left.pop(winner) for winner in drawn]
    for votes in (true, others):
        rounds = iter(drawn)
        monkeypatch.setattr(
            "dpfewshot.releases.labels._core.permute_and_flip", lambda *_, rounds=rounds: next(rounds)
        )
        mechanism = _NoisyMax(tuple(LABELS), len(drawn), 1.0)
        permit = Permit(len(drawn), 1.0 * len(drawn))
        assert mechanism.choose(dict(zip(LABELS, votes, strict=True)), permit, None) == expected


# ---- the threshold ------------------------------------------------------------------------------------


@given(st.floats(1e-3, 30), st.floats(1e-18, 0.45))
def test_the_threshold_is_the_least_one_that_will_do(epsilon: float, delta: float) -> None:
    threshold = smallest_threshold(Fraction(epsilon), Fraction(delta))
    with mpmath.workdps(60):
        p = mpmath.exp(-mpmath.mpf(epsilon))
        assert p ** (threshold - 1) / (1 + p) <= delta
        before = p ** (threshold - 2) / (1 + p) if threshold > 2 else 1 - p / (1 + p)
        assert before > delta


@pytest.mark.parametrize(
    ("epsilon", "delta", "threshold"),
    [(0.5, 1e-6, 28), (1.0, 0.05, 4), (1e300, 1e-6, 2), (1.0, 0.999, 2), (1.0, 5e-324, 746)],
)
def test_thresholds(epsilon: float, delta: float, threshold: int) -> None:
    assert smallest_threshold(Fraction(epsilon), Fraction(delta)) == threshold


# ---- paying -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "cost", "name"),
    [
        ({"delta": 1e-6}, PrivacySpend(0.5, 1e-6), "label-histogram"),
        ({"candidates": ["drama", "comedy"]}, PrivacySpend(0.5, 0.0), "label-noisy-max"),
    ],
)
def test_the_account_is_charged_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], cost: PrivacySpend, name: str
) -> None:
    account = Watched()
    for mechanism in (_NoisyMax, _StabilityHistogram):
        monkeypatch.setattr(mechanism, "choose", lambda *_: account.calls.append(("draw",)) or [])
    release = dpf.release_labels(MANY, count=2, epsilon=0.5, account=account, **options)
    details = {"mechanism": name, "count": 2, "epsilon": 0.5}
    assert account.calls == [("reserve", None, cost, details), ("charge",), ("draw",)]
    assert release.relation == "zero-out"
    assert account.spent == cost


def test_a_charge_that_fails_is_given_back_and_nothing_is_drawn() -> None:
    account = Watched(fails=True)
    with pytest.raises(dpf.LedgerError, match="the disk is gone"):
        dpf.release_labels(MANY, count=2, epsilon=0.5, delta=1e-6, account=account)
    assert [call[0] for call in account.calls] == ["reserve", "charge", "cancel"]
    with pytest.raises(dpf.BudgetExceeded):
        dpf.release_labels(MANY, count=2, epsilon=4.5, delta=1e-6, account=account)
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_what_was_drawn_stays_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> list[str]:
        raise MemoryError

    monkeypatch.setattr(_StabilityHistogram, "choose", failing)
    account = dpf.Account.in_memory(BUDGET)
    with pytest.raises(MemoryError):
        dpf.release_labels(MANY, count=2, epsilon=0.5, delta=1e-6, account=account)
    assert account.spent == PrivacySpend(0.5, 1e-6)


def test_an_account_for_other_units_or_another_relation_is_refused_before_anything_is_charged() -> None:
    """Two counts would move where one unit becomes another: the proofs are for one."""
    of_ann = [Record("1", "x", "ann")]
    cases: list[tuple[dict[str, Any], list[Record]]] = [
        ({}, of_ann),
        ({"unit": "customer"}, MANY),
        ({"relation": "replace-one"}, MANY),
    ]
    for bound, records in cases:
        account = Watched(**bound)
        with pytest.raises(dpf.LedgerError, match=r"account holds for|replace-one"):
            dpf.release_labels(records, count=1, epsilon=0.5, delta=1e-6, account=account)
        assert account.calls == []
    account = Watched(unit="", relation="add-remove")
    release = dpf.release_labels(of_ann, count=1, epsilon=0.5, delta=1e-6, account=account)
    assert release.relation == "add-remove"
    for relation in ("zero-out", "add-remove"):  # an account that nobody bound serves either
        shared = dpf.Account.in_memory(BUDGET)
        dpf.release_labels(MANY, count=1, epsilon=1.0, delta=1e-6, account=shared)
        shared.bind(frozenset({relation}), None)


def test_an_injected_source_has_no_guarantee_and_no_account() -> None:
    seeded = {"count": 1, "epsilon": 2.0, "delta": 1e-6, "random_source": random.Random(1).randbytes}
    release = dpf.release_labels(MANY, **seeded)
    assert not release.certified
    assert release.spent is None
    cost = {"epsilon": None, "delta": None, "relation": "add-remove", "unit": None, "certified": False}
    assert release.as_dict() == {"labels": ["drama"], **cost}
    account = Watched()
    with pytest.raises(dpf.InvalidPlan, match="certified=False"):
        dpf.release_labels(MANY, account=account, **seeded)
    assert account.calls == []


@pytest.mark.parametrize(
    "mechanism", [_NoisyMax(("drama", "comedy"), 2, 1.0), _StabilityHistogram(2, 1.0, 1e-6)]
)
def test_nothing_is_drawn_without_leave(mechanism: _NoisyMax | _StabilityHistogram) -> None:
    scale = mechanism.rounds / 1.0
    for permit in (Permit(mechanism.rounds, 0.5 * scale), Permit(mechanism.rounds - 1, scale)):
        with pytest.raises(dpf.BudgetExceeded):
            mechanism.choose({"drama": 3}, permit, None)


# ---- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"count": 0}, "count"),
        ({"count": True}, "count"),
        ({"count": 1.5}, "count"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"delta": 0.0}, "delta of at least 1e-18"),
        ({"delta": 9e-19}, "delta of at least 1e-18"),  # the threshold would be that of a larger one
        ({"delta": -1e-9}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": float("nan")}, "delta"),
        ({"epsilon": "1"}, "epsilon must be a number"),
        ({"candidates": "drama"}, "not one string"),
        ({"candidates": []}, "0 candidates"),
        ({"candidates": ["a"]}, "1 candidates"),
        ({"candidates": ["a", "b", "a"]}, "distinct"),
        ({"candidates": ["a", " "]}, "blank"),
        ({"candidates": ["a", 7]}, "strings"),
        ({"candidates": [str(i) for i in range(2**18 + 1)]}, "at most"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_spent(options: dict[str, Any], says: str) -> None:
    account = Watched()
    arguments: dict[str, Any] = {"count": 2, "epsilon": 1.0, "delta": 1e-6, "account": account}
    with pytest.raises(dpf.InvalidPlan, match=says):
        dpf.release_labels(MANY, **(arguments | options))
    assert account.calls == []


def test_errors_and_reprs_tell_nothing_of_records() -> None:
    broken = [{"text": SECRET, "label": SECRET}, {"text": SECRET}]
    for records, options in (
        (broken, {}),
        (MANY, {"account": Watched(unit="unit")}),
        (MANY, {"account": Watched(fails=True)}),
        (MANY, {"epsilon": 400.0, "account": Watched()}),
    ):
        arguments: dict[str, Any] = {"count": 2, "epsilon": 1.0, "delta": 1e-6}
        with pytest.raises(dpf.DPFewShotError) as caught:
            dpf.release_labels(records, **(arguments | options))
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(dpf.release_labels(MANY, count=4, epsilon=1.0, delta=1e-12))


# ---- Labels: one unit moves one vote, and what the threshold then costs, in exact probabilities ----------


WIDEST_NOISE = 150

rows = st.lists(
    st.tuples(st.sampled_from([None, "ann", "bob", "cleo", "dan"]), st.sampled_from("xyz")),
    min_size=1,
    max_size=25,
)


def units_of(pairs: Sequence[tuple[str | None, str]]) -> list[Record]:
    return [Record(f"text {i}", label, unit) for i, (unit, label) in enumerate(pairs)]


def without_unit_of(records: Sequence[Record], position: int) -> list[Record]:
    """The neighbour: the unit that this record belongs to is removed; zeroed out, it has no label either."""
    gone = records[position]
    return [r for r in records if r is not gone and (gone.unit is None or r.unit != gone.unit)]


def difference(one: Mapping[str, int], other: Mapping[str, int]) -> list[int]:
    """Of the vote vectors, without the labels where they agree."""
    gaps = [one.get(label, 0) - other.get(label, 0) for label in one.keys() | other.keys()]
    return [gap for gap in gaps if gap]


@given(rows, st.integers(0, 24))
def test_a_unit_moves_one_vote_of_one_label(pairs: list[tuple[str | None, str]], position: int) -> None:
    records = units_of(pairs)
    neighbour = without_unit_of(records, position % len(records))
    assert difference(votes_of(records), votes_of(neighbour)) == [1]


def test_control_votes_of_records_break_the_bound() -> None:
    records = units_of([("ann", "x"), ("ann", "x"), ("ann", "y"), ("bob", "x")])
    neighbour = without_unit_of(records, 0)
    assert difference(votes_of(records), votes_of(neighbour)) == [1]
    by_record = [Counter(record.label for record in one) for one in (records, neighbour)]
    assert sorted(difference(*by_record)) == [1, 2]


# ---- the stability histogram's output in exact probabilities ------------------------------------------

Law = dict[tuple[str, ...], float]


def law(votes: Mapping[str, int], epsilon: float, threshold: int) -> Law:
    """P(output) for two labels at most, released in the order of their noisy votes."""
    noise = np.arange(-WIDEST_NOISE, WIDEST_NOISE + 1)
    pmf = np.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(noise))
    weights = np.outer(pmf, pmf)
    x, y = (votes[label] + noise if label in votes else np.full(len(noise), threshold - 1) for label in "xy")
    kept_x, kept_y = (x >= threshold)[:, np.newaxis], (y >= threshold)[np.newaxis]
    x_first = x[:, np.newaxis] >= y[np.newaxis]
    events = {
        (): ~kept_x & ~kept_y,
        ("x",): kept_x & ~kept_y,
        ("y",): ~kept_x & kept_y,
        ("x", "y"): kept_x & kept_y & x_first,
        ("y", "x"): kept_x & kept_y & ~x_first,
    }
    return {output: float(weights[event].sum()) for output, event in events.items()}


def divergence(one: Law, other: Law, epsilon: float) -> float:
    """The least δ of (ε, δ) in both directions."""
    pairs = [(one[output], other[output]) for output in one]
    return max(
        sum(max(0.0, p - np.exp(epsilon) * q) for p, q in pairs),
        sum(max(0.0, q - np.exp(epsilon) * p) for p, q in pairs),
    )


numbers_of_votes = st.dictionaries(st.sampled_from("xy"), st.integers(1, 12))


@given(
    numbers_of_votes,
    st.sampled_from("xy"),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([0.3, 0.05, 1e-3]),
)
def test_the_histogram_is_epsilon_delta(
    votes: dict[str, int], label: str, epsilon: float, delta: float
) -> None:
    threshold = smallest_threshold(Fraction(epsilon), Fraction(delta))
    neighbour = votes | {label: votes.get(label, 0) + 1}
    laws = law(votes, epsilon, threshold), law(neighbour, epsilon, threshold)
    assert divergence(*laws, epsilon) <= delta + 1e-12


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.05), (1.0, 1e-3), (2.0, 0.05)])
def test_control_a_threshold_one_lower_is_not(epsilon: float, delta: float) -> None:
    threshold = smallest_threshold(Fraction(epsilon), Fraction(delta)) - 1
    laws = law({"y": 5}, epsilon, threshold), law({"x": 1, "y": 5}, epsilon, threshold)
    assert divergence(*laws, epsilon) > 1.001 * delta
