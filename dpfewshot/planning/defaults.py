"""Decides the mechanism, M and R that a user leaves open, from public settings and numbers alone.

`WordHistogram` counts all units of a label once. Where it cannot, the planner draws from predictions: by
`InvisibleInk`, or by `PublicCentred` where draws have a fixed size (docs/decisions/defaults.md). One draw or
four then serve a demonstration, whichever has less noise at the smallest stratum with as many prompts as the
work, the units and the backend allow.
"""

from __future__ import annotations

import math
from typing import Final

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import InvisibleInk, Mechanism, PublicCentred, WordHistogram
from dpfewshot.planning.planner import Planner, plan_stratum, rate_of
from dpfewshot.planning.settings import FIXED_SIZE, TOP_K, Settings
from dpfewshot.tasks import Task
from dpfewshot.values import counted

INK_TOP_K, INK_TEMPERATURE = 1000, 0.55
"""K and τ of `InvisibleInk` where the planner takes it (docs/decisions/defaults.md)."""

DRAWS: Final = 4
"""The draws of a demonstration that are tried beside one: more had about the noise of these."""

_DEVIATIONS = 4
"""Standard deviations of a Poisson draw above its mean that the backend should keep."""


def counts_words(task: Task, chosen: Settings) -> bool:
    """Whether the planner takes `WordHistogram`: texts are of one line, and no setting is about prompts."""
    of_prompts = (chosen.prompts_per_draw, chosen.records_per_prompt, chosen.tokens_per_draw, chosen.preset)
    return can_count(task) and not task.multiline and chosen.sampling != FIXED_SIZE and not any(of_prompts)


def can_count(task: Task) -> bool:
    """Whether `WordHistogram` suits a task: it has one field and no schema."""
    return len(task.layout.fields) <= 1 and not task.layout.schema


def planned_mechanism(task: Task, chosen: Settings, vocabulary_size: int) -> tuple[Mechanism, str]:
    """The mechanism where the user names none, and why."""
    if counts_words(task, chosen):
        return WordHistogram(), "mechanism word-histogram: one noisy count of words pays for all texts"
    if chosen.sampling == FIXED_SIZE:
        centred = PublicCentred(top_k=min(TOP_K, vocabulary_size))
        return centred, "mechanism public-centred: it allows draws of a fixed size"
    ink = InvisibleInk(top_k=min(INK_TOP_K, vocabulary_size), temperature=INK_TEMPERATURE)
    return ink, "mechanism invisible-ink: its texts are whole at any budget, and vary as records do"


def decide(planner: Planner, chosen: Settings) -> tuple[Planner, tuple[str, ...]]:
    """The planner with the M and R that the user left open, and a sentence for each that was decided.

    Raises:
        InvalidPlan: a label has fewer units than a given M takes, or the mechanism does not suit the task,
            the settings or the backend.
    """
    if chosen.prompts_per_draw is not None:  # it is not reduced to what a stratum allows
        for stratum in planner.strata:
            rate_of(planner.settings, stratum)
    planner.mechanism.check(planner.backend.vocabulary_size)
    if planner.mechanism.draws_once:
        return _of_all_units(planner, chosen)
    tokens, limit = planner.settings.max_tokens, chosen.prompt_token_limit
    every = [tokens, -(-tokens // DRAWS)] if chosen.tokens_per_draw is None else [chosen.tokens_per_draw]
    options = [_with_most_prompts(planner.with_settings(tokens_per_draw=each), chosen) for each in every]
    affordable = [one for one in options if one[0].work <= limit] or options[:1]
    best, bound = min(affordable, key=lambda one: _noise(one[0]))
    settings, reasons = best.settings, []
    if chosen.tokens_per_draw is None:
        draws = counted(settings.draws_per_demonstration, "draw")
        reasons.append(f"R={settings.tokens_per_draw}: {draws} for a demonstration have the least noise")
    if chosen.prompts_per_draw is None:
        reasons.append(f"M={settings.prompts_per_draw}: {bound}")
    return best, (*reasons, *([] if chosen.prompts_per_draw is None else _beyond_kept(best)))


def _of_all_units(planner: Planner, chosen: Settings) -> tuple[Planner, tuple[str, ...]]:
    """One draw of every unit for all texts of a label."""
    name = planner.mechanism.name
    if not can_count(planner.writer.task):
        raise InvalidPlan(
            f"the mechanism {name} needs a task with one field and no schema: leave the mechanism out"
        )
    if planner.settings.records_per_prompt > 1:
        raise InvalidPlan(f"{name} has no prompts of records: use records_per_prompt=1")
    if chosen.tokens_per_draw is not None:
        raise InvalidPlan(f"{name} has one draw for all texts: leave tokens_per_draw out")
    planner = planner.with_settings(tokens_per_draw=planner.settings.max_tokens)
    if chosen.prompts_per_draw is not None:
        return planner, ()
    most = max(1, *(planner.settings.most_prompts(one.population) for one in planner.strata))
    reason = f"M={most}: the one draw of a label takes as many of its units as it can"
    return planner.with_settings(prompts_per_draw=most), (reason,)


def _with_most_prompts(planner: Planner, chosen: Settings) -> tuple[Planner, str]:
    """The planner with the largest M, and what keeps it from being larger; as it is if M is given."""
    if chosen.prompts_per_draw is not None:
        return planner, "given"
    settings, limit = planner.settings, chosen.prompt_token_limit
    work, kept = planner.tokens_of_a_prompt, planner.backend.kept_prompts
    if work > limit:
        too_much = f"the least, which takes {work:,} tokens of the language model a demonstration"
        return planner, f"{too_much}: more than prompt_token_limit={limit}"
    largest = max(planner.strata, key=lambda stratum: stratum.population)
    where = "the data set" if largest.scope is None else f"label {largest.scope!r}"
    generating = int(settings.division.generating_share * largest.population)
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
    return planner.with_settings(prompts_per_draw=max(1, bounds[bound])), bound


def _noise(planner: Planner) -> float:
    """The noise on the mean at the smallest stratum, but for what the mechanism makes of it: σ/M."""
    smallest = min(planner.strata, key=lambda stratum: stratum.population)
    settings = planner.settings.within(smallest.population)
    planned = plan_stratum(planner.mechanism, settings, planner.budget, smallest)
    return planned.noise_multiplier / settings.prompts_per_draw


def _beyond_kept(planner: Planner) -> list[str]:
    """A sentence where a given M is more than the backend keeps."""
    settings, kept = planner.settings, planner.backend.kept_prompts
    if settings.tokens_per_draw == 1 or settings.prompts_per_draw <= (kept or math.inf):
        return []
    reason = (
        f"M={settings.prompts_per_draw}: more than the backend keeps (kept_prompts={kept}), so the others "
        "are evaluated from their start for each token, beyond the tokens that the plan counts: raise "
        "kept_prompts"
    )
    return [reason]


def prompts_within(kept: int) -> int:
    """The largest mean of a Poisson draw that nearly always fits: M + 4√M ≤ kept."""
    return math.floor((math.sqrt(kept + (_DEVIATIONS / 2) ** 2) - _DEVIATIONS / 2) ** 2)
