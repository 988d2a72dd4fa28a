"""Says in words when a plan has more noise than its text bears, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dpfewshot.planning.settings import POISSON

if TYPE_CHECKING:
    from dpfewshot.planning.plan import GenerationPlan

READABLE_NOISE: Final = {"gaussian": 0.1, "public-centred": 0.2}
"""The noise on the mean above which texts lost their sense: a reader needed 1.3 nats a token more, and above.

Measured with SmolLM2-135M and Gemma 3 270M (docs/results/readability.md), for these mechanisms alone.
"""


def noise_warnings(plan: GenerationPlan) -> list[str]:
    """A warning if a stratum's noise is above what its mechanism was measured to bear; else none.

    Args:
        plan: of a mechanism that was measured, or of any other, which gets no warning.
    """
    limit = READABLE_NOISE.get(plan.mechanism)
    noisy = [one for one in plan.strata if limit is not None and (one.noise_on_mean or 0.0) > limit]
    if not noisy:
        return []
    worst = max(noisy, key=lambda one: one.noise_on_mean or 0.0)
    others = f" and {len(noisy) - 1} more" if len(noisy) > 1 else ""
    warning = (
        f"expect text that makes little sense for {worst.scope or 'the data set'}{others}: the noise on the "
        f"mean, {worst.noise_on_mean:.2f}, is above {limit:g}, where {plan.mechanism} lost its sense when it "
        f"was measured; what helps: {', '.join(_remedies(plan, smallest=worst.population))} "
        "(docs/how-to/settings.md)"
    )
    return [warning]


def _remedies(plan: GenerationPlan, *, smallest: int) -> list[str]:
    settings = plan.settings
    remedies = ["more records", "a larger epsilon"]
    if settings.sampling == POISSON:
        remedies.append("the mechanism softmax-choice")
    if settings.shots_per_label > 1:
        remedies.append("fewer shots")
    remedies.append("a smaller max_tokens")
    if settings.prompts_per_token < settings.most_prompts(smallest):
        remedies.append("more prompts_per_token")
    return remedies
