"""Public-centred: a token beside its meaning, and the noise's shares."""

import functools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws, PublicCentred, RowChange
from dpfewshot.mechanisms.gaussian import nearest_distribution, noise_scale
from dpfewshot.mechanisms.public_centred import LEAST_CLIP, MOST_CLIP
from tests.support import twins

GRID = _core.grid
TINY = 1e-6
WIDTH = 6
INF = math.inf
one_round = functools.partial(PublicCentred, clip=0.5, refinements=(), contrast=0)
Matrix = NDArray[np.float32]
changes = pytest.mark.parametrize("row_change", RowChange)


def draws(prompts: int = 10, row_change: RowChange = RowChange.ADDED, tokens_per_draw: int = 1) -> Draws:
    return Draws(0.1, 3, tokens_per_draw, prompts, row_change)


def logs(*probabilities: float) -> Matrix:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities)).astype(np.float32)


PUBLIC = logs(0.5, 0.3, 0.2, 0, 0, 0)


def shifted(count: int, by: float) -> Matrix:
    """Rows that take `by` from the first token and give it to the second: by·√2 from the public one."""
    return np.tile(logs(0.5 - by, 0.3 + by, 0.2, 0, 0, 0), (count, 1))


def token(mechanism: PublicCentred, rows: Matrix, sigma: float, source=None, public=PUBLIC) -> int | None:
    return mechanism.start(draws(), sigma, source).token(rows, public, Permit(1, sigma))


@changes
@given(
    st.integers(0, 2**32),
    st.sampled_from([TINY, 0.3, 2.0]),
    st.floats(0.05, 1.3),
    st.lists(st.floats(0.05, 1.3), max_size=3),
)
@settings(max_examples=100)
def test_tokens_are_what_the_rule_says(
    row_change, seed: int, sigma: float, clip: float, radii: list[float]
) -> None:
    """The same random bytes, the same tokens as the rule written down once more.

    Each further round is asked around the last noisy mean, with a projection by bisection.
    """
    generator = np.random.default_rng(seed)
    rows = generator.normal(0, 1, (int(generator.integers(0, 12)), WIDTH)).astype(np.float32)
    public = generator.normal(0, 1, WIDTH).astype(np.float32)
    if seed % 3 == 0:
        rows[:1], public[:] = np.nan, -np.inf
    mechanism = PublicCentred(clip=clip, refinements=tuple(radii), contrast=0)
    plan, round_multiplier = draws(row_change=row_change), mechanism.round_multiplier(sigma)
    source = random.Random(seed).randbytes
    release = mechanism.start(plan, sigma, random.Random(seed).randbytes)
    permit = Permit(3, sigma)
    for _ in range(3):
        centre = twins.sum_of_probabilities(public[np.newaxis])
        for radius in (clip, *radii):
            bound = row_change.rows * math.floor(Fraction(radius) * GRID)
            scale = noise_scale(round_multiplier, Fraction(bound, GRID) ** 2, GRID)
            total = plan.prompts * centre + twins.sum_around(rows, centre, radius)
            total = total + _core.rounded_normals(scale, WIDTH, source)
            centre = nearest_distribution(total, plan.prompts)
            assert np.abs(centre / GRID - projected(total / GRID / plan.prompts)).max() < 1e-6
        assert release.token(rows, public, permit) == int(np.argmax(total))


def projected(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest point of the simplex: take off what leaves a sum of 1."""
    low, high = mean.min() - 1, mean.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(mean - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(mean - high, 0)


@changes
@pytest.mark.parametrize("clip", [LEAST_CLIP, 0.1, 0.5, math.nextafter(0.5, 1), 1.0, MOST_CLIP])
def test_the_noise_covers_the_integers(monkeypatch: pytest.MonkeyPatch, row_change, clip: float) -> None:
    """C or 2C as the integers have it, rounded up to a multiple of 8 and no further."""
    scales: list[int] = []
    nothing, sigma = np.zeros(WIDTH, dtype=np.int64), 0.7
    monkeypatch.setattr(_core, "noisy_sum_around", lambda *given: scales.append(given[4]) or nothing)
    release = one_round(clip=clip).start(draws(row_change=row_change), sigma)
    release.token(shifted(1, 0.1), PUBLIC, Permit(1, sigma))
    on_sum = Fraction(one_round().round_multiplier(sigma))
    wanted = on_sum**2 * (row_change.rows * math.floor(Fraction(clip) * GRID)) ** 2
    assert on_sum >= Fraction(sigma)
    assert scales[0] ** 2 >= wanted > (scales[0] - 8) ** 2


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=50), st.integers(1, 100))
def test_a_centre_is_within_the_grid_whatever_the_noise(noisy: list[int], prompts: int) -> None:
    centre = nearest_distribution(np.array(noisy), prompts)
    assert centre.min() >= 0
    assert GRID * (1 - 1e-6) - len(noisy) <= centre.sum() <= GRID * (1 + 1e-6)
    assert centre.max() <= GRID


def test_control_a_round_that_nobody_pays_for_is_found() -> None:
    """The rounds' multipliers as if there were only one of them."""
    assert 3 * Fraction(one_round().round_multiplier(1.0)) ** -2 > 1


def test_a_radius_of_a_further_round_has_the_range_of_the_first() -> None:
    with pytest.raises(InvalidPlan, match="clip"):
        PublicCentred(refinements=(0.3, 0.0)).check(1000)


def test_refinements_leave_the_public_prompt_behind() -> None:
    """Prompts that agree on what the public one rules out: each round goes a step towards them."""
    crowd = np.tile(logs(0, 0, 0, 0, 0, 1), (10, 1))
    assert token(PublicCentred(clip=0.2, refinements=(), contrast=0), crowd, TINY) == 0
    assert token(PublicCentred(clip=0.2, refinements=(0.5, 0.5), contrast=0), crowd, TINY) == 5


def test_nobody_says_what_the_public_prompt_says() -> None:
    nobody = np.empty((0, WIDTH), dtype=np.float32)
    failed = np.full((4, WIDTH), np.nan, dtype=np.float32)
    assert {token(one_round(), rows, TINY) for rows in (nobody, failed)} == {0}


def test_a_clipped_crowd_moves_the_token_as_far_as_the_norm_allows() -> None:
    """0.5 against 0.3: ten rows of norm 0.1·√2 close the gap, of half that they leave it at a half."""
    rows = shifted(10, 0.2)
    assert token(one_round(clip=0.12 * math.sqrt(2)), rows, TINY) == 1
    assert token(one_round(clip=0.08 * math.sqrt(2)), rows, TINY) == 0
    assert token(one_round(clip=0.5), shifted(10, 0.08), TINY) == 0


def test_an_absent_prompt_counts_for_the_public_one() -> None:
    assert [token(one_round(), shifted(count, 0.15), TINY) for count in (10, 6, 7)] == [1, 0, 1]


@pytest.mark.parametrize("bad", [-INF, math.nan, INF])
def test_without_a_public_distribution_rows_are_clipped_around_nothing(bad: float) -> None:
    public = np.full(WIDTH, bad, dtype=np.float32)
    assert token(one_round(), shifted(10, 0.2), TINY, public=public) == 1
    release = one_round(clip=0.3).start(draws(), TINY)
    crowd = np.concatenate([shifted(4, 0.3), np.tile(logs(0, 0, 0, 0, 0, 1), (3, 1))])
    assert release.token(crowd, public, Permit(1, TINY)) == 1


@given(st.integers(0, 4), st.floats(1e-3, 1e5))
@settings(max_examples=300)
def test_all_rounds_of_a_token_together_have_the_planned_multiplier(refinements: int, sigma: float) -> None:
    round_multiplier = PublicCentred(refinements=(0.3,) * refinements).round_multiplier(sigma)
    together = (refinements + 1) * Fraction(round_multiplier) ** -2
    assert together <= Fraction(sigma) ** -2
    assert float(together * Fraction(sigma) ** 2) == pytest.approx(1, abs=1e-12)
