"""Public-centred: a token beside its meaning, the noise's shares, and the clipping norm, which adapts."""

from __future__ import annotations

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
from dpfewshot.mechanisms import ClippingQuantile, Draws, PublicCentred, RowChange
from dpfewshot.mechanisms.gaussian import nearest_distribution, noise_scale
from dpfewshot.mechanisms.public_centred import LEAST_CLIP, MOST_CLIP
from tests.support import twins

GRID, COUNT_GRID = _core.grid, _core.count_grid
TINY = 1e-6
WIDTH = 6
INF = math.inf
one_round = functools.partial(PublicCentred, clip=0.5, refinements=(), contrast=0)
Matrix = NDArray[np.float32]
changes = pytest.mark.parametrize("row_change", RowChange, ids=lambda change: change.name.lower())


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
    st.sampled_from([None, ClippingQuantile(0.6, 0.5, 0.2)]),
)
@settings(max_examples=100, deadline=None)
def test_tokens_are_what_the_rule_says(  # noqa: PLR0917
    row_change, seed: int, sigma: float, clip: float, radii: list[float], adapt: ClippingQuantile | None
) -> None:
    """The same random bytes, the same tokens and clipping norms as the rule written down once more.

    Each further round is asked around the last noisy mean, with a projection by bisection.
    """
    generator = np.random.default_rng(seed)
    rows = generator.normal(0, 1, (int(generator.integers(0, 12)), WIDTH)).astype(np.float32)
    public = generator.normal(0, 1, WIDTH).astype(np.float32)
    if seed % 3 == 0:
        rows[:1], public[:] = np.nan, -np.inf
    mechanism, plan = (
        PublicCentred(clip=clip, refinements=tuple(radii), adapt=adapt, contrast=0),
        draws(row_change=row_change),
    )
    on_sum, on_count = mechanism.multipliers(sigma)
    source = random.Random(seed).randbytes
    release = mechanism.start(plan, sigma, random.Random(seed).randbytes)
    permit = Permit(3, sigma)
    for _ in range(3):
        around = centre = twins.sum_of_probabilities(public[np.newaxis])
        for radius in (clip, *radii):
            bound = row_change.rows * math.floor(Fraction(radius) * GRID)
            scale = noise_scale(on_sum, Fraction(bound, GRID) ** 2, GRID)
            total = plan.prompts * centre + twins.sum_around(rows, centre, radius)
            total = total + _core.rounded_normals(scale, WIDTH, source)
            centre = nearest_distribution(total, plan.prompts)
            assert np.abs(centre / GRID - projected(total / GRID / plan.prompts)).max() < 1e-6
        if adapt is not None:
            scale = noise_scale(on_count, row_change.rows**2, COUNT_GRID)
            noise = int(_core.rounded_normals(scale, 1, source)[0])
            signs = twins.balance_within(rows, around, clip) + noise / COUNT_GRID
            share = min(max(0.5 + signs / 2 / plan.prompts, 0), 1)
            clip = min(max(clip * math.exp(-0.5 * (share - 0.6)), LEAST_CLIP), MOST_CLIP)
        assert release.token(rows, public, permit) == int(np.argmax(total))
        assert release.clip == pytest.approx(clip, rel=1e-12)
        clip = release.clip


def projected(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest point of the simplex: take off what leaves a sum of 1."""
    low, high = mean.min() - 1, mean.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(mean - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(mean - high, 0)


def test_without_adapting_one_query_has_all_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_core, "noisy_balance_within")
    release = one_round(clip=0.3).start(draws(), 0.7)
    permit = Permit(5, 0.7)
    for _ in range(5):
        release.token(shifted(3, 0.1), PUBLIC, permit)
    assert release.clip == 0.3
    assert one_round().multipliers(0.7).on_sum == pytest.approx(0.7, rel=1e-14)


@changes
@pytest.mark.parametrize("clip", [LEAST_CLIP, 0.1, 0.5, math.nextafter(0.5, 1), 1.0, MOST_CLIP])
def test_the_noise_covers_the_integers(monkeypatch: pytest.MonkeyPatch, row_change, clip: float) -> None:
    """C or 2C as the integers have it, rounded up to a multiple of 8 and no further."""
    scales: list[int] = []
    monkeypatch.setattr(
        _core,
        "noisy_sum_around",
        lambda *arguments: scales.append(arguments[4]) or np.zeros(WIDTH, dtype=np.int64),
    )
    sigma = 0.7
    one_round(clip=clip).start(draws(row_change=row_change), sigma).token(
        shifted(1, 0.1), PUBLIC, Permit(1, sigma)
    )
    moved = 1 if row_change is RowChange.ADDED else 2
    on_sum = Fraction(one_round().multipliers(sigma).on_sum)
    wanted = on_sum**2 * (moved * math.floor(Fraction(clip) * GRID)) ** 2
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
    on_sum, _ = one_round().multipliers(1.0)
    assert 3 * Fraction(on_sum) ** -2 > 1


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
    assert token(one_round(), shifted(10, 0.15), TINY) == 1
    assert token(one_round(), shifted(6, 0.15), TINY) == 0
    assert token(one_round(), shifted(7, 0.15), TINY) == 1


@pytest.mark.parametrize("bad", [-INF, math.nan, INF])
def test_without_a_public_distribution_rows_are_clipped_around_nothing(bad: float) -> None:
    public = np.full(WIDTH, bad, dtype=np.float32)
    assert token(one_round(), shifted(10, 0.2), TINY, public=public) == 1
    release = one_round(clip=0.3).start(draws(), TINY)
    crowd = np.concatenate([shifted(4, 0.3), np.tile(logs(0, 0, 0, 0, 0, 1), (3, 1))])
    assert release.token(crowd, public, Permit(1, TINY)) == 1


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": 1.5}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"refinements": (0.3, 0.0)}, "clip"),
        ({"top_k": 0}, "top_k"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"adapt": ClippingQuantile(quantile=0)}, "quantile"),
        ({"adapt": ClippingQuantile(quantile=1)}, "quantile"),
        ({"adapt": ClippingQuantile(learning_rate=0)}, "learning_rate"),
        ({"adapt": ClippingQuantile(budget_share=0)}, "budget_share"),
        ({"adapt": ClippingQuantile(budget_share=1)}, "budget_share"),
    ],
)
def test_settings_outside_their_ranges_are_refused(setting, name: str) -> None:
    with pytest.raises(InvalidPlan, match=name):
        one_round(**{"top_k": None} | setting).check(WIDTH)
    one_round(top_k=WIDTH, adapt=ClippingQuantile()).check(WIDTH)


@changes
def test_noise_on_the_mean_is_in_proportion_to_the_norm(row_change: RowChange) -> None:
    moved = 1 if row_change is RowChange.ADDED else 2
    plan = draws(40, row_change)
    assert one_round(clip=0.5).noise_on_mean(plan, 0.8) == pytest.approx(0.01 * moved)
    adaptive = one_round(clip=0.5, adapt=ClippingQuantile(budget_share=0.19))
    assert adaptive.noise_on_mean(plan, 0.8) == pytest.approx(0.01 * moved / 0.9)


@given(st.integers(0, 4), st.floats(1e-3, 1e5), st.one_of(st.none(), st.floats(0.001, 0.999)))
@settings(max_examples=300)
def test_all_queries_of_a_token_together_have_the_planned_multiplier(
    rounds: int, sigma: float, share: float | None
) -> None:
    adapt = None if share is None else ClippingQuantile(budget_share=share)
    on_sum, on_count = PublicCentred(refinements=(0.3,) * rounds, adapt=adapt).multipliers(sigma)
    together = (rounds + 1) * Fraction(on_sum) ** -2 + (Fraction(on_count) ** -2 if adapt else 0)
    assert together <= Fraction(sigma) ** -2
    assert float(together * Fraction(sigma) ** 2) == pytest.approx(1, abs=1e-12)
    assert share is None or (sigma / on_count) ** 2 == pytest.approx(share)


# ---- the norm that adapts ----------------------------------------------------------------------------------


def norms_after(rows: Matrix, tokens: int, adapt: ClippingQuantile, sigma: float = TINY) -> list[float]:
    release = one_round(clip=0.4, adapt=adapt).start(draws(len(rows)), sigma)
    permit = Permit(tokens, sigma)
    found = []
    for _ in range(tokens):
        release.token(rows, PUBLIC, permit)
        found.append(release.clip)
    return found


def test_the_norm_is_updated_geometrically() -> None:
    within, beyond = shifted(10, 0.1), np.tile(logs(0, 0, 0, 0, 0, 1), (10, 1))
    adapt = ClippingQuantile(quantile=0.7, learning_rate=0.2)
    assert norms_after(within, 2, adapt) == pytest.approx(
        [0.4 * math.exp(-0.06), 0.4 * math.exp(-0.12)], rel=1e-4
    )
    assert norms_after(beyond, 2, adapt) == pytest.approx(
        [0.4 * math.exp(0.14), 0.4 * math.exp(0.28)], rel=1e-4
    )


def test_the_norm_finds_the_quantile_of_the_norms() -> None:
    """Norms 0.01·√2 to 0.40·√2: C settles at their median, or at their 0.8-quantile."""
    rows = np.concatenate([shifted(1, 0.01 * i) for i in range(1, 41)])
    for quantile, wanted in ((0.5, 0.2), (0.8, 0.32)):
        settled = norms_after(rows, 300, ClippingQuantile(quantile, 0.1))[-1]
        assert settled == pytest.approx(wanted * math.sqrt(2), abs=0.03)


def test_an_absent_row_counts_a_half() -> None:
    nobody = np.full((10, WIDTH), np.nan, dtype=np.float32)
    assert norms_after(nobody, 1, ClippingQuantile(0.7, 1.0))[0] == pytest.approx(
        0.4 * math.exp(0.2), rel=1e-4
    )
    some = np.concatenate([shifted(4, 0.1), nobody[:6]])
    assert norms_after(some, 1, ClippingQuantile(0.7, 1.0))[0] == pytest.approx(0.4, rel=1e-4)


def test_the_norm_stays_within_its_bounds_whatever_the_noise() -> None:
    adapt = ClippingQuantile(0.5, 10.0, 0.001)
    found = norms_after(shifted(10, 0.1), 200, adapt, sigma=100.0)
    assert all(LEAST_CLIP <= clip <= MOST_CLIP for clip in found)
    assert {LEAST_CLIP, MOST_CLIP} <= set(found)


def test_a_demonstration_starts_with_the_planned_norm() -> None:
    mechanism = one_round(clip=0.4, adapt=ClippingQuantile())
    first = mechanism.start(draws(), 0.7)
    first.token(shifted(5, 0.1), PUBLIC, Permit(1, 0.7))
    assert first.clip != 0.4
    assert mechanism.start(draws(), 0.7).clip == 0.4
