"""Exact samplers and rounding in Python integers of any length: the specification of the compiled core.

    normal    round(N(0, s²))
    choice    report noisy max, the softmax draw, and the discrete Laplace distribution

The functions here go from exact numbers to floats and decimals, rounded in a stated direction.

The compiled core decides with the first 64 digits of its uniform numbers, and asks this package for more in
the rare cases in which those do not suffice. Tests run both on the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import TypeAlias

RandomSource: TypeAlias = Callable[[int], bytes]
"""Maps n to n uniform bytes. An optional one is for tests alone: None is the operating system's generator."""


def rounded_up(value: Fraction) -> float:
    """The smallest float that is at least the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def rounded_down(value: Fraction) -> float:
    """The largest float that is at most the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


def to_digits(number: Decimal, digits: int, rounding: str) -> Decimal:
    """Round a number to significant digits, by a mode of the decimal module, such as `ROUND_CEILING`."""
    return own_context(digits, rounding).plus(number)


def own_context(digits: int = 50, rounding: str = ROUND_HALF_EVEN) -> Context:
    """A decimal context for `decimal.localcontext` that inherits nothing from the caller's."""
    return Context(
        digits, rounding, MIN_EMIN, MAX_EMAX, capitals=1, clamp=0, flags=[], traps=[InvalidOperation]
    )
