"""The compiled core against its references in one run: ratios, their spread, and whether each target holds.

    python -m bench.core

Rounds alternate between the two sides, so that other load falls on both. A ratio is the
median over rounds, with the smallest and the largest. A message says so if OpenDP is not installed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core

ROUNDS = 15
SCALE = 8 * 2**27
NORMALS = 100_000
EXACT_NORMALS_OF_OPENDP = 1_000
ROWS, VOCABULARY = 80, 49_152

Task = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """Ours against a reference, and the bound on the ratio of our speed to theirs."""

    name: str
    ours: Task
    theirs: Task
    ours_count: int
    theirs_count: int
    least_speed: float | None  # our speed over theirs; None: no target

    def run(self) -> Iterator[tuple[float, float]]:
        """Seconds per item of ours and of theirs, round by round."""
        for task in (self.ours, self.theirs):
            task()
        for number in range(ROUNDS):
            pair = [(self.ours, self.ours_count), (self.theirs, self.theirs_count)]
            times = [seconds(task) / count for task, count in (pair if number % 2 else reversed(pair))]
            yield (times[0], times[1]) if number % 2 else (times[1], times[0])


def seconds(task: Task) -> float:
    """The wall time of one call."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def straight_sum(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """The same query in plain NumPy: log-softmax, exp, grid, floor, integers, sum."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    counts = np.floor(np.exp(logprobs) * np.float32(_core.grid)).astype(np.int64)
    return np.asarray(counts.sum(axis=0))


def straight_sum_around(logits: NDArray[np.float32], centre: NDArray[np.float64]) -> NDArray[np.int64]:
    """Centred and clipped, in NumPy."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    centred = weights / weights.sum(axis=1, keepdims=True) - centre.astype(np.float32)
    centred *= np.minimum(1, 0.1 / np.linalg.norm(centred, axis=1, keepdims=True))
    counts = np.trunc(centred * np.float32(_core.grid)).astype(np.int64)
    return np.asarray(counts.sum(axis=0))


def opendp_normals() -> Task | None:
    """OpenDP's exact discrete Gaussian on that many integers; None if it is not installed."""
    try:
        import opendp.prelude as odp
    except ImportError:
        print("SKIPPED: OpenDP is not installed (pip install '.[bench]')", file=sys.stderr)
        return None
    odp.enable_features("contrib")
    space = odp.vector_domain(odp.atom_domain(T=int)), odp.l2_distance(T=float)
    measurement = odp.m.make_gaussian(*space, scale=float(SCALE))
    zeros = [0] * EXACT_NORMALS_OF_OPENDP
    return lambda: measurement(zeros)


def comparisons() -> Iterator[Comparison]:
    """Each pair, on inputs made once: their values do not affect the times."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 4, (ROWS, VOCABULARY)).astype(np.float32)
    entries = ROWS * VOCABULARY
    yield Comparison(
        "softmax + quantise + sum against NumPy, 80 x 49,152",
        lambda: _core.sum_of_probabilities(logits),
        lambda: straight_sum(logits),
        entries,
        entries,
        3,
    )
    centre = _core.sum_of_probabilities(logits[:1])
    yield Comparison(
        "the same, centred and clipped",
        lambda: _core.sum_around(logits, centre, 0.1),
        lambda: straight_sum_around(logits, centre / _core.grid),
        entries,
        entries,
        None,
    )
    yield Comparison(
        "exact rounded normals against NumPy's inexact",
        lambda: _core.rounded_normals(SCALE, NORMALS),
        lambda: generator.normal(0, SCALE, NORMALS),
        NORMALS,
        NORMALS,
        1 / 15,
    )
    exact = opendp_normals()
    if exact is not None:
        yield Comparison(
            "exact rounded normals against OpenDP's exact",
            lambda: _core.rounded_normals(SCALE, NORMALS),
            exact,
            NORMALS,
            EXACT_NORMALS_OF_OPENDP,
            50,
        )


def main() -> int:
    """Prints the table; the exit status is 1 if a target is missed."""
    print("| ours against | ours, ns | theirs, ns | our speed in theirs (least to most) | target | |")
    print("|---|---|---|---|---|---|")
    missed = 0
    for comparison in comparisons():
        rounds = list(comparison.run())
        ours, theirs = (statistics.median(side) * 1e9 for side in zip(*rounds, strict=True))
        ratios = [theirs / ours for ours, theirs in rounds]
        ratio, target = statistics.median(ratios), comparison.least_speed
        verdict = "" if target is None else ("holds" if ratio >= target else "MISSED")
        missed += verdict == "MISSED"
        print(
            f"| {comparison.name} | {ours:.3g} | {theirs:.3g} "
            f"| {ratio:.3g} ({min(ratios):.3g} to {max(ratios):.3g}) "
            f"| {'' if target is None else f'at least {target:.3g}'} | {verdict} |"
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
