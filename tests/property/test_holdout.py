"""The division by a holdout: every unit is in exactly one part, which nothing but the unit itself decides."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot import sampling
from dpfewshot.account.scopes import partition_of
from dpfewshot.errors import InvalidPlan
from dpfewshot.records import as_records
from dpfewshot.records.units import Unit, UnitSequence, units
from dpfewshot.sampling import Holdout, partition_of_units
from dpfewshot.tasks import Task
from dpfewshot.values import Record, Records

Parts = tuple[list[Unit], list[Unit]]

texts = st.text(min_size=1, max_size=4)
labels = st.sampled_from(["refund", "delivery"])
named = st.lists(st.builds(Record, texts, labels, st.sampled_from("abcdefgh")), min_size=1, max_size=20)
unnamed = st.lists(st.builds(Record, texts, labels), min_size=1, max_size=20)
data_sets = st.one_of(named, unnamed)
fractions = st.floats(0, 1, exclude_max=True)


def divided(records: Sequence[Record], fraction: float) -> Parts:
    holdout, members = Holdout(fraction), units(records)
    return list(holdout.generating(members)), list(holdout.choosing(members))


def cut(records: Sequence[Record], fraction: float) -> Parts:
    """The control: the last units choose."""
    members = list(units(records))
    first = round((1 - fraction) * len(members))
    return members[:first], members[first:]


def names(part: Sequence[Unit]) -> set[str]:
    """Units are compared by their names: a record without a unit is its text."""
    return {unit[0].unit or unit[0].text for unit in part}


def without(records: Sequence[Record], unit: Unit) -> list[Record]:
    left = [id(record) for record in unit]
    return [record for record in records if id(record) not in left]


@given(data_sets, fractions)
def test_every_unit_is_in_exactly_one_part(records: list[Record], fraction: float) -> None:
    generating, choosing = divided(records, fraction)
    assert Counter([*generating, *choosing]) == Counter(units(records))
    assert not names(generating) & names(choosing)  # duplicates too


def moved(divide: Callable[[Sequence[Record], float], Parts], records: list[Record], fraction: float) -> bool:
    """Whether leaving one unit out changes another one's part."""
    before = divide(records, fraction)
    for gone in units(records):
        after = divide(without(records, gone), fraction)
        for part, rest in zip(before, after, strict=True):
            left = Counter(part)
            left.subtract([gone] if gone in left else [])
            if +left != Counter(rest):
                return True
    return False


@given(data_sets, fractions)
def test_no_unit_moves_when_another_one_comes_or_goes(records: list[Record], fraction: float) -> None:
    assert not moved(divided, records, fraction)


def test_control_a_cut_by_position_moves_units() -> None:
    records = [Record(f"ticket {i}", "refund") for i in range(10)]
    assert moved(cut, records, 0.25)


@given(named, fractions, st.randoms(use_true_random=False), texts)
def test_neither_order_nor_content_nor_other_records_move_a_named_unit(
    records: list[Record], fraction: float, chance: random.Random, text: str
) -> None:
    generating, choosing = divided(records, fraction)
    changed = [Record(text, "delivery", record.unit) for record in records]
    chance.shuffle(changed)
    again = divided([*changed, Record(text, "refund", changed[0].unit)], fraction)
    assert (names(again[0]), names(again[1])) == (names(generating), names(choosing))


@given(fractions, st.text(max_size=8), labels, labels)
def test_a_correction_of_the_label_moves_no_record(fraction: float, text: str, one: str, other: str) -> None:
    assert len({Holdout(fraction).chooses((Record(text, label),)) for label in (one, other)}) == 1


@given(named, fractions, st.data())
def test_a_unit_whose_first_record_cannot_be_read_is_in_neither_part_and_moves_no_other(
    records: list[Record], fraction: float, data: st.DataObject
) -> None:
    holdout, members = Holdout(fraction), units(records)
    gone = data.draw(st.integers(0, len(members) - 1))
    unread = [record if record is not members[gone][0] else None for record in records]
    rows = [[row for row, one in enumerate(records) if any(one is each for each in unit)] for unit in members]
    starts = np.cumsum([0, *map(len, members)])
    rest = UnitSequence(unread, np.concatenate(rows), starts)  # type: ignore[arg-type]
    assert holdout.chooses(rest[gone]) is None
    for part in (holdout.generating, holdout.choosing) if fraction else ():
        assert list(part(rest)) == [unit for unit in part(members) if unit != members[gone]]


def test_a_text_and_a_unit_of_the_same_name_are_not_the_same_key() -> None:
    chosen = [
        (Holdout(0.5).chooses((Record(f"{i}", "a"),)), Holdout(0.5).chooses((Record("", "a", f"{i}"),)))
        for i in range(200)
    ]
    assert len(set(chosen)) == 4


def test_the_rule_is_the_same_in_every_version() -> None:
    """Units must never change parts while an account lives: a change here needs another name of the rule."""
    numbers = [i for i in range(40) if Holdout(0.2).chooses((Record("", "", f"customer {i}"),))]
    assert numbers == [0, 4, 8, 16, 21, 27, 28, 33, 37, 38, 39]
    numbers = [i for i in range(40) if Holdout(0.2).chooses((Record(f"Überweisung {i} 💶", ""),))]
    assert numbers == [0, 1, 9, 23, 34]


def test_the_parts_have_their_expected_sizes() -> None:
    members = units([Record(f"ticket number {i}", "refund") for i in range(100_000)])
    for fraction in (0.05, 0.2, 0.5):
        found = len(Holdout(fraction).choosing(members))
        deviation = (100_000 * fraction * (1 - fraction)) ** 0.5
        assert abs(found - 100_000 * fraction) < 6.5 * deviation
    assert Holdout(0).generating(members) is members


def test_a_larger_holdout_only_adds_units() -> None:
    members = units([Record(f"{i}", "refund") for i in range(1_000)])
    assert set(Holdout(0.2).choosing(members)) < set(Holdout(0.3).choosing(members))


def test_a_fraction_is_exact() -> None:
    assert Holdout(0.2) == Holdout(Fraction(1, 5))
    assert Holdout(0.2).fraction == Holdout(Fraction(1, 5)).fraction == Fraction(1, 5)


@pytest.mark.parametrize("fraction", [1, 1.0, -0.1, float("nan"), float("inf"), "0.2", True, None])
def test_a_fraction_outside_its_range_is_refused(fraction: object) -> None:
    with pytest.raises(InvalidPlan, match="holdout must be"):
        Holdout(fraction)  # type: ignore[arg-type]


TASK = Task(name="tickets", instruction="Write.", label_field="Kind", text_field="Ticket", labels=("a", "b"))


def records_of(**names: str) -> Records:
    return as_records([Record("text", "a", "u" if "unit" in names else None)], **names)


def test_strata_of_a_holdout_are_of_one_partition_of_their_own() -> None:
    plain = partition_of_units(TASK, records_of(unit="customer"), Holdout(0))
    divided = partition_of_units(TASK, records_of(unit="customer"), Holdout(0.2))
    scopes = [divided.generating("a"), divided.generating("b"), divided.generating(None), divided.choosing]
    assert len({partition_of(scope or "") for scope in scopes}) == 1
    assert len(set(scopes)) == 4
    assert plain.choosing is None
    assert plain.generating(None) is None
    assert partition_of(plain.generating("a") or "") != partition_of(scopes[0] or "")
    parts = ["generates: a", "generates: b", "generates", "chooses"]
    assert [scope.partition(": ")[2] for scope in scopes if scope] == parts


def test_another_rule_is_another_partition() -> None:
    by_rule = {
        partition_of(partition_of_units(TASK, records_of(**names), Holdout(fraction)).choosing or "")
        for fraction in (0.2, 0.25)
        for names in ({}, {"text": "body"}, {"unit": "customer"}, {"unit": "agent"})
    }
    assert len(by_rule) == 8


def test_the_rule_for_units_of_several_labels_is_in_the_partitions_name(monkeypatch) -> None:
    """An account that has plans by another rule refuses: one unit would bear the costs of two labels."""

    kinds = (
        (TASK, records_of(unit="customer")),
        (TASK, as_records([Record("text", "a", "u")])),  # made by hand
        (TASK, records_of()),  # each record is a unit, of one label
        (replace(TASK, labels=None), records_of(unit="customer")),  # a unit belongs to no label
    )

    def named() -> list[str | None]:
        return [partition_of_units(task, records, Holdout(0.2)).generating("a") for task, records in kinds]

    before = named()
    monkeypatch.setattr(sampling, "LABEL_RULE", "another rule")
    changed = [one != other for one, other in zip(before, named(), strict=True)]
    assert changed == [True, True, False, False]
