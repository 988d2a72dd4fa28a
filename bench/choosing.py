"""Choosing and stating on outcomes that are already known, by the package's own releases.

No model runs and nothing is charged: the items are those of public benchmarks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.releases import scores
from dpfewshot.releases.estimates import Estimate, Noise, estimate
from dpfewshot.releases.selection import Measurement, Selection, amplified, scale_of

DRAWS = 400
"""Choices with fresh noise and fresh halves, by pool."""

Outcomes: TypeAlias = NDArray[np.bool_]
"""Right or wrong, shape (items,)."""

SINGLE: tuple[str, ...] = ("none", "contextual")
"""Calibrations for a service that labels one text at a time; "batch" is for texts that are labelled together."""

Values = TypeVar("Values", bound=np.generic)

Items: TypeAlias = NDArray[np.int64]
"""Places of items, shape (any,)."""


@dataclass(frozen=True)
class Sample:
    """The records that are scored, of those that are held out: a release's Poisson sample.

    Attributes:
        scored: how many are scored.
        population: how many are held out.
    """

    scored: int
    population: int

    @property
    def sampling_rate(self) -> Fraction:
        """The probability q that a record is scored."""
        return min(Fraction(1), Fraction(self.scored, self.population))

    def rate(self, epsilon: float) -> Fraction:
        """ε₀ of a release from the sample that has ε for the population."""
        return amplified(Fraction(str(epsilon)), self.sampling_rate)


@dataclass(frozen=True)
class Chosen:
    """The choices from one pool in `DRAWS` draws. Accuracies are on the test items unless they say otherwise.

    Attributes:
        picked: how often each option was chosen.
        achieved: its mean accuracy.
        noiseless: the same if the same halves choose without noise.
        by_all: the accuracy of the option that is best on all scored records; None in a cross-fit.
        stated: the mean of the published accuracies; None in a cross-fit.
        spread: their standard deviation.
        width: half of the mean width of their intervals.
        covers: how often the interval holds the accuracy in the population that the scored records are drawn
            from; see `coverage`.
        covers_test: how often it holds that on the test items.
        by_score: the accuracy, on the records that did not choose, of what is chosen by right and wrong
            ("accuracy") and by the probability of the label ("likelihood").
    """

    picked: Mapping[str, int]
    achieved: float
    noiseless: float | None = None
    by_all: float | None = None
    stated: float | None = None
    spread: float | None = None
    width: float | None = None
    covers: float | None = None
    covers_test: float | None = None
    by_score: Mapping[str, float] = field(default_factory=dict)


def options(
    right: Mapping[str, Mapping[str, NDArray[Values]]], names: Sequence[str], calibrations: Sequence[str]
) -> dict[str, NDArray[Values]]:
    """The prompts with each calibration, to choose from."""
    return {f"{name} {kind}": right[name][kind] for kind in calibrations for name in names}


def halves(items: int) -> tuple[Items, Items]:
    """Two parts of the items: each item is in either by a fair coin of its own."""
    coins = _core.uniform_integers(2, items)
    return np.flatnonzero(coins == 0), np.flatnonzero(coins == 1)


def steps_of(options: Iterable[NDArray[np.float64] | Outcomes]) -> Items:
    """Scores in 0..1 as integers, shape (options, items): `scores.GRID` is 1."""
    return np.array([np.floor(option * scores.GRID) for option in options], dtype=np.int64)


def selected(steps: Items, items: Items, rate: Fraction) -> int:
    """The option with the largest noisy sum of scores over the items, at ε₀ = `rate`."""
    return Selection(rate).release(steps[:, items].sum(axis=1), Permit.unpaid(1, scale_of(rate)))


def stated(option: Outcomes, baseline: Outcomes, items: Items, rate: Fraction) -> Estimate:
    """The published accuracy of an option, measured on the items together with the prompt without demonstrations."""
    shown = [option] if option is baseline else [option, baseline]
    outcomes = [_outcomes(one[items]) for one in shown]
    weights = np.full(len(items), scores.GRID, dtype=np.int64)
    cells = scores.cells_of(outcomes, weights, [1] * len(items))
    counts = Measurement(rate).release(cells, Permit.unpaid(1, scale_of(rate)))
    wrong, right = counts.reshape(2, -1).sum(axis=1).tolist()
    return estimate(right, wrong, Noise(scale_of(rate), terms=len(shown)))


def _outcomes(right: Outcomes) -> scores.Outcomes:
    return scores.Outcomes(right[:, None].astype(np.int8), right[:, None].astype(np.float64))


def chosen(held: Mapping[str, Outcomes], test: Mapping[str, Outcomes], rate: Fraction) -> Chosen:
    """`DRAWS` choices and statements: one half of the scored records selects, the other measures, each at ε₀.

    The first option is the prompt without demonstrations.
    """
    names, options = list(held), list(held.values())
    steps = steps_of(options)
    accuracy = {name: float(test[name].mean()) for name in names}
    picks, noiseless, told = [], [], []
    for _ in range(DRAWS):
        selects, measures = halves(len(options[0]))
        index = selected(steps, selects, rate)
        picks.append(names[index])
        told.append(stated(options[index], options[0], measures, rate))
        noiseless.append(names[int(steps[:, selects].sum(axis=1).argmax())])
    covers_test = [one.low <= accuracy[name] <= one.high for one, name in zip(told, picks, strict=True)]
    return Chosen(
        picked=dict(Counter(picks)),
        achieved=_mean([accuracy[name] for name in picks]),
        noiseless=_mean([accuracy[name] for name in noiseless]),
        by_all=round(accuracy[max(names, key=lambda name: float(held[name].mean()))], 4),
        stated=_mean([one.value for one in told]),
        spread=round(float(np.std([one.value for one in told], ddof=1)), 4),
        width=_mean([(one.high - one.low) / 2 for one in told]),
        covers=coverage(options, rate),
        covers_test=_mean(covers_test),
    )


def coverage(options: Sequence[Outcomes], rate: Fraction) -> float:
    """How often the published interval holds the chosen option's accuracy in the population, in `DRAWS` draws.

    The population is one in which every scored record is equally frequent, so its accuracies are known. Each draw takes
    as many records from it, with replacement, and chooses and measures on them.
    """
    count, hits, steps = len(options[0]), 0, steps_of(options)
    for _ in range(DRAWS):
        drawn = _core.uniform_integers(count, count).astype(np.int64)
        selects, measures = (drawn[half] for half in halves(count))
        index = selected(steps, selects, rate)
        found = stated(options[index], options[0], measures, rate)
        hits += int(found.low <= options[index].mean() <= found.high)
    return round(hits / DRAWS, 4)


def by_score(
    right: Mapping[str, Outcomes], likelihood: Mapping[str, NDArray[np.float64]], rate: Fraction
) -> dict[str, float]:
    """The accuracy of what one half of the records chooses by either score, on the other half."""
    options = list(right.values())
    kinds = {"accuracy": steps_of(options), "likelihood": steps_of(likelihood.values())}
    achieved: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(DRAWS):
        selects, uses = halves(len(options[0]))
        for kind, steps in kinds.items():
            achieved[kind].append(float(options[selected(steps, selects, rate)][uses].mean()))
    return {kind: _mean(each) for kind, each in achieved.items()}


def cross_fit(outcomes: Mapping[str, Outcomes], rate: Fraction) -> Chosen:
    """`DRAWS` choices by one half of the test items; the other half gives the accuracy that is achieved."""
    names, options = list(outcomes), list(outcomes.values())
    steps = steps_of(options)
    picks, achieved, noiseless = [], [], []
    for _ in range(DRAWS):
        selects, uses = halves(len(options[0]))
        index, best = selected(steps, selects, rate), int(steps[:, selects].sum(axis=1).argmax())
        picks.append(names[index])
        achieved.append(float(options[index][uses].mean()))
        noiseless.append(float(options[best][uses].mean()))
    return Chosen(dict(Counter(picks)), _mean(achieved), _mean(noiseless))


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)
