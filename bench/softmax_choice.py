"""How often each mechanism finds the leader, at equal (ε, δ): docs/decisions/softmax-choice.md.

    python -m bench.softmax_choice [CACHE]

The first table is exact: K - 1 = 99 tokens have as many certain prompts each, and the leader has some more. The
others are on vectors in CACHE (see bench/vectors.py): the share of released tokens that are the largest
coordinate of the sum of probabilities. One demonstration of a label, from units of its own. Its noise is not seeded, so the last digits change.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm

from bench.mechanism_settings import DELTA, Planned
from bench.mechanisms import Cell, score
from bench.vectors import DATA_SETS, Text, collected
from dpfewshot.accounting import calibrate
from dpfewshot.mechanisms import (
    Draws,
    Gaussian,
    Mechanism,
    PublicCentred,
    ReportNoisyMax,
    RowChange,
    SoftmaxChoice,
)

OTHERS: Final = 99
EPSILONS: Final = (1.0, 4.0)
LEADS: Final = (2, 3, 5, 10, 20)
RATES: Final = (0.01, 0.05, 0.1, 1.0)
DRAWS: Final = ((40, 1), (1, 40))
SMALL: Final = (300, 1000)
"""n of a label for plans as the planner makes them."""
COMPARED: Final[tuple[Mechanism, ...]] = (SoftmaxChoice(), ReportNoisyMax(), PublicCentred(), Gaussian())


def chances(mechanism: Mechanism, sigma: float, lead: int) -> float:
    """P(the leader is released), N = 1."""
    if isinstance(mechanism, Gaussian):
        return float(
            quad(lambda z: norm.pdf(z) * norm.cdf(z + lead / sigma) ** OTHERS, -12, 12, limit=200)[0]
        )
    if isinstance(mechanism, SoftmaxChoice):
        return 1 / (1 + OTHERS * math.exp(-2 / sigma * lead))
    heads = math.exp(-lead / sigma)  # permute-and-flip: uniform among the leader and the other heads
    return -math.expm1((OTHERS + 1) * math.log1p(-heads)) / ((OTHERS + 1) * heads) if heads else 1.0


def leads() -> Iterator[str]:
    """A row for each plan: T tokens on fresh draws, and on one."""
    yield (
        "| q | draws | tokens on each | ε | mechanism | σ | "
        + " | ".join(f"lead {lead}" for lead in LEADS)
        + " |"
    )
    yield "|" + "---|" * (6 + len(LEADS))
    for rate in RATES:
        for steps, shared in DRAWS:
            for target in EPSILONS:
                for mechanism in (SoftmaxChoice(), ReportNoisyMax(), Gaussian()):
                    plan = _planned(mechanism, Draws(rate, steps, shared, 20, RowChange.ADDED), target)
                    found = " | ".join(
                        f"{chances(mechanism, plan.noise_multiplier, lead):.3f}" for lead in LEADS
                    )
                    yield f"| {rate:g} | {steps} | {shared} | {target:g} | {mechanism.name} | {plan.noise_multiplier:.3f} | {found} |"


def agreement(texts: Sequence[Text], tokens: int) -> Iterator[str]:
    """A row for each plan: T tokens of a label's own n, then 40 tokens on one draw of few units."""
    compared = " | ".join(each.name for each in COMPARED)
    yield f"| n | draws | tokens on each | M | ε | {compared} | first less third |"
    yield "|" + "---|" * (6 + len(COMPARED))
    for prompts in (80, 20):
        for shared in (1, tokens):
            draws = Draws(1.0, -(-tokens // shared), shared, prompts, RowChange.ADDED)
            yield from _rows("of the label", texts, draws)
    for size in SMALL:
        fewer = [replace(text, population=size) for text in texts]
        yield from _rows(str(size), fewer, Draws(1.0, 1, 40, 80, RowChange.ADDED))


def _rows(size: str, texts: Sequence[Text], draws: Draws) -> Iterator[str]:
    for target in EPSILONS:
        cells = [_cell(each, texts, draws, target) for each in COMPARED]
        error = float((cells[0].resampled() - cells[2].resampled()).std())
        found = " | ".join(f"{cell.agreement:.3f} ± {cell.resampled().std():.3f}" for cell in cells)
        gain = cells[0].agreement - cells[2].agreement
        plan = f"{size} | {draws.steps} | {draws.tokens_per_draw} | {draws.prompts} | {target:g}"
        yield f"| {plan} | {found} | {gain:+.3f} ± {error:.3f} |"


def _cell(mechanism: Mechanism, texts: Sequence[Text], draws: Draws, target: float) -> Cell:
    """Agreement where each text's own n decides q."""
    plans = {
        size: _planned(mechanism, replace(draws, sampling_rate=draws.prompts / size), target)
        for size in {text.population for text in texts}
    }
    scores = (
        score(plans[text.population], text, draws.tokens_per_draw, np.random.default_rng(number))
        for number, text in enumerate(texts)
    )
    return Cell(tuple(scores), (draws.prompts,), (float(draws.prompts),))


def _planned(mechanism: Mechanism, draws: Draws, target: float) -> Planned:
    sigma = calibrate(lambda noise: mechanism.event(draws, noise), epsilon=target, delta=DELTA)
    return Planned(mechanism, draws, sigma)


if __name__ == "__main__":
    print("\n".join(leads()), flush=True)
    for name in DATA_SETS if len(sys.argv) > 1 else ():
        if found := list(collected(name, Path(sys.argv[1]))):
            print(f"{name}: {len(found)} texts, {sum(len(text.public) for text in found)} tokens")
            for line in agreement(found, DATA_SETS[name].max_tokens):
                print(line, flush=True)
