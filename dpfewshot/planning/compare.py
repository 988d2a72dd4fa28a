"""Every mechanism and setting side by side, for one planner's strata and budget.

The noise on the mean compares mechanisms that add noise to probabilities. InvisibleInk has τ/C there, which
compares its own rows alone. Those without either are shown with their cost alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import MECHANISMS, Mechanism, by_name
from dpfewshot.planning.plan import READABLE_NOISE, GenerationPlan
from dpfewshot.planning.planner import Planner
from dpfewshot.planning.settings import TOP_K


@dataclass(frozen=True)
class Compared:
    """A mechanism with settings, and what it would cost.

    Attributes:
        plan: σ, noise on the mean, tokens.
        meets_target: whether its noise on the mean is at most the target; None if it has no such noise.
        cheapest: whether it needs the fewest tokens of those that meet the target.
    """

    plan: GenerationPlan
    meets_target: bool | None
    cheapest: bool = False


def compare(planner: Planner, mechanism: Mechanism, *, target_noise: float | None = None) -> list[Compared]:
    """Plan every mechanism with a fresh draw for each token and with one draw for each demonstration.

    All have the planner's M, whatever was decided for single strata, and defaults but for the planned
    mechanism. Where the noise is above the target, a further row raises M to the smallest that meets it, if
    the population allows.

    Args:
        target_noise: the greatest noise on the mean (`Mechanism.noise_on_mean`), > 0. None: what the texts of
            each mechanism bear (`planning.plan.READABLE_NOISE`; the least where none was measured).

    A mechanism that the settings do not suit (fixed-size draws need Gaussian noise) is left out.
    """
    if target_noise is not None and not target_noise > 0:
        raise InvalidPlan(f"the target noise must be a positive number, not {target_noise}")
    plans: list[GenerationPlan] = []
    refusals: list[InvalidPlan] = []
    planner = replace(planner, strata=tuple(replace(one, prompts=None) for one in planner.strata))
    for name in MECHANISMS:
        other = by_name(name, top_k=min(TOP_K, planner.backend.vocabulary_size))
        for tokens_per_draw in sorted({1, planner.settings.max_tokens}):
            try:
                plans += _given_and_least(
                    planner.with_settings(tokens_per_draw=tokens_per_draw),
                    mechanism if mechanism.name == name else other,
                    _target(name, target_noise),
                )
            except InvalidPlan as refusal:  # the mechanism does not suit these draws
                refusals.append(refusal)
    if not plans:
        raise refusals[0]
    rows = []
    for plan in plans:
        noise = plan.noise_on_mean
        meets = None if noise is None else noise <= _target(plan.mechanism, target_noise)
        rows.append(Compared(plan, meets))
    fitting = [row for row in rows if row.meets_target]
    best = min(fitting, key=lambda row: row.plan.prompt_tokens, default=None)
    return [replace(row, cheapest=row is best) for row in rows]


def _target(mechanism: str, given: float | None) -> float:
    least = min(misplaced for misplaced, _ in READABLE_NOISE.values())
    return READABLE_NOISE.get(mechanism, (least,))[0] if given is None else given


def _given_and_least(planner: Planner, mechanism: Mechanism, target_noise: float) -> Iterator[GenerationPlan]:
    """The plan at the given M, and the one at the smallest larger M that meets the target."""
    given = planner.plan(mechanism)
    yield given
    if given.noise_on_mean is not None and given.noise_on_mean > target_noise:
        prompts = _least_prompts(planner, mechanism, target_noise)
        if prompts is not None:
            yield planner.with_settings(prompts_per_draw=prompts).plan(mechanism)


def _least_prompts(planner: Planner, mechanism: Mechanism, target_noise: float) -> int | None:
    """The smallest M whose noise meets the target, within two per cent; None if the population allows none.

    The given M does not meet it. The smallest stratum has the most noise, so it decides for all.
    """
    smallest = min(planner.strata, key=lambda stratum: stratum.population)
    planner = replace(planner, strata=(smallest,))

    def meets(prompts: int) -> bool:
        noise = planner.with_settings(prompts_per_draw=prompts).plan(mechanism).noise_on_mean
        return noise is not None and noise <= target_noise

    low = planner.settings.prompts_per_draw
    high = planner.settings.most_prompts(smallest.population)
    if high <= low or not meets(high):
        return None
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
