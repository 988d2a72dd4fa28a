"""ε as each peer states it beside certified ε of what its code does: lines of kind "claim".

`own`: the paper's mechanism and neighbouring relation, by our accountant. `drawn`: the same noise with the draws that the
code makes, for the relation that they allow, replace-one. `as_run`: with its random generators too; None is no ε at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from bench.peers.raw import Line, versions
from bench.reproduce import PRESETS, TANG, TARGETS, adadpsyn_event
from dpfewshot.accounting import FixedSizeGaussian, PoissonGaussian, ZeroConcentrated, epsilon
from dpfewshot.accounting.published import fixed_size_renyi_epsilon, integer_order_epsilon
from dpfewshot.mechanisms.adadpsyn import published

EPSILONS = (1, 4)
DELTA = 1e-5

TANG_DRAW = "the seed of the draws is 0 by default: who knows it knows which records were drawn, and sampling amplifies nothing; floating-point noise"
ADADPSYN_SEED = "no ε: draws and noise are seeded with 0 again for every token, so who knows the seed can subtract the noise"
INK_SEED = "no ε: the seed of every draw is 42 by default"
FLOATS = "floating-point noise"
EXACT = "exact draws from the operating system; here by dpfewshot's sampler, as the paper has no code"


def measure(_: Path, __: Path) -> Iterator[Line]:
    """Every claim; computed, in seconds."""
    found = versions()
    for line in (*tang(), *adadpsyn(), *private_prediction(), *invisible_ink()):
        yield {"kind": "claim", **line, "versions": found}


def tang() -> Iterator[Line]:
    """Table 9, TREC: Poisson accounting of fixed-size draws."""
    (task,) = [task for task in TANG if task.name == "TREC"]
    printed = dict(zip(TARGETS, TANG[task], strict=True))
    for target in EPSILONS:
        sigma = printed[target]
        q = task.sample / task.population
        yield {
            "peer": "Tang et al.",
            "setting": f"TREC, σ = {sigma:g}, T = {task.steps}, δ = 1/{task.population}",
            "stated": float(target),
            "own": epsilon(PoissonGaussian(q, sigma, task.steps), task.delta).upper,
            "drawn": epsilon(
                FixedSizeGaussian(task.sample, task.population, sigma, task.steps), task.delta
            ).upper,
            "as_run": epsilon(PoissonGaussian(1.0, sigma, task.steps), task.delta).upper,
            "why": TANG_DRAW,
        }


def adadpsyn() -> Iterator[Line]:
    """Table 15, TREC: Rényi accounting of fixed-size draws."""
    task = PRESETS["trec"]
    for target in EPSILONS:
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
    for target in EPSILONS:
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
    """c/(s·τ) that integer orders allow, by bisection."""
    low, high = 0.0, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        fits = integer_order_epsilon(ZeroConcentrated(0.5 * middle**2, steps), DELTA).epsilon <= target
        low, high = (middle, high) if fits else (low, middle)
    return low


def invisible_ink() -> Iterator[Line]:
    """The package's clip for an ε. It cuts batches by position, so only a replaced record moves no other."""
    for target in EPSILONS:
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
    low, high = 0.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if epsilon(ZeroConcentrated(middle, 1), DELTA).upper <= target else (low, middle)
        )
    return low
