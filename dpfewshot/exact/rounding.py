"""From exact numbers to floats and decimals, rounded in a stated direction."""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from fractions import Fraction


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
