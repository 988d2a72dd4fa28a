"""The compiled sampler and its twin: the same integers from the same words, and lazy digits that decide."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot import _core
from dpfewshot.exact import normal as exact_normal
from dpfewshot.exact.normal import CELLS_PER_UNIT, Uniform, cell_thresholds, decide, exponential_of_minus
from tests.support.words import Recording, no_more_digits

WORD = 2**64
WORDS_OF_A_REFILL = 512


def twin_of(words: list[int], scale: int, count: int) -> list[int]:
    """What the compiled loop does with these words, by the twin's decisions."""
    steps, draws, signs, signs_left = scale // 8, [], 0, 0
    stream = iter(words)
    while len(draws) < count:
        u, x, v = (Uniform(next(stream), 64, no_more_digits) for _ in range(3))
        magnitude = decide(u, x, v, steps)
        if magnitude is None:
            continue
        if signs_left == 0:
            signs, signs_left = next(stream), 64
        draws.append(-magnitude if signs & 1 else magnitude)
        signs, signs_left = signs >> 1, signs_left - 1
    return draws


@pytest.mark.parametrize("scale", [8, 80, 8 * 2**20, 8 * 12_345_678, 2**40])
def test_compiled_draws_are_the_twins_draws(scale: int) -> None:
    source = Recording(scale)
    compiled = _core.rounded_normals(scale, 2_000, source)
    words = np.frombuffer(source.served, dtype="<u8").tolist()
    assert compiled.tolist() == twin_of(words, scale, 2_000)


@given(st.fractions(0, 60), st.integers(8, 200))
def test_exponential_enclosure_holds_the_truth_and_is_narrow(value: Fraction, digits: int) -> None:
    low, high = exponential_of_minus(value.numerator, value.denominator, digits)
    with mpmath.workdps(120):
        truth = mpmath.exp(-mpmath.mpf(value.numerator) / value.denominator) * mpmath.mpf(2) ** digits
    assert low <= truth <= high
    assert high - low <= 3


@pytest.mark.parametrize("digits", [8, 16, 64, 128])
def test_cell_thresholds_enclose_the_cumulative_weights(digits: int) -> None:
    with mpmath.workdps(80):
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / 128) for k in range(400)]
        total, below = mpmath.fsum(weights), mpmath.mpf(0)
        for (low, high), weight in zip(cell_thresholds(80, digits), weights, strict=False):
            below += weight
            assert low <= below / total * 2**digits <= high
            assert high - low <= 2


def test_undecided_words_draw_more_digits() -> None:
    """A threshold hit exactly, an acceptance on its bound, a rounding on the half: more digits."""
    threshold = cell_thresholds(80, 64)[3][0]
    half = 1 << 63
    further: list[int] = []

    def source(count: int) -> bytes:
        further.append(count)
        return random.Random(len(further)).randbytes(count)

    def digits_drawn(u: int, x: int, v: int, steps: int) -> int:
        further.clear()
        decide(*(Uniform(value, 64, source) for value in (u, x, v)), steps)
        return len(further)

    assert digits_drawn(threshold, half, 1, 1000) > 0
    bound = exponential_of_minus(1, 4 * 128, 64)[0]  # cell 0 and x = 1/2
    assert digits_drawn(0, half, bound, 1000) > 0
    assert digits_drawn(0, half // 3, 1, 3) > 0  # three grid steps a cell: x is a hair below 1/6
    assert digits_drawn(0, half + 12345, 1, 1000) == 0


def test_compiled_sampler_asks_the_twin_where_64_digits_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    threshold = cell_thresholds(80, 64)[3][0]
    words = [threshold, 1 << 63, 1, 0] + [0] * (WORDS_OF_A_REFILL - 4)
    asked: list[tuple[int, int, int]] = []

    def decide_words(u: int, x: int, v: int, steps: int, source: object) -> int:
        asked.append((u, x, v))
        assert steps == 100
        assert source is served
        return 345

    def served(count: int) -> bytes:
        return np.array(words, dtype="<u8").tobytes()[:count]

    monkeypatch.setattr(exact_normal, "decide_words", decide_words)
    assert _core.rounded_normals(800, 1, served).tolist() == [345]
    assert asked == [(threshold, 1 << 63, 1)]


def is_left_to_the_twin(monkeypatch: pytest.MonkeyPatch, u: int, x: int, v: int) -> bool:
    """Whether the compiled sampler leaves this proposal to further digits."""
    asked: list[tuple[int, int, int]] = []

    def decide_words(u: int, x: int, v: int, _steps: int, _source: object) -> int:
        asked.append((u, x, v))
        return 0

    words = [u, x, v] + [WORD // 3] * (WORDS_OF_A_REFILL - 3)  # those after it decide themselves
    monkeypatch.setattr(exact_normal, "decide_words", decide_words)
    _core.rounded_normals(8, 1, lambda count: np.array(words, dtype="<u8").tobytes()[:count])
    return (u, x, v) in asked


def proposals(cases: int) -> Iterator[tuple[int, int, int]]:
    """Words for a cell and for x, with 2^64 exp(-x(2 cell + x)/128) rounded down."""
    thresholds = [low for low, _ in cell_thresholds(80, 64)]
    seeded = random.Random(13)
    for case in range(cases):
        cell, x = case % 24 + 1, seeded.getrandbits(64)
        exponent = Fraction(x, WORD) * (2 * cell + Fraction(x, WORD)) / 128
        bound = exponential_of_minus(exponent.numerator, exponent.denominator, 80)[0] >> 16
        yield (thresholds[cell - 1] + thresholds[cell]) // 2, x, bound


# The compiled bound is within 10 units of the truth, so 54 units from the truth are within the guard of 64.
@pytest.mark.parametrize("distance", [-54, -20, -10, -5, -1, 0, 1, 5, 10, 20, 54])
def test_words_next_to_the_bound_go_to_the_twin(monkeypatch: pytest.MonkeyPatch, distance: int) -> None:
    for u, x, bound in proposals(120):
        assert is_left_to_the_twin(monkeypatch, u, x, bound + distance)


@pytest.mark.parametrize("distance", [-80, 80])
def test_words_clear_of_the_bound_are_decided_as_the_twin_decides(
    monkeypatch: pytest.MonkeyPatch, distance: int
) -> None:
    for u, x, bound in proposals(120):
        assert not is_left_to_the_twin(monkeypatch, u, x, bound + distance)
        kept = decide(*(Uniform(word, 64, no_more_digits) for word in (u, x, bound + distance)), 1)
        assert (kept is not None) == (distance < 0)


@pytest.mark.parametrize("scale", [0, -8, 7, 12, 2**49])
def test_scale_must_be_a_multiple_of_a_cell(scale: int) -> None:
    with pytest.raises(ValueError, match="scale"):
        _core.rounded_normals(scale, 1)


def test_source_must_return_what_it_was_asked_for() -> None:
    with pytest.raises(ValueError, match="exactly"):
        _core.rounded_normals(8, 1, lambda count: b"x" * (count - 1))
    with pytest.raises(ZeroDivisionError):
        _core.rounded_normals(8, 1, lambda _count: bytes([1 // 0]))


def test_twin_density_is_a_normal_density() -> None:
    """The weight of a cell times the probability to keep x is exp(-t²/2), which is the whole argument."""
    for cell in range(30):
        for x in (0.0, 0.25, 0.9):
            t = (cell + x) / CELLS_PER_UNIT
            product = math.exp(-(cell**2) / 128) * math.exp(-x * (2 * cell + x) / 128)
            assert product == pytest.approx(math.exp(-t * t / 2), rel=1e-12)
