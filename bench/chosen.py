"""What a private choice among a few sets of demonstrations is worth, from the outcomes of bench/results/default.jsonl.

    python -m bench.chosen     # the table of docs/how-to/choose.md; seconds, no model

The candidates are each run's set at ε = 1, with and without calibration, and no demonstrations. A random half of the
test texts chooses by permute-and-flip, the other half measures the winner; a mean over many halves. In these runs each
set had a count of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bench.default import DEFAULT, NAME, NO_RECORDS
from bench.readme import NAMES
from bench.utility import ZERO_SHOT
from dpfewshot.evaluation import Results
from dpfewshot.evaluation.trials import Cell

HALVES = 2000
RATE = 2.0
"""ε of the choice on the units of its part: ε = 1 in all, amplified by a sample of a quarter."""

COINS = np.random.default_rng(0)


def right(outcomes: str) -> NDArray[np.bool_]:
    """Of each test text, whether it was labelled rightly."""
    return np.array([one == "1" for one in outcomes])


def accuracy(cells: Iterable[Cell]) -> float:
    """The mean accuracy, calibrated if labels are given."""
    return fmean(right(one.outcomes).mean() for one in cells)


def offered(cells: Iterable[Cell]) -> Iterator[NDArray[np.bool_]]:
    """The outcomes of each set with and without calibration."""
    for one in cells:
        yield from map(right, filter(None, (one.outcomes, one.uncalibrated)))


def chosen(candidates: Iterable[NDArray[np.bool_]]) -> float:
    """The accuracy on one half of the texts of what the other half chooses."""
    outcomes, found = np.array([*candidates]), []
    for _ in range(HALVES):
        choosing, measuring = np.array_split(COINS.permutation(outcomes.shape[1]), 2)
        scores = outcomes[:, choosing].sum(axis=1) + COINS.exponential(1 / RATE, len(outcomes))
        found.append(outcomes[scores.argmax(), measuring].mean())
    return fmean(found)


def main() -> None:
    """Prints the table in Markdown, in per cent."""
    table = []
    for task, name in NAMES.items():
        cells = [one for one in Results(DEFAULT).cells if one.task == task]
        none, free = ([one for one in cells if one.condition == each] for each in (ZERO_SHOT, NO_RECORDS))
        paid = [one for one in cells if one.condition == NAME and one.epsilon_asked == 1]
        table.append([accuracy(none), accuracy(free), accuracy(paid), chosen(offered([*paid, *none]))])
        print(f"| {name}, {len(paid)} sets | {' | '.join(f'{100 * each:.0f}' for each in table[-1])} |")
    print(f"| mean | {' | '.join(f'{100 * each:.1f}' for each in np.mean(table, axis=0))} |")


if __name__ == "__main__":
    main()
