"""The sparse vector around another mechanism: public tokens, halts, and the price of both."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import (
    Composition,
    Event,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
    calibrate,
    epsilon,
)
from dpfewshot.errors import BudgetExceeded, InvalidPlan
from dpfewshot.mechanisms import (
    Draws,
    FixedSize,
    Gaussian,
    InvisibleInk,
    Mechanism,
    PrivatePrediction,
    ReportNoisyMax,
    RowChange,
    SparseVector,
    sparse_vector,
)
from dpfewshot.mechanisms.sparse_vector import AboveThreshold, distance
from tests.support import inside

SIGMA = 2.0
PROMPTS = 4
DRAWS = Draws(1.0, 3, 10, PROMPTS, RowChange.ADDED)
PUBLIC = np.log(np.array([0.1, 0.6, 0.3], dtype=np.float32))
AGREE = np.tile(PUBLIC, (PROMPTS, 1))
DISAGREE = np.log(np.array([[0.98, 0.01, 0.01]] * PROMPTS, dtype=np.float32))


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> list[Fraction]:
    """The tests without noise; the rates that noise was asked for."""
    rates: list[Fraction] = []
    monkeypatch.setattr(
        sparse_vector, "discrete_laplace", lambda n, d, _source: rates.append(Fraction(n, d)) or 0
    )
    return rates


def started(releases: int = 2, sigma: float = SIGMA):
    return SparseVector(ReportNoisyMax(), threshold=0.5, releases=releases).start(DRAWS, sigma)


@pytest.mark.usefixtures("no_noise")
def test_public_tokens_come_while_private_and_public_agree_and_private_ones_where_not() -> None:
    """And a further draw pays for further releases."""
    release = started(releases=2, sigma=0.001)
    rows = [AGREE, AGREE, DISAGREE, AGREE, DISAGREE, AGREE, DISAGREE]
    for _ in range(3):
        permit = Permit(10, 0.001)
        assert [release.token(each, PUBLIC, permit) for each in rows] == [1, 1, 0, 1, 0, None, None]


@pytest.mark.parametrize("row_change", RowChange)
def test_the_noise_of_a_run(no_noise: list[Fraction], row_change: RowChange) -> None:
    """Rate ε/(2Δ) for the threshold once a run, half of it for every token; none after the last halt."""
    share = 0.8
    wrapped = SparseVector(ReportNoisyMax(), 0.5, releases=2, test_share=share)
    release, permit = wrapped.start(replace(DRAWS, row_change=row_change), SIGMA), Permit(10, SIGMA)
    for rows in (AGREE, DISAGREE, AGREE, DISAGREE, AGREE):
        release.token(rows, PUBLIC, permit)
    sensitivity = _core.grid * (1 if row_change is RowChange.ADDED else 2)
    threshold, query = no_noise[0], no_noise[1]
    assert float(threshold) == pytest.approx(2.0 / SIGMA / (2 * sensitivity))  # √(0.8/0.2) = 2
    assert query == threshold / 2
    assert no_noise == [threshold, query, query, threshold, query, query]


def test_noise_moves_both_sides_of_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = iter([5, 4, 5, -3, -8, -7])
    monkeypatch.setattr(sparse_vector, "discrete_laplace", lambda *_: next(noise))
    test = AboveThreshold(10, Fraction(1), None)
    test.begin()
    assert test.passes(10)  # 10 + 4 < 10 + 5
    assert not test.passes(10)  # 15 < 15
    test.begin()
    assert test.passes(14)  # 14 - 8 < 10 - 3
    assert not test.passes(14)  # 14 - 7 < 7


@pytest.mark.usefixtures("no_noise")
def test_the_permit_counts_public_tokens_too() -> None:
    release, permit = started(), Permit(2, SIGMA)
    release.token(AGREE, PUBLIC, permit)
    release.token(AGREE, PUBLIC, permit)
    with pytest.raises(BudgetExceeded):
        release.token(AGREE, PUBLIC, permit)


@pytest.mark.usefixtures("no_noise")
def test_a_public_row_that_knows_nothing_frees_nothing() -> None:
    release, permit = started(sigma=0.001), Permit(1, 0.001)
    assert release.token(DISAGREE, np.full(3, np.nan, dtype=np.float32), permit) == 0


def test_distance_of_equals_is_rounding_and_of_opposites_twice_everything() -> None:
    public = _core.sum_of_probabilities(PUBLIC[np.newaxis])
    assert distance(AGREE, public, PROMPTS) == 0
    assert distance(np.empty((0, 3), dtype=np.float32), public, PROMPTS) == PROMPTS * int(public.sum())
    certain = np.array([[0, -np.inf], [-np.inf, 0]], dtype=np.float32)
    assert distance(certain[:1], _core.sum_of_probabilities(certain[1:]), 1) == 2 * _core.grid


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_the_events_are_r_tokens_and_r_tests_a_draw(rate: float) -> None:
    """Of some on each draw they are sampled together; those of everybody compose one by one."""

    def priced(mechanism: Mechanism) -> Event:
        return SparseVector(mechanism, 0.5, 2).event(replace(DRAWS, sampling_rate=rate), SIGMA)

    def and_tests(kind: type, parameter: float) -> Event:
        count = 2 if rate < 1 else 6
        queries = kind(1.0, parameter, count), PoissonRandomizedResponse(1.0, 1 / SIGMA, count)
        return PoissonProduct(rate, queries, 3) if rate < 1 else Composition(queries)

    assert priced(Gaussian()) == and_tests(PoissonGaussian, SIGMA)
    assert priced(ReportNoisyMax()) == and_tests(PoissonRandomizedResponse, 1 / SIGMA)
    event = priced(PrivatePrediction())
    assert isinstance(event, Tightest)
    pure, concentrated = event.events
    assert pure == and_tests(PoissonBoundedRange, 2 / SIGMA)
    assert concentrated.events[1] == ZeroConcentrated(1 / SIGMA**2 / 2, 6)
    assert [each.steps for each in concentrated.events] == [6, 6], "zCDP is not amplified, so it counts all"


def test_a_sampled_draw_costs_less_and_a_mechanism_of_unknown_pairs_is_refused() -> None:
    wrapped, one_draw = SparseVector(Gaussian(), 0.5, 8), Draws(0.1, 1, 40, 50, RowChange.ADDED)
    costs = [
        epsilon(wrapped.event(replace(one_draw, sampling_rate=q), 8.0), 1e-5).upper for q in (0.1, 0.9, 1.0)
    ]
    assert costs[0] < 0.4 * costs[2]
    assert costs[0] < costs[1] < costs[2]

    class Several(Gaussian):
        def event(self, draws, noise_multiplier):
            return Composition((super().event(draws, noise_multiplier),))

    everybody = SparseVector(Several(), 0.5, 8).event(replace(one_draw, sampling_rate=1.0), 8.0)
    assert epsilon(everybody, 1e-5).upper == pytest.approx(costs[2])
    with pytest.raises(InvalidPlan, match="product"):
        SparseVector(Several(), 0.5, 8).event(one_draw, 8.0)


def test_amin_et_al_sums_of_rho() -> None:
    """ρ = r·(c²/(2s²τ²) + 2/(sλ)²), λ the scale of the threshold's noise on the distance over s."""
    s, releases, sigma, share = 50, 30, 9.0, 0.3
    plan = Draws(1.0, 1, 200, s, RowChange.ADDED)
    wrapped = SparseVector(PrivatePrediction(), 0.5, releases, share)
    release = wrapped.start(plan, sigma)
    noise = 1 / float(inside.exponential_rate(release.test) * s * _core.grid)
    token = float(release.inner.clip**2 / 2 * (release.inner.rate * _core.logit_grid) ** 2)
    paper = releases * (token + 2 / (s * noise) ** 2)
    concentrated = wrapped.event(plan, sigma).events[1]
    assert sum(each.steps * each.rho for each in concentrated.events) == pytest.approx(paper)
    assert 2 / (s * noise) ** 2 == pytest.approx(share * paper / releases)


@pytest.mark.parametrize("mechanism", [Gaussian(), ReportNoisyMax(), PrivatePrediction(), InvisibleInk()])
def test_few_releases_take_less_noise_than_all_tokens(mechanism) -> None:
    plan = Draws(1.0, 1, 40, 50, RowChange.ADDED)
    alone = calibrate(lambda noise: mechanism.event(plan, noise), epsilon=2, delta=1e-5)
    wrapped = SparseVector(mechanism, 0.5, 5, 0.4)
    sigma = calibrate(lambda noise: wrapped.event(plan, noise), epsilon=2, delta=1e-5)
    assert sigma < 0.7 * alone
    assert epsilon(wrapped.event(plan, sigma), 1e-5).upper <= 2


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (replace(DRAWS, fixed_size=FixedSize(5, 5)), "needs Poisson draws"),
        (replace(DRAWS, tokens_per_draw=2), "tokens_per_draw=max_tokens"),
        (replace(DRAWS, tokens_per_draw=1), "tokens_per_draw=max_tokens"),
    ],
)
def test_draws_for_which_nothing_is_proved_are_refused(draws: Draws, message: str) -> None:
    wrapped = SparseVector(Gaussian(), 0.5, 2)
    for ask in (wrapped.event, wrapped.start):
        with pytest.raises(InvalidPlan, match=message):
            ask(draws, SIGMA)


def test_it_speaks_for_the_mechanism_that_it_wraps() -> None:
    wrapped = SparseVector(InvisibleInk(top_k=7), 0.5, 2)
    assert wrapped.name == "sparse-vector invisible-ink"
    assert wrapped.top_k == 7
    with pytest.raises(InvalidPlan, match="top_k"):
        wrapped.check(6)
    with pytest.raises(InvalidPlan, match="wraps a mechanism that releases every token"):
        SparseVector(wrapped, 0.5, 2)
