"""The speed of the accountant, alone and beside dp-accounting.

    python -m bench.accounting

Settings: Tang et al. 2024, Table 9. First one calibration of each row. Then, in one run, one ε by both
accountants at equal accuracy: each must return an upper bound that is at most `accuracy` above the ε of
our own finest grid, relative. dp-accounting gets the coarsest of a list of grids that reaches the accuracy;
ours gets a tolerance of 0.4·accuracy. Importing is not counted; the best of several runs is.
"""

from __future__ import annotations

import functools
import math
import statistics
import warnings
from collections.abc import Callable
from typing import NamedTuple

from bench.core import seconds
from bench.reproduce import TANG, TARGETS
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.accounting.bounds import epsilon_upper

ACCURACIES = (1e-3, 1e-4)
GRIDS = (3e-2, 1e-2, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5)
TOLERANCE_SHARE = 0.4
FINEST = 1e-6
CALIBRATION_LIMIT = 50.0  # ms


class Row(NamedTuple):
    """A row of Table 9, calibrated."""

    name: str
    target: int
    event: PoissonGaussian
    delta: float
    milliseconds: float
    reference: float


def fastest(work: Callable[[], object], runs: int) -> float:
    """The shortest of several runs, in seconds: other load only adds to a run."""
    return min(seconds(work) for _ in range(runs))


def calibrated() -> list[Row]:
    """Every row, with the time that its calibration took."""
    rows = []
    for task in TANG:
        for target in TARGETS:
            work = functools.partial(calibrate, task.poisson, epsilon=target, delta=task.delta)
            event = task.poisson(work())
            reference = epsilon_upper(event, task.delta, FINEST)
            rows.append(Row(task.name, target, event, task.delta, 1000 * fastest(work, 5), reference))
    return rows


def ours(row: Row, accuracy: float) -> tuple[float, float]:
    """ε and milliseconds."""
    tolerance = TOLERANCE_SHARE * accuracy
    found = epsilon_upper(row.event, row.delta, tolerance)
    return found, 1000 * fastest(lambda: epsilon_upper(row.event, row.delta, tolerance), 7)


def dp_accounting(row: Row, accuracy: float) -> tuple[float, float]:
    """ε and milliseconds of the coarsest grid that is accurate enough."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    def work(grid: float) -> float:
        loss = pld.from_gaussian_mechanism(
            row.event.noise_multiplier,
            sampling_prob=row.event.sampling_rate,
            value_discretization_interval=grid,
        )
        return float(loss.self_compose(row.event.steps).get_epsilon_for_delta(row.delta))

    for grid in GRIDS:
        found = work(grid)
        if found <= row.reference * (1 + accuracy):
            return found, 1000 * fastest(functools.partial(work, grid), 3)
    return math.nan, math.nan


def spread(values: list[float]) -> str:
    """Least, median and greatest."""
    return f"{min(values):.0f} to {max(values):.0f}, median {statistics.median(values):.0f}"


def compare(rows: list[Row], accuracy: float) -> None:
    """Prints both accountants side by side, row by row."""
    print(f"\none ε, relative accuracy {accuracy:g} (ms)")
    print(f"{'':9}{'eps':>4}{'ours':>8}{'dp':>9}{'dp/ours':>9}   excess of each")
    to_dp = []
    for row in rows:
        found = [check(row, accuracy) for check in (ours, dp_accounting)]
        (_, mine), (_, dp) = found
        to_dp.append(dp / mine)
        excess = " ".join(f"{value / row.reference - 1:8.1e}" for value, _ in found)
        print(
            f"{row.name:9}{row.target:>4}{mine:>8.1f}{dp:>9.1f}{to_dp[-1]:>9.0f}   {excess}",
            flush=True,
        )
    print(f"dp-accounting takes {spread(to_dp)} times as long as ours")


def main() -> None:
    """Prints the calibrations, then the comparison."""
    rows = calibrated()
    print("one calibration (ms)")
    for task in TANG:
        times = [row.milliseconds for row in rows if row.name == task.name]
        print(f"{task.name:9}" + "".join(f"{each:>8.1f}" for each in times))
    slowest = max(row.milliseconds for row in rows)
    print(
        f"slowest {slowest:.1f} ms: {'within' if slowest <= CALIBRATION_LIMIT else 'ABOVE'} {CALIBRATION_LIMIT:g} ms"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the other accountants warn at import and of settings
        for accuracy in ACCURACIES:
            compare(rows, accuracy)


if __name__ == "__main__":
    main()
