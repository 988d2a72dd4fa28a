"""How often each mechanism finds the leader, at equal (ε, δ): docs/decisions/softmax-choice.md.

    python -m bench.softmax_choice [CACHE]

The first table is exact: K - 1 = 99 tokens have as many certain prompts each, and the leader has some more. The
second one is on TREC vectors in CACHE (see bench/vectors.py): the share of released tokens that are the largest
coordinate of the sum of probabilities. Its noise is not seeded, so the last digits change.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
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


def agreement(texts: Sequence[Text]) -> Iterator[str]:
    """A row for each number of prompts and of draws."""
    tokens = DATA_SETS["TREC"].max_tokens
    yield (
        "| M | tokens on each draw | ε | "
        + " | ".join(each.name for each in COMPARED)
        + " | first less third |"
    )
    yield "|" + "---|" * (4 + len(COMPARED))
    for prompts in (80, 20):
        for shared in (1, tokens):
            for target in EPSILONS:
                cells = [_cell(each, texts, prompts, shared, target) for each in COMPARED]
                difference = cells[0].resampled() - cells[2].resampled()
                row = " | ".join(f"{cell.agreement:.3f} ± {cell.resampled().std():.3f}" for cell in cells)
                gain = cells[0].agreement - cells[2].agreement
                yield f"| {prompts} | {shared} | {target:g} | {row} | {gain:+.3f} ± {difference.std():.3f} |"


def _cell(mechanism: Mechanism, texts: Sequence[Text], prompts: int, shared: int, target: float) -> Cell:
    steps = -(-DATA_SETS["TREC"].max_tokens // shared)
    plans = {
        size: _planned(mechanism, Draws(prompts / size, steps, shared, prompts, RowChange.ADDED), target)
        for size in {text.population for text in texts}
    }
    scores = (
        score(plans[text.population], text, shared, np.random.default_rng(number))
        for number, text in enumerate(texts)
    )
    return Cell(tuple(scores), (prompts,), (float(prompts),))


def _planned(mechanism: Mechanism, draws: Draws, target: float) -> Planned:
    sigma = calibrate(lambda noise: mechanism.event(draws, noise), epsilon=target, delta=DELTA)
    return Planned(mechanism, draws, sigma)


if __name__ == "__main__":
    print("\n".join(leads()), flush=True)
    if len(sys.argv) > 1:
        for line in agreement(list(collected("TREC", Path(sys.argv[1])))):
            print(line, flush=True)
