"""The arithmetic behind docs/results/utility.md: choices and calibrations from known outcomes."""

from fractions import Fraction

import numpy as np
import pytest

import dpfewshot as dpf
from bench import jargon
from bench.choosing import (
    DRAWS,
    Sample,
    by_score,
    chosen,
    cross_fit,
    halves,
    selected,
    stated,
    steps_of,
)
from bench.recalibrating import noisy_mean, released_bias
from bench.utility_data import ALL_SETS
from bench.utility_pool import held_out, labels_of

ITEMS = 400


def outcomes(right: int) -> np.ndarray:
    return np.arange(ITEMS) % ITEMS < right


def test_halves_are_a_partition() -> None:
    first, second = halves(ITEMS)
    assert sorted([*first, *second]) == list(range(ITEMS))
    assert abs(len(first) - ITEMS / 2) < 6.2 * np.sqrt(ITEMS / 4)  # p < 1e-9


def test_a_much_better_option_is_chosen_and_a_tiny_epsilon_cannot_tell() -> None:
    pool = {"bad none": outcomes(40), "good none": outcomes(320)}
    assert chosen(pool, pool, Fraction(1)).picked == {"good none": DRAWS}
    assert set(chosen(pool, pool, Fraction(1, 1000)).picked) == set(pool)  # each is missed with p < 2**-250


def test_the_probability_of_a_choice_is_that_of_permute_and_flip() -> None:
    """Of two options, one right item apart, the worse one is chosen with probability exp(-ε)/2."""
    steps, draws = steps_of([outcomes(10), outcomes(11)]), 20_000
    worse = sum(selected(steps, np.arange(ITEMS), Fraction(1)) == 0 for _ in range(draws))

    def off(probability: float) -> float:
        return abs(worse - draws * probability) / np.sqrt(draws * probability * (1 - probability))

    assert off(np.exp(-1.0) / 2) < 6.2  # p < 1e-9
    assert off(np.exp(-1.2) / 2) > 6.2  # controls: a rate 20 % off
    assert off(np.exp(-0.8) / 2) > 6.2


@pytest.mark.parametrize("of_itself", [True, False])
def test_the_statement_is_centred_and_its_noise_has_the_rate(of_itself: bool) -> None:
    option, items = outcomes(300), np.arange(ITEMS)
    baseline = option if of_itself else outcomes(200)
    told = [stated(option, baseline, items, Fraction(1, 2)) for _ in range(1000)]
    values = np.array([one.value for one in told])
    # right/(right + wrong) moves by (wrong·x - right·y)/n², with x and y of variance about 2/ε² a cell
    cells = 1 if of_itself else 2
    expected = np.sqrt(cells * 2 / 0.5**2) * np.hypot(300, 100) / ITEMS**2
    assert values.mean() == pytest.approx(0.75, abs=6.2 * expected / np.sqrt(1000) + 1e-4)
    assert 0.8 < values.std() / expected < 1.2
    assert all(one.low <= one.value <= one.high for one in told)


def test_the_measuring_half_did_not_choose() -> None:
    """Among a hundred equal coins the winner looks better than it is, and the statement does not."""
    coins = np.random.default_rng(1).random((100, ITEMS)) < 0.5
    pool = {f"{number} none": row for number, row in enumerate(coins)}
    found = chosen(pool, pool, Fraction(8))
    best = max(row.mean() for row in coins)
    assert found.stated is not None
    assert found.stated < best - 0.02
    assert found.covers is not None
    assert found.covers > 0.88  # 95 % of 400 draws, less 6.2 standard deviations
    assert cross_fit(pool, Fraction(8)).achieved < best - 0.02


def test_each_score_chooses_by_its_own_numbers() -> None:
    """The probability of the label decides, and a control that lies chooses worse."""
    better, worse = outcomes(300), outcomes(100)
    right = {"worse none": worse, "better none": better}
    told = {"worse none": np.full(ITEMS, 0.2), "better none": np.full(ITEMS, 0.9)}
    lying = {"worse none": np.full(ITEMS, 0.9), "better none": np.full(ITEMS, 0.2)}
    assert by_score(right, told, Fraction(1))["likelihood"] == pytest.approx(0.75, abs=0.02)
    assert by_score(right, lying, Fraction(1))["likelihood"] == pytest.approx(0.25, abs=0.02)


def test_a_sample_of_few_records_takes_less_noise() -> None:
    assert Sample(200, 200).rate(1.0) == 1
    assert float(Sample(100, 1000).rate(1.0)) == pytest.approx(np.log1p((np.e - 1) * 10))
    assert Sample(2000, 1000).sampling_rate == 1


def test_a_released_bias_is_the_mean_logarithm_with_the_noise_of_the_release() -> None:
    """The rows are within the clip, so no noise gives their mean exactly; the noise has the plan's scale."""
    sample, labels = Sample(200, 1000), 4
    rows = np.tile([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]], (100, 1))
    expected = np.log(rows).mean(axis=0)
    found = np.array([released_bias(rows, sample, 0.2) for _ in range(1000)])
    mean = noisy_mean(sample, 0.2, labels)
    noise = mean.scale * mean.nats(Fraction(1000)) * np.sqrt(1 - 1 / labels)  # of a centred vector
    assert found.mean(axis=0) == pytest.approx(expected - expected.mean(), abs=6.2 * noise / np.sqrt(1000))
    assert (found - found.mean(axis=0)).std() / noise == pytest.approx(1, abs=6.2 / np.sqrt(2 * 3 * 1000))


def test_held_out_records_are_a_fifth_and_no_other_record_moves_them() -> None:
    records = [dpf.Record(f"text {number}", "any") for number in range(5000)]
    writes, chooses = held_out(records)
    assert len(writes) + len(chooses) == len(records)
    assert abs(len(chooses) - 1000) < 6.2 * np.sqrt(5000 * 0.2 * 0.8)
    fewer = held_out(records[1:])
    assert fewer == (
        [one for one in writes if one != records[0]],
        [one for one in chooses if one != records[0]],
    )


@pytest.mark.parametrize("task", ALL_SETS)
def test_a_small_set_is_the_start_of_the_large_one(task: str) -> None:
    data = ALL_SETS[task]
    assert labels_of(data, 2, 12)[:4] == labels_of(data, 2, 4)


def test_the_invented_tickets_name_their_line_by_its_words_alone() -> None:
    tickets = jargon.tickets("train")
    assert tickets == jargon.tickets("train")
    assert {one.label for one in tickets} == set(jargon.LINES)
    for one in tickets:
        said = {line for line, words in jargon.LINES.items() if any(word in one.text for word in words)}
        assert said == {one.label}
    assert not {one.text for one in tickets} & {""}
