"""Softmax choice: the chance that it finds a leader, beside Gaussian noise at equal (ε, δ)."""

from __future__ import annotations

import math

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
from dpfewshot.mechanisms.softmax_choice import bearable_contrast

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
    """Two rows are certain of the leader, and 99 others have no vote."""
    mechanism = SoftmaxChoice(contrast=0)
    sigma = calibrated(mechanism, FRESH, 4.0)
    rows = np.full((2, CANDIDATES), -np.inf, dtype=np.float32)
    rows[:, 7] = 0.0
    release, permit = mechanism.start(FRESH, sigma), Permit(20_000, sigma)
    found = sum(release.token(rows, rows[0], permit) == 7 for _ in range(20_000)) / 20_000
    deviation = math.sqrt(0.25 / 20_000)
    assert abs(found - chance_of_choice(sigma, 2)) < 7 * deviation
    assert abs(found - chance_of_choice(1.1 * sigma, 2)) > 7 * deviation


@pytest.mark.parametrize("candidates", [5, 100, 10_000])
def test_noise_on_the_mean_is_that_of_gaussian_noise_with_the_same_chance(candidates: int) -> None:
    sigma, others = 0.8, candidates - 1
    lead = math.log(others) * sigma / 2
    deviation = 20 * SoftmaxChoice(candidates).noise_on_mean(FRESH, sigma)
    found = quad(lambda z: norm.pdf(z) * norm.cdf(z + lead / deviation) ** others, -12, 12, limit=200)[0]
    assert found == pytest.approx(0.5, abs=0.03)


def test_noise_on_the_mean_doubles_where_rows_are_replaced_and_grows_with_the_candidates() -> None:
    replaced = Draws(0.05, 40, 1, 20, RowChange.REPLACED)
    once = SoftmaxChoice().noise_on_mean(FRESH, 0.8)
    assert SoftmaxChoice().noise_on_mean(replaced, 0.8) == 2 * once
    everything = SoftmaxChoice(None).noise_on_mean(FRESH, 0.8)
    assert SoftmaxChoice(1).noise_on_mean(FRESH, 0.8) < once < everything


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


@pytest.mark.parametrize("contrast", [-0.1, 1.1, math.nan])
def test_a_contrast_outside_its_range_is_refused(contrast: float) -> None:
    for mechanism in (SoftmaxChoice, ReportNoisyMax):
        with pytest.raises(InvalidPlan, match="contrast"):
            mechanism(contrast=contrast)
