"""The Gaussian mechanism, and what all mechanisms with Gaussian noise share: scale, event, decoding."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting.events import FixedSizeGaussian, PoissonGaussian
from dpfewshot.errors import BudgetExceeded
from dpfewshot.mechanisms import (
    AdaDPSyn,
    Draws,
    FixedSize,
    Gaussian,
    Mechanism,
    Noiseless,
    PublicCentred,
    RowChange,
)
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.mechanisms.gaussian import noise_scale

PUBLIC = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))
DRAWS = Draws(sampling_rate=0.1, steps=2, tokens_per_draw=1, prompts=40, row_change=RowChange.ADDED)
GROUPED = dataclasses.replace(DRAWS, row_change=RowChange.REPLACED)


@given(st.floats(1e-3, 1e5), st.sampled_from([1, 2, Fraction(1, 9)]))
def test_noise_scale_is_the_least_multiple_of_8_that_covers_sigma(sigma: float, squared: Fraction) -> None:
    scale = noise_scale(sigma, squared, _core.grid)
    wanted = Fraction(sigma) ** 2 * squared * _core.grid**2
    assert scale % 8 == 0
    assert scale**2 >= wanted
    assert (scale - 8) ** 2 < wanted


def test_support_is_the_likeliest_public_tokens_by_id() -> None:
    assert likeliest(PUBLIC, frozenset(), 3) == [1, 3, 4]
    assert likeliest(PUBLIC, frozenset({1}), 3) == [0, 3, 4]
    assert likeliest(PUBLIC, frozenset({2}), None) == [0, 1, 3, 4]
    assert Gaussian(top_k=3).start(DRAWS, 1.0).support(PUBLIC, frozenset()) == [1, 3, 4]


def test_support_is_the_same_among_equals_and_with_nan() -> None:
    flat = np.zeros(6, dtype=np.float32)
    assert likeliest(flat, frozenset(), 2) == [0, 1]
    assert likeliest(np.array([np.nan, 0, -1], dtype=np.float32), frozenset(), 2) == [1, 2]


def test_less_noise_than_was_charged_for_is_refused() -> None:
    rows = np.zeros((3, 5), dtype=np.float32)
    for release in (Gaussian().start(DRAWS, 0.9), Noiseless(5)):
        with pytest.raises(BudgetExceeded, match="another noise"):
            release.token(rows, PUBLIC, Permit(1, noise_multiplier=1.0))


def test_without_noise_the_likeliest_token_wins() -> None:
    assert Noiseless(None).token(np.tile(PUBLIC, (50, 1)), PUBLIC, Permit(1, 0.0)) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grouped_prompts_get_root_two_more_noise(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    scales: list[int] = []
    monkeypatch.setattr(
        _core, "noisy_sum_of_probabilities", lambda _rows, scale, _source: scales.append(scale) or np.ones(5)
    )
    for draws in (DRAWS, GROUPED):
        release = Gaussian(temperature=temperature).start(draws, 0.7)
        assert release.token(np.zeros((1, 5), dtype=np.float32), PUBLIC, Permit(1, 0.7)) is not None
    assert scales == [noise_scale(0.7, moved, _core.grid) for moved in (1, 2)]
    assert scales[1] / scales[0] == pytest.approx(math.sqrt(2), rel=1e-7)


@pytest.mark.parametrize("mechanism", [Gaussian(), AdaDPSyn(), PublicCentred()])
def test_a_block_is_one_gaussian_draw_with_less_noise(mechanism: Mechanism) -> None:
    event = mechanism.event(dataclasses.replace(DRAWS, tokens_per_draw=9), 3.0)
    assert isinstance(event, PoissonGaussian)
    assert (event.sampling_rate, event.steps) == (0.1, 2)
    assert event.noise_multiplier == pytest.approx(1.0, rel=1e-15)
    assert Fraction(event.noise_multiplier) ** 2 * 9 <= Fraction(3) ** 2, "no noise may be credited"
    fixed = dataclasses.replace(GROUPED, fixed_size=FixedSize(40, 400))
    assert mechanism.event(fixed, 3.0) == FixedSizeGaussian(40, 400, 3.0, 2)
