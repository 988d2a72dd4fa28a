"""The arithmetic of bench/peers: votes, ratios in turns, and what the page says of them."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers import claims, figures, page, raw, speed, tables
from bench.peers.evolution import GRID, leaders, multiplier, nearest_votes, released
from bench.peers.legacy import completion
from bench.peers.plots import bars, intervals
from dpfewshot.accounting import PoissonGaussian, epsilon
from dpfewshot.evaluation import Cell

VECTORS = st.lists(st.tuples(*[st.integers(-3, 3)] * 4), min_size=1, max_size=8)


@given(VECTORS, VECTORS, st.integers(0, 7))
def test_a_record_more_moves_one_vote_by_one(records, candidates, place) -> None:
    rows, texts = (np.array(each, dtype=np.float32) for each in (records, candidates))
    without = np.delete(rows, place % len(rows), axis=0)
    change = nearest_votes(rows, texts) - nearest_votes(without, texts)
    assert np.abs(change).sum() == 1
    assert nearest_votes(rows, texts).sum() == len(rows)


def test_the_noise_of_all_rounds_together_is_certified_and_no_larger_than_needed() -> None:
    sigma = multiplier(2, 1.0, 1e-5)
    assert epsilon(PoissonGaussian(1.0, sigma, 2), 1e-5).upper <= 1
    assert epsilon(PoissonGaussian(1.0, 0.999 * sigma, 2), 1e-5).upper > 1


def test_released_votes_have_at_least_the_noise_of_the_plan() -> None:
    votes = released(np.zeros(4000, dtype=np.int64), 2.0) / GRID
    assert abs(votes.mean()) < 6 * 2 / math.sqrt(4000)
    assert 2 * (1 - 6 / math.sqrt(8000)) < votes.std() < 2 * (1 + 6 / math.sqrt(8000))


def test_leaders_are_the_most_voted_and_ties_go_to_the_first() -> None:
    assert leaders(np.array([3, 9, 9, 1]), 3) == [1, 2, 0]


def speed_line(peer, number, seconds, task="trec") -> raw.Line:
    return {
        "kind": "speed", "peer": peer, "task": task, "round": number, "seconds": seconds, "tokens": 100,
        "prompts": 80, "records_per_prompt": 1, "turns": "servers", "versions": {"python": "3"},
    }  # fmt: skip


def turns(peer, seconds) -> list[raw.Line]:
    return [speed_line(peer, number, each) for number, each in enumerate(seconds)]


def test_a_ratio_is_taken_within_its_round() -> None:
    lines = [*turns("ours", [1.0, 10.0, 2.0]), *turns("theirs", [3.0, 20.0, 8.0])]
    found = figures.ratios(lines, "trec", "theirs", "ours")
    assert (found.median, found.low, found.high) == (3.0, 2.0, 4.0)


def test_ways_of_another_run_are_not_compared() -> None:
    lines = [*turns("ours", [1.0]), *turns("theirs", [3.0])]
    later = [line | {"turns": "packages", "seconds": 10 * line["seconds"]} for line in turns("ours", [1.0])]
    assert figures.ratios([*lines, *later], "trec", "theirs", "ours").median == 3.0


@pytest.mark.parametrize(
    ("bound", "shown"), [(3.951, "3.96"), (3.95, "3.95"), (0.0001321, "0.000133"), (12.01, "12.1")]
)
def test_an_upper_bound_is_rounded_up(bound, shown) -> None:
    assert tables.rounded_up(bound) == shown


def fifty(condition, right, repetition=0) -> Cell:
    return Cell(
        task="trec", model="m", writer="m", condition=condition, epsilon_asked=1.0, epsilon=None, delta=None,
        relation=None, shots=4, repetition=repetition, items=50, outcomes="1" * 50, population={},
        uncalibrated="0" * 50, batch_calibrated="1" * right + "0" * (50 - right),
    )  # fmt: skip


@pytest.mark.parametrize(("right", "expected"), [(45, True), (11, False), (10, False), (2, False)])
def test_a_peer_is_ahead_only_beyond_the_spread(right, expected) -> None:
    ours = [fifty("public-centred", 10, number) for number in range(3)]
    found = figures.compared(ours, [fifty("gaussian", right)], "trec")
    assert figures.ahead(found) == expected
    assert found.mean == pytest.approx((right - 10) / 50)


def test_a_group_has_all_that_was_measured() -> None:
    """Also what two scripts measured as the same repetition."""
    cells = [fifty("gaussian", 1), fifty("gaussian", 2), fifty("gaussian", 3, 1), fifty("adadpsyn", 4)]
    found = figures.group(cells, "trec", "gaussian", 1.0)
    assert [cell.repetition for cell in found] == [0, 1, 2]
    assert figures.accuracy_of(found, "trec") == [2.0, 4.0, 6.0]


@pytest.mark.parametrize(("seconds", "verdict"), [(10.0, "met"), (9.0, "**missed**")])
def test_the_goal_beside_tang_is_a_factor_of_ten(seconds, verdict) -> None:
    ways = (speed.SAME_NOISE_WAY, speed.AGREEING_WAY, speed.OURS_WAY)
    lines = [line for way in ways for line in turns(way, [1.0] * 3)] + turns(speed.TANG_WAY, [seconds] * 3)
    (line,) = [one for one in page.goals(lines, []).splitlines() if "same noise, trec" in one]
    assert line.endswith(f"| {verdict} |")


def test_a_faster_peer_is_named() -> None:
    ways = (speed.SAME_NOISE_WAY, speed.AGREEING_WAY, speed.OURS_WAY, speed.TANG_WAY)
    lines = [line for way in ways for line in turns(way, [1.0])] + turns(speed.EVOLUTION_WAY, [0.5])
    (line,) = [one for one in page.goals(lines, []).splitlines() if "no peer is faster" in one]
    assert "Private Evolution takes 0.50" in line
    assert "**missed**" in line


def test_lines_are_kept_and_unknown_kinds_refused(tmp_path) -> None:
    path = tmp_path / "raw.jsonl"
    raw.add(turns("ours", [1.0]), path)
    with pytest.raises(ValueError, match="kind"):
        raw.add([{"kind": "guess"}], path)
    assert raw.of_kind(raw.read(path), "speed") == turns("ours", [1.0])
    assert raw.read(tmp_path / "none") == []


def test_the_published_plan_of_tang_has_no_epsilon_of_one_once_its_seed_is_known() -> None:
    one, four = claims.tang()
    assert one["own"] <= 1 < one["drawn"] < one["as_run"]
    assert four["own"] <= 4 < four["drawn"] < four["as_run"]


def test_replacing_a_record_of_invisible_ink_costs_four_times_its_rho() -> None:
    for line in claims.invisible_ink():
        assert line["own"] == pytest.approx(line["stated"], rel=1e-6)
        assert line["drawn"] > 2 * line["stated"]


def test_a_peer_without_epsilon_says_none() -> None:
    line = {"kind": "claim", "versions": {}, **next(claims.adadpsyn())}
    assert "| none |" in list(tables.claims([line]))[2]


def test_an_answer_without_probabilities_becomes_an_empty_list() -> None:
    empty = completion({"content": "", "timings": {}}, "m")
    assert empty["choices"][0]["logprobs"]["top_logprobs"] == []
    tops = [{"token": "a", "logprob": -0.5}]
    full = {
        "content": "a",
        "completion_probabilities": [{"token": "a", "logprob": -0.5, "top_logprobs": tops}],
    }
    assert completion(full, "m")["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]
    json.dumps(full)


def test_plots_escape_names_and_hold_every_row() -> None:
    assert bars("t", [("a < b", 1.0), ("c", 100.0)]).count("<rect") == 2
    assert "a &lt; b" in bars("t", [("a < b", 1.0)])
    assert intervals("t", [("a", 50.0, 40.0, 60.0)]).count("<circle") == 1
