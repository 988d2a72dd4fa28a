"""Records remember the columns that they were read from, in whatever list they end up."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest

from dpfewshot.records import as_records, read_records
from dpfewshot.values import Columns, Record, Records, columns_of, unit_of
from tests.support.refusals import PRIVATE, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

WORDS = {"topic": "a", "severity": "b"}
ROWS = [
    {"subject": f"{PRIVATE} {i}", "body": f"{PRIVATE} wrote {i}", "who": i // 2, **WORDS} for i in range(20)
]
TOPICS = Columns(text="body", label="topic", unit="who")
BY_HAND = [Record(row["body"], row["topic"], str(row["who"])) for row in ROWS]


def arguments(columns: Columns) -> dict[str, Any]:
    """What names these columns in a call."""
    return {"text": columns.text, "label": columns.label, "unit": columns.unit}


def rows_by(columns: Columns) -> Records:
    return as_records(ROWS, **arguments(columns))


def by_file(folder: Path) -> Records:
    path = folder / "tickets.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return read_records(path, **arguments(TOPICS))


def named_by_hand(_folder: Path) -> Records:
    return as_records(BY_HAND, **arguments(TOPICS))


LISTS: dict[str, Callable[[Any], Iterable[Record]]] = {
    "comprehension": lambda records: [one for one in records if len(one.text) < 500],
    "sorted": lambda records: sorted(records, key=lambda one: one.text),
    "sum": lambda records: records[:3] + records[7:],
    "product": lambda records: 2 * records,
    "list.copy": lambda records: records.copy(),
    "slice": lambda records: records[::-2],
    "reversed": reversed,
    "sample": lambda records: random.Random(1).sample(records, 5),
    "filter": lambda records: filter(None, records),
    "chain": lambda records: itertools.chain(records[:2], records),
    "set": set,
    "extended": lambda records: [records[0], *records],
    "copy": copy.copy,
    "deep copies": lambda records: [copy.deepcopy(one) for one in records],
    "pickled": lambda records: pickle.loads(pickle.dumps(records)),  # noqa: S301 - our own
    "pickled singly": lambda records: [pickle.loads(pickle.dumps(one)) for one in records],  # noqa: S301
    "changed": lambda records: [dataclasses.replace(one, text=one.text.lower()) for one in records],
    "converted": lambda records: list(as_records(list(records))),
}


@pytest.mark.parametrize(
    "read", [by_file, lambda _: rows_by(TOPICS), named_by_hand], ids=["file", "rows", "hand"]
)
@pytest.mark.parametrize("way", LISTS)
def test_no_list_loses_the_names(read: Callable[[Path], Records], way: str, tmp_path: Path) -> None:
    found = list(LISTS[way](read(tmp_path)))
    assert columns_of(found) == TOPICS
    assert unit_of(found) == "who"
    assert columns_of(as_records(found)) == TOPICS
    assert columns_of(LISTS[way](BY_HAND)) == Columns()  # a control


def test_records_of_one_source_share_the_names_and_compare_without_them(tmp_path: Path) -> None:
    for records in (by_file(tmp_path), rows_by(TOPICS), named_by_hand(tmp_path)):
        assert len({id(one.columns) for one in records}) == 1
        assert records == BY_HAND
        assert set(records) == set(BY_HAND)
        assert f"{records[0]} {records}" == "Record(private) Records(private)"
    of_a_user = dataclasses.make_dataclass("OfAUser", [("tag", str, "x")], bases=(Record,), frozen=True)
    assert repr(of_a_user("private text", "Refund")).endswith("OfAUser(tag='x')")
    sharing = pickle.loads(pickle.dumps(rows_by(TOPICS)))  # noqa: S301 - our own
    assert len({id(one.columns) for one in sharing}) == 1
    positional: Any = Record
    with pytest.raises(TypeError):
        positional("text", "label", None, TOPICS)


@pytest.mark.parametrize(
    "names", ["subject topic who", "body severity who", "body topic", "body topic severity"]
)
def test_records_of_two_sources_are_refused(names: str) -> None:
    other = Columns(*names.split())
    both = rows_by(TOPICS) + rows_by(other)
    message = refusal(lambda: as_records(both))
    assert "come from different columns" in message
    assert f"text={other.text!r}, label={other.label!r}, unit={other.unit!r}" in message
    grown = rows_by(TOPICS)
    grown.append(rows_by(other)[0])
    assert refusal(lambda: as_records(grown)) == message
    assert refusal(lambda: as_records(iter(grown))) == message


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"label": "severity"}, "label='topic', which is not 'severity'"),
        ({"text": "subject"}, "text='body', which is not 'subject'"),
        ({"unit": "severity"}, "unit='who', which is not 'severity'"),
    ],
)
def test_no_name_contradicts_what_the_records_remember(names: dict[str, str], words: str) -> None:
    assert words in refusal(lambda: as_records(list(rows_by(TOPICS)), **names))


def test_records_and_units_that_were_added_by_hand_can_be_named() -> None:
    assert as_records(BY_HAND)[0] is BY_HAND[0]
    read = list(rows_by(TOPICS))
    assert "come from different columns" in refusal(lambda: as_records(read + BY_HAND))
    assert columns_of(as_records(read + BY_HAND, text="body", label="topic", unit="who")) == TOPICS
    alone = rows_by(Columns("body", "topic"))
    added = [dataclasses.replace(one, unit=str(i)) for i, one in enumerate(alone)]
    assert not unit_of(added)  # a column without a name
    named = as_records(added, unit="customer")
    assert columns_of(named[:5]) == Columns("body", "topic", "customer")
    assert len({id(one.columns) for one in named}) == 1
    assert "unit is missing" in refusal(lambda: as_records(alone, unit="customer"))
