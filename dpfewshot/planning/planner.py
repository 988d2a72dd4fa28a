"""The planner: fixes σ and the draws of every stratum before anything is drawn, from public numbers."""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

from dpfewshot.account.amounts import Amount
from dpfewshot.accounting import Event, calibrate, epsilon
from dpfewshot.accounting.published import published_multiplier
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.backends.token_automaton import TokenAutomaton, token_automaton
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws, Mechanism
from dpfewshot.mechanisms.word_histogram import CANDIDATES, MOST_HINT
from dpfewshot.planning.plan import (
    HARDLY_PROTECTS,
    READABLE_NOISE,
    GenerationPlan,
    Stratum,
    StratumPlan,
    draws_at,
)
from dpfewshot.planning.settings import PUBLISHED, PlanSettings
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.runtime.forking import cached_property
from dpfewshot.sampling import drawable
from dpfewshot.values import PrivacyBudget, Relation

SMALLEST_EPSILON = 1e-3
"""Below this the noise scale leaves the range of the integer grid."""

_MOST_RECORDS: Final = 1000  # times the plan's, where `enough` gives up


@dataclass(frozen=True)
class Planner:
    """Plans a mechanism for given strata, settings and a budget. It draws nothing and spends nothing.

    Attributes:
        writer: of the prompts, whose public lengths count.
        budget: (ε, δ) of all strata together, which are disjoint; None for σ = 0.
    """

    mechanism: Mechanism
    writer: PromptWriter
    settings: PlanSettings
    budget: PrivacyBudget | None
    strata: tuple[Stratum, ...]
    relation: Relation

    def plan(self, reasons: tuple[str, ...] = ()) -> GenerationPlan:
        """Plan every stratum, and bound the language model's work by the caps. Errors as `plan_stratum`."""
        found: dict[tuple[PlanSettings, int, int], StratumPlan] = {}
        made = []
        for stratum in self.strata:  # σ is sought once for those of one population and as many labels
            alike = self.settings.within(stratum.population), stratum.population, len(stratum.labels)
            if alike not in found:
                found[alike] = plan_stratum(self.mechanism, alike[0], self.budget, stratum)
            made.append(replace(found[alike], scope=stratum.scope, labels=stratum.labels))
        return GenerationPlan(
            mechanism=self.mechanism.name,
            relation=self.relation,
            settings=self.settings,
            strata=tuple(made),
            prompt_tokens=self.work,
            reasons=reasons,
        )

    @property
    def backend(self) -> LogprobBackend:
        """The language model."""
        return self.writer.backend

    def with_settings(self, **settings: Any) -> Planner:
        """A planner with some other settings."""
        return replace(self, settings=replace(self.settings, **settings))

    @property
    def work(self) -> int:
        """The tokens that the model evaluates for one demonstration, from the caps, if it need not quote."""
        if self.mechanism.draws_once:
            prompt = self.longest_prefix + self.longest_opening + MOST_HINT  # evaluated once for all
            return prompt + CANDIDATES * (self.settings.max_tokens - 1)
        return self.settings.prompts_per_draw * self.tokens_of_a_prompt

    @property
    def tokens_of_a_prompt(self) -> int:
        """The tokens that the model evaluates for one of the M prompts of a demonstration, from the caps.

        Each draw reads a prompt whole; every further token of the draw is one decode step.
        """
        draws = self.settings.draws_per_demonstration
        return draws * self.longest_suffix + self.settings.max_tokens - draws

    @cached_property
    def longest_prefix(self) -> int:
        """The most tokens that all prompts of a label begin with."""
        return max(len(self.writer.for_label(label).prefix) for label in self.labels)

    @cached_property
    def longest_opening(self) -> int:
        """The most tokens that follow the prefix of a public prompt, before the text."""
        return max(len(self.writer.for_label(label).public_suffix) for label in self.labels)

    @cached_property
    def longest_suffix(self) -> int:
        """The most tokens that follow the prefix of any prompt, from the caps.

        Without records in prompts: the opening, a hint and the text, and 1 that may begin a prompt.
        """
        records, tokens = self.settings.records_per_prompt, self.settings.max_tokens
        if self.mechanism.draws_once:
            return 1 + self.longest_opening + MOST_HINT + tokens
        shape = self._shape
        forced = 0 if shape is None else len(shape.opening) + shape.most_forced(tokens, shape.start)
        return forced + max(self.writer.longest_suffix(label, records, tokens) for label in self.labels)

    @property
    def labels(self) -> list[str]:
        """The labels to generate, stratum by stratum."""
        return [label for stratum in self.strata for label in stratum.labels]

    def check_lengths(self) -> None:
        """Refuse caps that the backend's context cannot hold, and a schema that needs more than `max_tokens`.

        Every prompt that is longer than the context would count as absent.
        """
        context_tokens = self.backend.context_tokens
        if self._shape is not None:
            self._shape.check(self.settings.max_tokens)
        needed = self.longest_prefix + self.longest_suffix
        if context_tokens is not None and needed > context_tokens:
            raise InvalidPlan(
                f"a prompt may need {needed} tokens, but the backend's context holds "
                f"{context_tokens}: {self._fewer_tokens(needed - context_tokens)} would fit"
            )

    def _fewer_tokens(self, excess: int) -> str:
        """The settings of which each alone takes so many tokens off a prompt, or makes room for them."""
        settings, records = self.settings, self.settings.records_per_prompt
        fewer = {"max_tokens": settings.max_tokens - excess}
        one_more = self.with_settings(records_per_prompt=records + 1)
        if a_record := one_more.longest_suffix - self.longest_suffix:  # 0 where no prompt has a record
            fewer["record_token_cap"] = settings.record_token_cap - -(-excess // records)
            fewer["records_per_prompt"] = records - -(-excess // a_record)
        enough = [f"{name}={number}" for name, number in fewer.items() if number >= 1]
        context = self.longest_prefix + self.longest_suffix
        return ", or ".join([*enough, f"a model with context_tokens={context}"])

    @property
    def _shape(self) -> TokenAutomaton | None:
        return token_automaton(self.backend, self.writer.task.layout.schema)


def plan_stratum(
    mechanism: Mechanism, settings: PlanSettings, budget: PrivacyBudget | None, stratum: Stratum
) -> StratumPlan:
    """Fix σ and the draws of one stratum, for its (ε, δ) or, with None, σ = 0.

    Raises:
        InvalidPlan: M·N·P is above the population, or no noise meets the budget.
    """
    sampling_rate = rate_of(settings, stratum)
    draws = mechanism.planned(draws_at(settings, stratum, sampling_rate))
    sigma, cost, event = 0.0, None, None
    if budget is not None and settings.accounting == PUBLISHED:
        sigma = _published_noise(mechanism, draws, budget)  # without a cost: it is not certified
    elif budget is not None:
        sigma, cost = least_noise(lambda noise: mechanism.event(draws, noise), budget)
        event = mechanism.event(draws, sigma)
    return StratumPlan(
        *(stratum.scope, stratum.labels, stratum.population),
        sampling_rate=sampling_rate,
        draws=draws,
        noise_multiplier=sigma,
        cost=cost,
        noise_on_mean=mechanism.noise_on_mean(draws, sigma) if sigma else 0.0,
        event=event,
    )


class Enough(NamedTuple):
    """What makes the worst stratum's noise bearable, and so all others', each alone; None: nothing does.

    ε is the least at the plan's δ, n the least below a thousand times the plan's.
    """

    scope: str | None
    epsilon: float | None
    population: int | None
    max_tokens: int | None


def enough(mechanism: Mechanism, plan: GenerationPlan) -> Enough | None:
    """Which ε, how many units or tokens would do; None if noise is bearable, or nobody measured what is.

    A stratum with more units may have more prompts. Noise on the mean is proportional to σ.
    """
    bearable = READABLE_NOISE.get(plan.mechanism, (math.inf,))[0]
    worst = max(plan.strata, key=lambda one: one.noise_on_mean or 0.0)
    spend = worst.spend
    if (worst.noise_on_mean or 0.0) <= bearable or spend is None or worst.draws.fixed_size is not None:
        return None

    def costs(population: int, max_tokens: int) -> float:
        shared = min(plan.settings.tokens_per_draw, max_tokens)
        most = max(1, plan.settings.most_prompts(population))
        prompts = most if mechanism.draws_once else min(plan.settings.prompts_per_draw, most)
        settings = replace(
            plan.settings, prompts_per_draw=prompts, max_tokens=max_tokens, tokens_per_draw=shared
        )
        stratum = replace(worst, population=population)
        draws = mechanism.planned(draws_at(settings, stratum, rate_of(settings, stratum)))
        sigma = bearable / (mechanism.noise_on_mean(draws, 1.0) or math.inf)
        return epsilon(mechanism.event(draws, sigma), spend.delta).upper

    units, tokens = worst.population, plan.settings.max_tokens
    needed = costs(units, tokens)
    populations = range(units + 1, _MOST_RECORDS * units)
    few = bisect_left(populations, -spend.epsilon, key=lambda n: -costs(n, tokens))
    return Enough(
        worst.scope,
        epsilon=needed if needed <= HARDLY_PROTECTS else None,
        population=populations[few] if few < len(populations) else None,
        max_tokens=bisect(range(1, tokens), spend.epsilon, key=lambda t: costs(units, t)) or None,
    )


def _published_noise(mechanism: Mechanism, draws: Draws, budget: PrivacyBudget) -> float:
    """The σ that the paper's own accounting gives for its fixed-size draws."""
    size, accounting = draws.fixed_size, mechanism.published_accounting
    if size is None or accounting is None:
        raise InvalidPlan("accounting='published' is available for the mechanisms gaussian and adadpsyn")
    return published_multiplier(
        accounting,
        size.sample_size,
        size.population,
        draws.steps,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


def least_noise(event: Callable[[float], Event], budget: PrivacyBudget) -> tuple[float, Amount]:
    """The smallest σ that is certified to fit the budget, and what it costs."""
    if budget.epsilon < SMALLEST_EPSILON:
        raise InvalidPlan(f"epsilon must be at least {SMALLEST_EPSILON}, not {budget.epsilon}")
    limit = Amount.of_budget(budget)
    if limit.delta < 1:
        raise InvalidPlan(f"delta must be at least 1e-18, not {budget.delta}")
    target = limit.as_target()
    sigma = calibrate(event, epsilon=target.epsilon, delta=target.delta)
    return sigma, Amount.certified(epsilon(event(sigma), target.delta).upper, limit.delta)


def rate_of(settings: PlanSettings, stratum: Stratum) -> Fraction:
    """The rate q = M·N·P/((1-f)·n): (1-f)·n is the expected number of units that generate, and public."""
    wanted, generating = settings.units_wanted, settings.division.generating_share * stratum.population
    where = f"label {stratum.scope!r}" if stratum.scope is not None else "the data set"
    share = f" without its holdout of {settings.holdout} (0 uses all)" if settings.holdout else ""
    if generating < 1:
        raise InvalidPlan(
            f"{where}{share} has no units to sample from: check the data, or leave the label out"
        )
    if wanted > generating:
        parts = " x disjoint_parts" if settings.disjoint_parts > 1 else ""
        raise InvalidPlan(
            f"prompts_per_draw x records_per_prompt{parts} = {wanted} is above the population "
            f"{int(generating)} of {where}{share}: {_fewer_units(settings, stratum.population)} would fit"
        )
    return drawable(wanted / generating)


def _fewer_units(settings: PlanSettings, population: int) -> str:
    generating = int(settings.division.generating_share * population)
    if prompts := settings.most_prompts(population):
        return f"prompts_per_draw={prompts}"
    if records := generating // settings.disjoint_parts:
        return f"records_per_prompt={records}"
    return f"disjoint_parts={generating}"
