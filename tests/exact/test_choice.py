"""Exact choices: enclosures, the same choices as the twin's from the same words, and lazy digits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot import _core
from dpfewshot.exact import choice as exact_choice
from dpfewshot.exact.choice import below_exponential, fixed_point
from dpfewshot.exact.normal import Uniform, exponential_of_minus
from tests.support.words import Recording, no_more_digits

WORD = 2**64
REFILL = 512
rates = st.tuples(st.integers(1, 2**80), st.integers(1, 2**90))
gaps = st.one_of(st.integers(0, 50), st.integers(0, 2**45), st.integers(0, 2**64 - 1))


def uniform_of(words: Iterator[int], bound: int) -> int:
    """Lemire's integers below a bound, as csrc/uniform.pxd draws them."""
    while True:
        product = next(words) * bound
        if product % WORD >= WORD % bound:
            return product // WORD


def flip_of(words: Iterator[int], scores: list[int], numerator: int, denominator: int) -> int:
    winner, heads = 0, 0
    for i, score in enumerate(scores):
        gap = max(scores) - score
        if gap and not below_exponential(
            Uniform(next(words), 64, no_more_digits), gap * numerator, denominator
        ):
            continue
        heads += 1
        if heads == 1 or uniform_of(words, heads) == 0:
            winner = i
    return winner


def softmax_of(words: Iterator[int], scores: list[int], numerator: int, denominator: int) -> int:
    gaps = [max(scores) - score for score in scores]
    weights = [_core.weight_enclosure(gap, numerator, denominator)[1] for gap in gaps]
    while True:
        within, index = uniform_of(words, sum(weights)), 0
        while within >= weights[index]:
            within, index = within - weights[index], index + 1
        if below_exponential(Uniform(within, 44, no_more_digits), gaps[index] * numerator, denominator):
            return index


@pytest.mark.parametrize(
    ("compiled", "twin"), [("permute_and_flip", flip_of), ("sample_softmax", softmax_of)]
)
@given(st.data())
@settings(max_examples=100)
def test_compiled_choices_are_the_twins_choices(compiled: str, twin, data) -> None:
    scores = data.draw(st.lists(st.integers(-(2**31), 2**31), min_size=1, max_size=60))
    numerator = data.draw(st.integers(1, 2**70))
    denominator = numerator * data.draw(st.integers(1, 2**32)) + data.draw(st.integers(0, 2**60))
    source = Recording(data.draw(st.integers(0, 2**32)))
    chosen = getattr(_core, compiled)(np.array(scores), numerator, denominator, source)
    if not source.served:  # one candidate, whose coin cannot fail
        assert chosen == 0
        assert compiled == "permute_and_flip"
    else:
        assert chosen == twin(source.words(), scores, numerator, denominator)


@given(rates)
def test_fixed_point_encloses_the_rate(rate: tuple[int, int]) -> None:
    numerator, denominator = rate
    mantissa, shift = fixed_point(*rate)
    assert 57 <= shift <= 127
    assert 0 <= mantissa < WORD
    if numerator < 64 * denominator:
        assert mantissa * denominator <= numerator << shift < (mantissa + 1) * denominator
        assert mantissa >= 2**63 or shift == 127
    else:
        assert (mantissa, shift) == (2**63, 57)


@given(gaps, rates)
@settings(max_examples=300)
def test_weights_enclose_the_exponential(gap: int, rate: tuple[int, int]) -> None:
    low, high = _core.weight_enclosure(gap, *rate)
    with mpmath.workdps(80):
        truth = mpmath.exp(-mpmath.mpf(gap * rate[0]) / rate[1]) * 2**44
        assert low <= truth <= high
    assert high - low <= 3


@given(st.integers(0, 2**45), st.fractions(0, 45))
@settings(max_examples=300)
def test_weights_enclose_where_they_matter(gap: int, exponent) -> None:
    """Rates that put the exponent between 0 and 45, where neither end is trivial."""
    numerator, denominator = exponent.numerator or 1, exponent.denominator * max(gap, 1)
    low, high = _core.weight_enclosure(gap, numerator, denominator)
    enclosed = exponential_of_minus(gap * numerator, denominator, 80)
    assert low << 36 <= enclosed[1]
    assert enclosed[0] <= high << 36
    assert high - low <= 3


@pytest.mark.parametrize("digits", range(1, 6))
@pytest.mark.parametrize(
    ("scores", "rate"), [([0, -1], (1, 1)), ([3, 3, 0, -40], (2, 7)), ([-9, 4], (1, 30))]
)
def test_the_twin_draws_in_proportion_to_the_exponential(
    monkeypatch: pytest.MonkeyPatch, digits: int, scores: list[int], rate: tuple[int, int]
) -> None:
    """Every proposal, each with 64 equally spaced further digits: the whole law, where few digits show it."""
    kept, unit = np.zeros(len(scores)), 1 / 64
    for position in itertools.count():
        for further in range(64):
            proposals = iter([position])  # a second one is not drawn: the draw began again
            bounds: list[int] = []

            def proposed(bound: int, _source: object, left=proposals, bounds=bounds) -> int:
                bounds.append(bound)
                return next(left)

            monkeypatch.setattr(exact_choice, "uniform_below", proposed)
            word = ((2 * further + 1) << 57).to_bytes(8, "little")
            with suppress(StopIteration):
                kept[exact_choice.sample_softmax(scores, *rate, lambda _, word=word: word, digits)] += unit
        if position + 1 == bounds[0]:
            break
    law = np.exp(np.array(scores) * rate[0] / rate[1])
    assert np.abs(kept / kept.sum() - law / law.sum()).max() <= len(scores) * unit / 2**digits


def test_few_digits_are_refined_and_many_are_not() -> None:
    asked: list[int] = []

    def source(count: int) -> bytes:
        asked.append(count)
        return b"\x80" * count

    low, _ = exponential_of_minus(1, 3, 64)
    assert below_exponential(Uniform(0, 64, source), 1, 3)
    assert not below_exponential(Uniform(WORD - 1, 64, source), 1, 3)
    assert not asked
    below_exponential(Uniform(low, 64, source), 1, 3)
    assert asked
    asked.clear()
    assert not below_exponential(Uniform(0, 44, source), 10**12, 1)
    assert len(asked) == 1


def served(words: list[int]):
    data = np.array(words + [WORD // 3] * (REFILL - len(words)), dtype="<u8").tobytes()
    return lambda count: data[:count]


@pytest.mark.parametrize("answer", [True, False])
def test_a_coin_that_64_digits_cannot_tell_goes_to_the_twin(
    monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(exact_choice, "decide_words", lambda *question: asked.append(question) or answer)
    bound = exponential_of_minus(5, 7, 64)[0]
    source = served([bound, 2 * WORD // 3])  # of two heads, the first stays
    assert _core.permute_and_flip(np.array([-5, 0]), 1, 7, source) == (0 if answer else 1)
    assert asked == [(bound, 64, 5, (1, 7), source)]


# The compiled coin is within 140 units of the truth, its guard is 256.
@pytest.mark.parametrize(
    ("distance", "left"),
    [(-400, False), *((near, True) for near in (-116, -70, -9, 0, 9, 70, 115)), (400, False)],
)
def test_coins_next_to_the_bound_go_to_the_twin_and_no_others(
    monkeypatch: pytest.MonkeyPatch, distance: int, left: bool
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(exact_choice, "decide_words", lambda *question: bool(asked.append(question)))
    for gap, denominator in itertools.product((1, 2, 5, 9, 23), (3, 7, 10, 29)):
        asked.clear()
        word = (exponential_of_minus(gap, denominator, 80)[0] >> 16) + distance
        chosen = _core.permute_and_flip(np.array([-gap, 0]), 1, denominator, served([word, 2 * WORD // 3]))
        assert bool(asked) == left
        assert left or chosen == (0 if distance < 0 else 1)


@pytest.mark.parametrize("answer", [True, False])
def test_a_proposal_that_44_digits_cannot_tell_goes_to_the_twin(
    monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    """The far candidate's weight of two units is all doubt; refused, the draw begins again."""
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(exact_choice, "decide_words", lambda *question: asked.append(question) or answer)
    total = 2**44 + 2
    source = served([(2 * 2**44 + 1) * WORD // (2 * total)])  # the middle of the words for 2^44
    assert _core.sample_softmax(np.array([0, -(10**6)]), 1, 1, source) == int(answer)
    assert asked == [(0, 44, 10**6, (1, 1), source)]


def test_far_candidates_are_settled_without_error() -> None:
    """Scores over the whole range of int64, and a rate beyond 64: no product overflows."""
    scores = np.array([-(2**63), 0, 2**63 - 1])
    for numerator, denominator in ((1, 1), (2**80, 1), (1, 2**200), (2**62, 2**63 - 1)):
        for choose in (_core.permute_and_flip, _core.sample_softmax):
            chosen = choose(scores, numerator, denominator)
            assert chosen == 2 or denominator == 2**200


@pytest.mark.parametrize("choose", [_core.permute_and_flip, _core.sample_softmax])
def test_arguments_out_of_range_are_refused(choose) -> None:
    for numerator, denominator in ((0, 1), (1, 0), (-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="positive"):
            choose(np.zeros(3, dtype=np.int64), numerator, denominator)
    for width in (0, 2**18 + 1):
        with pytest.raises(ValueError, match="support"):
            choose(np.zeros(width, dtype=np.int64), 1, 1)
    with pytest.raises(ValueError, match="exactly"):
        choose(np.array([0, -1]), 1, 1, lambda count: b"x" * (count - 1))
    row = np.zeros((1, 2), dtype=np.float32)
    for prompts in (0, 2**20 + 1):
        with pytest.raises(ValueError, match="prompts"):
            _core.sample_of_clipped_differences(row, row[0], 1.0, prompts, 1, 1)
