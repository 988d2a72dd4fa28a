"""Says in words when a plan has more noise than its text bears, and what would help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dpfewshot.planning.plan import GenerationPlan, StratumPlan

READABLE_NOISE: Final = {
    "gaussian": (0.06, 0.1),
    "public-centred": (0.15, 0.2),
    "softmax-choice": (0.2, 0.27),
}
"""The noise on the mean above which texts had words out of place, and above which they lost their sense.

A reader then needed about 0.9 and 1.8 nats a token more, and above. Measured with SmolLM2-135M and Gemma 3
270M (docs/results/readability.md), for these mechanisms alone. The Gaussian's figures, and
how many words are out of place, are from long texts (docs/results/long.md).
"""

OUT_OF_PLACE: Final = (25, 10)
"""At these two noises about one token in so many was out of place or more: from medians of ten long texts."""


def noise_warnings(plan: GenerationPlan) -> list[str]:
    """A warning if a stratum's noise is above what its mechanism was measured to bear; else none.

    Args:
        plan: of a mechanism that was measured, or of any other, which gets no warning.
    """
    misplaced, senseless = READABLE_NOISE.get(plan.mechanism, (math.inf, math.inf))
    noisy = [one for one in plan.strata if (one.noise_on_mean or 0.0) > misplaced]
    if not noisy:
        return []
    worst = max(noisy, key=lambda one: one.noise_on_mean or 0.0)
    others = f" and {len(noisy) - 1} more" if len(noisy) > 1 else ""
    hopeless = (worst.noise_on_mean or 0.0) > senseless
    expected = "text that makes little sense" if hopeless else "words out of place"
    limit = senseless if hopeless else misplaced
    share = _share(plan, OUT_OF_PLACE[hopeless])
    warning = (
        f"expect {expected} for {worst.scope or 'the data set'}{others}: the noise on the mean, "
        f"{worst.noise_on_mean:.2f}, is above {limit:g}, where texts by {plan.mechanism} were measured so, "
        f"with about {share} out of place, and more above it; "
        f"what helps: {', '.join(_remedies(plan, worst, misplaced))} (docs/how-to/settings.md)"
    )
    return [warning]


def _share(plan: GenerationPlan, often: int) -> str:
    """One token in so many, as a count of the plan's tokens where that is more than one."""
    tokens = plan.settings.max_tokens
    return f"{tokens // often} of {tokens} tokens" if tokens >= 2 * often else f"1 token in {often}"


def _remedies(plan: GenerationPlan, worst: StratumPlan, bearable: float) -> list[str]:
    settings = plan.settings
    remedies = ["more records", "a larger epsilon"]
    if settings.shots_per_label > 1:
        remedies.append("fewer shots")
    remedies.append("a smaller max_tokens")
    if settings.prompts_per_token < settings.most_prompts(worst.population):
        remedies.append(_more_prompts(plan, worst, bearable))
        if settings.resample_every > 1:
            remedies.append(f"a resample_every below {settings.resample_every}, with as many prompts")
    return remedies


def _more_prompts(plan: GenerationPlan, worst: StratumPlan, bearable: float) -> str:
    """How many prompts it takes at least: σ does not fall with M, so the noise falls as 1/M at most."""
    prompts = plan.settings.prompts_per_token
    wanted = math.ceil(prompts * (worst.noise_on_mean or 0.0) / bearable)
    if wanted > plan.settings.most_prompts(worst.population):
        return "more prompts_per_token"
    work = plan.prompt_tokens // prompts * wanted
    return f"prompts_per_token={wanted} or more (prompt_token_limit={work} where the planner decides)"
