"""The laws of several queries on one draw, for `independent_accounting`: written as densities, not as curves.

The losses of equal queries of bounded range have densities proportional to e^{g/2} on an interval, so their
sum is that of uniform variables, tilted.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from tests.support.independent_accounting import FAR, Array, Law, Piece, log_mixture, normal


class Shared(NamedTuple):
    """Queries on the same records: a Gaussian or draws of bounded range, and randomised responses.

    Attributes:
        sigma: of the Gaussian; None is no Gaussian.
        width: of the range of each of `ranges` queries.
        ranges: how many.
        responses: ε₀ of each randomised response.
    """

    sigma: float | None
    width: float
    ranges: int
    responses: tuple[float, ...]


def product(q: float, shared: Shared, steps: int, *, removed: bool) -> Law:
    """All outcomes of the responses, each beside a density, sampled together."""
    outcomes = [(0.0, 1.0)]
    for cost in shared.responses:
        likely = 1 / (1 + math.exp(-cost))
        outcomes = [
            (loss + sign * cost, mass * (likely if sign > 0 else math.exp(-cost) * likely))
            for loss, mass in outcomes
            for sign in (-1, 1)
        ]
    pieces: list[Piece] = []
    atoms: list[tuple[float, float]] = []
    for at, mass in outcomes:
        mixed = (1 - q) * mass * math.exp(-at) + q * mass
        if shared.sigma is not None:
            pieces += _gaussian_beside(q, shared.sigma, at, mass, removed=removed)
        elif shared.ranges:
            pieces += _ranges_beside(q, shared, at, mass, removed=removed)
        else:
            loss = float(log_mixture(q, np.array([at]))[0])
            atoms.append((loss, mixed) if removed else (-loss, mass * math.exp(-at)))
    return Law(tuple(pieces), tuple(atoms), steps)


def _gaussian_beside(q: float, sigma: float, at: float, mass: float, *, removed: bool) -> list[Piece]:
    without = mass * math.exp(-at)

    def loss(u: Array) -> Array:
        return log_mixture(q, u / sigma - 0.5 / sigma**2 + at)

    if removed:
        return [
            Piece(
                -FAR,
                1 / sigma + FAR,
                loss,
                lambda u: (1 - q) * without * normal(u) + q * mass * normal(u - 1 / sigma),
                0.5,
            )
        ]
    return [Piece(-FAR, FAR, lambda u: -loss(u), lambda u: without * normal(u), 0.5)]


def _ranges_beside(q: float, shared: Shared, at: float, mass: float, *, removed: bool) -> list[Piece]:
    """The sum of equal losses with density e^{g/2}: that of uniform variables, tilted."""
    width, count, without = shared.width, shared.ranges, mass * math.exp(-at)

    def base(g: Array, sign: float) -> Array:
        within = np.clip((g + count * width) / (2 * width), 0.0, count)
        near = np.minimum(within, count - within)
        terms = [
            (-1) ** k * math.comb(count, k) * np.maximum(near - k, 0.0) ** (count - 1) for k in range(count)
        ]
        volume = np.maximum(sum(terms[1:], terms[0]), 0.0) / math.factorial(count - 1)
        scale = -2 * math.expm1(-width)
        return np.exp((sign * g - count * width) / 2) * volume * (2 * width) ** (count - 1) / scale**count

    def loss(g: Array) -> Array:
        return log_mixture(q, g + at)

    def mixed(g: Array) -> Array:
        return (1 - q) * without * base(g, -1) + q * mass * base(g, 1)

    ends = [-count * width + 2 * width * k for k in range(count + 1)]
    smooth = min(1.0, width)
    if removed:
        return [Piece(low, high, loss, mixed, smooth) for low, high in itertools.pairwise(ends)]
    return [
        Piece(low, high, lambda g: -loss(g), lambda g: without * base(g, -1), smooth)
        for low, high in itertools.pairwise(ends)
    ]
