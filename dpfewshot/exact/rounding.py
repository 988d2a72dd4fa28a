"""From exact rational numbers to floats, rounded in a stated direction."""

from __future__ import annotations

import math
from fractions import Fraction


def rounded_up(value: Fraction) -> float:
    """The smallest float that is at least the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def rounded_down(value: Fraction) -> float:
    """The largest float that is at most the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)
