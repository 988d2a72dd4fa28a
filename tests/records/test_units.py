"""Units by arrays are units by the rule: for lists, and for records that stay in their file."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.records import index_records
from dpfewshot.records.units import Unit, UnitSequence, units, units_by_label
from dpfewshot.values import Record

labels = st.sampled_from(["a", "b", "c", "ä"])
unnamed = st.lists(st.builds(Record, st.uuids().map(str), labels), min_size=1, max_size=25)
named = st.lists(
    st.builds(Record, st.uuids().map(str), labels, st.sampled_from("uvwxUVä")), min_size=1, max_size=25
)
mixed = st.lists(
    st.builds(Record, st.uuids().map(str), labels, st.sampled_from(["u", "v", None])), min_size=1, max_size=25
)


def by_rule(records: Sequence[Record]) -> list[Unit]:
    """The units in the order of their first record; a record without a unit is one."""
    members: dict[object, list[Record]] = {}
    for position, record in enumerate(records):
        members.setdefault(position if record.unit is None else record.unit, []).append(record)
    return [tuple(unit) for unit in members.values()]


def by_label(records: Sequence[Record]) -> dict[str, list[Unit]]:
    """A unit has the label whose digest with its name is the least of its labels'."""
    found: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in by_rule(records):
        label = min({record.label for record in unit}, key=lambda each: digest(unit[0].unit, each))
        found[label].append(tuple(record for record in unit if record.label == label))
    return found


def digest(unit: str | None, label: str) -> bytes:
    return hashlib.sha256(json.dumps(["dpfewshot label 1", label]).encode() + str(unit).encode()).digest()


def listed(parts: dict[str, UnitSequence]) -> dict[str, list[Unit]]:
    assert list(parts) == sorted(parts)
    assert all(len(part) and [len(unit) for unit in part] == part.sizes.tolist() for part in parts.values())
    return {label: list(part) for label, part in parts.items()}


@given(st.one_of(named, unnamed, mixed))
def test_units_follow_the_rule(records: list[Record]) -> None:
    assert list(units(records)) == by_rule(records)
    assert listed(units_by_label(records)) == by_label(records)


@given(st.one_of(named, unnamed))
@settings(max_examples=30)
def test_indexed_records_have_the_same_units(records: list[Record]) -> None:
    unit = None if records[0].unit is None else "unit"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "r.jsonl")
        rows = ({"text": one.text, "label": one.label, "unit": one.unit} for one in records)
        path.write_text("\n".join(map(json.dumps, rows)))
        indexed = index_records(path, unit=unit)
        assert list(indexed) == records
        assert list(units(indexed)) == by_rule(records)
        assert listed(units_by_label(indexed)) == by_label(records)


@given(named, st.data())
def test_chosen_units_are_those_and_a_record_of_a_unit_is_that_one(
    records: list[Record], data: st.DataObject
) -> None:
    everyone = units(records)
    positions = sorted(data.draw(st.sets(st.integers(0, len(everyone) - 1))))
    chosen = everyone.chosen(np.array(positions, dtype=np.int64))
    assert list(chosen) == [everyone[position] for position in positions]
    assert list(chosen.firsts()) == [unit[0] for unit in chosen]
    pairs = [(number, one) for number, unit in enumerate(chosen) for one in range(len(unit))]
    assert chosen.take(pairs) == [chosen[unit][one] for unit, one in pairs]
    copied = pickle.dumps(chosen)  # for a worker: nothing of the other units goes with it
    assert list(copy.copy(chosen)) == list(chosen)
    others = [unit for unit in everyone if unit not in list(chosen)]
    assert not any(record.text.encode() in copied for unit in others for record in unit)


@given(named)
def test_one_unit_more_moves_no_other_to_another_label(records: list[Record]) -> None:
    """The premise of parallel composition, for neighbours: every other unit stays where it is."""
    before = listed(units_by_label(records))
    gone = records[0].unit
    after = listed(units_by_label([record for record in records if record.unit != gone]))
    rest = {label: [unit for unit in part if unit[0].unit != gone] for label, part in before.items()}
    assert {label: part for label, part in rest.items() if part} == after


def test_each_label_of_a_unit_is_as_likely_however_many_records_it_has() -> None:
    """Else small labels lose their units to large ones, and labels late in the alphabet to early ones."""
    many = [Record("often", "a", str(unit)) for unit in range(3000) for _ in range(3)]
    found = units_by_label(
        [*many, *(Record("once", label, str(unit)) for unit in range(3000) for label in "bc")]
    )
    # a binomial count of 3,000 and a third is farther off with p < 1e-9
    assert all(abs(len(found[label]) - 1000) < 160 for label in "abc")


def test_a_record_that_cannot_be_read_moves_no_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another session it may be read: a unit must not bear the costs of two labels."""
    path = tmp_path / "r.jsonl"
    rows = [{"text": label, "label": label, "unit": str(unit)} for label in "ab" for unit in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    indexed = index_records(path, unit="unit")
    before = {label: part.sizes.tolist() for label, part in units_by_label(indexed).items()}
    monkeypatch.setattr(indexed, "take", lambda rows: [None for _ in rows])
    assert {label: part.sizes.tolist() for label, part in units_by_label(indexed).items()} == before
