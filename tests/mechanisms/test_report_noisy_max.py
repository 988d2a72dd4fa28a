"""Report noisy max: its events, and the rate of its noise."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import PoissonProduct, PoissonRandomizedResponse, epsilon
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws, ReportNoisyMax, RowChange
from dpfewshot.mechanisms.report_noisy_max import contrast_shift, noise_rate

PUBLIC = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))


def draws(tokens_per_draw: int = 1, row_change: RowChange = RowChange.ADDED, rate: float = 0.1) -> Draws:
    return Draws(rate, 6, tokens_per_draw, 20, row_change)


def winners(rows, noise: float, count: int = 300) -> set[int]:
    release, permit = ReportNoisyMax().start(draws(), noise), Permit(count, noise)
    return {release.token(rows, PUBLIC, permit) for _ in range(count)}


def test_a_token_on_its_own_draw_is_one_pure_step() -> None:
    assert ReportNoisyMax().event(draws(), 0.5) == PoissonRandomizedResponse(0.1, 2.0, 6)
    third = ReportNoisyMax().event(draws(), 3.0).epsilon
    assert Fraction(third) >= Fraction(1, 3) > Fraction(math.nextafter(third, 0))


def test_tokens_that_share_a_draw_are_sampled_together() -> None:
    event = ReportNoisyMax().event(draws(tokens_per_draw=8), 4.0)
    assert event == PoissonProduct(0.1, (PoissonRandomizedResponse(1.0, 0.25, 8),), 6)
    block = PoissonRandomizedResponse(0.1, 2.0, 6)
    tokens = PoissonRandomizedResponse(1.0, 0.25, 48)
    assert epsilon(event, 1e-5).upper < 0.8 * min(epsilon(each, 1e-5).upper for each in (block, tokens))


def test_tokens_of_everybody_compose_one_by_one() -> None:
    """40 tokens on one draw of everybody: 40·ε₀ = 2 as one block, far less as a composition."""
    event = ReportNoisyMax().event(Draws(1.0, 1, 40, 20, RowChange.ADDED), 20.0)
    assert (event.sampling_rate, event.epsilon, event.steps) == (1.0, 0.05, 40)
    assert epsilon(event, 1e-5).upper < 1.2


def test_replaced_rows_get_twice_the_noise() -> None:
    added, replaced = (noise_rate(0.3, change) for change in RowChange)
    assert added == 2 * replaced == 1 / (Fraction(0.3) * _core.grid)


def test_the_rate_reaches_the_core_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(_core, "permute_and_flip", lambda _scores, *rate: asked.append(rate) or 0)
    for change in RowChange:
        release = ReportNoisyMax().start(draws(row_change=change), 0.7)
        release.token(np.zeros((1, 5), dtype=np.float32), PUBLIC, Permit(1, 0.7))
        rate = noise_rate(0.7, change)
        assert asked.pop() == (rate.numerator, rate.denominator, None)


def test_every_prompts_favourite_counts_one() -> None:
    """Three unsure prompts outvote two sure ones: in the sum of probabilities they would not."""
    unsure = np.log(np.array([0.03, 0.25, 0.24, 0.24, 0.24], dtype=np.float32))
    sure = np.log(np.array([0.96, 0.01, 0.01, 0.01, 0.01], dtype=np.float32))
    rows = np.array([unsure, unsure, unsure, sure, sure])
    assert winners(rows, 0.005) == {1}
    assert int(np.argmax(_core.sum_of_probabilities(rows))) == 0


def test_a_vocabulary_that_the_core_cannot_choose_from_is_refused() -> None:
    ReportNoisyMax(top_k=100).check(2**19)
    ReportNoisyMax(top_k=None).check(2**18)
    with pytest.raises(InvalidPlan, match="top_k must be at most 262144"):
        ReportNoisyMax(top_k=None).check(2**18 + 1)


@pytest.mark.parametrize(("contrast", "winner"), [(0.0, 0), (0.3, 1)])
def test_the_share_of_the_public_votes_is_taken_off(contrast: float, winner: int) -> None:
    """Twenty prompts are torn between the public prompt's favourite, 0, and token 1."""
    public = np.log(np.array([0.8, 0.1, 0.05, 0.05], dtype=np.float32))
    rows = np.tile(np.log(np.array([0.45, 0.4, 0.1, 0.05], dtype=np.float32)), (20, 1))
    release = ReportNoisyMax(contrast=contrast).start(draws(), 0.05)
    assert release.token(rows, public, Permit(1, 0.05)) == winner


def test_the_shift_counts_the_planned_prompts_and_none_of_a_broken_public_row() -> None:
    public = np.log(np.array([0.8, 0.2], dtype=np.float32))
    assert contrast_shift(public, 0.5, 20) == pytest.approx([10 * _core.grid, 2.5 * _core.grid], rel=1e-6)
    assert not contrast_shift(np.full(2, np.nan, dtype=np.float32), 0.5, 20).any()


def test_however_many_prompts_are_planned_the_scores_stay_within_64_bits() -> None:
    assert contrast_shift(np.array([0.0, -30.0], dtype=np.float32), 1.0, 2**40)[0] == 2**28 * _core.grid
