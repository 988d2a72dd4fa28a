"""What a private choice among a few sets of demonstrations is worth, from the outcomes of bench/results/default.jsonl.

    python -m bench.chosen     # the table of docs/how-to/choose.md; seconds, no model

The candidates are each run's set at ε = 1, with and without calibration, and no demonstrations. A random half of the
test texts chooses by permute-and-flip, the other half measures the winner; a mean over many halves. In these runs each
set had a count of its own.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np

from bench.default import DEFAULT, NAME, NO_RECORDS
from bench.readme import NAMES, outcomes
from bench.utility import ZERO_SHOT
from dpfewshot.evaluation import Results
from dpfewshot.evaluation.summaries import Outcomes, grouped, outcomes_of

HALVES = 2000
RATE = 2.0
"""ε of the choice on the units of its part: ε = 1 in all, amplified by a sample of a quarter."""

COINS = np.random.default_rng(0)


def candidates(task: str) -> Outcomes:
    """Which test texts each candidate labels rightly; where labels are free, nothing is calibrated."""
    offered = (
        each
        for each in grouped(Results(DEFAULT).cells)
        if each[0].task == task and (each[0].condition, each[0].epsilon_asked) in {(NAME, 1), (ZERO_SHOT, 0)}
    )
    rows = [row for each in offered for row in (outcomes_of(each, "contextual"), outcomes_of(each, "none"))]
    return np.unique(np.concatenate(rows), axis=0)


def chosen(right: Outcomes) -> float:
    """The accuracy on one half of the texts of what the other half chooses."""
    found = []
    for _ in range(HALVES):
        choosing, measuring = np.array_split(COINS.permutation(right.shape[1]), 2)
        scores = right[:, choosing].sum(axis=1) + COINS.exponential(1 / RATE, len(right))
        found.append(right[scores.argmax(), measuring].mean())
    return fmean(found)


def main() -> None:
    """Prints the table in Markdown, in per cent."""
    table = []
    for task, name in NAMES.items():
        shown = [
            outcomes()[task, each, epsilon] for each, epsilon in ((ZERO_SHOT, 0), (NO_RECORDS, 0), (NAME, 1))
        ]
        table.append([*(each.mean() for each in shown), chosen(candidates(task))])
        print(f"| {name}, {len(shown[-1])} sets | {' | '.join(f'{100 * each:.0f}' for each in table[-1])} |")
    print(f"| mean | {' | '.join(f'{100 * each:.1f}' for each in np.mean(table, axis=0))} |")


if __name__ == "__main__":
    main()
