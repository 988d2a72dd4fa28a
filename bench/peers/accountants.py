"""Accounting and noise of dp-accounting, prv-accountant, autodp and OpenDP beside ours: lines "accounting" and "noise".

Rows: Tang et al. 2024, Table 9, at the printed σ. Seconds are the fastest of three calls; ours runs before and after
the others, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bench.peers.environments import ACCOUNTANTS
from bench.peers.raw import Line, versions
from bench.reproduce import TANG, TARGETS
from dpfewshot import _core
from dpfewshot.accounting import PoissonGaussian, epsilon

REPEATS = 3
SCALE = 8 * 2**27
NORMALS = 100_000
TIMEOUT = 1200.0

BOUNDS = {
    "dpfewshot": "upper bound, with a proof of its rounding",
    "dp-accounting": "upper bound of the pessimistic discretisation; floats are not bounded",
    "prv-accountant": "upper end of the bracket; floats are not bounded",
    "autodp": "upper bound by Rényi divergences, at a grid of orders; floats are not bounded",
}
"""Who states what."""


def rows() -> Iterator[Line]:
    """Table 9."""
    for task, printed in TANG.items():
        for target, sigma in zip(TARGETS, printed, strict=True):
            yield {
                "task": task.name,
                "target": target,
                "q": task.sample / task.population,
                "sigma": sigma,
                "steps": task.steps,
                "delta": task.delta,
            }


def measure(_: Path, store: Path) -> Iterator[Line]:
    """Every tool on every row, and the noise."""
    before = [ours(row) for row in rows()]
    theirs = ACCOUNTANTS.call(store, {"rows": list(rows())}, TIMEOUT)
    after = [ours(row) for row in rows()]
    found = versions() | next((line["versions"] for line in theirs if "versions" in line), {})
    for one, two in zip(before, after, strict=True):
        yield {**one, "seconds": min(one["seconds"], two["seconds"]), "versions": found}
    for line in theirs:
        if "normals_a_second" in line:
            yield {"kind": "noise", **line, "exact": True, "versions": found}
        elif "tool" in line:
            yield {"kind": "accounting", **line, "versions": found}
    for line in noise():
        yield {**line, "versions": found}


def ours(row: Line) -> Line:
    """Our certified upper bound."""
    event = PoissonGaussian(row["q"], row["sigma"], row["steps"])
    bound = epsilon(event, row["delta"]).upper
    seconds = fastest(lambda: epsilon(event, row["delta"]))
    return {"kind": "accounting", "tool": "dpfewshot", **row, "epsilon": bound, "seconds": seconds}


def noise() -> Iterator[Line]:
    """Ours, exact, and NumPy's, which the papers' code draws."""
    generator = np.random.default_rng()
    draws: dict[str, Callable[[], object]] = {
        "dpfewshot": lambda: _core.rounded_normals(SCALE, NORMALS),
        "numpy": lambda: generator.normal(0.0, 1.0, NORMALS),
    }
    for name, draw in draws.items():
        yield {
            "kind": "noise",
            "tool": name,
            "normals_a_second": NORMALS / fastest(draw),
            "exact": name == "dpfewshot",
        }


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the shortest of several runs."""
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)
