"""The mechanisms that bench/mechanisms.py compares: their settings, and their plans at equal (ε, δ)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.vectors import DATA_SETS, DataSet
from dpfewshot.accounting import calibrate
from dpfewshot.accounting.events import PublishedAccounting
from dpfewshot.accounting.published import published_multiplier
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import (
    AdaDPSyn,
    ClippingQuantile,
    Draws,
    Gaussian,
    InvisibleInk,
    Mechanism,
    PrivatePrediction,
    PublicCentred,
    ReportNoisyMax,
    RowChange,
)

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5


@dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        name: as printed.
        mechanism: for an ε and the data set's task.
        row_change: the change of rows that the noise covers; Tang's √2 is that of grouped prompts.
        block: whether one draw serves a whole demonstration.
        raised: whether M is raised until the noise equals that of a fresh draw for each token.
        times: M in multiples of the data set's.
        published: whether the paper's own accounting sets the noise.
    """

    name: str
    mechanism: Callable[[DataSet, float], Mechanism]
    row_change: RowChange = RowChange.ADDED
    block: bool = False
    raised: bool = False
    times: int = 1
    published: bool = False


def always(mechanism: Mechanism) -> Callable[[DataSet, float], Mechanism]:
    """The same settings at every ε."""
    return lambda _data_set, _epsilon: mechanism


def preset(data_set: DataSet, epsilon: float) -> Mechanism:
    """The paper's ratios for the task."""
    return AdaDPSyn.preset(data_set.task.name, epsilon=epsilon)


TANG = "Gaussian, as published (√2)"
GAUSSIAN = "Gaussian"
CENTRED = "public-centred, three rounds"
ADADPSYN_PUBLISHED = "AdaDPSyn, paper's accounting"
ADADPSYN = "AdaDPSyn"
RAISED = "Gaussian, R = T, M raised"
CENTRED_ONCE = "public-centred, one round, C = 0.5"
CENTRED_BLOCK = "public-centred, three rounds, R = T, 2 M"
SETTINGS = (
    Setting(TANG, always(Gaussian()), RowChange.REPLACED),
    Setting(GAUSSIAN, always(Gaussian())),
    Setting("public-centred, one round, C = 0.3", always(PublicCentred(clip=0.3, refinements=()))),
    Setting(CENTRED_ONCE, always(PublicCentred(clip=0.5, refinements=()))),
    Setting("public-centred, one round, C = 0.7", always(PublicCentred(clip=0.7, refinements=()))),
    Setting(
        "public-centred, one round, adaptive",
        always(PublicCentred(refinements=(), adapt=ClippingQuantile(0.9))),
    ),
    Setting(CENTRED, always(PublicCentred())),
    Setting(ADADPSYN_PUBLISHED, preset, RowChange.REPLACED, published=True),
    Setting(ADADPSYN, preset),
    Setting("report noisy max, 2/ε₀", always(ReportNoisyMax()), RowChange.REPLACED),
    Setting("report noisy max, 1/ε₀", always(ReportNoisyMax())),
    Setting("private prediction, c = 10", always(PrivatePrediction(clip=10.0))),
    Setting("private prediction, τ = 1", always(PrivatePrediction(clip=None, temperature=1.0))),
    Setting("InvisibleInk, τ = 1", always(InvisibleInk())),
    Setting("Gaussian, R = T", always(Gaussian()), block=True),
    Setting(RAISED, always(Gaussian()), block=True, raised=True),
    Setting("public-centred, three rounds, R = T", always(PublicCentred()), block=True),
    Setting(CENTRED_BLOCK, always(PublicCentred()), block=True, times=2),
    Setting(
        "public-centred, three rounds, R = T, M raised", always(PublicCentred()), block=True, raised=True
    ),
)


@dataclass(frozen=True)
class Planned:
    """A setting at one ε for one population."""

    mechanism: Mechanism
    draws: Draws
    noise_multiplier: float


@functools.cache
def planned(setting: Setting, name: str, epsilon: float, population: int, most: int | None = None) -> Planned:
    """The least noise that meets (ε, δ); where M is raised, to `most` prompts or to the population."""
    data_set = DATA_SETS[name]
    if not setting.raised:
        return _planned(setting, data_set, epsilon, population, setting.times * data_set.prompts)
    fresh = _planned(
        dataclasses.replace(setting, block=False), data_set, epsilon, population, data_set.prompts
    )
    goal = noise_of(fresh)
    low, high = data_set.prompts, most or population
    while high - low > 1:
        middle = (low + high) // 2
        meets = noise_of(_planned(setting, data_set, epsilon, population, middle)) <= goal
        low, high = (low, middle) if meets else (middle, high)
    return _planned(setting, data_set, epsilon, population, high)


def noise_of(plan: Planned) -> float:
    """The standard deviation of the noise on the mean; 0 of a mechanism that adds none to it."""
    return plan.mechanism.noise_on_mean(plan.draws, plan.noise_multiplier) or 0.0


def _planned(setting: Setting, data_set: DataSet, epsilon: float, population: int, prompts: int) -> Planned:
    mechanism = setting.mechanism(data_set, epsilon)
    # Free labels draw from the whole data set in sequence, fixed ones from disjoint strata.
    demonstrations = 1 if data_set.task.labels else len(data_set.labels)
    length = data_set.max_tokens if setting.block else 1
    draws = Draws(
        sampling_rate=prompts / population,
        steps=demonstrations * -(-data_set.max_tokens // length),
        tokens_per_draw=length,
        prompts=prompts,
        row_change=setting.row_change,
    )
    if setting.published:
        sigma = _published(prompts, population, draws.steps, epsilon)
    else:
        sigma = calibrate(lambda noise: mechanism.event(draws, noise), epsilon=epsilon, delta=DELTA)
    return Planned(mechanism, draws, sigma)


def _published(prompts: int, population: int, steps: int, epsilon: float) -> float:
    """The paper's σ; NaN if no noise reaches ε, since its bound does not fall to 0."""
    try:
        return published_multiplier(
            PublishedAccounting.RENYI, prompts, population, steps, epsilon=epsilon, delta=DELTA
        )
    except InvalidPlan:
        return math.nan
