"""What is known from a noisy sum: what noise alone may have made is left out."""

import math
from dataclasses import replace

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.mechanisms import (
    word_histogram,
)
from dpfewshot.mechanisms.word_histogram import Expected, Features, row_sum
from dpfewshot.writing.histogram import Histogram, of_noisy_sum
from tests.support.counts import NOTHING, VOCABULARY, expecting, summed

FLAT = [1.0] * word_histogram.LENGTHS


@pytest.mark.parametrize(("named", "share"), [(19, 0.0), (21, 21 / 40)])
def test_that_records_have_names_is_told_if_it_is_clear(named, share):
    """Of 40 texts; 20 have 2.5 standard deviations of the noise."""
    texts = [Features(frozenset(), None, 4, 0, place < named) for place in range(40)]
    scale = round(20 * math.sqrt(0.03) * _core.grid / 2.5)
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING)
    assert found.named == pytest.approx(share)
    assert Histogram.from_dict(found.as_dict()) == found


def test_words_that_noise_alone_may_have_made_are_left_out():
    total = np.zeros(2 * VOCABULARY + 22, dtype=np.int64)
    total[[3, 7]] = 4 * _core.grid, 6 * _core.grid
    kept = of_noisy_sum(total, _core.grid, 10, NOTHING)
    assert dict(kept.words) == {7: pytest.approx(0.6)}
    assert Histogram.from_dict(kept.as_dict()) == kept


def test_what_is_expected_needs_less_to_be_kept():
    total = np.zeros(2 * VOCABULARY + 22, dtype=np.int64)
    total[[2, 3, 4, VOCABULARY + 5, VOCABULARY + 6]] = 3 * _core.grid
    total[4] = 2 * _core.grid
    kept = of_noisy_sum(total, _core.grid, 10, expecting({3, 4}, [5]))
    assert (set(kept.words), set(kept.firsts)) == ({3}, {5})


def test_a_first_word_that_the_model_knows_as_one_needs_less_than_another():
    total = np.zeros(2 * VOCABULARY + 22, dtype=np.int64)
    total[VOCABULARY + 3 : VOCABULARY + 6] = 4 * _core.grid
    known = [*range(6, 5 + word_histogram.EXPECTED_FIRST), 3]  # the last that is expected
    kept = of_noisy_sum(total, _core.grid, 10, expecting((), [*known, 4]))
    assert set(kept.firsts) == {3, 4}


@pytest.mark.parametrize(("units", "lengths"), [(10, []), (14, [3, 4, 6])])
def test_a_length_that_noise_alone_may_have_made_is_not_told(units, lengths):
    """The commonest and its neighbours, weighed 2 to 1, have √6 times the noise of one: 2.5 of these."""
    texts = [Features(frozenset(), None, place, 3) for place in (3, 4, 5)] * units
    of_twelve = 4 * 12 * math.sqrt(0.08) * _core.grid
    scale = round(of_twelve / (2.5 * math.sqrt(6)))
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING).usual_lengths
    assert [*found] == lengths


def test_a_length_that_stands_apart_from_the_usual_ones_is_noise():
    lengths = np.zeros(word_histogram.LENGTHS)
    lengths[[5, 6, 7, 14]] = 0.2, 0.3, 0.2, 0.25
    assert [*Histogram(lengths=lengths.tolist()).usual_lengths] == [6, 8, 11]


@pytest.mark.parametrize(("unmarked", "marked"), [(19, True), (21, False)])
def test_marks_stay_unless_it_is_clear_that_most_records_have_none(unmarked, marked):
    """Of 40 texts; the lead of those without over those with has √5 times the noise of one: 2.5 of these."""
    texts = [Features(frozenset(), None, 4, 3)] * (10 + unmarked) + [Features(frozenset(), None, 4, 0)] * 10
    scale = round(20 * math.sqrt(0.08) * _core.grid / (2.5 * math.sqrt(5)))
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING)
    assert (found.ends_with_marks, found.in_lower_case) == (marked, False)


@pytest.mark.parametrize(("lower", "expected"), [(19, False), (21, True)])
@pytest.mark.parametrize(("end", "noise"), [(0, math.sqrt(4)), (3, math.sqrt(2))], ids=["mark", "capital"])
def test_capitals_stay_unless_it_is_clear_that_most_records_have_none(lower, expected, end, noise):
    """The same, of those without mark or capital over those with a mark, and over those with a capital."""
    texts = [Features(frozenset(), None, 4, 4)] * (10 + lower) + [Features(frozenset(), None, 4, end)] * 10
    scale = round(20 * math.sqrt(0.08) * _core.grid / (2.5 * noise))
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING)
    assert found.in_lower_case is expected
    assert Histogram.from_dict(found.as_dict()) == found


def test_first_words_in_capitals_are_noise_where_most_records_have_none():
    model = dpf.backends.Scripted([" where", " Where", "\n"], lambda _: [1.0] * 3)
    for lower, firsts in ((False, {0: 0.2, 1: 0.3}), (True, {0: 0.2})):
        found = Histogram({}, {0: 0.2, 1: 0.3}, FLAT, [1.0] * 4, {}, lower)
        assert found.spelled(model).firsts == firsts


def test_a_likelier_text_has_the_words_of_the_records():
    common, rare = Features(frozenset({2, 3}), 1, 4, 1), Features(frozenset({8}), 9, 15, 0)
    noiseless = of_noisy_sum(summed([common] * 20 + [rare]), 0, 21, NOTHING)
    flat = replace(noiseless, log_ratios={})
    assert flat.likeness(common) == pytest.approx(0.97 * ((20 / 21) ** 2 + (1 / 21) ** 2), abs=1e-6)
    assert flat.likeness(rare) == pytest.approx(0.97 / 21, abs=1e-6)
    assert noiseless.usual_lengths == {4: pytest.approx(2 * 20 / 21 * math.sqrt(0.08))}


def test_a_text_is_no_likelier_than_the_records_themselves():
    """Of records with one of many words beside a common one, none has the common one alone."""
    texts = [Features(frozenset({2, word}), 1, 4, 1) for word in range(3, 40)]
    mean = of_noisy_sum(summed(texts), 0, len(texts), NOTHING)
    flat = replace(mean, log_ratios={})
    of_records = [flat.likeness(text) for text in texts]
    assert flat.likeness(Features(frozenset({2}), 1, 4, 1)) == pytest.approx(np.mean(of_records), rel=1e-6)


def test_a_words_log_ratio_says_how_much_oftener_the_records_have_it():
    expected = Expected({2: 0.5, 3: 0.5, 4: 1.0, 5: 0.001})
    texts = [Features(frozenset({2, 6}), None, 4, 1)] * 10 + [Features(frozenset({3}), None, 4, 1)] * 90
    found = of_noisy_sum(summed(texts, expected), 0, 100, expected).log_ratios
    share = math.sqrt(0.38 / 2.001)  # of a word that each of the model's own texts has
    assert found[2] == pytest.approx(math.log(0.1 * math.sqrt(0.38) / (0.5 * share)))
    assert found[3] == pytest.approx(math.log(0.9 * math.sqrt(0.46) / (0.5 * share)))
    assert (found[4], found[5], found[6]) == (-3, -3, 3)
    total = summed(texts, expected)
    noisy = of_noisy_sum(total, _core.grid * 100, 100, expected).log_ratios  # what is not clear may be there
    assert not noisy


def test_first_words_that_the_records_have_more_rarely_than_the_model_are_its_habits():
    """What is not clear may be as common as what just is, which is 2.5 times the noise."""
    expected = Expected(firsts={2: 0.5, 3: 0.15, 4: 0.1, 5: 0.02})
    texts = [Features(frozenset(), first, 4, 1) for first in (2, 3, 3, 6, 6, 7, 8, 9, 10, 11)] * 10
    noiseless = of_noisy_sum(summed(texts), 0, 100, expected)
    assert noiseless.habits == {2: pytest.approx(math.log(0.1 / 0.5)), 4: -3, 5: -3}
    scale = round(100 * math.sqrt(0.35) * 0.05 / 2.5 * _core.grid)
    noisy = of_noisy_sum(summed(texts), scale, 100, expected).habits
    assert noisy == {2: pytest.approx(math.log(0.1 / 0.5)), 4: pytest.approx(math.log(0.05 / 0.1))}
    assert Histogram.from_dict(noiseless.as_dict()) == noiseless


def test_a_count_that_was_paid_for_before_there_were_habits_is_read():
    told = Histogram({7: 0.5}, {5: 0.2}).as_dict()
    del told["habits"]
    assert Histogram.from_dict(told) == Histogram({7: 0.5}, {5: 0.2})
