"""Which units a draw takes. The compiled Poisson draw is, bit for bit, Lemma 5 of docs/proofs/sampling.md."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.records.units import each_a_unit
from dpfewshot.sampling import FixedSizeSampler, PoissonSampler, disjoint_parts


def sampler(rate: Fraction, subsets: int = 4, records_per_prompt: int = 1) -> PoissonSampler:
    return PoissonSampler(rate, subsets, records_per_prompt)


def test_one_record_a_prompt_gives_every_drawn_unit_a_prompt_of_its_own() -> None:
    assert sampler(Fraction(1)).draw([1] * 10) == [[(unit, 0)] for unit in range(10)]


def test_grouped_units_are_in_exactly_one_subset() -> None:
    subsets = sampler(Fraction(1), subsets=3, records_per_prompt=5).draw([1] * 15)
    assert len(subsets) <= 3
    assert sorted(unit for subset in subsets for unit, _ in subset) == list(range(15))


def test_nobody_may_be_drawn_and_nobody_may_be_there() -> None:
    assert sampler(Fraction(1, 2**60)).draw([1] * 5) == []
    assert sampler(Fraction(1, 2)).draw([]) == []


def test_a_unit_contributes_one_of_its_records_drawn_afresh() -> None:
    seen = {sampler(Fraction(1)).draw([3])[0][0] for _ in range(200)}
    assert seen == {(0, 0), (0, 1), (0, 2)}


def test_an_injected_source_repeats_a_draw_and_the_system_does_not() -> None:
    draws = [PoissonSampler(Fraction(1, 2), 4, 2, random.Random(5).randbytes).draw([1] * 100) for _ in "ab"]
    assert draws[0] == draws[1]
    assert sampler(Fraction(1, 2)).draw([1] * 100) != sampler(Fraction(1, 2)).draw([1] * 100)


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(3, 2)])
def test_a_rate_outside_its_range_is_refused(rate: Fraction) -> None:
    with pytest.raises(ValueError, match="rate"):
        sampler(rate).draw([1])


def test_a_draw_of_fixed_size_takes_no_unit_twice() -> None:
    subsets = FixedSizeSampler(subsets=4, records_per_prompt=3).draw([1] * 20)
    drawn = [unit for subset in subsets for unit, _ in subset]
    assert [len(subset) for subset in subsets] == [3] * 4
    assert len(set(drawn)) == 12
    assert set(drawn) <= set(range(20))


def test_a_draw_of_everybody_is_everybody() -> None:
    subsets = FixedSizeSampler(subsets=5, records_per_prompt=2).draw([1] * 10)
    assert sorted(unit for subset in subsets for unit, _ in subset) == list(range(10))


def test_every_unit_is_in_exactly_one_of_the_disjoint_parts() -> None:
    records = [dpf.Record(f"ticket {number}", "refund") for number in range(100)]
    parts = [[unit[0].text for unit in part] for part in disjoint_parts(each_a_unit(records), 7)]
    assert len(parts) == 7
    assert sorted(text for part in parts for text in part) == sorted(one.text for one in records)
    assert [len(part) for part in disjoint_parts(each_a_unit([]), 3)] == [0, 0, 0]


# ---- the twin of the compiled draw ------------------------------------------------------------------------

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
