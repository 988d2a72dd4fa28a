"""AdaDPSyn's noisy queries: how many there are, and the noise of each."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot import _core
from dpfewshot.mechanisms import AdaDPSyn, RowChange
from dpfewshot.mechanisms.gaussian import noise_scale
from tests.support import inside
from tests.support.adadpsyn import (
    COUNT_GRID,
    GRID,
    TINY,
    WIDTH,
    Matrix,
    around,
    certain,
    changes,
    draws,
    token,
)

multipliers = st.floats(0.05, 50)


@given(multipliers, multipliers, multipliers, st.integers(1, 6), st.floats(1e-3, 1e5))
@settings(max_examples=200)
def test_the_scaled_multipliers_make_the_planned_one(
    radius: float, mean: float, coverage: float, rounds: int, sigma: float
) -> None:
    """Exactly: (6/σ₀² + T̂/σ₂² + (T̂+1)/σ₁²)^-½ ≥ σ_eff, and by no more than rounding."""
    asked = AdaDPSyn(radius, mean, coverage, rounds)
    scaled = asked.scaled(sigma)
    squares = [
        Fraction(scaled.radius_multiplier) ** -2 * 6,
        Fraction(scaled.coverage_multiplier) ** -2 * rounds,
        Fraction(scaled.mean_multiplier) ** -2 * (rounds + 1),
    ]
    assert sum(squares) <= Fraction(sigma) ** -2
    assert float(sum(squares) * Fraction(sigma) ** 2) == pytest.approx(1, abs=1e-12)
    assert scaled.radius_multiplier / scaled.mean_multiplier == pytest.approx(radius / mean)
    assert scaled.coverage_multiplier / scaled.mean_multiplier == pytest.approx(coverage / mean)


def test_control_scaling_without_rounding_up_credits_noise_that_is_not_there() -> None:
    short = 0
    for sigma in np.linspace(0.5, 2, 200):
        factor = sigma / (6 / 10**2 + 1 / 5**2 + 2 / 1.15**2) ** -0.5
        squares = (6 / Fraction(factor * 10) ** 2, 1 / Fraction(factor * 5) ** 2)
        short += sum(squares) + 2 / Fraction(factor * 1.15) ** 2 > 1 / Fraction(sigma) ** 2
    assert short > 20


class Recorder:
    """Stands for the core's noisy queries and writes down each with its noise scale."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, int]] = []
        self.balls: list[float] = []
        for name in ("noisy_sum_of_probabilities", "noisy_sum_around", "noisy_count_within"):
            monkeypatch.setattr(_core, name, self.standing_for(name, getattr(_core, name)))
        recorder, genuine = self, _core.Distances

        class Distances:
            def __init__(self, rows: Matrix) -> None:
                self.rows = genuine(rows)

            def noisy_scores(self, radii, size: int, scale: int, source) -> list[int]:
                recorder.asked += [(f"score of {size}", scale)] * len(radii)
                return self.rows.noisy_scores(radii, size, 8, source)

        monkeypatch.setattr(_core, "Distances", Distances)

    def standing_for(self, name: str, genuine):
        def ask(*arguments):
            *query, scale, source = arguments
            self.asked.append((name, scale))
            if name == "noisy_sum_around":
                self.balls.append(query[2])
            return genuine(*query, 8, source)

        return ask


@changes
def test_every_query_has_its_noise(monkeypatch: pytest.MonkeyPatch, row_change: RowChange) -> None:
    recorder = Recorder(monkeypatch)
    mechanism = AdaDPSyn(rounds=2, noise_margin=0.01)
    release = mechanism.start(draws(20, row_change), 0.7)
    inside.good_radius(release, around(3, 20))
    inside.refined_mean(release, around(3, 20), 0.1)
    used = mechanism.scaled(0.7)
    moved = 1 if row_change is RowChange.ADDED else 2
    scores, first, *rounds = recorder.asked[:6], *recorder.asked[6:]
    assert scores == [("score of 16", noise_scale(used.radius_multiplier, 32**2, COUNT_GRID))] * 6
    assert first == ("noisy_sum_of_probabilities", noise_scale(used.mean_multiplier, moved, GRID))
    assert [name for name, _ in rounds] == ["noisy_count_within", "noisy_sum_around"] * 2
    for (_, count), (_, around_), ball in zip(rounds[::2], rounds[1::2], recorder.balls, strict=True):
        assert count == noise_scale(used.coverage_multiplier, 1, COUNT_GRID)
        bound = math.floor(Fraction(ball) * GRID)
        wanted = Fraction(used.mean_multiplier) ** 2 * (moved * bound) ** 2
        assert around_**2 >= wanted > (around_ - 8) ** 2
    assert recorder.balls[1] < recorder.balls[0] < 0.2, "less noise, so a smaller ball"


def test_there_are_never_more_queries_than_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in (around(3, 20), certain(*range(8), *range(8)), np.empty((0, WIDTH), dtype=np.float32)):
        recorder = Recorder(monkeypatch)
        token(AdaDPSyn(rounds=3), rows, 0.7, draws(20))
        names = [name for name, _ in recorder.asked]
        assert names.count("score of 16") == 6
        assert names.count("noisy_count_within") <= 3
        assert len(names) - 6 <= 3 + 4


@pytest.mark.parametrize(
    ("share", "prompts", "size"), [(0.8, 20, 16), (0.8, 10, 8), (0.55, 100, 55), (0.81, 10, 9)]
)
def test_the_size_of_the_cluster_is_the_decimal_product_rounded_up(
    monkeypatch: pytest.MonkeyPatch, share: float, prompts: int, size: int
) -> None:
    """As floats 0.55 · 100 is above 55, and ⌈…⌉ would be 56."""
    recorder = Recorder(monkeypatch)
    inside.good_radius(AdaDPSyn(cluster_share=share).start(draws(prompts), 1.0), certain(0))
    assert recorder.asked[0][0] == f"score of {size}"


def test_a_ball_that_holds_too_few_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens, rounds in (([0] * 4 + [1] * 3 + [2] * 3, 0), ([0] * 10, 1)):
        recorder = Recorder(monkeypatch)
        release = AdaDPSyn(noise_margin=0).start(draws(), TINY)
        inside.refined_mean(release, certain(*tokens), 0.3)
        assert len(recorder.balls) == rounds


def test_a_radius_that_noise_makes_too_large_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    inside.refined_mean(AdaDPSyn().start(draws(), 100.0), certain(*[0] * 10), 0.3)
    assert [name for name, _ in recorder.asked] == ["noisy_sum_of_probabilities"]
