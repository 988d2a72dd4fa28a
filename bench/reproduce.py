"""The papers' privacy figures beside ours: `make reproduce` makes the tables of docs/results/accounting.md anew.

    python -m bench.reproduce

The printed figures are literals here: Tang et al. 2024, Table 9; the ablation of Gao et al. 2025 (AdaDPSyn),
whose Tables 13 to 17 are the mechanism's presets; Li et al. (ICLInf), Tables 4 to 6. Takes some seconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.pages import written
from dpfewshot.accounting import (
    Event,
    FixedSizeGaussian,
    PoissonGaussian,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
    calibrate,
    epsilon,
)
from dpfewshot.accounting.published import fixed_size_renyi_epsilon, integer_order_epsilon
from dpfewshot.mechanisms import (
    Draws,
    Gaussian,
    Mechanism,
    PrivatePrediction,
    ReportNoisyMax,
    RowChange,
    SparseVector,
)
from dpfewshot.mechanisms.adadpsyn import EPSILONS, AdaDPSyn, published
from dpfewshot.runtime.files import write_whole

PAGE = Path(__file__).parents[1] / "docs/results/accounting.md"

SAME, CONSERVATIVE = "same", "conservative"


class Task(NamedTuple):
    """One task of a table: a draw takes `sample` of `population` records, `steps` times, at `delta`."""

    name: str
    sample: int
    population: int
    steps: int
    delta: float

    def poisson(self, sigma: float) -> PoissonGaussian:
        """Gaussian noise on Poisson draws of the sample's mean size."""
        return PoissonGaussian(self.sample / self.population, sigma, self.steps)

    def fixed_size(self, sigma: float) -> FixedSizeGaussian:
        """The same noise on draws of exactly the sample's size."""
        return FixedSizeGaussian(self.sample, self.population, sigma, self.steps)


TANG = {
    Task("AGNews", 20, 30000, 100, 1 / 30000): (0.51, 0.46, 0.39, 0.31),
    Task("DBPedia", 80, 40000, 100, 1 / 40000): (0.63, 0.54, 0.45, 0.36),
    Task("TREC", 80, 835, 15, 1 / 835): (1.36, 0.95, 0.69, 0.51),
    Task("MIT-G", 80, 2953, 80, 1 / 2953): (1.08, 0.81, 0.64, 0.50),
    Task("MIT-D", 80, 1561, 80, 1 / 1561): (1.52, 1.04, 0.77, 0.58),
}
TARGETS = (1, 2, 4, 8)
TANG_EXPONENTIAL = (2.73, 3.34, 3.95, 4.57)  # DBPedia

AGNEWS = Task("AGNews", 20, 30000, 100, 1 / 120000)
DBPEDIA = Task("DBPedia", 20, 3558, 100, 1 / 49999)
TREC = Task("TREC", 40, 835, 15, 1 / 5452)
MIT_G = Task("MIT-G", 40, 2953, 80, 1 / 2953)
MIT_D = Task("MIT-D", 40, 1561, 80, 1 / 1561)
PRESETS = {"agnews": AGNEWS, "dbpedia": DBPEDIA, "trec": TREC, "mit-g": MIT_G, "mit-d": MIT_D}
# ε, σ₁, T̂, σ₀, σ₂ of the ablation; this T̂ is in no table
ABLATION = {
    AGNEWS: (8, 0.72, 2, 10, 3),
    DBPEDIA: (8, 0.90, 2, 10, 3),
    TREC: (8, 0.89, 1, 10, 5),
    MIT_G: (8, 0.73, 1, 10, 5),
    MIT_D: (8, 1.03, 2, 15, 5),
}

ICLINF_STEPS, ICLINF_DELTA = 2000, 1e-5
# table, ε, and c, s, τ with None for the printed one; the printed figure and its least digit
ICLINF: tuple[tuple[str, float, float | None, float | None, float | None, float, float], ...] = (
    *(("4", e, 10, 50, None, tau, 0.01) for e, tau in ((0.5, 68.58), (1, 36.18), (5, 8.53), (10, 4.80))),
    *(("4", e, 10, 50, None, tau, 0.01) for e, tau in ((20, 2.81), (50, 1.42), (100, 0.94))),
    *(
        ("5", e, None, 50, 2, c, 0.01)
        for e, c in ((1, 0.55), (5, 2.34), (10, 4.16), (50, 14.12), (100, 21.2))
    ),
    *(("6", e, 10, None, 2, s, 1) for e, s in ((5, 214), (10, 121), (50, 36), (100, 24))),
)


def row(*cells: object) -> str:
    """One line of a table."""
    return "| " + " | ".join(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def head(names: str) -> str:
    """The first two lines of a table."""
    return f"| {names} |\n" + "|---" * (1 + names.count("|")) + "|"


def hundredths_up(value: float) -> float:
    """The value, rounded up to a multiple of 0.01."""
    return math.ceil(value * 100 - 1e-9) / 100


def as_run(target: float, replaced: float) -> str:
    """The ε of the fixed-size draws that the authors' code makes."""
    return "certified" if replaced <= target else "not certified: fixed-size draws accounted as Poisson"


def tang_gaussian() -> Iterator[str]:
    """Table 9, Gaussian noise."""
    yield head(
        "task | ε | σ printed | σ needed | to two digits | as Poisson | ε at σ printed | replace-one | as run"
    )
    for task, printed in TANG.items():
        for target, sigma in zip(TARGETS, printed, strict=True):
            yield row(task.name, target, f"{sigma:.2f}", *tang_row(task, target, sigma))


def tang_row(task: Task, target: float, sigma: float) -> tuple[object, ...]:
    """One printed σ and our findings."""
    needed = calibrate(task.poisson, epsilon=target, delta=task.delta)
    rounded = hundredths_up(needed)
    verdict = SAME if rounded == sigma else CONSERVATIVE if rounded < sigma else "TOO SMALL"
    poisson = epsilon(task.poisson(sigma), task.delta).upper
    replaced = epsilon(task.fixed_size(sigma), task.delta).upper
    return needed, f"{rounded:.2f}", verdict, poisson, replaced, as_run(target, replaced)


def tang_exponential() -> Iterator[str]:
    """Table 9, exponential noise: DBPedia."""
    yield head(
        "ε | ε₀ printed | ε' = log(1 + q(e^ε₀ − 1)) | composing ε' | verdict | composing the subsampled pair"
    )
    task = next(task for task in TANG if task.name == "DBPedia")
    q = task.sample / task.population
    for target, cost in zip(TARGETS, TANG_EXPONENTIAL, strict=True):
        amplified = math.log1p(q * math.expm1(cost))
        composed = amplified_cost(cost, q, task)
        least = amplified_cost(cost + 0.01, q, task)
        verdict = SAME if composed <= target < least else CONSERVATIVE if composed <= target else "TOO SMALL"
        pair = epsilon(PoissonRandomizedResponse(q, cost, task.steps), task.delta).upper
        yield row(target, f"{cost:.2f}", amplified, composed, verdict, pair)


def amplified_cost(cost: float, q: float, task: Task) -> float:
    """ε of the composed ε'-DP steps."""
    return epsilon(
        PoissonRandomizedResponse(1.0, math.log1p(q * math.expm1(cost)), task.steps), task.delta
    ).upper


def adadpsyn() -> Iterator[str]:
    """Tables 13 to 17."""
    yield head(
        "table | task | ε | σ₁ | T̂ | σ₀ | σ₂ | σ_eff | ε, their accounting | at σ₁ − 0.01 | verdict | ε, replace-one | ε, Poisson"
    )
    for table, task, target, mean, rounds, radius, coverage in adadpsyn_settings():
        event = functools.partial(adadpsyn_event, task, rounds, radius, coverage)
        found = adadpsyn_row(event, task, target, mean)
        yield row(table, task.name, target, f"{mean:.2f}", rounds, f"{radius:g}", f"{coverage:g}", *found)


def adadpsyn_settings() -> Iterator[tuple[object, Task, float, float, int, float, float]]:
    """Each row's table and task, and the printed ε, σ₁, T̂, σ₀, σ₂."""
    for table, (name, task) in enumerate(PRESETS.items(), start=13):
        for target in EPSILONS:
            p = published(name, epsilon=target).mechanism
            yield table, task, target, p.mean_multiplier, p.rounds, p.radius_multiplier, p.coverage_multiplier
    for task, printed in ABLATION.items():
        yield "ablation", task, *printed


def adadpsyn_event(task: Task, rounds: int, radius: float, coverage: float, mean: float) -> FixedSizeGaussian:
    """A plan of AdaDPSyn as one event."""
    return task.fixed_size(AdaDPSyn(radius, mean, coverage, rounds).step_multiplier)


def adadpsyn_row(
    event: Callable[[float], FixedSizeGaussian], task: Task, target: float, mean: float
) -> tuple[object, ...]:
    """One printed σ₁ and our findings."""
    sigma = event(mean).noise_multiplier
    theirs, less = (fixed_size_renyi_epsilon(event(each), task.delta).epsilon for each in (mean, mean - 0.01))
    verdict = SAME if theirs <= target < less else conservative_mean(event, mean, target, task.delta)
    replaced = epsilon(event(mean), task.delta).upper
    poisson = epsilon(task.poisson(sigma), task.delta).upper
    return sigma, theirs, less, verdict, replaced, poisson


def conservative_mean(
    event: Callable[[float], FixedSizeGaussian], mean: float, target: float, delta: float
) -> str:
    """The least σ₁ that their accounting allows, if the printed one is larger."""
    hundredths = round(mean * 100)
    while fixed_size_renyi_epsilon(event((hundredths - 1) / 100), delta).epsilon <= target:
        hundredths -= 1
    return f"{CONSERVATIVE}: σ₁ = {hundredths / 100:.2f} would do"


def iclinf() -> Iterator[str]:
    """Tables 4 to 6."""
    yield head(
        "table | ε | c | s | τ | solved for ε | printed | verdict | ε at printed, integer orders | α | ε at printed, ours"
    )
    for table, target, clip, size, temperature, printed, digit in ICLINF:
        event = functools.partial(iclinf_event, clip, size, temperature)
        solved = solve(functools.partial(iclinf_excess, event, target), rising=clip is None)
        near = math.ceil(solved) == printed if digit == 1 else abs(solved - printed) <= digit / 2
        found = integer_order_epsilon(event(printed), ICLINF_DELTA)
        ours = epsilon(event(printed), ICLINF_DELTA).upper
        settings = ("printed" if value is None else f"{value:g}" for value in (clip, size, temperature))
        verdict = (SAME if near else "OFF") + (
            "" if ours <= target else "; rounded to nearest: ε is missed by its last digit"
        )
        yield row(
            table, f"{target:g}", *settings, solved, f"{printed:g}", verdict, found.epsilon, found.order, ours
        )


def iclinf_event(c: float | None, s: float | None, tau: float | None, free: float) -> ZeroConcentrated:
    """The event of a row whose free setting is `free`."""
    return ZeroConcentrated(0.5 * ((c or free) / ((s or free) * (tau or free))) ** 2, ICLINF_STEPS)


def iclinf_excess(event: Callable[[float], ZeroConcentrated], target: float, free: float) -> float:
    """The excess of ε over its target."""
    return integer_order_epsilon(event(free), ICLINF_DELTA).epsilon - target


def solve(excess: Callable[[float], float], *, rising: bool) -> float:
    """The root of a monotone function, by bisection in logarithms."""
    low, high = -7.0, 9.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if (excess(math.exp(middle)) > 0) == rising else (middle, high)
    return math.exp((low + high) / 2)


SHARED_DELTA = 1e-5
RELEASES = 8
# q, tokens, R, ε
SHARED_PLANS = (
    (0.05, 40, 4, 1.0),
    (0.05, 40, 8, 1.0),
    (0.05, 40, 40, 1.0),
    (0.05, 40, 4, 8.0),
    (0.2, 40, 8, 1.0),
    (0.01, 100, 10, 1.0),
)
# parts or draws, ε
WRAPPED = ((10, 1.0), (10, 4.0), (20, 1.0), (4, 1.0))


def draws_of(q: float, tokens: int, per_draw: int) -> Draws:
    """The draws of a plan."""
    return Draws(q, tokens // per_draw, per_draw, 50, RowChange.ADDED)


def softmax_added(draws: Draws, sigma: float) -> Event:
    """R tokens of range 2/σ as one (2R/σ)-DP release, or as zCDP without sampling."""
    tokens = draws.steps * draws.tokens_per_draw
    block = PoissonRandomizedResponse(draws.sampling_rate, 2 * draws.tokens_per_draw / sigma, draws.steps)
    return Tightest((block, ZeroConcentrated(1 / (2 * sigma**2), tokens)))


def pure_added(draws: Draws, sigma: float) -> Event:
    """R tokens of ε₀ = 1/σ as one (R/σ)-DP release, or one by one without sampling."""
    tokens = draws.steps * draws.tokens_per_draw
    block = PoissonRandomizedResponse(draws.sampling_rate, draws.tokens_per_draw / sigma, draws.steps)
    return Tightest((block, PoissonRandomizedResponse(1.0, 1 / sigma, tokens)))


def shared_draws() -> Iterator[str]:
    """What one event for several queries on a draw saves.

    "Added" is the accounting without it: R·ε₀ is sampled as one pure release (or, where that is less, nothing is
    sampled), and a sparse vector gets a disjoint part of the records for each demonstration, every unit in its draw.
    """
    yield head("mechanism | q | draws | tokens a draw | ε | σ, added | σ, product | quotient")
    added: tuple[tuple[Mechanism, Callable[[Draws, float], Event]], ...] = (
        (PrivatePrediction(), softmax_added),
        (ReportNoisyMax(), pure_added),
    )
    for mechanism, before in added:
        for q, tokens, per_draw, target in SHARED_PLANS:
            draws = draws_of(q, tokens, per_draw)
            old, new = noise(before, draws, target), noise(mechanism.event, draws, target)
            yield row(mechanism.name, q, draws.steps, per_draw, f"{target:g}", old, new, f"{old / new:.2f}")
    for inner in (Gaussian(), ReportNoisyMax(), PrivatePrediction()):
        wrapped = SparseVector(inner, 0.5, RELEASES)
        for parts, target in WRAPPED:
            old = noise(wrapped.event, draws_of(1.0, 40, 40), target)
            draws = Draws(1 / parts, parts, 40, 50, RowChange.ADDED)
            new = noise(wrapped.event, draws, target)
            together = f"40, r = {RELEASES}"
            yield row(wrapped.name, 1 / parts, parts, together, f"{target:g}", old, new, f"{old / new:.2f}")


def noise(event: Callable[[Draws, float], Event], draws: Draws, target: float) -> float:
    """The least noise multiplier."""
    return calibrate(lambda sigma: event(draws, sigma), epsilon=target, delta=SHARED_DELTA)


TABLES = {
    "tang": tang_gaussian,
    "exponential": tang_exponential,
    "adadpsyn": adadpsyn,
    "iclinf": iclinf,
    "shared": shared_draws,
}


def page() -> str:
    """The page with its tables made anew."""
    return written(PAGE.read_text(encoding="utf-8"), TABLES)


if __name__ == "__main__":
    write_whole(PAGE, page())
