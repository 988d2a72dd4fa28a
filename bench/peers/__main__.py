"""Measures what is missing, then makes the page's tables anew; see the package."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bench.accounting import fastest
from bench.core import NORMALS, SCALE
from bench.peers import page, speed
from bench.peers.page import AMIN, CELLS, EPSILONS, INK, LINES, TASKS, Line
from bench.reproduce import PRESETS, TANG, TARGETS, adadpsyn_event
from bench.utility import (
    DATA_SETS,
    DELTA,
    MODELS,
    DataSet,
    Shown,
    Stored,
    WithExamples,
    backend,
    experiment,
    ours,
    papers,
)
from dpfewshot import _core
from dpfewshot.accounting import PoissonGaussian, ZeroConcentrated, epsilon
from dpfewshot.accounting.published import fixed_size_renyi_epsilon, integer_order_epsilon
from dpfewshot.evaluation import Condition, Trial, evaluate
from dpfewshot.mechanisms import InvisibleInk, PrivatePrediction
from dpfewshot.mechanisms.adadpsyn import published

OURS = ("llama-cpp-python", "numpy", "xllamacpp", "torch", "transformers")
ACCOUNTANTS = ("autodp==0.2.3.1", "dp-accounting==0.6.0", "opendp==0.16.0", "prv-accountant==0.2.0")
REPEATS = 3
TIMEOUT = 1200.0

TANG_DRAW = "the seed of the draws is 0 by default: who knows it knows which records were drawn, and sampling amplifies nothing; floating-point noise"
ADADPSYN_SEED = "no ε: draws and noise are seeded with 0 again for every token, so who knows the seed can subtract the noise"
INK_SEED = "no ε: the seed of every draw is 42 by default"
EXACT = "exact draws from the operating system; here by dpfewshot's sampler, as the paper has no code"


# ε as it is stated, beside certified ε of what the code does


def claims(*_: Path) -> Iterator[Line]:
    """Every claim; computed, in seconds.

    `own`: the paper's mechanism and neighbouring relation, by our accountant. `drawn`: the same noise with the draws that
    the code makes, for the relation that they allow, replace-one. `as_run`: with its random generators too; None is no ε.
    """
    for line in (*tang(), *adadpsyn(), *private_prediction(), *invisible_ink()):
        yield {"kind": "claim", **line, "versions": versions()}


def tang() -> Iterator[Line]:
    """Table 9, TREC: Poisson accounting of fixed-size draws."""
    (task,) = [task for task in TANG if task.name == "TREC"]
    printed = dict(zip(TARGETS, TANG[task], strict=True))
    for target in map(int, EPSILONS):
        sigma = printed[target]
        yield {
            "peer": "Tang et al.",
            "setting": f"TREC, σ = {sigma:g}, T = {task.steps}, δ = 1/{task.population}",
            "stated": float(target),
            "own": epsilon(task.poisson(sigma), task.delta).upper,
            "drawn": epsilon(task.fixed_size(sigma), task.delta).upper,
            "as_run": epsilon(PoissonGaussian(1.0, sigma, task.steps), task.delta).upper,
            "why": TANG_DRAW,
        }


def adadpsyn() -> Iterator[Line]:
    """Table 15, TREC: Rényi accounting of fixed-size draws."""
    task = PRESETS["trec"]
    for target in map(int, EPSILONS):
        p = published("trec", epsilon=target).mechanism
        event = functools.partial(adadpsyn_event, task, p.rounds, p.radius_multiplier, p.coverage_multiplier)
        yield {
            "peer": "AdaDPSyn",
            "setting": f"TREC, σ₁ = {p.mean_multiplier:g}, T = {task.steps}, δ = 1/5452",
            "stated": float(target),
            "own": fixed_size_renyi_epsilon(event(p.mean_multiplier), task.delta).epsilon,
            "drawn": epsilon(event(p.mean_multiplier), task.delta).upper,
            "as_run": None,
            "why": ADADPSYN_SEED,
        }


def private_prediction() -> Iterator[Line]:
    """A batch of s = 127, c = 10, at the temperature of an ε: integer orders, and our bound."""
    for target in map(int, EPSILONS):
        ratio = ratio_for(target, 15)
        event = ZeroConcentrated(0.5 * ratio**2, 15)
        yield {
            "peer": "Amin et al.",
            "setting": f"s = 127, c = 10, τ = {10 / 127 / ratio:.2f}, T = 15, δ = 1e-05",
            "stated": integer_order_epsilon(event, DELTA).epsilon,
            "own": epsilon(event, DELTA).upper,
            "drawn": epsilon(event, DELTA).upper,
            "as_run": epsilon(event, DELTA).upper,
            "why": EXACT,
        }


def ratio_for(target: float, steps: int) -> float:
    """c/(s·τ) that integer orders allow."""

    def fits(ratio: float) -> bool:
        return integer_order_epsilon(ZeroConcentrated(0.5 * ratio**2, steps), DELTA).epsilon <= target

    return largest(fits, 4.0)


def invisible_ink() -> Iterator[Line]:
    """The package's clip for an ε. It cuts batches by position, so only a replaced record moves no other."""
    for target in map(int, EPSILONS):
        rho = rho_for(target)
        yield {
            "peer": "InvisibleInk (invink)",
            "setting": "any batch, T = 15, δ = 1e-05",
            "stated": float(target),
            "own": epsilon(ZeroConcentrated(rho, 1), DELTA).upper,
            "drawn": epsilon(ZeroConcentrated(4 * rho, 1), DELTA).upper,
            "as_run": None,
            "why": INK_SEED,
        }


def rho_for(target: float) -> float:
    """The largest ρ of a concentrated release within ε, by our bound."""
    return largest(lambda rho: epsilon(ZeroConcentrated(rho, 1), DELTA).upper <= target, 8.0)


def largest(fits: Callable[[float], bool], high: float) -> float:
    """The largest number that fits, by bisection from 0."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# Accounting and noise


def table_9() -> Iterator[Line]:
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


def accounting(_: Path, store: Path) -> Iterator[Line]:
    """Every tool on every row of Tang et al. 2024, Table 9, and the noise: ours before and after the others."""
    before = [by_us(row) for row in table_9()]
    theirs = by_others(store, {"rows": list(table_9())})
    after = [by_us(row) for row in table_9()]
    found = versions() | next((line["versions"] for line in theirs if "versions" in line), {})
    for one, two in zip(before, after, strict=True):
        yield {**one, "seconds": min(one["seconds"], two["seconds"]), "versions": found}
    for line in theirs:
        if "normals_a_second" in line:
            yield {"kind": "noise", **line, "exact": True, "versions": found}
        elif "tool" in line:
            yield {"kind": "accounting", **line, "versions": found}
    for line in normals():
        yield {**line, "versions": found}


def by_others(store: Path, request: Line) -> list[Line]:
    """What the accountants' packages answer in an environment of theirs, which is made the first time."""
    folder = store / "environments" / "accountants"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *ACCOUNTANTS], check=True)  # noqa: S603 - our own list
        (folder / "installed").touch()
    answer = subprocess.run(  # noqa: S603 - our own program
        [python, str(Path(__file__).with_name("accountants.py"))],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        check=True,
    )
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


def by_us(row: Line) -> Line:
    """Our certified upper bound."""
    event = PoissonGaussian(row["q"], row["sigma"], row["steps"])
    bound = epsilon(event, row["delta"]).upper
    seconds = fastest(lambda: epsilon(event, row["delta"]), REPEATS)
    return {"kind": "accounting", "tool": "dpfewshot", **row, "epsilon": bound, "seconds": seconds}


def normals() -> Iterator[Line]:
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
            "normals_a_second": NORMALS / fastest(draw, REPEATS),
            "exact": name == "dpfewshot",
        }


# Accuracy in use


def conditions(data: DataSet, target: float) -> Iterator[Condition]:
    """The peers that utility.jsonl lacks, with the instruction, M and T of ours."""
    yield ours(data, InvisibleInk(), INK)
    yield ours(data, PrivatePrediction(), AMIN)
    if data.free:  # utility.jsonl has these without the examples
        for paper in papers(data, target):
            yield WithExamples(paper, data.examples)


def accuracy(data: Path, store: Path, repetitions: int) -> None:
    """Measures the missing cells, all of a repetition before the next."""
    store.mkdir(parents=True, exist_ok=True)
    model, name, results = backend("gemma", 1, 1024), MODELS["gemma"][0], Shown(CELLS)
    sets = {task: experiment(DATA_SETS[task], data, model, name, model) for task in TASKS}
    for repetition in range(repetitions):
        for target in EPSILONS:
            for task in TASKS:
                trials = (
                    Trial(Stored(condition, store), target, repetition=repetition)
                    for condition in conditions(DATA_SETS[task], target)
                )
                evaluate(sets[task], trials, results)


# All of it


SECTIONS: dict[str, tuple[str, Callable[[Path, Path], Iterator[Line]]]] = {
    "claims": ("claim", claims),
    "accounting": ("accounting", accounting),
    "speed": ("speed", speed.measure),
}
"""The kind of each section's lines, and what measures them."""


def versions() -> Line:
    """Of Python and our packages that are installed; `make peers` has all of them."""
    found = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    return {"python": platform.python_version()} | {name: found[name] for name in OURS if name in found}


def section(name: str, data: Path, store: Path) -> None:
    """Measures a section that has no lines yet; each line is on disk before the next."""
    kind, measure = SECTIONS[name]
    if page.lines(kind):
        print(f"{name}: there", file=sys.stderr)
        return
    store.mkdir(parents=True, exist_ok=True)
    with LINES.open("a", encoding="utf-8") as file:
        for line in measure(data, store):
            print(
                {key: value for key, value in line.items() if key != "versions"}, file=sys.stderr, flush=True
            )
            file.write(json.dumps({"versions": versions()} | line, ensure_ascii=False) + "\n")
            file.flush()


def main() -> None:
    """See the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--only", choices=[*SECTIONS, "accuracy"], action="append", help="may be repeated")
    parser.add_argument("--repetitions", type=int, default=1, help="of accuracy")
    parser.add_argument("--page", action="store_true", help="only make the tables")
    given = parser.parse_args()
    if not given.page:
        if given.store is None:
            parser.error("name DATA and STORE, or --page")
        measured = given.only or [*SECTIONS, "accuracy"]
        for name in measured:
            if name in SECTIONS:
                section(name, given.data, given.store)
        if "accuracy" in measured:
            accuracy(given.data, given.store, given.repetitions)
    page.main()


if __name__ == "__main__":
    main()
