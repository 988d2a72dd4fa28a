"""The public-centred mechanism's clipping norm, which adapts."""

import math

import numpy as np
import pytest

from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms import ClippingQuantile
from dpfewshot.mechanisms.public_centred import LEAST_CLIP, MOST_CLIP
from tests.support.public_centred import PUBLIC, TINY, WIDTH, Matrix, draws, logs, one_round, shifted


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
