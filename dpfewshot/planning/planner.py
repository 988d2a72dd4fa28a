"""Planning: σ and the number of draws are fixed before anything is drawn, from public numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from dpfewshot.accounting import Event, calibrate, epsilon
from dpfewshot.accounting.events import PublishedAccounting
from dpfewshot.accounting.reference.published import published_multiplier
from dpfewshot.budget.amounts import Amount
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact.rounding import rounded_up
from dpfewshot.mechanisms import Draws, FixedSize, Mechanism
from dpfewshot.planning.plan import GenerationPlan, Stratum, StratumPlan
from dpfewshot.planning.settings import FIXED_SIZE, PUBLISHED, Settings
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.sampling import units
from dpfewshot.values import PrivacyBudget, Record, Relation

SMALLEST_EPSILON = 1e-3
"""Below this the noise scale leaves the range of the integer grid."""


def plan_generation(
    mechanism: Mechanism,
    settings: Settings,
    budget: PrivacyBudget | None,
    strata: Sequence[Stratum],
    *,
    writer: PromptWriter,
    relation: Relation,
) -> GenerationPlan:
    """Plan every part and count what the language model has to do, from caps.

    Args:
        mechanism: whose events are composed.
        settings: what the user chose.
        budget: (ε, δ) of all parts together, which are disjoint; None for σ = 0.
        strata: one a label, or one in all where labels are free.
        writer: of the prompts, whose public lengths count.
        relation: the neighbouring relation.

    Raises:
        InvalidPlan: M·N is above a population, or no noise meets the budget.
    """
    longest = longest_suffix(settings, strata, writer)
    prefill = settings.draws_per_demonstration * settings.prompts_per_token * longest
    decode = (settings.max_tokens - settings.draws_per_demonstration) * settings.prompts_per_token
    return GenerationPlan(
        mechanism=mechanism.name,
        relation=relation,
        settings=settings,
        strata=tuple(plan_stratum(mechanism, settings, budget, stratum) for stratum in strata),
        prompt_tokens=prefill + decode,
    )


def longest_suffix(settings: Settings, strata: Sequence[Stratum], writer: PromptWriter) -> int:
    """The most tokens after the prefix of any prompt, from caps alone."""
    return max(
        writer.longest_suffix(label, settings.records_per_prompt, settings.max_tokens)
        for stratum in strata
        for label in stratum.labels
    )


def plan_stratum(
    mechanism: Mechanism, settings: Settings, budget: PrivacyBudget | None, stratum: Stratum
) -> StratumPlan:
    """Fix σ and the draws of one part.

    Args:
        mechanism: whose event is composed.
        settings: what the user chose.
        budget: the part's (ε, δ); None for σ = 0.
        stratum: what the part is asked for.

    Raises:
        InvalidPlan: M·N is above the population, or no noise meets the budget.
    """
    sampling_rate = _sampling_rate(settings, stratum.scope, stratum.population)
    demonstrations = len(stratum.labels) * settings.shots_per_label
    draws = _draws(settings, sampling_rate, stratum.population, demonstrations)
    sigma, cost, event = 0.0, None, None
    if budget is not None and settings.accounting == PUBLISHED:
        sigma = _published_noise(mechanism, draws, budget)  # and no cost: it is not certified
    elif budget is not None:
        sigma, cost = _least_noise(lambda noise: mechanism.event(draws, noise), budget)
        event = mechanism.event(draws, sigma)
    return StratumPlan(
        stratum=stratum,
        sampling_rate=sampling_rate,
        draws=draws,
        noise_multiplier=sigma,
        cost=cost,
        noise_on_mean=mechanism.noise_on_mean(draws, sigma) if sigma else 0.0,
        event=event,
    )


def _draws(settings: Settings, sampling_rate: Fraction, population: int, demonstrations: int) -> Draws:
    each = -(-demonstrations // settings.disjoint_parts)
    wanted = settings.prompts_per_token * settings.records_per_prompt
    return Draws(
        sampling_rate=rounded_up(sampling_rate),
        steps=each * settings.draws_per_demonstration,
        tokens_per_draw=settings.resample_every,
        prompts=settings.prompts_per_token,
        row_change=settings.row_change,
        fixed_size=FixedSize(wanted, population) if settings.sampling == FIXED_SIZE else None,
    )


def _published_noise(mechanism: Mechanism, draws: Draws, budget: PrivacyBudget) -> float:
    """The σ that the paper's own accounting gives for its fixed-size draws.

    Raises:
        InvalidPlan: the mechanism's paper has no such accounting.
    """
    accounting: PublishedAccounting | None = getattr(mechanism, "published_accounting", None)
    size = draws.fixed_size
    if size is None or accounting is None:
        raise InvalidPlan("accounting='published' is there for the mechanisms gaussian and adadpsyn")
    return published_multiplier(
        accounting,
        size.sample_size,
        size.population,
        draws.steps,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


def _least_noise(event: Callable[[float], Event], budget: PrivacyBudget) -> tuple[float, Amount]:
    """The smallest certified σ that fits the budget, and what it costs."""
    if budget.epsilon < SMALLEST_EPSILON:
        raise InvalidPlan(f"epsilon must be at least {SMALLEST_EPSILON}, not {budget.epsilon}")
    limit = Amount.of_budget(budget)
    target = limit.as_target()
    sigma = calibrate(event, epsilon=target.epsilon, delta=target.delta)
    return sigma, Amount.certified(epsilon(event(sigma), delta=target.delta).upper, limit.delta)


def _sampling_rate(settings: Settings, scope: str | None, population: int) -> Fraction:
    parts = settings.disjoint_parts
    wanted = settings.prompts_per_token * settings.records_per_prompt * parts
    where = f"label {scope!r}" if scope is not None else "the data set"
    if population < 1:
        raise InvalidPlan(f"{where} has no units to sample from")
    if wanted > population:
        fits = population // (settings.records_per_prompt * parts)
        few = population // parts
        advice = f"prompts_per_token={fits} would fit" if fits else f"records_per_prompt={few} would fit"
        if not few:
            advice = f"disjoint_parts={population} would fit"
        product = "prompts_per_token x records_per_prompt" + (" x disjoint_parts" if parts > 1 else "")
        raise InvalidPlan(f"{product} = {wanted} is above the population {population} of {where}: {advice}")
    return Fraction(wanted, population)


Population = Mapping[str, int] | int | None
"""Public constants n: by label, or one number for a task with free labels; None counts the units."""


def public_population(population: Population, scope: str | None, counted: int) -> int:
    """The n of one part: the public constant, or the count where none is given.

    Raises:
        InvalidPlan: `population` does not name the part, or is no whole number of at least 1.
    """
    if population is None:
        return counted
    if scope is None and isinstance(population, Mapping):
        raise InvalidPlan(
            "labels are free and draw from the whole data set: population must be one whole number"
        )
    if scope is not None and not isinstance(population, Mapping):
        raise InvalidPlan(
            "population must name a number for each label, as in {'refund': 1200}; on the command line "
            "repeat it, as in --population refund=1200 --population delivery=900"
        )
    count = population.get(str(scope)) if isinstance(population, Mapping) else population
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidPlan(
            f"population must give a whole number of at least 1 for label {scope!r}; on the command line "
            "repeat --population LABEL=N for each label"
        )
    return count


LARGEST_DEFAULT_DELTA = 1e-5
"""δ of a command line that names none, for up to a thousand units."""


def default_delta(population: Population, records: Iterable[Record]) -> float:
    """The smaller of 10⁻⁵ and 1/(100 n), n all units: δ of a command line that names none.

    δ is printed and moves σ, so it follows from what the neighbouring relation makes public and from nothing
    else. With a population that is the population. Without one, and in draws of fixed size, it is the number
    of units: a null, or the unit that takes another's place, keeps its place in the count. The number of
    records is private either way: a unit may have any number of them, under any labels.

    Args:
        population: public constants, or None to count.
        records: private; only their units are counted, and only without a population.
    """
    if population is None:
        count = len(units(records))
    else:
        count = sum(population.values()) if isinstance(population, Mapping) else population
    return min(LARGEST_DEFAULT_DELTA, 1 / (100 * max(1, count)))


def public_stratum(
    settings: Settings, population: Population, scope: str | None, labels: tuple[str, ...], counted: int
) -> Stratum:
    """A stratum with its public n.

    Args:
        settings: what the user chose.
        population: public constants, or None to count.
        scope: the label whose units take part, or None for all.
        labels: the labels that are generated from them.
        counted: how many units there are.

    Raises:
        InvalidPlan: `population` does not fit, or is another number than is there in draws of fixed size.
    """
    public = public_population(population, scope, counted)
    if settings.sampling == FIXED_SIZE and public != counted:
        raise InvalidPlan(f"draws of fixed size take n as it is: {counted}, which population must equal")
    return Stratum(scope, labels, public)


def relation_of(sampling: str, population: Population) -> Relation:
    """The neighbouring relation that a run is stated for."""
    if sampling == FIXED_SIZE:
        return Relation.REPLACE_ONE
    return Relation.ZERO_OUT if population is None else Relation.ADD_REMOVE


def check_context(
    context_tokens: int | None, writer: PromptWriter, settings: Settings, strata: Sequence[Stratum]
) -> None:
    """Refuse caps that the backend's context cannot hold: every such prompt would count as absent.

    Args:
        context_tokens: the longest prompt of the backend; None where it does not say.
        writer: of the prompts.
        settings: what the user chose.
        strata: all parts.

    Raises:
        InvalidPlan: says how many tokens a prompt may need.
    """
    labels = [label for each in strata for label in each.labels]
    needed = max(len(writer.for_label(label).prefix) for label in labels)
    needed += longest_suffix(settings, strata, writer)
    if context_tokens is not None and needed > context_tokens:
        raise InvalidPlan(
            f"a prompt may need {needed} tokens, but the backend's context holds "
            f"{context_tokens}: lower record_token_cap or records_per_prompt, or raise context_tokens"
        )
