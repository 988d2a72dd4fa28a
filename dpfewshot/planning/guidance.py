"""Says in words when a plan has more noise than its text bears, and what would help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dpfewshot.planning.plan import GenerationPlan

READABLE_NOISE: Final = {
    "gaussian": (0.1, 0.15),
    "public-centred": (0.15, 0.2),
    "softmax-choice": (0.2, 0.27),
}
"""The noise on the mean above which texts had words out of place, and above which they lost their sense.

A reader then needed 0.9 and 1.8 nats a token more, and above. Measured with SmolLM2-135M and Gemma 3 270M
(docs/results/readability.md), for these mechanisms alone.
"""


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
    warning = (
        f"expect {expected} for {worst.scope or 'the data set'}{others}: the noise on the mean, "
        f"{worst.noise_on_mean:.2f}, is above {limit:g}, where texts by {plan.mechanism} were measured so; "
        f"what helps: {', '.join(_remedies(plan, smallest=worst.population))} (docs/how-to/settings.md)"
    )
    return [warning]


def _remedies(plan: GenerationPlan, *, smallest: int) -> list[str]:
    settings = plan.settings
    remedies = ["more records", "a larger epsilon"]
    if settings.shots_per_label > 1:
        remedies.append("fewer shots")
    remedies.append("a smaller max_tokens")
    if settings.prompts_per_token < settings.most_prompts(smallest):
        remedies.append("more prompts_per_token")
    return remedies
