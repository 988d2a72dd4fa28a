"""From exact rational numbers to floats, on the side that protects."""

from __future__ import annotations

import math
from fractions import Fraction


def rounded_up(value: Fraction) -> float:
    """The least float that is not below."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def rounded_down(value: Fraction) -> float:
    """The largest float that is not above."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)
