"""A plan in plain words, for whoever decides on it."""

from __future__ import annotations

from typing import Final

from dpfewshot.planning.plan import GenerationPlan, noisy_strata, reading
from dpfewshot.values import (
    Relation,
    believed,
    counted,
    delta_text,
    duration_text,
    epsilon_text,
    on_one_line,
    percent_text,
    plural,
    unit_noun,
)

LISTED: Final = 12
"""The most labels that are listed one by one."""

_CHANGES: Final = {
    Relation.ADD_REMOVE: "more or less",
    Relation.ZERO_OUT: "left out",
    Relation.REPLACE_ONE: "exchanged for another",
}


def describe(plan: GenerationPlan, unit: str | None = None, *, writer: str | None = None) -> str:
    """The plan in plain words: what is written, what it costs, how long it takes, and how it will read.

    `unit` is the column that names whom a record belongs to, and `writer` the text writer, if any.
    """
    noun, words = unit_noun(unit), max(1, plan.settings.max_tokens * 3 // 4)
    texts = counted(plan.demonstrations, "text")
    lines = [f"{texts} of at most about {counted(words, 'word')}: {_sources(plan, noun)}"]
    if plan.settings.holdout:
        kept = f"{percent_text(plan.settings.holdout)} of these {plural(noun)}"
        lines.append(f"kept to test on: {kept}; the texts are written from the others")
    lines.append(f"cost: {_cost(plan, noun)}")
    if plan.estimated_seconds is not None:
        requests = plan.demonstrations + len(plan.strata)
        elsewhere = "" if writer is None else f", and the time that {writer} takes for {requests} requests"
        lines.append(f"time: at most about {duration_text(plan.estimated_seconds)}{elsewhere}")
    if plan.epsilon is not None:
        warning = "warning: " * bool(noisy_strata(plan))
        lines.append(f"{warning}expected quality: {reading(plan)}")
    return "plan: " + "\n      ".join(map(on_one_line, lines))


def _sources(plan: GenerationPlan, noun: str) -> str:
    """For which labels, and how many units each has."""
    strata, shots = plan.strata, plan.settings.shots_per_label
    once = "" if noun == unit_noun(None) else f"; a {noun} of several labels counts for one of them"
    each = "" if shots == 1 else f"{shots} "
    if len(strata) <= LISTED:
        of_each = (f"{each}{', '.join(one.labels)} ({counted(one.population, noun)})" for one in strata)
        return "; ".join(of_each) + once
    sizes = [one.population for one in strata]
    most = counted(max(sizes), noun)
    return f"{shots} for each of {len(strata)} labels, which have {min(sizes)} to {most} each{once}"


def _cost(plan: GenerationPlan, noun: str) -> str:
    if plan.epsilon is None or plan.delta is None:
        return "no guarantee: the texts may tell of single records, so keep them where the records are"
    change = _CHANGES[plan.relation]
    sure = percent_text(believed(0.5, plan.epsilon))
    return (
        f"epsilon {epsilon_text(plan.epsilon)} for one {noun} {change}: a reader of all texts who was 50 % "
        f"sure that a given {noun} was used for them becomes at most {sure} sure, apart from an "
        f"allowance of {delta_text(plan.delta)}"
    )
