"""The arithmetic behind docs/results/utility.md: choices and calibrations from known outcomes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from bench import choosing, jargon
from bench.choosing import DRAWS, chosen, cross_fit, halves, released_mean, selected, stated
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
    assert chosen(pool, pool, 1.0).picked == {"good none": DRAWS}
    assert set(chosen(pool, pool, 0.001).picked) == set(pool)  # each is missed with p < 2**-300


def test_the_probability_of_a_choice_is_that_of_permute_and_flip() -> None:
    """Of two options, one right item apart, the worse one is chosen with probability exp(-ε)/2."""
    options, draws = [outcomes(10), outcomes(11)], 20_000
    worse = sum(selected(options, np.arange(ITEMS), 1.0) == 0 for _ in range(draws))

    def off(probability: float) -> float:
        return abs(worse - draws * probability) / np.sqrt(draws * probability * (1 - probability))

    assert off(np.exp(-1.0) / 2) < 6.2  # p < 1e-9
    assert off(np.exp(-1.2) / 2) > 6.2  # controls: a rate 20 % off
    assert off(np.exp(-0.8) / 2) > 6.2


def test_the_statement_is_centred_and_its_noise_has_the_rate() -> None:
    option, items = outcomes(300), np.arange(ITEMS)
    told = np.array([stated(option, items, 0.5) for _ in range(4000)])
    # right/(right + wrong) moves by (wrong·x - right·y)/n², with x and y of variance about 2/ε²
    expected = np.sqrt(2 / 0.5**2) * np.hypot(300, 100) / ITEMS**2
    assert told.mean() == pytest.approx(0.75, abs=6.2 * expected / np.sqrt(4000) + 1e-4)
    assert 0.9 < told.std() / expected < 1.1


def test_the_measuring_half_did_not_choose() -> None:
    """Among a hundred equal coins the winner looks better than it is, and the statement does not."""
    coins = np.random.default_rng(1).random((100, ITEMS)) < 0.5
    pool = {f"{number} none": row for number, row in enumerate(coins)}
    found = chosen(pool, pool, 8.0)
    best = max(row.mean() for row in coins)
    assert found.stated is not None
    assert found.stated < best - 0.02
    assert cross_fit(pool, 8.0).achieved < best - 0.02


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=20))
def test_a_released_mean_is_a_distribution_without_zeros(rows: list[list[float]]) -> None:
    given_rows = np.array(rows)
    probabilities = given_rows / given_rows.sum(axis=1, keepdims=True)
    found = released_mean(probabilities, population=len(rows), epsilon=0.5)
    assert found.sum() == pytest.approx(1)
    assert found.min() > 0
    near = released_mean(probabilities, population=10**9, epsilon=0.5)
    floored = np.maximum(probabilities.mean(axis=0), choosing.FLOOR / 3)
    assert near == pytest.approx(floored / floored.sum(), abs=1e-5)


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
