"""Softmax choice: the chance that it finds a leader, beside Gaussian noise at equal (ε, δ)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import PoissonBoundedRange, PoissonProduct, Tightest, ZeroConcentrated, calibrate
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws, Gaussian, Mechanism, ReportNoisyMax, RowChange, SoftmaxChoice
from dpfewshot.mechanisms.choice import contrast_shift
from dpfewshot.mechanisms.softmax_choice import base_measure, bearable_contrast, choice_rate

CANDIDATES = 100
OTHERS = CANDIDATES - 1
FRESH = Draws(0.05, 40, 1, 20, RowChange.ADDED)
EVERYBODY = Draws(1.0, 40, 1, 20, RowChange.ADDED)


def calibrated(mechanism: Mechanism, draws: Draws, target: float) -> float:
    return calibrate(lambda sigma: mechanism.event(draws, sigma), epsilon=target, delta=1e-5)


def chance_of_gaussian(deviation: float, lead: float) -> float:
    """P(the leader's noisy sum is the largest), the others being equal."""
    return float(
        quad(lambda z: norm.pdf(z) * norm.cdf(z + lead / deviation) ** OTHERS, -12, 12, limit=200)[0]
    )


def chance_of_choice(sigma: float, lead: float) -> float:
    return 1 / (1 + OTHERS * math.exp(-2 / sigma * lead))


def both_chances(draws: Draws, target: float, lead: float) -> tuple[float, float]:
    sigmas = [calibrated(mechanism, draws, target) for mechanism in (SoftmaxChoice(), Gaussian())]
    return chance_of_choice(sigmas[0], lead), chance_of_gaussian(sigmas[1], lead)


def test_it_finds_a_leader_by_two_votes_where_units_are_rarely_drawn() -> None:
    choice, gaussian = both_chances(FRESH, 4.0, lead=2)
    assert choice == pytest.approx(0.792, abs=0.002)
    assert gaussian == pytest.approx(0.488, abs=0.002)


def test_it_finds_fewer_where_every_unit_is_drawn_and_the_lead_is_small() -> None:
    choice, gaussian = both_chances(EVERYBODY, 4.0, lead=10)
    assert choice < 0.85 * gaussian


def test_the_release_has_that_chance() -> None:
    """Two rows are certain of the leader, and 99 others, as probable in public, have no vote."""
    mechanism = SoftmaxChoice(contrast=0)
    sigma = calibrated(mechanism, FRESH, 4.0)
    rows = np.full((2, CANDIDATES), -np.inf, dtype=np.float32)
    rows[:, 7] = 0.0
    release, permit = mechanism.start(FRESH, sigma), Permit(20_000, sigma)
    public = np.log(np.full(CANDIDATES, 1 / CANDIDATES, dtype=np.float32))
    found = sum(release.token(rows, public, permit) == 7 for _ in range(20_000)) / 20_000
    deviation = math.sqrt(0.25 / 20_000)
    assert abs(found - chance_of_choice(sigma, 2)) < 7 * deviation
    assert abs(found - chance_of_choice(1.1 * sigma, 2)) > 7 * deviation


@pytest.mark.parametrize("candidates", [5, 30, 100])
def test_noise_on_the_mean_is_that_of_gaussian_noise_with_the_same_chance(candidates: int) -> None:
    sigma, others = 0.8, candidates - 1
    lead = math.log(others) * sigma / 2
    deviation = 20 * SoftmaxChoice(candidates).noise_on_mean(FRESH, sigma)
    found = quad(lambda z: norm.pdf(z) * norm.cdf(z + lead / deviation) ** others, -12, 12, limit=200)[0]
    assert found == pytest.approx(0.5, abs=0.03)


def test_noise_on_the_mean_doubles_where_rows_are_replaced_and_grows_to_100_candidates() -> None:
    replaced = Draws(0.05, 40, 1, 20, RowChange.REPLACED)
    once = SoftmaxChoice().noise_on_mean(FRESH, 0.8)
    assert SoftmaxChoice().noise_on_mean(replaced, 0.8) == 2 * once
    assert SoftmaxChoice(1).noise_on_mean(FRESH, 0.8) < once
    for candidates in (None, 100, 5000):
        assert SoftmaxChoice(candidates).noise_on_mean(FRESH, 0.8) == once


@pytest.mark.parametrize(
    ("draws", "lead"), [(FRESH, 2.0), (FRESH, 3.0), (Draws(0.01, 40, 1, 20, RowChange.ADDED), 2.0)]
)
def test_less_noise_on_the_mean_than_the_gaussian_means_more_leaders_found(draws: Draws, lead: float) -> None:
    choice, gaussian = (
        each.noise_on_mean(draws, calibrated(each, draws, 4.0)) for each in (SoftmaxChoice(), Gaussian())
    )
    chances = both_chances(draws, 4.0, lead)
    assert choice < gaussian
    assert chances[0] > chances[1] + 0.05


def test_tokens_on_one_draw_are_a_product() -> None:
    draws = Draws(0.05, 10, 4, 20, RowChange.ADDED)
    event = SoftmaxChoice().event(draws, 2.0)
    assert event == Tightest(
        (PoissonProduct(0.05, (PoissonBoundedRange(1.0, 1.0, 4),), 10), ZeroConcentrated(0.125, 40))
    )
    assert calibrated(SoftmaxChoice(), draws, 1.0) == pytest.approx(2 / 0.795, rel=2e-3)


# ---- the base measure --------------------------------------------------------------------------------------


def shares(public: list[float]) -> list[float]:
    """How often each token is drawn where no prompt votes."""
    release, permit = SoftmaxChoice(contrast=0).start(FRESH, 2.0), Permit(20_000, 2.0)
    nobody = np.full((0, len(public)), np.nan, dtype=np.float32)
    row = np.log(np.array(public, dtype=np.float32))
    drawn = [release.token(nobody, row, permit) for _ in range(20_000)]
    return (np.bincount(np.array(drawn), minlength=len(public)) / 20_000).tolist()


def test_an_improbable_token_weighs_as_much_less() -> None:
    found = shares([0.5, 0.3, 0.005, 0.001])
    for share, expected in zip(found, [1 / 2.6, 1 / 2.6, 0.5 / 2.6, 0.1 / 2.6], strict=True):
        assert abs(share - expected) < 7 * math.sqrt(expected * (1 - expected) / 20_000)


def test_many_improbable_tokens_weigh_no_more_than_99_probable_ones() -> None:
    """What `noise_on_mean` counts on."""
    public = np.full(5000, 0.99 / 4999, dtype=np.float32)
    public[0] = 0.01
    shift = base_measure(np.log(public), choice_rate(2.0, RowChange.ADDED))
    weights = np.exp(shift * float(choice_rate(2.0, RowChange.ADDED)))
    assert weights[1:].sum() == pytest.approx(99, rel=1e-4)


def test_the_base_measure_is_finite_whatever_the_public_row_and_the_rate_are() -> None:
    public = np.array([0.0, -np.inf, np.nan, -1000.0], dtype=np.float32)
    for sigma in (0.01, 1.0, 1e6):
        rate = choice_rate(sigma, RowChange.ADDED)
        assert float(rate) * base_measure(public, rate) == pytest.approx([0, *[math.log(1e-7)] * 3], rel=1e-5)
    for sigma in (1e30, 1e300):
        shift = base_measure(public, choice_rate(sigma, RowChange.ADDED))
        assert shift.tolist() == [0, *[shift.min()] * 3]
        assert -(2**62.1) < shift.min() < -(2**61.9)


# ---- the contrast to the public prompt ---------------------------------------------------------------------


def leader(contrast: float | None, mechanism: type[SoftmaxChoice | ReportNoisyMax]) -> int:
    """The token of twenty prompts that are torn between the public prompt's favourite, 0, and token 1."""
    draws = Draws(0.05, 10, 1, 20, RowChange.ADDED)
    public = np.log(np.array([0.8, 0.1, 0.05, 0.05], dtype=np.float32))
    rows = np.tile(np.log(np.array([0.45, 0.4, 0.1, 0.05], dtype=np.float32)), (20, 1))
    winner = mechanism(contrast=contrast).start(draws, 0.05).token(rows, public, Permit(1, 0.05))
    assert winner is not None
    return winner


@pytest.mark.parametrize("mechanism", [SoftmaxChoice, ReportNoisyMax])
def test_the_share_of_the_public_votes_is_taken_off(
    mechanism: type[SoftmaxChoice | ReportNoisyMax],
) -> None:
    assert leader(0.0, mechanism) == 0
    assert leader(0.3, mechanism) == 1


def test_the_contrast_falls_with_the_noise() -> None:
    assert [bearable_contrast(noise) for noise in (0.0, 0.09, 0.12, 0.18, 1.0)] == pytest.approx(
        [0.3, 0.3, 0.21, 0.0, 0.0]
    )
    assert leader(None, SoftmaxChoice) == 1


def test_the_shift_counts_the_planned_prompts_and_none_of_a_broken_public_row() -> None:
    public = np.log(np.array([0.8, 0.2], dtype=np.float32))
    assert contrast_shift(public, 0.5, 20) == pytest.approx([10 * _core.grid, 2.5 * _core.grid], rel=1e-6)
    assert not contrast_shift(np.full(2, np.nan, dtype=np.float32), 0.5, 20).any()


def test_however_many_prompts_are_planned_the_scores_stay_within_64_bits() -> None:
    shift = contrast_shift(np.array([0.0, -30.0], dtype=np.float32), 1.0, 2**40)
    assert shift[0] == 2**28 * _core.grid
    lowest = base_measure(np.full(1, -np.inf, dtype=np.float32), choice_rate(1e30, RowChange.ADDED))
    assert int(lowest[0]) - int(shift[0]) > -(2**63)


@pytest.mark.parametrize("contrast", [-0.1, 1.1, math.nan, "0.3", True, [0.3]])
def test_a_contrast_outside_its_range_is_refused(contrast: Any) -> None:
    for mechanism in (SoftmaxChoice, ReportNoisyMax):
        with pytest.raises(InvalidPlan, match="contrast"):
            mechanism(contrast=contrast)
