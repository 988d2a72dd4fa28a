"""The arithmetic of bench/peers: ratios in turns, differences, and what the page says of them."""

import pytest

from bench.pages import difference
from bench.peers import __main__ as measured
from bench.peers import page
from dpfewshot.evaluation import Cell


def turns(peer, seconds, turns="servers") -> list[page.Line]:
    return [
        {"peer": peer, "task": "trec", "round": number, "seconds": each, "turns": turns}
        for number, each in enumerate(seconds)
    ]


def test_a_ratio_is_taken_within_its_round() -> None:
    lines = [*turns("ours", [1.0, 10.0, 2.0]), *turns("theirs", [3.0, 20.0, 8.0])]
    found = page.ratios_of(lines, "trec", "theirs", "ours")
    assert (found.median, found.low, found.high) == (3.0, 2.0, 4.0)


def test_ways_of_another_run_are_not_compared() -> None:
    lines = [*turns("ours", [1.0]), *turns("theirs", [3.0]), *turns("ours", [10.0], "packages")]
    assert page.ratios_of(lines, "trec", "theirs", "ours").median == 3.0


@pytest.mark.parametrize(
    ("bound", "shown"), [(3.951, "3.96"), (3.95, "3.95"), (0.0001321, "0.000133"), (12.01, "12.1")]
)
def test_an_upper_bound_is_rounded_up(bound, shown) -> None:
    assert page.rounded_up(bound) == shown


def fifty(condition, right, repetition=0) -> Cell:
    return Cell(
        task="trec", model="m", writer="m", condition=condition, epsilon_asked=1.0, epsilon=None, delta=None,
        relation=None, shots=4, repetition=repetition, items=50, outcomes="1" * 50, population={},
        uncalibrated="0" * 50, batch_calibrated="1" * right + "0" * (50 - right),
    )  # fmt: skip


@pytest.mark.parametrize(("right", "expected"), [(45, True), (11, False), (10, False), (2, False)])
def test_a_peer_is_ahead_only_beyond_the_spread(right, expected) -> None:
    ours = [fifty("public-centred", 10, number) for number in range(3)]
    found = difference([fifty("gaussian", right)], ours, calibration="batch")
    assert page.ahead(found) == expected
    assert found.mean == pytest.approx((right - 10) / 50)


def test_a_group_has_all_that_was_measured() -> None:
    """Also what two scripts measured as the same repetition."""
    cells = [fifty("gaussian", 1), fifty("gaussian", 2), fifty("gaussian", 3, 1)]
    assert [cell.repetition for cell in page.renumbered(cells)] == [0, 1, 2]


@pytest.mark.parametrize(("seconds", "verdict"), [(10.0, "met"), (9.0, "**missed**")])
def test_the_goal_beside_tang_is_a_factor_of_ten(seconds, verdict) -> None:
    ways = (page.SAME_NOISE_WAY, page.AGREEING_WAY, page.OURS_WAY)
    lines = [line for way in ways for line in turns(way, [1.0] * 3)] + turns(page.TANG_WAY, [seconds] * 3)
    (goal,) = [one for one in page.goals_of_speed(lines, "trec") if "same noise, trec" in one[0]]
    assert goal[-1] == verdict


def test_a_faster_peer_is_named() -> None:
    ways = (page.SAME_NOISE_WAY, page.AGREEING_WAY, page.OURS_WAY, page.TANG_WAY)
    lines = [line for way in ways for line in turns(way, [1.0])] + turns(page.EVOLUTION_WAY, [0.5])
    (goal,) = [one for one in page.goals_of_speed(lines, "trec") if "no peer is faster" in one[0]]
    assert "Private Evolution takes 0.50" in goal[1]
    assert goal[-1] == "**missed**"


def test_the_published_plan_of_tang_has_no_epsilon_of_one_once_its_seed_is_known() -> None:
    one, four = measured.tang()
    assert one["own"] <= 1 < one["drawn"] < one["as_run"]
    assert four["own"] <= 4 < four["drawn"] < four["as_run"]


def test_replacing_a_record_of_invisible_ink_costs_four_times_its_rho() -> None:
    for line in measured.invisible_ink():
        assert line["own"] == pytest.approx(line["stated"], rel=1e-6)
        assert line["drawn"] > 2 * line["stated"]


def test_computed_claims_are_those_of_the_raw_lines() -> None:
    stored = page.lines("claim")
    for made, line in zip(measured.claims(), stored, strict=True):
        assert {name: made[name] for name in ("peer", "setting", "why")} == {
            name: line[name] for name in ("peer", "setting", "why")
        }
        for name in ("stated", "own", "drawn", "as_run"):
            assert made[name] == (line[name] if line[name] is None else pytest.approx(line[name], rel=1e-6))


def test_plots_escape_names_and_hold_every_row() -> None:
    assert page.bars("t", [("a < b", 1.0), ("c", 100.0)]).count("<rect") == 2
    assert "a &lt; b" in page.bars("t", [("a < b", 1.0)])
    assert page.intervals("t", [("a", 50.0, 40.0, 60.0)]).count("<circle") == 1
