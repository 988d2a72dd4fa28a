"""Plans as values: everything that is decided before anything is spent, and what it means in words."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Final

from dpfewshot.account.amounts import Amount
from dpfewshot.accounting import Event, epsilon
from dpfewshot.accounting.events import check_relation
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import rounded_up
from dpfewshot.mechanisms import Draws, FixedSize, InvisibleInk, WordHistogram
from dpfewshot.planning import document
from dpfewshot.planning.settings import FIXED_SIZE, PlanSettings
from dpfewshot.values import (
    PrivacySpend,
    Relation,
    believed,
    counted,
    delta_text,
    epsilon_text,
    on_one_line,
    percent_text,
)

READABLE_NOISE: Final = {
    "gaussian": (0.06, 0.1),
    "public-centred": (0.15, 0.2),
    InvisibleInk.name: (0.4, 0.6),
    WordHistogram.name: (0.06, 0.15),
}
"""The noise on the mean above which texts had words out of place, and above which they lost their sense.

A reader then needed about 0.9 and 1.8 nats a token more, and above. Measured with SmolLM2-135M and Gemma 3
270M (docs/results/readability.md), for these mechanisms alone. The Gaussian's figures, and
how many words are out of place, are from long texts (docs/results/long.md). Texts of `InvisibleInk` have no
words out of place at any noise, and so have those of `WordHistogram`: above these figures they say little of
the records. (A first word is known above 2.5 to 5.5 times the noise.)
"""

_WHOLE: Final = frozenset({InvisibleInk.name, WordHistogram.name})
"""The mechanisms whose texts are whole at any noise."""

OUT_OF_PLACE: Final = (25, 10)
"""At these two noises about one token in so many was out of place or more: from medians of ten long texts."""

RANDOM_NOISE: Final = 1.0
"""The largest value of a mean probability: above it, noise decides what the text says."""

HARDLY_PROTECTS: Final = 2 * math.log(99)
"""The ε above which somebody who is 1 % sure of a unit's presence may become more than 99 % sure, about 9.19.

From "almost surely not" to "almost surely" is all that a reader can want to learn."""


def epsilon_warnings(plan: GenerationPlan) -> list[str]:
    """A warning if the plan's ε hardly protects; else none."""
    if plan.epsilon is None or plan.epsilon <= HARDLY_PROTECTS:
        return []
    warning = (
        f"epsilon {epsilon_text(plan.epsilon)} protects hardly at all: whoever is 1 % sure that a given "
        f"record was used can become {percent_text(believed(0.01, plan.epsilon))} sure; take "
        f"{HARDLY_PROTECTS:.3g} or less (docs/privacy-officer.md)"
    )
    return [warning]


def noise_warnings(plan: GenerationPlan) -> list[str]:
    """A warning if a stratum's noise is above what its mechanism was measured to bear; else none."""
    helps = "what helps: docs/how-to/settings.md#what-helps-where-plan-warns"
    return [f"{_faults(plan)}; {helps}"] if noisy_strata(plan) else []


def noisy_strata(plan: GenerationPlan) -> list[StratumPlan]:
    """The strata whose noise is above what their mechanism was measured to bear, the noisiest first."""
    misplaced, _ = READABLE_NOISE.get(plan.mechanism, (math.inf, math.inf))
    noisy = [one for one in plan.strata if (one.noise_on_mean or 0.0) > misplaced]
    return sorted(noisy, key=lambda one: -(one.noise_on_mean or 0.0))


def reading(plan: GenerationPlan) -> str:
    """The expected quality of the texts."""
    if plan.mechanism not in READABLE_NOISE or plan.noise_on_mean is None:
        return f"not measured for the mechanism {plan.mechanism}"
    noisy = noisy_strata(plan)
    if len(noisy) == len(plan.strata):
        return f"{'whole sentences, but ' * (plan.mechanism in _WHOLE)}{_faults(plan)}"
    most = max(one.noise_on_mean or 0.0 for one in plan.strata if one not in noisy)
    nearly = most > READABLE_NOISE[plan.mechanism][0] / 2
    if plan.mechanism in _WHOLE:
        well = "whole sentences, as close to the records as this model gets"
        if nearly:
            well = "whole sentences, with some words that records often have; the rest is the model's"
    elif nearly:
        well = "nearly this model's best; few words were out of place when measured"
    else:
        well = "this model's best; no words were out of place when measured"
    return f"{well}; but {_faults(plan)}" if noisy else well


def _faults(plan: GenerationPlan) -> str:
    """What is wrong with the texts of which labels, in a clause."""
    labels: dict[str, list[str]] = {}
    noisy = noisy_strata(plan)
    for one in noisy:
        labels.setdefault(_fault(plan, one.noise_on_mean or 0.0), []).append(on_one_line(one.scope or ""))
    if len(labels) == 1 and len(noisy) == len(plan.strata):
        return f"the texts will {labels.popitem()[0]}"
    return "the texts " + "; those ".join(
        f"of {', '.join(some)} will {fault}" for fault, some in labels.items()
    )


def _fault(plan: GenerationPlan, noise: float) -> str:
    """What texts do at more noise than their mechanism was measured to bear."""
    _, senseless = READABLE_NOISE[plan.mechanism]
    hopeless = noise > senseless
    if plan.mechanism in _WHOLE:
        return f"say {'hardly anything' if hopeless else 'little'} of the records"
    if noise > RANDOM_NOISE:
        return "read badly: most words will be random"
    fault = f"about 1 word in {OUT_OF_PLACE[hopeless]}, or more, will be out of place"
    return f"read badly: {'they will make little sense, and ' * hopeless}{fault}"


@dataclass(frozen=True)
class Stratum:
    """One stratum of the records, in public.

    Attributes:
        scope: the label whose units take part; None for all units, where labels are free.
        labels: the labels to generate from them.
        population: n ≥ 1, the public number of units.
    """

    scope: str | None
    labels: tuple[str, ...]
    population: int


@dataclass(frozen=True, kw_only=True)
class StratumPlan(Stratum):
    """A stratum with its plan.

    Attributes:
        sampling_rate: q = M·N·P/((1-f)·n), exact, f the holdout: the probability that a unit that generates
            is in a draw from its disjoint part.
        draws: the draws from each of the P disjoint parts, as the mechanism sees them.
        noise_multiplier: σ; 0 without privacy.
        cost: the certified (ε, δ) of all draws, exact; None without privacy.
        noise_on_mean: what `Mechanism.noise_on_mean` says; None if the mechanism says nothing.
        event: what `cost` was computed for; None without privacy.
    """

    sampling_rate: Fraction
    draws: Draws
    noise_multiplier: float
    cost: Amount | None
    noise_on_mean: float | None
    event: Event | None

    @property
    def steps(self) -> int:
        """`draws.steps`."""
        return self.draws.steps

    @property
    def spend(self) -> PrivacySpend | None:
        """The cost in floats that are not below it; None without privacy."""
        return None if self.cost is None else self.cost.as_spend()

    @property
    def pays(self) -> bool:
        """Whether the cost is at least what the event costs; False without either."""
        if self.cost is None or self.event is None:
            return False
        try:
            certified = epsilon(self.event, self.cost.as_target().delta).upper
        except ArithmeticError:  # of numbers that no plan has
            return False
        return math.isfinite(certified) and Amount.certified(certified, self.cost.delta).fits(self.cost)

    def as_dict(self) -> dict[str, object]:
        """The plan as JSON.

        "exact" has what the figures round: the rate as numerator and denominator, the cost as ε in 10⁻¹² and
        δ in 10⁻¹⁸, and the event that it was computed for.
        """
        exact = {
            "sampling_rate": [self.sampling_rate.numerator, self.sampling_rate.denominator],
            "cost": None if self.cost is None else list(self.cost),
            "event": document.event_as_dict(self.event),
        }
        return self.figures() | {"exact": exact}

    def figures(self) -> dict[str, object]:
        """The plan as JSON without "exact"."""
        return {
            "scope": self.scope,
            "labels": list(self.labels),
            "population": self.population,
            "sampling_rate": float(self.sampling_rate),
            "noise_multiplier": self.noise_multiplier,
            "steps": self.steps,
            "epsilon": self.spend.epsilon if self.spend else None,
            "delta": self.spend.delta if self.spend else None,
            "noise_on_mean": self.noise_on_mean,
        }


def draws_at(settings: PlanSettings, stratum: Stratum, sampling_rate: Fraction) -> Draws:
    """The draws from each disjoint part of a stratum, as a mechanism sees them."""
    demonstrations = len(stratum.labels) * settings.shots_per_label
    each = -(-demonstrations // settings.disjoint_parts)
    fixed = settings.sampling == FIXED_SIZE
    return Draws(
        sampling_rate=rounded_up(sampling_rate),
        steps=each * settings.draws_per_demonstration,
        tokens_per_draw=settings.tokens_per_draw,
        prompts=settings.prompts_per_draw,
        row_change=settings.row_change,
        fixed_size=FixedSize(settings.units_per_draw, stratum.population) if fixed else None,
    )


@dataclass(frozen=True)
class GenerationPlan:
    """Everything that is decided before anything is spent.

    The noise multiplier and the sampling rate are those of the stratum that is hardest to protect; `strata`
    has the others. ε and δ bound all strata together: they are disjoint, so the greatest counts.

    Attributes:
        strata: one for each label, or a single one if labels are free.
        prompt_tokens: the tokens that the language model evaluates for one demonstration, at most on average
            over draws, computed from caps.
        estimated_seconds: of the language model, in one process, for all demonstrations of `max_tokens`
            tokens with records that fill their caps; None until `Synthesizer.probe` measured the backend.
        reasons: a sentence for each setting that the planner decided; () if the user chose all.
    """

    mechanism: str
    relation: Relation
    settings: PlanSettings
    strata: tuple[StratumPlan, ...]
    prompt_tokens: int
    estimated_seconds: float | None = None
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for stratum in self.strata:
            if stratum.event is not None:
                check_relation(stratum.event, self.relation)

    @property
    def noise_multiplier(self) -> float:
        """The largest σ of the strata."""
        return max(stratum.noise_multiplier for stratum in self.strata)

    @property
    def sampling_rate(self) -> float:
        """The largest q of the strata."""
        return float(max(stratum.sampling_rate for stratum in self.strata))

    @property
    def steps(self) -> int:
        """The largest number of draws of a stratum."""
        return max(stratum.steps for stratum in self.strata)

    @property
    def cost(self) -> Amount | None:
        """The certified (ε, δ) of everything in the plan, exact; None without privacy."""
        costs = [stratum.cost for stratum in self.strata if stratum.cost is not None]
        return functools.reduce(Amount.at_least, costs) if costs else None

    @property
    def epsilon(self) -> float | None:
        """The certified ε of everything in the plan, rounded up; None without privacy."""
        return None if self.cost is None else self.cost.as_spend().epsilon

    @property
    def delta(self) -> float | None:
        """The δ of everything in the plan, rounded up; None without privacy."""
        return None if self.cost is None else self.cost.as_spend().delta

    @property
    def noise_on_mean(self) -> float | None:
        """The largest of the strata; None if the mechanism says nothing."""
        noises = [stratum.noise_on_mean for stratum in self.strata]
        return None if None in noises else max(noise for noise in noises if noise is not None)

    @property
    def labels(self) -> list[str]:
        """The labels that it generates, stratum by stratum."""
        return [label for stratum in self.strata for label in stratum.labels]

    def __str__(self) -> str:
        made = f"{counted(self.demonstrations, 'demonstration')} by {self.mechanism}"
        if self.epsilon is None:
            return f"{made}, no guarantee"
        return (
            f"{made}: epsilon={epsilon_text(self.epsilon)} at delta={delta_text(self.delta or 0.0)}, "
            f"neighbours {self.relation}"
        )

    @property
    def demonstrations(self) -> int:
        """The number of demonstrations planned."""
        return self.settings.shots_per_label * len(self.labels)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences to read before anything is spent."""
        return (*self._delta_warnings, *epsilon_warnings(self), *noise_warnings(self))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what ε means in odds, and on how much of a record the model reads."""
        cap = self.settings.record_token_cap
        enter = "are counted" if self.mechanism == WordHistogram.name else "enter a prompt"
        cut = (
            f"at most {cap} tokens of a record {enter}, about {max(1, cap * 3 // 4)} words of "
            "English: if your records are longer, raise record_token_cap"
        )
        if self.epsilon is None:
            return (cut,)
        meaning = (
            f"epsilon {epsilon_text(self.epsilon)} means: whoever reads the texts and is 50 % sure that a "
            "given unit was used, and not left out, can become at most "
            f"{percent_text(believed(0.5, self.epsilon))} sure, apart from delta "
            f"{delta_text(self.delta or 0.0)}"
        )
        return (meaning, cut)

    @property
    def _delta_warnings(self) -> tuple[str, ...]:
        return tuple(
            f"delta={delta_text(stratum.spend.delta)} is not below 1/{stratum.population} for "
            f"{stratum.scope or 'the data set'}: it would allow publishing one random record; "
            "use it to reproduce a paper only"
            for stratum in self.strata
            if stratum.spend and stratum.spend.delta * stratum.population >= 1
        )

    def stratum_of(self, label: str) -> StratumPlan:
        """The stratum that generates a label.

        Raises:
            InvalidPlan: the label is not planned.
        """
        for stratum in self.strata:
            if label in stratum.labels:
                return stratum
        raise InvalidPlan(
            f"the plan has no label {label!r}: pass it in labels= when you create the synthesizer. It has "
            + ", ".join(map(repr, self.labels))
        )

    def as_dict(self) -> dict[str, object]:
        """The plan as JSON."""
        return {
            **self.figures(),
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "parts": [stratum.as_dict() for stratum in self.strata],
        }

    def figures(self) -> dict[str, object]:
        """The plan as JSON, with numbers as they are displayed: what a run and its continuation share."""
        return {
            "mechanism": self.mechanism,
            "relation": self.relation,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "steps": self.steps,
            **asdict(self.settings),
            "prompt_tokens": self.prompt_tokens,
            "estimated_seconds": self.estimated_seconds,
            "parts": [stratum.figures() for stratum in self.strata],
        }
