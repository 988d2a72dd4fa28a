"""Decoding is post-processing: of a released mean, the public row and settings."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms import AdaDPSyn, Draws, Gaussian, Mechanism, PublicCentred, RowChange
from dpfewshot.mechanisms.decoding import Decoding, contrasted

NOISY = np.array([0.4, 0.3, 0.2, 0.1, -0.5])
PUBLIC = np.log(np.array([0.7, 0.2, 0.05, 0.03, 0.02], dtype=np.float32))
DRAWS = Draws(sampling_rate=0.1, steps=2, tokens_per_draw=1, prompts=40, row_change=RowChange.ADDED)


def frequencies(decoding: Decoding, draws: int = 4000) -> NDArray[np.float64]:
    winners = [decoding.choose(NOISY) for _ in range(draws)]
    return np.bincount(winners, minlength=5) / draws


def test_at_temperature_one_tokens_come_by_their_noisy_probability() -> None:
    # six standard deviations of a share are below 0.05
    assert frequencies(Decoding(temperature=1.0)) == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0], abs=0.05)
    assert frequencies(Decoding(temperature=0.5)) == pytest.approx(np.array([16, 9, 4, 1, 0]) / 30, abs=0.05)


def test_a_nucleus_keeps_the_fewest_tokens_that_reach_its_share() -> None:
    assert frequencies(Decoding(temperature=1.0, top_p=0.7)) == pytest.approx(
        [4 / 7, 3 / 7, 0, 0, 0], abs=0.05
    )
    assert frequencies(Decoding(temperature=1.0, top_p=0.71), 500)[2] > 0
    assert frequencies(Decoding(temperature=1.0, top_p=0.01), 50)[0] == 1


def test_at_temperature_zero_or_without_mass_the_largest_wins() -> None:
    assert Decoding().choose(NOISY) == 0
    assert Decoding(temperature=1.0).choose(np.array([-3.0, -1.0, -2.0])) == 1


def winner(mean: list[float], noise: float = 0.0, contrast: float = 0.5) -> int:
    return Decoding(contrast=contrast).token(np.array(mean), PUBLIC, noise)


def test_what_records_add_wins_over_the_habit_of_the_model() -> None:
    mean = [0.5, 0.1, 0.3, 0.1, 0.0]
    assert winner(mean, contrast=0.0) == 0
    assert winner(mean) == 2


def test_what_records_hardly_make_likely_does_not_win() -> None:
    assert winner([0.95, 0.0, 0.0, 0.0, 0.05]) == 0


def test_scores_are_those_of_the_rule() -> None:
    mean, noise = np.array([0.5, 0.1, 0.25, 0.12, 0.03]), 0.02
    wanted = [p / (q + 0.04) ** 0.5 for p, q in zip(mean, [0.7, 0.2, 0.05, 0.03, 0.02], strict=True)]
    assert contrasted(mean, PUBLIC, noise, 0.5) == pytest.approx([*wanted[:4], -math.inf], rel=1e-6)
    assert contrasted(mean, PUBLIC + 7, noise, 0.5)[:4] == pytest.approx(wanted[:4], rel=1e-6)


@given(
    noise=st.floats(0.005, 0.1),
    noisy=st.floats(0, 3.5),
    public=arrays(np.float32, 5, elements=st.floats(-60, 0, width=32)),
)
def test_noise_on_a_token_that_nobody_expects_does_not_win(
    noise: float, noisy: float, public: NDArray[np.float32]
) -> None:
    """At the standard deviations that one of 100 candidates exceeds in forty tokens."""
    mean = np.array([0.95, *[noisy * noise] * 4])
    assert Decoding(contrast=0.5).token(mean, public, noise) == 0


def test_without_a_plausible_token_the_largest_wins() -> None:
    assert winner([0.1, 0.15, 0.0, 0.0, 0.0], noise=0.08) == 1
    assert winner([-0.1, -0.05, -0.2, -0.3, -0.4], noise=0.01) == 1


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_public_row_without_numbers_changes_nothing(value: float) -> None:
    public = np.full(5, value, dtype=np.float32)
    assert Decoding(contrast=1.0).token(NOISY, public, 0.01) == 0
    public[0] = 0.0
    assert np.isfinite(contrasted(NOISY, public, 0.01, 0.5)[0])


@pytest.mark.parametrize("mechanism", [Gaussian(contrast=0.5), PublicCentred(), AdaDPSyn(contrast=0.5)])
@given(seed=st.integers(0, 2**32 - 1), others=arrays(np.float32, (3, 5), elements=st.floats(-9, 0, width=32)))
def test_the_private_rows_decide_through_the_released_vectors_alone(
    mechanism: Mechanism, seed: int, others: NDArray[np.float32]
) -> None:
    """Whatever the rows are: the same released numbers and the same public row give the same token."""

    def token(rows: NDArray[np.float32]) -> int | None:
        numbers = np.random.default_rng(seed)
        total = lambda *_: numbers.integers(-(2**33), 40 * 2**30, 5)  # noqa: E731 - one stub for two queries
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_core, "noisy_sum_of_probabilities", total)
            patch.setattr(_core, "noisy_sum_around", total)
            patch.setattr(_core, "noisy_count_within", lambda *_: 0)
            return mechanism.start(DRAWS, 1e-6).token(rows, PUBLIC, Permit(1, 1e-6))

    assert token(others) == token(np.zeros((3, 5), dtype=np.float32))
