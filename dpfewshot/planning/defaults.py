"""Decides the mechanism, M, N and R that a user leaves open, from public numbers alone.

The inputs are n of each stratum, (ε, δ), T, the caps of the prompts, V, a limit for the language model's work
and the number of prompts that the backend keeps: no private number enters.

The mechanism is `InvisibleInk`, or `PublicCentred` where draws have a fixed size
(docs/decisions/defaults.md). For each R, each stratum's M is as large as the work, its units and the backend
allow. The noise on the mean is proportional to σ/M, whatever the mechanism. The planner takes the least work
whose noise is enough at the smallest stratum, which has the most noise; larger strata then have fewer
prompts. Where none is, or less is always better, it takes the R and M with the least noise, or fewer draws
with at most 10 % more.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Gaussian, InvisibleInk, Mechanism, PublicCentred
from dpfewshot.planning.plan import Stratum
from dpfewshot.planning.planner import Planner, plan_stratum, rate_of
from dpfewshot.planning.settings import FIXED_SIZE, TOP_K, PlanSettings, Settings
from dpfewshot.values import counted

_AS_GOOD = 1.1
"""Noise within 10 % reads alike; then fewer draws are taken, which cost a fraction of the work."""

_FEWEST = 8
"""The least M that is taken for less work: a mean of fewer prompts is a few records' own."""

CANDIDATES, TEMPERATURE = 1000, 0.55
"""K and τ of the planner's mechanism (docs/decisions/defaults.md)."""

_ALIKE = 1.4
"""Strata whose numbers of units differ by less take as many prompts."""

_AS_MANY = "as many as the records need to decide the words: more shows in no text"

_WORTH_SAYING = 0.05
"""The relative difference in noise from which another R is named beside the one that was decided."""

_DEVIATIONS = 4
"""Standard deviations of a Poisson draw above its mean that the backend should keep."""


class Decision(NamedTuple):
    """What a plan is made of, and a sentence for each setting that was decided or costs unforeseen work."""

    mechanism: Mechanism
    planner: Planner
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Option:
    """An M and R, what keeps M from being larger, and σ/M at the smallest stratum once it is computed."""

    settings: PlanSettings
    bound: str
    noise: float = 0.0


def decide(planner: Planner, mechanism: Mechanism | None, chosen: Settings) -> Decision:
    """Fill what the user left open: the planner's M and R count only where `chosen` has them too.

    Raises:
        InvalidPlan: no M and R that are possible suit the mechanism and the budget, or the backend cannot
            serve the mechanism.
    """
    if chosen.prompts_per_draw is not None:  # it is not reduced to what a stratum allows
        for stratum in planner.strata:
            rate_of(planner.settings, stratum)
    if mechanism is not None and mechanism.draws_once:
        return _of_all_records(planner, mechanism, chosen)
    options = _options(planner, chosen)
    decided, scored, reasons = _mechanism(planner, mechanism, options)
    some_are_enough = decided.enough and planner.budget and chosen.prompts_per_draw is None
    cheapest = _least_work(planner, decided, scored) if some_are_enough else None
    best = cheapest or _best(scored)
    settings, kept = best.settings, planner.backend.kept_prompts
    if chosen.tokens_per_draw is None:
        others = [] if cheapest else [one for one in scored if one is not best]
        reasons.append(_why_draws(settings, best.noise, others))
    if some_are_enough:
        planner = replace(planner, strata=_with_prompts(planner, decided, settings))
    if chosen.prompts_per_draw is None:
        every = [stratum.within(settings).prompts_per_draw for stratum in planner.strata]
        bound = best.bound if max(every) == settings.prompts_per_draw else _AS_MANY
        settings = replace(settings, prompts_per_draw=max(every))
        fewer = f"; some labels need fewer, or have no more units: {min(every)} at least"
        reasons.append(f"M={max(every)}: {bound}" + (fewer if min(every) < max(every) else ""))
    elif settings.tokens_per_draw > 1 and settings.prompts_per_draw > (kept or math.inf):
        reasons.append(
            f"M={settings.prompts_per_draw}: more than the backend keeps "
            f"(kept_prompts={kept}), so the others are evaluated from their start for each "
            "token, beyond the tokens that the plan counts: raise kept_prompts"
        )
    return Decision(decided, replace(planner, settings=settings), tuple(reasons))


def _of_all_records(planner: Planner, mechanism: Mechanism, chosen: Settings) -> Decision:
    """One draw of every record for all texts of a label.

    Raises:
        InvalidPlan: the task has free labels, several fields or a schema, or N or R is given.
    """
    task = planner.writer.task
    if task.labels is None or len(task.layout.fields) > 1 or task.layout.schema:
        raise InvalidPlan(
            f"the mechanism {mechanism.name} needs a task with given labels, one field and no schema: "
            "leave the mechanism out"
        )
    if planner.settings.records_per_prompt > 1:
        raise InvalidPlan(f"{mechanism.name} has no prompts of records: use records_per_prompt=1")
    if chosen.tokens_per_draw is not None:
        raise InvalidPlan(f"{mechanism.name} has one draw for all texts: leave tokens_per_draw out")
    settings, reasons = replace(planner.settings, tokens_per_draw=planner.settings.max_tokens), []
    if chosen.prompts_per_draw is None:
        most = max(settings.most_prompts(stratum.population) for stratum in planner.strata)
        settings = replace(settings, prompts_per_draw=max(1, most))
        reasons.append(f"M={settings.prompts_per_draw}: every unit of a label takes part in its one draw")
    return Decision(mechanism, replace(planner, settings=settings), tuple(reasons))


def _mechanism(
    planner: Planner, given: Mechanism | None, options: list[_Option]
) -> tuple[Mechanism, list[_Option], list[str]]:
    """The mechanism with its scored options, and why it was taken."""
    vocabulary_size = planner.backend.vocabulary_size
    top_k = min(TOP_K, vocabulary_size)
    if given is not None:
        given.check(vocabulary_size)
        return given, options if len(options) == 1 else _scored(planner, given, options), []
    if planner.budget is None:
        gaussian = Gaussian(top_k=top_k, contrast=0.5)
        reason = "mechanism gaussian: without privacy there is no noise to reduce"
        return gaussian, _scored(planner, gaussian, options), [reason]
    mechanism: Mechanism = InvisibleInk(top_k=min(CANDIDATES, vocabulary_size), temperature=TEMPERATURE)
    reason = "its texts are whole at any budget, and vary as records do"
    if planner.settings.sampling == FIXED_SIZE:
        mechanism = PublicCentred(top_k=top_k)
        reason = "it allows draws of a fixed size"
    return mechanism, _scored(planner, mechanism, options), [f"mechanism {mechanism.name}: {reason}"]


def _least_work(planner: Planner, mechanism: Mechanism, scored: list[_Option]) -> _Option | None:
    """The option with the least work whose noise is enough at the smallest stratum; None if none is."""
    smallest = min(planner.strata, key=lambda stratum: stratum.population)
    found = []
    for option in scored:
        most = option.settings.within(smallest.population).prompts_per_draw
        prompts = _least_prompts(planner, mechanism, option.settings, smallest, most)
        if prompts is not None:
            found.append(_Option(replace(option.settings, prompts_per_draw=prompts), _AS_MANY))
    return min(found, key=lambda one: planner.work_of(one.settings), default=None)


def _least_prompts(
    planner: Planner, mechanism: Mechanism, settings: PlanSettings, stratum: Stratum, most: int
) -> int | None:
    """The least M, up to the most, whose noise is enough at a stratum; None if none is."""

    def enough(prompts: int) -> bool:
        tried = replace(settings, prompts_per_draw=prompts)
        noise = plan_stratum(mechanism, tried, planner.budget, stratum).noise_on_mean
        return noise is not None and noise <= (mechanism.enough or 0.0)

    every = range(min(_FEWEST, most), most + 1)
    least = bisect.bisect_left(every, True, key=enough)
    return every[least] if least < len(every) else None


def _with_prompts(planner: Planner, mechanism: Mechanism, settings: PlanSettings) -> tuple[Stratum, ...]:
    """The strata, each with the M that is enough for it: more units need fewer prompts.

    One with less than 1.4 times the units of a smaller one takes as many as that: few numbers are sought.
    """
    ordered, made = sorted(planner.strata, key=lambda one: one.population), {}
    units, prompts = ordered[0].population, settings.prompts_per_draw
    for stratum in ordered:
        if stratum.population > _ALIKE * units:
            most = min(prompts, settings.within(stratum.population).prompts_per_draw)
            found = _least_prompts(planner, mechanism, settings, stratum, most)
            units, prompts = stratum.population, found or prompts
        made[stratum] = replace(stratum, prompts=prompts)
    return tuple(made[stratum] for stratum in planner.strata)


def _best(scored: list[_Option]) -> _Option:
    """The first whose noise is within 10 % of the least."""
    enough = _AS_GOOD * min(one.noise for one in scored)
    return next(one for one in scored if one.noise <= enough)


def _options(planner: Planner, chosen: Settings) -> list[_Option]:
    """For each R, the largest M; from one draw a demonstration to a fresh draw for each token."""
    tokens = planner.settings.max_tokens
    if chosen.tokens_per_draw is not None:
        every = [chosen.tokens_per_draw]
    else:
        every = sorted({-(-tokens // 4**power) for power in range(tokens.bit_length())}, reverse=True)
    settings = [replace(planner.settings, tokens_per_draw=each) for each in every]
    most = chosen.prompt_token_limit // (chosen.prompts_per_draw or 1)
    affordable = [each for each in settings if planner.tokens_of_a_prompt(each) <= most]
    possible = affordable or settings[:1]
    if chosen.prompts_per_draw is None:
        return [_with_most_prompts(planner, each, chosen.prompt_token_limit) for each in possible]
    return [_Option(each, "given") for each in possible]


def _with_most_prompts(planner: Planner, settings: PlanSettings, limit: int) -> _Option:
    largest = max(planner.strata, key=lambda stratum: stratum.population)
    where = "the data set" if largest.scope is None else f"label {largest.scope!r}"
    generating = int(settings.division.generating_share * largest.population)
    work, kept = planner.tokens_of_a_prompt(settings), planner.backend.kept_prompts
    bounds = {
        f"as many as {limit:,} tokens of the language model a demonstration allow": limit // work,
        f"as many as the {counted(generating, 'unit')} of {where} that may generate allow": (
            settings.most_prompts(largest.population)
        ),
    }
    if kept and settings.tokens_per_draw > 1:
        room = f"as many as the backend keeps, with room for larger draws (kept_prompts={kept})"
        bounds[room] = prompts_within(kept)
    bound = min(bounds, key=lambda each: bounds[each])
    if work > limit:
        too_much = f"the least, which takes {work:,} tokens of the language model a demonstration"
        return _Option(settings, f"{too_much}: more than prompt_token_limit={limit}")
    return _Option(replace(settings, prompts_per_draw=max(1, bounds[bound])), bound)


def _scored(planner: Planner, mechanism: Mechanism, options: list[_Option]) -> list[_Option]:
    """The options that the mechanism allows, each with its noise at the smallest stratum."""
    smallest = min(planner.strata, key=lambda stratum: stratum.population)
    scored: list[_Option] = []
    refusals: list[InvalidPlan] = []
    for option in options:
        try:
            settings = option.settings.within(smallest.population)
            planned = plan_stratum(mechanism, settings, planner.budget, smallest)
            noise = planned.noise_multiplier / settings.prompts_per_draw
            scored.append(replace(option, noise=noise))
        except InvalidPlan as refusal:  # the mechanism does not suit these draws
            refusals.append(refusal)
    if not scored:
        raise refusals[0]
    return scored


def _why_draws(settings: PlanSettings, noise: float, others: list[_Option]) -> str:
    """R in words, beside the option that is furthest from it."""
    every = settings.tokens_per_draw
    words = "one draw for each demonstration" if every == settings.max_tokens else "tokens that share a draw"
    words = f"R={every}: {'a fresh draw for each token' if every == 1 else words}"
    if not noise or not others:
        return words
    other = max(others, key=lambda one: abs(one.settings.tokens_per_draw - every))
    if abs(other.noise / noise - 1) < _WORTH_SAYING:
        return words
    given = other.settings
    numbers = f"R={given.tokens_per_draw}, M={given.prompts_per_draw}"
    return f"{words}; {numbers} would have {other.noise / noise:.1f} times the noise"


def prompts_within(kept: int) -> int:
    """The largest mean of a Poisson draw that nearly always fits: M + 4√M ≤ kept."""
    return math.floor((math.sqrt(kept + (_DEVIATIONS / 2) ** 2) - _DEVIATIONS / 2) ** 2)
