"""Exact samplers and rounding in Python integers of any length: the specification of the compiled core.

    normal    round(N(0, s²))
    choice    report noisy max, the softmax draw, and the discrete Laplace distribution
    rounding  from exact numbers to floats and decimals, in a stated direction

The compiled core decides with the first 64 digits of its uniform numbers, and asks this package for more in
the rare cases in which those do not suffice. Tests run both on the same bytes.
"""

from collections.abc import Callable
from typing import TypeAlias

RandomSource: TypeAlias = Callable[[int], bytes]
"""Maps n to n uniform bytes. An optional one is for tests alone: None is the operating system's generator."""
