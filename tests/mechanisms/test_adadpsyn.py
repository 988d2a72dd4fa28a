"""AdaDPSyn: a step beside its meaning, its noisy queries, and the presets."""

import functools
import math
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import AdaDPSyn, Draws, RowChange
from dpfewshot.mechanisms.adadpsyn import EPSILONS, LARGEST_RADIUS, RADIUS_QUERIES, TASKS, published
from dpfewshot.mechanisms.gaussian import nearest_distribution, noise_scale
from tests.support import inside, sensitivity, twins

GRID, COUNT_GRID = _core.grid, _core.count_grid
TINY = 1e-6
WIDTH = 8
Matrix = NDArray[np.float32]
changes = pytest.mark.parametrize("row_change", RowChange)
certain = functools.partial(sensitivity.certain, width=WIDTH)


def draws(prompts: int = 10, row_change: RowChange = RowChange.ADDED, tokens_per_draw: int = 1) -> Draws:
    return Draws(0.1, 3, tokens_per_draw, prompts, row_change)


def around(token: int, count: int, spread: float = 0.1, seed: int = 0) -> Matrix:
    logits = np.random.default_rng(seed).normal(0, spread, (count, WIDTH)) + 3 * (np.arange(WIDTH) == token)
    return _core.log_softmax(logits.astype(np.float32))


PUBLIC = np.zeros(WIDTH, dtype=np.float32)


def token(
    mechanism: AdaDPSyn, rows: Matrix, sigma: float, plan: Draws | None = None, source=None
) -> int | None:
    return mechanism.start(plan or draws(), sigma, source).token(rows, PUBLIC, Permit(1, sigma))


def step(rows: Matrix, mechanism: AdaDPSyn, plan: Draws, source) -> NDArray[np.int64]:
    """Algorithms 1, 3, 4 and 5 as one reads them, in NumPy and Python, with the multipliers as they are."""
    size = -(-8 * plan.prompts // 10)
    moved = plan.row_change.rows

    def noise(multiplier: float, squared: Fraction | int, grid: int, count: int) -> NDArray[np.int64]:
        return _core.rounded_normals(noise_scale(multiplier, squared, grid), count, source)

    low, high = 0.0, math.sqrt(2) / 2
    while high - low > 0.1:
        middle = (low + high) / 2
        scores = np.array(twins.Distances(rows).scores([middle, middle / 2], size)) * COUNT_GRID
        scores = scores + noise(mechanism.radius_multiplier, (2 * size) ** 2, COUNT_GRID, 2)
        enough = scores / size >= size * COUNT_GRID
        low, high = (low, middle) if enough.any() else (middle, high)
    radius = (low + high) / 2

    deviation = noise_scale(mechanism.mean_multiplier, moved, GRID)
    mean = twins.sum_of_probabilities(rows) + noise(mechanism.mean_multiplier, moved, GRID, WIDTH)
    ball = math.sqrt(2) / 2
    for _ in range(mechanism.rounds):
        smaller = radius + mechanism.noise_margin * math.sqrt(WIDTH) * deviation / GRID / plan.prompts
        if ball < smaller:
            break
        centre = nearest_distribution(mean, plan.prompts)
        count = twins.count_within(rows, centre, smaller) * COUNT_GRID
        count += int(noise(mechanism.coverage_multiplier, 1, COUNT_GRID, 1)[0])
        if count < mechanism.coverage_share * plan.prompts * COUNT_GRID:
            break
        ball = smaller
        squared = Fraction(math.floor(Fraction(ball) * GRID) * moved, GRID) ** 2
        deviation = noise_scale(mechanism.mean_multiplier, squared, GRID)
        mean = plan.prompts * centre + twins.sum_around(rows, centre, ball)
        mean = mean + noise(mechanism.mean_multiplier, squared, GRID, WIDTH)
    return mean


@changes
@given(st.integers(0, 2**32), st.sampled_from([TINY, 0.05, 0.3, 0.7, 2.0]), st.integers(1, 4))
@settings(max_examples=60)
def test_a_step_is_what_the_algorithm_says(row_change, seed: int, sigma: float, rounds: int) -> None:
    """The same random bytes, the same token: at any noise, with clusters, loners and prompts that fail."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(0, 14))
    rows = around(int(generator.integers(WIDTH)), count, float(generator.choice([0.01, 0.3, 2.0])), seed)
    rows[generator.random(count) < 0.1] = np.nan
    plan = draws(row_change=row_change)
    mechanism = AdaDPSyn(rounds=rounds, noise_margin=0.2, coverage_share=0.4)
    mean = step(rows, mechanism.scaled(sigma), plan, random.Random(seed).randbytes)
    assert token(mechanism, rows, sigma, plan, random.Random(seed).randbytes) == int(np.argmax(mean))
    release = mechanism.start(plan, sigma, random.Random(seed).randbytes)
    assert (inside.refined_mean(release, rows, inside.good_radius(release, rows)) == mean).all()


@pytest.fixture
def exact_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise on L: it is at most t, so the least noise decides whether it reaches t."""

    class Distances(twins.Distances):
        def noisy_scores(self, radii, size: int, _scale: int, _source) -> list[int]:
            return [score * COUNT_GRID for score in self.scores(radii, size)]

    monkeypatch.setattr(_core, "Distances", Distances)


def good_radius(rows: Matrix, prompts: int = 10) -> float:
    return inside.good_radius(AdaDPSyn().start(draws(prompts), 1.0), rows)


@pytest.mark.usefixtures("exact_scores")
def test_good_radius_halves_three_times() -> None:
    cell = math.sqrt(2) / 2 / 8
    assert good_radius(certain(*[0] * 10)) == pytest.approx(cell / 2)
    assert good_radius(certain(*range(8), 0, 1)) == pytest.approx(7.5 * cell)
    assert good_radius(certain(*[0] * 7, 1, 2, 3)) == pytest.approx(7.5 * cell), "7 of 10 are too few"
    assert good_radius(certain(*[0] * 8, 2, 3)) == pytest.approx(cell / 2), "8 are enough"
    assert 2**-3 * LARGEST_RADIUS < 0.1 < 2**-2 * LARGEST_RADIUS, "θ"


@pytest.mark.usefixtures("exact_scores")
@pytest.mark.parametrize("shift", [0.03, 0.1, 0.2, 0.3, 0.4, 0.45])
def test_good_radius_finds_the_width_of_a_cluster(shift: float) -> None:
    """Half of the prompts lie shift·√2 from the other half."""
    halves = np.full((8, WIDTH), -30, dtype=np.float32)
    halves[:4, 0], halves[4:, 0] = np.log([0.5 + shift, 0.5])
    halves[:4, 1], halves[4:, 1] = np.log([0.5 - shift, 0.5])
    assert abs(good_radius(halves) - shift * math.sqrt(2)) <= LARGEST_RADIUS / 16


def test_the_noise_of_a_cluster_is_a_fraction_of_the_first() -> None:
    """What the mechanism is for: the last mean's error against that of its first."""
    rows, mechanism = around(3, 40, 0.01), AdaDPSyn(noise_margin=1.0)
    once = replace(mechanism, noise_margin=100.0)
    truth = twins.sum_of_probabilities(rows)
    source = random.Random(1).randbytes

    def error(asked: AdaDPSyn) -> float:
        release = asked.start(draws(40), 0.3, source)
        found = [inside.refined_mean(release, rows, 0.05) - truth for _ in range(50)]
        return float(np.sqrt(np.mean(np.square(np.array(found, dtype=np.float64)))))

    assert error(mechanism) < 0.2 * error(once)


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
    moved = row_change.rows
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


def test_a_step_asks_as_often_as_the_paper_counts() -> None:
    asked = AdaDPSyn(radius_multiplier=10, mean_multiplier=1, coverage_multiplier=3, rounds=2)
    assert [asked.queries.count(multiplier) for multiplier in (10, 3, 1)] == [RADIUS_QUERIES, 2, 3]
    assert asked.step_multiplier == pytest.approx((6 / 10**2 + 2 / 3**2 + 3) ** -0.5)
    assert AdaDPSyn(10, 1.23, 3, 1).step_multiplier == pytest.approx(0.81839, abs=5e-6)


def test_presets_are_the_papers_rows() -> None:
    assert AdaDPSyn.preset("trec", epsilon=4) == AdaDPSyn()
    assert AdaDPSyn.preset("MIT_D", epsilon=1) == AdaDPSyn(17.5, 2.57, 6, 1, 0.15)
    for task, size in zip(TASKS, [(10, 2), (10, 2), (20, 2), (40, 1), (40, 1)], strict=True):
        for epsilon in EPSILONS:
            preset = published(task, epsilon=epsilon)
            preset.mechanism.check(1000)
            assert (preset.prompts, preset.records_per_prompt) == size


def test_a_preset_keeps_its_multiplier_at_the_papers_own_scale() -> None:
    """Scaled to what the paper's three σ make together, they stay as printed."""
    printed = AdaDPSyn.preset("trec", epsilon=8)
    assert printed.scaled(printed.step_multiplier).mean_multiplier == pytest.approx(1.09, rel=1e-12)


@pytest.mark.parametrize(
    ("task", "epsilon"), [("banking", 4), ("trec", 3), ("trec", 4.5), ("trec", math.nan)]
)
def test_an_unknown_preset_is_refused_and_says_what_there_is(task: str, epsilon: float) -> None:
    with pytest.raises(InvalidPlan, match=r"agnews, dbpedia, trec, mit-g, mit-d, each at epsilon=1, 2, 4, 8"):
        AdaDPSyn.preset(task, epsilon=epsilon)
