import random
from fractions import Fraction

import pytest

import dpfewshot as dpf
from dpfewshot.records.units import Unit, each_a_unit, units, units_by_label
from dpfewshot.sampling import FixedSizeSampler, PoissonSampler, disjoint_parts
from dpfewshot.values import Record


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


def partition(records: list[Record]) -> dict[str, list[Unit]]:
    return {label: list(members) for label, members in units_by_label(records).items()}


def test_a_record_without_a_unit_is_a_unit() -> None:
    records = [Record("a", "x"), Record("a", "x"), Record("b", "y")]
    assert partition(records) == {"x": [(records[0],), (records[1],)], "y": [(records[2],)]}


def test_a_unit_has_one_label_by_a_rule_that_looks_at_it_alone() -> None:
    ann = [Record("1", "x", "ann"), Record("2", "y", "ann"), Record("3", "y", "ann")]
    bob = [Record("4", "y", "bob"), Record("5", "x", "bob")]
    assert partition([*ann, *bob]) == {"y": [(ann[1], ann[2])], "x": [(bob[1],)]}


def test_the_rule_does_not_change_with_the_neighbours() -> None:
    ann = [Record("1", "x", "ann"), Record("2", "y", "ann")]
    others = [Record(str(i), "y", f"u{i % 3}") for i in range(9)]
    alone = partition(ann)
    together = partition([*others[:4], ann[0], *others[4:], ann[1]])
    assert alone["x"][0] in together["x"]


def test_units_keep_the_order_of_their_first_record() -> None:
    records = [Record("1", "x", "b"), Record("2", "x"), Record("3", "y", "a"), Record("4", "x", "b")]
    assert list(units(records)) == [(records[0], records[3]), (records[1],), (records[2],)]
