"""Hockey-stick curves of one step at many digits, from the definitions alone.

Nothing here comes from the accountant: the tests hold it against this. Each function gives
sup_S P(S) - e^ε·Q(S), for the pair with the unit in P (`removed`) or in Q.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath

DIGITS = 60
"""Enough for ε up to some thousands: e^ε is formed as a number of its own, and differences keep 30 digits."""

Exact = Callable[[float], Any]


def gaussian(q: float, sigma: float, *, removed: bool) -> Exact:
    """N(0, σ²) and (1-q)·N(0, σ²) + q·N(1, σ²)."""

    def tail(x: Any, mean: int, s: Any) -> Any:
        return mpmath.erfc((x - mean) / (s * mpmath.sqrt(2))) / 2

    def curve(epsilon: float) -> Any:
        with mpmath.workdps(DIGITS):
            rate, s, y = mpmath.mpf(q), mpmath.mpf(sigma), mpmath.exp(mpmath.mpf(epsilon))
            ratio = ((y if removed else 1 / y) - (1 - rate)) / rate  # of the densities, where the loss is ε
            if ratio <= 0:
                return 1 - y if removed else mpmath.mpf(0)
            edge = mpmath.mpf(1) / 2 + s * s * mpmath.log(ratio)
            if removed:
                out, mixed = tail(edge, 0, s), (1 - rate) * tail(edge, 0, s) + rate * tail(edge, 1, s)
                return mixed - y * out
            out = tail(-edge, 0, s)
            mixed = (1 - rate) * out + rate * tail(-edge, -1, s)
            return out - y * mixed

    return curve


def replaced_gaussian(q: float, sigma: float) -> Exact:
    """The curve of a replacement in a draw of fixed size: the removal's, and its mirror image below 0."""
    removal = gaussian(q, sigma, removed=True)

    def curve(epsilon: float) -> Any:
        if epsilon >= 0:
            return removal(epsilon)
        with mpmath.workdps(DIGITS):
            y = mpmath.exp(mpmath.mpf(epsilon))
            return 1 - y + y * removal(-epsilon)

    return curve


def response(q: float, cost: float, *, removed: bool) -> Exact:
    """Randomised response: two outcomes, so the best event is one of four."""

    def curve(epsilon: float) -> Any:
        with mpmath.workdps(DIGITS + int(cost)):
            y, rate = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(q)
            second = 1 / (1 + mpmath.exp(mpmath.mpf(cost)))
            mixed = (1 - rate) * second + rate * (1 - second)
            p, r = (mixed, second) if removed else (second, mixed)
            return max(p - y * r, 0) + max((1 - p) - y * (1 - r), 0)

    return curve


def bounded_range(q: float, width: float, *, removed: bool) -> Exact:
    """(√A - √x)² / (A - 1), A = e^width, of the pair (A, B); with sampling by its definition."""

    def base(x: Any, a: Any) -> Any:
        if x * a <= 1:
            return 1 - x
        return (mpmath.sqrt(a) - mpmath.sqrt(x)) ** 2 / (a - 1) if x < a else mpmath.mpf(0)

    def curve(epsilon: float) -> Any:
        with mpmath.workdps(DIGITS + 2 * int(width)):
            y, rate, a = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(q), mpmath.exp(mpmath.mpf(width))
            if removed:  # (1-q)·B + q·A against B
                x = (y - (1 - rate)) / rate
                return rate * base(x, a) if x > 0 else 1 - y
            rest = 1 - (1 - rate) * y  # B against (1-q)·B + q·A
            return rest * base(rate * y / rest, a) if rest > 0 else mpmath.mpf(0)

    return curve
