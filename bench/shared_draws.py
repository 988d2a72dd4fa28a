"""What one event for several queries on a draw saves: a table of docs/results/accounting.md (bench/reproduce.py).

"Added" is the accounting without it: R·ε₀ is sampled as one pure release (or, where that is less, nothing is
sampled), and a sparse vector gets a disjoint part of the records for each demonstration, every unit in its draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dpfewshot.accounting import (
    Event,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
    calibrate,
)
from dpfewshot.mechanisms import (
    Draws,
    Gaussian,
    Mechanism,
    PrivatePrediction,
    ReportNoisyMax,
    RowChange,
    SparseVector,
)

DELTA = 1e-5
RELEASES = 8
# q, tokens, R, ε
PLANS = (
    (0.05, 40, 4, 1.0),
    (0.05, 40, 8, 1.0),
    (0.05, 40, 40, 1.0),
    (0.05, 40, 4, 8.0),
    (0.2, 40, 8, 1.0),
    (0.01, 100, 10, 1.0),
)
# parts or draws, ε
WRAPPED = ((10, 1.0), (10, 4.0), (20, 1.0), (4, 1.0))


def blocks(q: float, tokens: int, per_draw: int) -> Draws:
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


def rows() -> Iterator[tuple[object, ...]]:
    """Mechanism, q, draws, tokens a draw, ε, noise multiplier before and now, and their quotient."""
    added: tuple[tuple[Mechanism, Callable[[Draws, float], Event]], ...] = (
        (PrivatePrediction(), softmax_added),
        (ReportNoisyMax(), pure_added),
    )
    for mechanism, before in added:
        for q, tokens, per_draw, target in PLANS:
            draws = blocks(q, tokens, per_draw)
            old, new = _noise(before, draws, target), _noise(mechanism.event, draws, target)
            yield mechanism.name, q, draws.steps, per_draw, f"{target:g}", old, new, f"{old / new:.2f}"
    for inner in (Gaussian(), ReportNoisyMax(), PrivatePrediction()):
        wrapped = SparseVector(inner, 0.5, RELEASES)
        for parts, target in WRAPPED:
            old = _noise(wrapped.event, blocks(1.0, 40, 40), target)
            draws = Draws(1 / parts, parts, 40, 50, RowChange.ADDED)
            new = _noise(wrapped.event, draws, target)
            yield (
                wrapped.name,
                1 / parts,
                parts,
                f"40, r = {RELEASES}",
                f"{target:g}",
                old,
                new,
                f"{old / new:.2f}",
            )


def _noise(event: Callable[[Draws, float], Event], draws: Draws, target: float) -> float:
    return calibrate(lambda sigma: event(draws, sigma), epsilon=target, delta=DELTA)
