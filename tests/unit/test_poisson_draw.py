"""The compiled Poisson draw does, bit for bit, what Lemma 5 of docs/proofs/sampling.md says."""

import random
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from dpfewshot import _core

WORDS = 512
"""The core asks for so many words at once."""


class Words:
    """64-bit words from a seed, in the order in which the core takes them."""

    def __init__(self, seed: int) -> None:
        self._bytes = random.Random(seed).randbytes
        self._left: list[int] = []

    def next(self) -> int:
        if not self._left:
            data = self._bytes(8 * WORDS)
            self._left = [int.from_bytes(data[8 * i : 8 * i + 8], "little") for i in range(WORDS)]
        return self._left.pop(0)

    def below(self, bound: int) -> int:
        while True:
            high, low = divmod(self.next() * bound, 2**64)
            if low >= 2**64 % bound:
                return high

    def bits(self, count: int) -> list[int]:
        """`count` fair bits: the first ones of each word."""
        words = [self.next() for _ in range(-(-count // 64))]
        return [word >> (63 - i) & 1 for word in words for i in range(64)][:count]


def twin(units: int, q: Fraction, subsets: int, words: Words) -> tuple[list[int], list[int]]:
    below, tied, rest = 0, units, q
    while tied and rest:
        digit, rest = divmod(2 * rest, 1) if rest < 1 else (1, rest)  # 1 is 0.111...
        ones = sum(words.bits(tied))
        below, tied = (below + tied - ones, ones) if digit else (below, tied - ones)
    drawn: set[int] = set()
    for last in range(units - below, units):
        unit = words.below(last + 1)
        drawn.add(last if unit in drawn else unit)
    return sorted(drawn), [words.below(subsets) for _ in drawn]


@given(
    st.integers(0, 400),
    st.fractions(min_value=Fraction(1, 2**40), max_value=1, max_denominator=2**63),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_the_compiled_draw_is_its_twin(units: int, q: Fraction, subsets: int, seed: int) -> None:
    source = random.Random(seed).randbytes
    found = _core.poisson_subsets(units, q.numerator, q.denominator, subsets, source)
    assert tuple(each.tolist() for each in found) == twin(units, q, subsets, Words(seed))


@given(st.integers(1, 2**63 - 1), st.integers(0, 2**32))
def test_rates_of_large_terms(denominator: int, seed: int) -> None:
    q = Fraction(max(1, denominator // 3), denominator)
    source = random.Random(seed).randbytes
    found = _core.poisson_subsets(100, q.numerator, q.denominator, 3, source)
    assert tuple(each.tolist() for each in found) == twin(100, q, 3, Words(seed))
