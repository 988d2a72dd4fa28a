"""The certificate against an independent calculation, in random settings of every event.

What is held: the exact δ at the certified ε is at most δ, and at the lower bound at least δ; and the bounds
of δ, at that ε and, if large, at 0, enclose the exact one. The exact δ comes from `independent_accounting`,
which shares no code with the accountant. Controls: curves that are 1 % too low, and one step in a hundred
forgotten, must be caught.

    pytest -m soak tests/accounting/test_independent.py  # 20,000 settings: a while"""

import math
import random
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np
import pytest

from dpfewshot.accounting import (
    Composition,
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
    bounds,
    calibrate,
    delta,
    epsilon,
)
from dpfewshot.accounting.bounds import epsilon_upper
from dpfewshot.accounting.curves import Curve, FloatArray
from dpfewshot.accounting.pairs import dominating_pairs
from tests.accounting.conftest import forget
from tests.accounting.test_curves import Changed
from tests.support import independent_accounting as independent
from tests.support.independent_accounting import Estimate, Law, Shared, chosen, delta_of

LAST_DIGITS = 1e-6, 1e-9  # of the independent calculation: relative to δ and 1 - δ, and to δ alone
UNSURE = 1e-3  # of δ and 1 - δ: where its own two results differ by more, it says nothing
MOST_UNSURE = 0.02  # of all settings
TWIN = 5  # one setting in so many also asks for δ
LEAST_DELTA = 1e-12  # a smaller δ is not compared
LARGE = 0.3  # a smaller δ is not compared at ε = 0, next to which losses of small rates lie


class Setting(NamedTuple):
    """An event, and the δ that its ε is asked for."""

    event: Event
    delta: float


def setting(source: random.Random) -> Setting:
    """Noise from 2⁻⁶ to 10⁵, rates from 10⁻⁶ to 1, up to 10⁵ steps; every event, alone and composed.

    δ lies between 10⁻¹² and 1 - 10⁻⁵.
    """
    make = source.choices(
        [gaussian, fixed_size, response, bounded_range, zero_concentrated, mixture, product], WEIGHTS
    )[0]
    small, rest = 10 ** source.uniform(-12, math.log10(0.3)), 10 ** source.uniform(-5, math.log10(0.7))
    return Setting(make(source), source.choice([small, small, 1 - rest]))


WEIGHTS = 10, 4, 4, 4, 2, 4, 2


def rate(source: random.Random) -> float:
    return source.choice(
        [1.0, 10 ** source.uniform(-6, 0), 10 ** source.uniform(-6, 0), 10 ** source.uniform(-2, 0)]
    )


def steps(source: random.Random) -> int:
    return source.choice([1, round(10 ** source.uniform(0, 5)), round(10 ** source.uniform(0, 5))])


def noise(source: random.Random) -> float:
    lowest = math.log(2.0**-6)
    return math.exp(
        source.choice([source.uniform(lowest, math.log(1e5)), source.uniform(lowest, math.log(30))])
    )


def gaussian(source: random.Random) -> Event:
    return PoissonGaussian(rate(source), noise(source), steps(source))


def fixed_size(source: random.Random) -> Event:
    population = round(10 ** source.uniform(0, 6))
    size = min(max(round(population * rate(source)), 1), population)
    return FixedSizeGaussian(size, population, noise(source), steps(source))


def response(source: random.Random) -> Event:
    return PoissonRandomizedResponse(rate(source), 10 ** source.uniform(-4, 2.5), steps(source))


def bounded_range(source: random.Random) -> Event:
    return PoissonBoundedRange(rate(source), 10 ** source.uniform(-4, 2.3), steps(source))


def zero_concentrated(source: random.Random) -> Event:
    return ZeroConcentrated(10 ** source.uniform(-8, 2), steps(source))


def mixture(source: random.Random) -> Event:
    """Two or three kinds on scales that matter beside each other, or one computation told twice."""
    cost, count = 10 ** source.uniform(-2, 1), round(10 ** source.uniform(0, 4))
    of_gaussian = PoissonGaussian(rate(source), source.uniform(0.5, 2) / cost, count)
    of_response = PoissonRandomizedResponse(rate(source), cost, round(10 ** source.uniform(0, 2)))
    of_range = PoissonBoundedRange(rate(source), cost, round(10 ** source.uniform(0, 2)))
    concentrated = ZeroConcentrated(cost**2 / 8, count)
    return source.choice(
        [
            Composition((of_gaussian, of_response)),
            Composition((of_gaussian, Composition((of_range, of_response)))),
            Composition((of_response, PoissonRandomizedResponse(rate(source), cost / 3, count))),
            Composition((of_gaussian, PoissonGaussian(rate(source), 3 / cost, count))),
            Composition((of_range, concentrated)),
            Tightest((of_range, of_response)),
        ]
    )


def product(source: random.Random) -> Event:
    """Responses on one draw, alone or beside a Gaussian or up to four draws of bounded range."""
    cost = 10 ** source.uniform(-2, 1)
    responses = tuple(
        PoissonRandomizedResponse(1.0, cost * source.uniform(0.2, 2), source.randint(1, 2))
        for _ in range(source.randint(1, 2))
    )
    beside = source.choice(
        [
            (PoissonGaussian(1.0, source.uniform(1, 4) / cost, source.randint(1, 9)),),
            (PoissonBoundedRange(1.0, source.uniform(0.5, 1) * cost, source.randint(1, 4)),),
            (),
        ]
    )
    count = round(10 ** source.uniform(0, 5)) if beside else source.randint(1, 3)
    return PoissonProduct(rate(source), beside + responses[: source.randint(not beside, 2)], count)


def laws_of(event: Event) -> list[list[Law]]:
    """The laws of all steps, with the unit removed and with it added."""
    if isinstance(event, Composition):
        parts = [laws_of(each) for each in event.events]
        return [list(chain.from_iterable(part[way % len(part)] for part in parts)) for way in (0, 1)]
    if isinstance(event, FixedSizeGaussian):
        law = independent.fixed_size(event.sample_size, event.population, event.noise_multiplier, event.steps)
        return [[law]]
    if isinstance(event, ZeroConcentrated):  # the Gaussian mechanism has these moments: no less can be right
        return [[independent.gaussian(1.0, (2 * event.rho * event.steps) ** -0.5, 1, removed=True)]]
    make, parameter = {
        PoissonGaussian: (independent.gaussian, getattr(event, "noise_multiplier", None)),
        PoissonRandomizedResponse: (independent.response, getattr(event, "epsilon", None)),
        PoissonBoundedRange: (independent.bounded_range, getattr(event, "epsilon", None)),
        PoissonProduct: (independent.product, isinstance(event, PoissonProduct) and shared_queries(event)),
    }[type(event)]
    ways = (True,) if event.sampling_rate == 1 else (True, False)
    return [[make(event.sampling_rate, parameter, event.steps, removed=way)] for way in ways]


def shared_queries(event: PoissonProduct) -> Shared:
    squared, width, ranges, responses = 0.0, 1.0, 0, []
    for query in event.queries:
        match query:
            case PoissonGaussian(noise_multiplier=sigma):
                squared += query.steps / sigma**2
            case PoissonBoundedRange(epsilon=width):
                ranges = query.steps
            case PoissonRandomizedResponse(epsilon=cost):
                responses += [cost] * query.steps
    return Shared(squared**-0.5 if squared else None, width, ranges, tuple(responses))


def exact_delta(event: Event, at: float, near: float) -> Estimate:
    """The larger δ of both directions; of several descriptions of one computation the least."""
    if isinstance(event, Tightest):
        return chosen(min, (exact_delta(each, at, near) for each in event.events))
    return chosen(max, (delta_of(laws, at, near) for laws in laws_of(event)))


class Verdict(NamedTuple):
    """What is wrong, or nothing; and whether the independent calculation was sure."""

    fault: str
    sure: bool


def margin(near: float) -> float:
    """What the independent δ may be off by, besides its doubt."""
    of_both, of_delta = LAST_DIGITS
    return max(of_both * min(near, 1 - near), of_delta * near)


def examine(asked: Setting, *, both: bool = False) -> Verdict:
    """Hold ε, and with `both` its lower bound and δ too, against the independent calculation."""
    event, allowed = asked
    found = epsilon(event, allowed)
    has_lower = both and not isinstance(event, Tightest)
    claims = [(found.upper, 0.0, allowed)] if found.upper < math.inf else []  # ε, and what encloses its δ
    if has_lower and found.lower > 0:
        claims.append((found.lower, allowed, 1.0))
    for at in (0.0, found.upper) if both and found.upper < math.inf else ():
        certified = delta(event, at)
        if at > 0 or certified.upper > LARGE:
            claims.append((at, certified.lower if has_lower else 0.0, certified.upper))
    verdict = Verdict("", sure=True)
    for at, least, most in claims:
        near = most if least == 0 else least
        if near < LEAST_DELTA:
            continue
        estimate = exact_delta(event, at, near)
        off = margin(near) + 3 * estimate.doubt
        if estimate.doubt > UNSURE * min(near, max(1 - near, UNSURE)):
            verdict = Verdict("", sure=False)
        elif not least - off <= estimate.delta <= most + off:
            return Verdict(f"δ is {estimate} at ε {at}, not between {least} and {most}", sure=True)
    return verdict


@pytest.mark.parametrize(
    ("count", "seed"),
    [(60, 13), *(pytest.param(1_000, 1_000 + chunk, marks=pytest.mark.soak) for chunk in range(20))],
)
def test_the_certificate_holds_in_random_settings(count: int, seed: int) -> None:
    source, unsure = random.Random(seed), 0
    for number in range(count):
        asked = setting(source)
        verdict = examine(asked, both=number % TWIN == 0)
        assert not verdict.fault, (asked, verdict.fault)
        unsure += not verdict.sure
    assert unsure <= MOST_UNSURE * count


def one_percent_less(epsilons: FloatArray, curve: Curve) -> Curve:
    """99 % of a pair's curve and 1 % of the curve of no loss at all: a curve in every way, and too low."""
    floor = -np.expm1(np.minimum(epsilons, 0.0))
    return curve._replace(values=curve.values - 0.01 * (curve.values - floor))


CONTROLS = 16


def interesting(source: random.Random, make: Callable[[random.Random], Event]) -> Setting:
    """A setting of one kind whose ε is neither 0 nor beyond all use."""
    while True:
        asked = Setting(make(source), 10 ** source.uniform(-12, -1))
        if 1e-3 < epsilon_upper(asked.event, asked.delta) < 1e4:
            return asked


@pytest.mark.parametrize("make", [gaussian, fixed_size, response, bounded_range, product])
def test_the_examination_catches_a_curve_that_is_wrong_by_one_percent(
    make: Callable[[random.Random], Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(4)
    asked = [interesting(source, make) for _ in range(CONTROLS)]
    assert not any(examine(each).fault for each in asked)
    less = lambda event, **_: [Changed(pair, one_percent_less) for pair in dominating_pairs(event)]  # noqa: E731
    monkeypatch.setattr(bounds, "dominating_pairs", less)
    forget()
    assert sum(bool(examine(each).fault) for each in asked) >= CONTROLS / 2


def test_the_examination_catches_a_step_in_a_hundred_that_is_forgotten() -> None:
    event, allowed = PoissonGaussian(0.01, 0.8, 500), 1e-6
    forgetful = epsilon(PoissonGaussian(0.01, 0.8, 495), allowed).upper
    assert exact_delta(event, forgetful, allowed).delta > 1.01 * allowed
    assert exact_delta(event, epsilon(event, allowed).upper, allowed).delta <= allowed


NINE = (PoissonGaussian(1.0, 5.6884488954, 9),)
RARE = [  # and δ in between, by a convolution of one step's losses, rounded down and up
    (PoissonGaussian(2.2884899596e-6, 0.70261371940, 23), 0.00427906, 2.6898e-11, 2.7025e-11),
    (PoissonGaussian(6.5056248336e-5, 1.63825131965, 6), 0.000595861, 2.9184e-8, 2.9376e-8),
    (PoissonProduct(1.1253135807e-5, NINE, 3), 6.45682e-5, 3.1094e-9, 3.1189e-9),
]


@pytest.mark.parametrize(("event", "at", "least", "most"), RARE)
def test_the_examination_resolves_losses_that_are_rare(
    event: Event, at: float, least: float, most: float
) -> None:
    """It said 0 ± 0: adding a unit cannot lose that much, and removing one was -1e-10 ± 5e-10."""
    found = exact_delta(event, at, least)
    assert least < found.delta < most
    assert 0 < found.doubt < 1e-4 * least
    assert examine(Setting(event, least), both=True) == Verdict("", sure=True)


def test_the_examination_resolves_losses_next_to_the_largest() -> None:
    """0.009 below the largest loss nodes that are too far apart put the line where nothing could be added."""
    event, at = PoissonBoundedRange(0.02611370534825362, 6.972069824590497, 2), 6.713425876686256
    found = exact_delta(event, at, 2.3e-11)
    assert found.delta == pytest.approx(2.2703536208515e-11, rel=1e-7)  # mpmath integrates over one step
    assert found.doubt < 1e-6 * found.delta


def test_a_direction_in_doubt_leaves_doubt() -> None:
    unresolved, nothing, much = Estimate(-1e-10, 5e-10), Estimate(0.0, 0.0), Estimate(1.0, 0.0)
    assert chosen(max, [unresolved, nothing]) == Estimate(0.0, pytest.approx(4e-10))
    assert chosen(max, [unresolved, much]) == much
    assert chosen(max, [Estimate(0.0, math.inf), much]).doubt == math.inf
    assert chosen(min, [unresolved, much]) == Estimate(-1e-10, pytest.approx(5e-10))


@pytest.mark.parametrize("removed", [True, False])
def test_a_certain_loss_is_one_within_its_doubt(removed: bool) -> None:
    """38,283 steps at ε = 0: it said 1 + 3.5e-8 ± 0.9e-8, and 1 - 5.8e-8 ± 0.03e-8."""
    law = independent.gaussian(0.09578406690377994, 0.01832766314291135, 38283, removed=removed)
    found = delta_of([law], 0.0, 1.0)
    assert abs(found.delta - 1) <= found.doubt < 1e-8


@pytest.mark.parametrize("at", [996.868, 1150.373, 1196.89])
def test_what_outcomes_bring_back_at_high_frequencies_is_not_missed(at: float) -> None:
    """Two sums that ended before it agreed on a δ that was 5e-4 off."""
    outcomes = independent.response(1.0, 0.6105278974909139, 6363, removed=True)
    nothing = independent.gaussian(1.0, 1e9, 1, removed=True)
    exact, found = delta_of([outcomes], at, 0.5), delta_of([outcomes, nothing], at, 0.5)
    assert abs(found.delta - exact.delta) <= 2 * found.doubt + 1e-8


def test_small_noise_costs_what_it_costs() -> None:
    """It said 0.02: where every loss is above ε the curve was about q in place of 1 - e^ε."""
    event = PoissonGaussian(1e-5, 0.025, 2000)
    found = epsilon(event, 1e-6)
    assert exact_delta(event, found.upper, 1e-6).delta <= 1e-6
    assert 2300 < found.lower <= found.upper < 2330


def test_a_plan_of_many_tokens_on_one_draw_is_not_nearly_noiseless() -> None:
    """M = 10, T = R = 1600, 2000 demonstrations of a million units: it planned σ/√R = 0.025."""
    sigma = calibrate(lambda sigma: PoissonGaussian(1e-5, sigma / 40, 2000), epsilon=8.0, delta=1e-6)
    assert exact_delta(PoissonGaussian(1e-5, sigma / 40, 2000), 8.0, 1e-6).delta <= 1e-6
    assert exact_delta(PoissonGaussian(1e-5, 0.99 * sigma / 40, 2000), 8.0, 1e-6).delta > 1e-6


@pytest.mark.parametrize("steps", [1, 50, 400, 5000])
@pytest.mark.parametrize("at", [0.0, 0.1, 3.0])
def test_delta_near_one_is_not_below_the_truth(steps: int, at: float) -> None:
    """The search began at δ = 0.999, which nobody had certified."""
    event = PoissonGaussian(1.0, 1.0, steps)
    exact = exact_delta(event, at, 0.5).delta
    found = delta(event, at)
    assert found.lower <= exact * (1 + 1e-9)
    assert found.upper >= exact * (1 - 1e-9)


RESPONSES = (PoissonRandomizedResponse(1.0, 16.09, 2),)
NEAR_ONE = [
    Setting(PoissonProduct(0.4658, RESPONSES, 8), 0.99989),
    Setting(PoissonGaussian(0.8634, 0.0952, 23), 0.9999),
    Setting(PoissonBoundedRange(0.4047, 18.87, 17), 0.9999),
]


@pytest.mark.parametrize("asked", NEAR_ONE)
def test_bounds_hold_next_to_one(asked: Setting) -> None:
    """A lower ε of 4.6 was above the true 0, and two events were refused: exponents were cut apart."""
    assert examine(asked, both=True) == Verdict("", sure=True)


TWO = (PoissonRandomizedResponse(1.0, 7.576, 1), PoissonRandomizedResponse(0.056, 2.525, 1))
LOOSE_NEAR_ONE = [
    Setting(PoissonProduct(0.4658, RESPONSES, 8), 0.99989),
    Setting(PoissonProduct(1.0, (PoissonRandomizedResponse(1.0, 3.856, 1),), 3), 0.99981),
    Setting(PoissonProduct(0.9068, (PoissonGaussian(1.0, 0.2889, 7),), 4), 0.99993),
    Setting(Composition(TWO), 0.99444),
]


@pytest.mark.parametrize("asked", LOOSE_NEAR_ONE)
def test_epsilon_is_tight_next_to_one(asked: Setting) -> None:
    """The tilt was made for an answer next to the losses: 4.9, 3.9, 9.3 and 7.0 for 0, 0, 0 and 2.29."""
    found = epsilon(*asked).upper
    below = found - 0.01 * (1 + found)
    assert below < 0 or exact_delta(asked.event, below, asked.delta).delta > asked.delta
