"""Says in words what a plan means: its ε, what it cuts, and when it has more noise than its text bears."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Final

from dpfewshot.exact.rounding import to_digits
from dpfewshot.values import epsilon_text, percent_text

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

RANDOM_NOISE: Final = 1.0
"""The largest value of a mean probability: above it, noise decides what the text says."""

HARDLY_PROTECTS: Final = 2 * math.log(99)
"""The ε above which somebody who is 1 % sure of a unit's presence may become more than 99 % sure, about 9.19.

From "almost surely not" to "almost surely" is all that a reader can want to learn."""

_LARGEST_EXPONENT: Final = 700.0


def believed(prior: float, epsilon: float) -> float:
    """How sure a reader of the texts may become who was this sure before: odds grow e^ε times, δ aside."""
    odds = math.exp(min(epsilon, _LARGEST_EXPONENT)) * prior
    return odds / (1 - prior + odds)


def notes(plan: GenerationPlan) -> tuple[str, ...]:
    """What holds for every plan: what its ε means in odds, and how much of a record the model reads."""
    cap = plan.settings.record_token_cap
    cut = (
        f"at most {cap} tokens of a record enter a prompt, about {max(1, cap * 3 // 4)} words of English: "
        "if your records are longer, raise record_token_cap"
    )
    return (cut,) if plan.epsilon is None else (_meaning(plan.epsilon), cut)


def _meaning(epsilon: float) -> str:
    return (
        f"epsilon {epsilon_text(epsilon)} means: whoever reads the texts and is 50 % sure that a given "
        f"unit is in the records can become at most {percent_text(believed(0.5, epsilon))} sure, delta aside"
    )


def epsilon_warnings(plan: GenerationPlan) -> list[str]:
    """A warning if the plan's ε hardly protects; else none."""
    if plan.epsilon is None or plan.epsilon <= HARDLY_PROTECTS:
        return []
    warning = (
        f"epsilon {epsilon_text(plan.epsilon)} protects hardly at all: whoever is 1 % sure that a given "
        f"unit is in the records can become {percent_text(believed(0.01, plan.epsilon))} sure; take "
        f"{HARDLY_PROTECTS:.3g} or less (docs/how-to/explain-epsilon.md)"
    )
    return [warning]


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
    noise = worst.noise_on_mean or 0.0
    hopeless = noise > senseless
    expected = "text that makes little sense" if hopeless else "words out of place"
    limit = senseless if hopeless else misplaced
    measured = (
        f"above {limit:g}, where texts by {plan.mechanism} were measured so, with about "
        f"{_share(plan, OUT_OF_PLACE[hopeless])} out of place, and more above it"
    )
    if noise > RANDOM_NOISE:
        measured = f"above {RANDOM_NOISE:g}, the largest that a mean can be, so that most tokens are random"
    warning = (
        f"expect {expected} for {worst.scope or 'the data set'}{others}: the noise on the mean, "
        f"{_rounded_up(noise)}, is {measured}; "
        f"what helps: {', '.join(_remedies(plan, worst, misplaced))} (docs/how-to/settings.md)"
    )
    return [warning]


def _rounded_up(noise: float) -> str:
    """To three digits, so that what is above a limit of fewer digits reads so."""
    return f"{to_digits(Decimal(repr(noise)), 3, ROUND_CEILING).normalize():f}"


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
    if settings.prompts_per_draw < settings.most_prompts(worst.population):
        remedies.append(_more_prompts(plan, worst, bearable))
        if settings.tokens_per_draw > 1:
            remedies.append(f"a tokens_per_draw below {settings.tokens_per_draw}, with as many prompts")
    return remedies


def _more_prompts(plan: GenerationPlan, worst: StratumPlan, bearable: float) -> str:
    """How many prompts it takes at least: σ does not fall with M, so the noise falls as 1/M at most."""
    prompts = plan.settings.prompts_per_draw
    wanted = math.ceil(prompts * (worst.noise_on_mean or 0.0) / bearable)
    if wanted > plan.settings.most_prompts(worst.population):
        return "more prompts_per_draw"
    work = plan.prompt_tokens // prompts * wanted
    return f"prompts_per_draw={wanted} or more (prompt_token_limit={work} where the planner decides)"
