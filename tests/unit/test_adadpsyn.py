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
from dpfewshot.accounting import PoissonGaussian, adadpsyn_multiplier
from dpfewshot.errors import BudgetExceeded, InvalidPlan
from dpfewshot.mechanisms import AdaDPSyn, Draws, RowChange
from dpfewshot.mechanisms.adadpsyn import LARGEST_RADIUS
from dpfewshot.mechanisms.adadpsyn_presets import EPSILONS, published
from dpfewshot.mechanisms.noise import noise_scale
from dpfewshot.mechanisms.simplex import nearest_distribution
from tests.support import inside, twins
from tests.support.adadpsyn import (
    COUNT_GRID,
    GRID,
    PUBLIC,
    TINY,
    WIDTH,
    Matrix,
    around,
    certain,
    changes,
    draws,
    token,
)

# ---- one step beside its meaning -------------------------------------------------------------------------


def step(rows: Matrix, mechanism: AdaDPSyn, plan: Draws, source) -> NDArray[np.int64]:
    """Algorithms 1, 3, 4 and 5 as one reads them, in NumPy and Python, with the multipliers as they are."""
    size = -(-8 * plan.prompts // 10)
    replaced = plan.row_change is RowChange.REPLACED

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

    deviation = noise_scale(mechanism.mean_multiplier, 2 if replaced else 1, GRID)
    mean = twins.sum_of_probabilities(rows) + noise(
        mechanism.mean_multiplier, 2 if replaced else 1, GRID, WIDTH
    )
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
        squared = Fraction(math.floor(Fraction(ball) * GRID) * (2 if replaced else 1), GRID) ** 2
        deviation = noise_scale(mechanism.mean_multiplier, squared, GRID)
        mean = plan.prompts * centre + twins.sum_around(rows, centre, ball)
        mean = mean + noise(mechanism.mean_multiplier, squared, GRID, WIDTH)
    return mean


@changes
@given(st.integers(0, 2**32), st.sampled_from([TINY, 0.05, 0.3, 0.7, 2.0]), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
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


# ---- GoodRadius and the rounds, nearly without noise -----------------------------------------------------


@pytest.fixture
def exact_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise on L: it is at most t, so the least noise decides whether it reaches t."""

    class Distances:
        def __init__(self, rows: Matrix) -> None:
            self.rows = twins.Distances(rows)

        def noisy_scores(self, radii, size: int, _scale: int, _source) -> list[int]:
            return [score * COUNT_GRID for score in self.rows.scores(radii, size)]

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


def test_the_token_of_a_cluster_wins_and_with_much_noise_anyone_does() -> None:
    rows = around(5, 10)
    source = random.Random(2).randbytes
    assert {token(AdaDPSyn(), rows, TINY) for _ in range(20)} == {5}
    assert {token(AdaDPSyn(), rows, 100.0, source=source) for _ in range(200)} == set(range(WIDTH))


def test_no_prompt_at_all_still_releases_noise() -> None:
    nobody = np.empty((0, WIDTH), dtype=np.float32)
    source = random.Random(3).randbytes
    assert {token(AdaDPSyn(), nobody, 0.5, source=source) for _ in range(200)} == set(range(WIDTH))


def test_one_candidate_is_released() -> None:
    release = AdaDPSyn().start(draws(), 1.0)
    assert release.token(np.zeros((3, 1), dtype=np.float32), PUBLIC[:1], Permit(1, 1.0)) == 0


def test_a_temperature_draws_from_the_whole_noisy_vector() -> None:
    rows = certain(*[0] * 5, *[1] * 5)
    warm = AdaDPSyn(temperature=1.0, coverage_share=1.0)
    source = random.Random(4).randbytes
    assert {token(warm, rows, TINY, source=source) for _ in range(50)} == {0, 1}


# ---- the interface ---------------------------------------------------------------------------------------


def test_a_release_uses_its_permit_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    permit, release = Permit(1, 0.7), AdaDPSyn().start(draws(), 0.7)
    release.token(certain(0), PUBLIC, permit)
    for name in ("Distances", "noisy_sum_of_probabilities"):
        monkeypatch.delattr(_core, name)
    with pytest.raises(BudgetExceeded):
        release.token(certain(0), PUBLIC, permit)
    with pytest.raises(BudgetExceeded):
        release.token(certain(0), PUBLIC, Permit(1, 0.8))


@pytest.mark.parametrize(
    "setting",
    [
        {"rounds": 0},
        {"rounds": -1},
        {"rounds": 1.5},
        {"rounds": True},
        {"radius_multiplier": 0},
        {"mean_multiplier": -1.0},
        {"coverage_multiplier": math.inf},
        {"noise_margin": -0.1},
        {"noise_margin": math.nan},
        {"cluster_share": 0},
        {"cluster_share": 1.1},
        {"coverage_share": -0.1},
        {"coverage_share": 1.1},
        {"top_k": 0},
        {"top_k": 9},
        {"temperature": -1},
        {"top_p": 0},
    ],
)
def test_settings_outside_their_ranges_are_refused(setting) -> None:
    with pytest.raises(InvalidPlan, match=next(iter(setting))):
        AdaDPSyn(**{"top_k": None} | setting).check(WIDTH)
    AdaDPSyn(top_k=WIDTH).check(WIDTH)


def test_the_event_is_one_gaussian_a_draw() -> None:
    event = AdaDPSyn().event(draws(tokens_per_draw=4), 1.0)
    assert isinstance(event, PoissonGaussian)
    assert (event.sampling_rate, event.steps) == (0.1, 3)
    assert event.noise_multiplier == pytest.approx(0.5)


@changes
def test_noise_on_the_mean_is_that_of_the_first(row_change: RowChange) -> None:
    used = AdaDPSyn().scaled(0.8).mean_multiplier
    wanted = used / 40 * (1 if row_change is RowChange.ADDED else math.sqrt(2))
    assert AdaDPSyn().noise_on_mean(draws(40, row_change), 0.8) == pytest.approx(wanted)


def test_support_is_the_likeliest_public_tokens() -> None:
    public = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))
    assert AdaDPSyn(top_k=3).start(draws(), 1.0).support(public, frozenset({1})) == [0, 3, 4]


# ---- presets ---------------------------------------------------------------------------------------------


def test_presets_are_the_papers_rows() -> None:
    assert AdaDPSyn.preset("trec", epsilon=4) == AdaDPSyn()
    found = AdaDPSyn.preset("MIT_D", epsilon=1)
    assert (found.mean_multiplier, found.rounds) == (2.57, 1)
    assert (found.radius_multiplier, found.coverage_multiplier) == (17.5, 6)
    assert found.noise_margin == 0.15
    for task in ("agnews", "dbpedia", "trec", "mit-g", "mit-d"):
        for epsilon in EPSILONS:
            AdaDPSyn.preset(task, epsilon=epsilon).check(1000)


@pytest.mark.parametrize(
    ("task", "prompts", "records"),
    [("agnews", 10, 2), ("dbpedia", 10, 2), ("trec", 20, 2), ("mit-g", 40, 1), ("mit-d", 40, 1)],
)
def test_presets_tell_how_many_prompts_and_records(task: str, prompts: int, records: int) -> None:
    preset = published(task, epsilon=8)
    assert (preset.prompts, preset.records_per_prompt) == (prompts, records)


@pytest.mark.parametrize(
    ("task", "epsilon"), [("banking", 4), ("trec", 3), ("trec", 4.5), ("trec", math.nan)]
)
def test_an_unknown_preset_is_refused_and_says_what_there_is(task: str, epsilon: float) -> None:
    with pytest.raises(InvalidPlan, match=r"agnews, dbpedia, trec, mit-g, mit-d, each at epsilon=1, 2, 4, 8"):
        AdaDPSyn.preset(task, epsilon=epsilon)


def test_a_preset_keeps_its_multiplier_at_the_papers_own_scale() -> None:
    """Scaled to what the paper's three σ make together, they stay as printed."""
    printed = AdaDPSyn.preset("trec", epsilon=8)
    together = adadpsyn_multiplier(
        radius_multiplier=15, mean_multiplier=1.09, coverage_multiplier=5, rounds=2
    )
    assert printed.scaled(together).mean_multiplier == pytest.approx(1.09, rel=1e-12)
