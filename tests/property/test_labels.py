"""Labels: one unit moves one vote, and what the threshold then costs, in exact probabilities."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.releases.labels import smallest_threshold, votes_of
from dpfewshot.values import Record

WIDEST_NOISE = 150

rows = st.lists(
    st.tuples(st.sampled_from([None, "ann", "bob", "cleo", "dan"]), st.sampled_from("xyz")),
    min_size=1,
    max_size=25,
)


def records_of(pairs: Sequence[tuple[str | None, str]]) -> list[Record]:
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
    records = records_of(pairs)
    neighbour = without_unit_of(records, position % len(records))
    assert difference(votes_of(records), votes_of(neighbour)) == [1]


def test_control_votes_of_records_break_the_bound() -> None:
    records = records_of([("ann", "x"), ("ann", "x"), ("ann", "y"), ("bob", "x")])
    neighbour = without_unit_of(records, 0)
    assert difference(votes_of(records), votes_of(neighbour)) == [1]
    by_record = [Counter(record.label for record in one) for one in (records, neighbour)]
    assert sorted(difference(*by_record)) == [1, 2]


# ---- the stability histogram's output in exact probabilities ---------------------------------------------

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
    assert (
        divergence(law(votes, epsilon, threshold), law(neighbour, epsilon, threshold), epsilon)
        <= delta + 1e-12
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.05), (1.0, 1e-3), (2.0, 0.05)])
def test_control_a_threshold_one_lower_is_not(epsilon: float, delta: float) -> None:
    threshold = smallest_threshold(Fraction(epsilon), Fraction(delta)) - 1
    laws = law({"y": 5}, epsilon, threshold), law({"x": 1, "y": 5}, epsilon, threshold)
    assert divergence(*laws, epsilon) > 1.001 * delta
