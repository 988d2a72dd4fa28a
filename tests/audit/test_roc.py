import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfewshot.audit.membership import average_area, largest_area, roc_area

scores = st.lists(st.integers(-3, 3).map(float) | st.just(-math.inf), min_size=1, max_size=12)


@given(scores, scores)
def test_the_area_is_the_share_of_won_pairs_and_half_of_the_ties(members, non_members) -> None:
    pairs = [(m > n) + 0.5 * (m == n) for m in members for n in non_members]
    assert roc_area(members, non_members) == pytest.approx(sum(pairs) / len(pairs))
    assert roc_area(non_members, members) == pytest.approx(1 - sum(pairs) / len(pairs))


def test_known_areas() -> None:
    assert roc_area([2.0, 3.0], [0.0, 1.0]) == 1
    assert roc_area([0.0], [1.0, 2.0]) == 0
    assert roc_area([1.0, 1.0], [1.0]) == 0.5
    assert roc_area([1.0, 3.0], [2.0, 3.0]) == 3 / 8


@pytest.mark.parametrize(("members", "non_members"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0])])
def test_what_has_no_area_is_refused(members, non_members) -> None:
    with pytest.raises(ValueError, match=r"member|number"):
        roc_area(members, non_members)


def areas_of(
    draws: np.random.Generator, shift: float, trials: int, per_trial: tuple[int, int]
) -> list[float]:
    """Each trial's share of won pairs, of normal scores."""
    members = draws.normal(size=(trials, per_trial[0], 1)) + shift
    non_members = draws.normal(size=(trials, 1, per_trial[1]))
    return (members > non_members).mean(axis=(1, 2)).tolist()


def covered(area: float, trials: int, per_trial: tuple[int, int], repetitions: int = 400) -> float:
    """How often the interval holds the area."""
    draws, shift = np.random.default_rng(trials), stats.norm.ppf(area) * math.sqrt(2)
    found = [average_area(areas_of(draws, shift, trials, per_trial)) for _ in range(repetitions)]
    return sum(low <= area <= high for _, low, high in found) / repetitions


@pytest.mark.parametrize("area", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(("trials", "per_trial"), [(10, (8, 8)), (40, (1, 5))])
def test_the_interval_covers_the_area(area: float, trials: int, per_trial: tuple[int, int]) -> None:
    """95 % is meant; 400 repetitions tell it from 89 % and less with a chance of 1e-6."""
    assert covered(area, trials, per_trial) > 0.89


def test_control_pairs_that_are_taken_for_independent_do_not_cover() -> None:
    """With few trials of many pairs: an interval over pairs is far too short."""
    draws = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        areas = areas_of(draws, 0.0, 5, (1, 50))  # one member decides fifty pairs
        _, low, high = average_area(np.repeat(areas, 50).tolist())
        hits += low <= 0.5 <= high
    assert hits / 200 < 0.5


def test_trials_that_agree_have_an_exact_interval() -> None:
    value, low, high = average_area([1.0] * 20)
    assert (value, high) == (1, 1)
    assert low == pytest.approx(0.025 ** (1 / 20))
    assert average_area([0.0] * 20) == (0, 0, pytest.approx(1 - low))
    _, low, high = average_area([0.5] * 20)
    assert low < 0.3
    assert high > 0.7


def test_one_trial_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two"):
        average_area([0.7])


def chances_of_naming_the_first(epsilon: float) -> dict[frozenset[str], float]:
    """A release that names one of two candidates, by data set: ε-differentially private, see below."""
    largest = 1 - math.exp(-epsilon) / 2
    return {frozenset(): 0.5, frozenset("ab"): 0.5, frozenset("a"): largest, frozenset("b"): 1 - largest}


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_the_largest_area_is_reached_by_a_private_release_and_never_passed(epsilon: float) -> None:
    chances = chances_of_naming_the_first(epsilon)
    for one, chance in chances.items():
        for other, other_chance in chances.items():
            if len(one ^ other) == 1:
                bound = math.exp(epsilon) * (1 + 1e-12)
                assert chance <= bound * other_chance
                assert 1 - chance <= bound * (1 - other_chance)
    area = chances[frozenset("a")]  # the member scores higher if it is named
    assert area == pytest.approx(largest_area(epsilon, 0.0))


def test_the_largest_area_with_delta() -> None:
    assert largest_area(0.0, 0.1) == pytest.approx(0.6)
    assert largest_area(50.0, 1e-5) == pytest.approx(1)
