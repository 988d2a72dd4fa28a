"""Every mechanism and setting side by side, for the sizes of a data set and a budget.

Noise on the mean probability is what mechanisms that add noise to probabilities can be compared by before
anything is drawn. Those that do not (they draw from a softmax, or take the noisiest of several scores) are
shown with their cost alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Mechanism
from dpfewshot.mechanisms.by_name import MECHANISMS, by_name
from dpfewshot.planning.plan import GenerationPlan, Stratum
from dpfewshot.planning.settings import Settings

Planner = Callable[[Mechanism, Settings, Sequence[Stratum]], GenerationPlan]


@dataclass(frozen=True)
class Compared:
    """A mechanism with settings, and what it would cost.

    Attributes:
        plan: σ, noise on the mean, tokens.
        meets_target: whether its noise on the mean is at most the target; None where that says nothing.
        cheapest: whether it needs the fewest tokens of those that meet the target.
    """

    plan: GenerationPlan
    meets_target: bool | None
    cheapest: bool = False


def compare(
    planned: Planner,
    settings: Settings,
    strata: Sequence[Stratum],
    *,
    vocabulary_size: int,
    target_noise: float,
) -> list[Compared]:
    """Plan every mechanism with a fresh draw for each token and with one for each demonstration.

    Where the noise is above the target at the given M, M is raised to the least that meets it, if the
    population allows, as a row of its own.

    Args:
        planned: plans a mechanism with settings for some parts of the data.
        settings: where the comparison starts.
        strata: all parts of the data.
        vocabulary_size: V of the backend.
        target_noise: the greatest standard deviation of the noise on a mean probability.

    Raises:
        InvalidPlan: the target is not above 0, or the starting settings allow no plan at all. A mechanism
            that they do not suit (draws of fixed size are for Gaussian noise) is left out.
    """
    if not target_noise > 0:
        raise InvalidPlan(f"the target noise must be a positive number, not {target_noise}")
    plans: list[GenerationPlan] = []
    refusals: list[InvalidPlan] = []
    for name in MECHANISMS:
        attempt = functools.partial(planned, by_name(name, top_k=min(100, vocabulary_size)))
        for tokens_per_draw in sorted({1, settings.max_tokens}):
            try:
                start = dataclasses.replace(settings, resample_every=tokens_per_draw)
                plans += _least_and_given(attempt, start, strata, target_noise)
            except InvalidPlan as refusal:  # these draws are not for this mechanism, or not for blocks
                refusals.append(refusal)
    if not plans:
        raise refusals[0]
    return _marked(plans, target_noise)


def _least_and_given(
    planned: Callable[[Settings, Sequence[Stratum]], GenerationPlan],
    settings: Settings,
    strata: Sequence[Stratum],
    target_noise: float,
) -> Iterator[GenerationPlan]:
    """The plan at the given M, and the one at the least M that meets the target, if that is more."""
    given = planned(settings, strata)
    yield given
    if given.noise_on_mean is not None and given.noise_on_mean > target_noise:
        prompts = _least_prompts(planned, settings, strata, target_noise)
        if prompts is not None:
            yield planned(dataclasses.replace(settings, prompts_per_token=prompts), strata)


def _least_prompts(
    planned: Callable[[Settings, Sequence[Stratum]], GenerationPlan],
    settings: Settings,
    strata: Sequence[Stratum],
    target_noise: float,
) -> int | None:
    """The least M whose noise meets the target, within two per cent; None if the population allows none.

    At the given M it does not.

    The smallest part has the most noise, so it decides for all.
    """
    smallest = min(strata, key=lambda stratum: stratum.population)

    def meets(prompts: int) -> bool:
        plan = planned(dataclasses.replace(settings, prompts_per_token=prompts), [smallest])
        return plan.noise_on_mean is not None and plan.noise_on_mean <= target_noise

    low = settings.prompts_per_token
    high = smallest.population // (settings.records_per_prompt * settings.disjoint_parts)
    if high <= low or not meets(high):
        return None
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _marked(plans: list[GenerationPlan], target_noise: float) -> list[Compared]:
    rows = [
        Compared(plan, None if plan.noise_on_mean is None else plan.noise_on_mean <= target_noise)
        for plan in plans
    ]
    fitting = [row for row in rows if row.meets_target]
    best = min(fitting, key=lambda row: row.plan.prompt_tokens, default=None)
    return [dataclasses.replace(row, cheapest=row is best) for row in rows]
