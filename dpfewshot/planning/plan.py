"""Plans as values: everything that is decided before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from dpfewshot.accounting import Event
from dpfewshot.accounting.events import check_relation
from dpfewshot.budget.amounts import Amount
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws
from dpfewshot.planning.settings import Settings
from dpfewshot.values import PrivacySpend, Relation


@dataclass(frozen=True)
class Stratum:
    """One stratum of the records, in public: the units of one label, or all units where labels are free.

    Attributes:
        scope: the label whose units take part; None for all units.
        labels: the labels to generate from them.
        population: n ≥ 1, the public number of units.
    """

    scope: str | None
    labels: tuple[str, ...]
    population: int


@dataclass(frozen=True)
class StratumPlan:
    """The plan of one stratum.

    Attributes:
        stratum: whose units it draws.
        sampling_rate: q = M·N·P/n, exact: the probability that a unit is in a draw of its stratum.
        draws: the draws from each of the P disjoint parts, as the mechanism sees them.
        noise_multiplier: σ; 0 without privacy.
        cost: the certified (ε, δ) of all draws, exact; None without privacy.
        noise_on_mean: standard deviation of the noise on a mean probability; None where noise is not
            added to probabilities.
        event: what `cost` was computed for; None without privacy.
    """

    stratum: Stratum
    sampling_rate: Fraction
    draws: Draws
    noise_multiplier: float
    cost: Amount | None
    noise_on_mean: float | None
    event: Event | None

    @property
    def scope(self) -> str | None:
        """The label whose units take part; None for all units."""
        return self.stratum.scope

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that this stratum generates."""
        return self.stratum.labels

    @property
    def population(self) -> int:
        """n, the public number of units."""
        return self.stratum.population

    @property
    def steps(self) -> int:
        """The number of draws from each of the P disjoint parts."""
        return self.draws.steps

    @property
    def spend(self) -> PrivacySpend | None:
        """The cost in floats that are not below it; None without privacy."""
        return None if self.cost is None else self.cost.as_spend()

    @property
    def details(self) -> dict[str, str | int | float]:
        """What an account's history keeps of it: public numbers."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": str(self.sampling_rate),
            "steps": self.steps,
            "tokens_per_step": self.draws.tokens_per_draw,
        }


@dataclass(frozen=True)
class GenerationPlan:
    """Everything that is decided before anything is spent.

    The noise multiplier and the sampling rate are those of the stratum that is hardest to protect; `strata`
    has each one's. ε and δ bound all strata together: they are disjoint, so the greatest counts.

    Attributes:
        mechanism: its name.
        relation: the neighbouring relation, "add-remove", "zero-out" or "replace-one".
        settings: what the user chose.
        strata: one a label, or one in all where labels are free.
        prompt_tokens: tokens that the language model evaluates for one demonstration, at most on
            average over draws, computed from caps.
        estimated_seconds: for all demonstrations, once `Synthesizer.probe` measured the backend.
    """

    mechanism: str
    relation: Relation
    settings: Settings
    strata: tuple[StratumPlan, ...]
    prompt_tokens: int
    estimated_seconds: float | None = None

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
    def epsilon(self) -> float | None:
        """The certified ε of everything in the plan; None without privacy."""
        return max((stratum.spend.epsilon for stratum in self.strata if stratum.spend), default=None)

    @property
    def delta(self) -> float | None:
        """The δ of everything in the plan; None without privacy."""
        return max((stratum.spend.delta for stratum in self.strata if stratum.spend), default=None)

    @property
    def noise_on_mean(self) -> float | None:
        """The largest noise on a mean probability; None where noise is not added to probabilities."""
        noises = [stratum.noise_on_mean for stratum in self.strata]
        return None if None in noises else max(noise for noise in noises if noise is not None)

    @property
    def demonstrations(self) -> int:
        """How many demonstrations are planned."""
        return self.settings.shots_per_label * sum(len(stratum.labels) for stratum in self.strata)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a careful reader should know before it is spent."""
        return tuple(
            f"delta={stratum.spend.delta:.3g} is not below 1/{stratum.population} for "
            f"{stratum.scope or 'the data set'}: it allows a mechanism that publishes one random record; "
            "use it for reproduction only"
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
            f"the plan has no label {label!r}: pass it in labels= when you make the synthesizer"
        )

    def with_speed(self, tokens_per_second: float) -> GenerationPlan:
        """The same plan with an estimate of its duration."""
        seconds = self.demonstrations * self.prompt_tokens / tokens_per_second
        return replace(self, estimated_seconds=seconds)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "mechanism": self.mechanism,
            "relation": self.relation,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "steps": self.steps,
            "prompts_per_token": self.settings.prompts_per_token,
            "records_per_prompt": self.settings.records_per_prompt,
            "max_tokens": self.settings.max_tokens,
            "shots_per_label": self.settings.shots_per_label,
            "resample_every": self.settings.resample_every,
            "record_token_cap": self.settings.record_token_cap,
            "sampling": self.settings.sampling,
            "disjoint_parts": self.settings.disjoint_parts,
            "prompt_tokens": self.prompt_tokens,
            "estimated_seconds": self.estimated_seconds,
            "warnings": list(self.warnings),
            "parts": [_stratum_as_dict(stratum) for stratum in self.strata],
        }


def _stratum_as_dict(stratum: StratumPlan) -> dict[str, object]:
    return {
        "scope": stratum.scope,
        "labels": list(stratum.labels),
        "population": stratum.population,
        "sampling_rate": float(stratum.sampling_rate),
        "noise_multiplier": stratum.noise_multiplier,
        "steps": stratum.steps,
        "epsilon": stratum.spend.epsilon if stratum.spend else None,
        "delta": stratum.spend.delta if stratum.spend else None,
        "noise_on_mean": stratum.noise_on_mean,
    }
