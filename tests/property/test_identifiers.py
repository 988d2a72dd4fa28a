"""A record's masked text is a function of that record alone, so every bound on prompts stays."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

import dpfewshot as dpf
from tests.support.presidio import needs_presidio

pytestmark = needs_presidio

PIECES = st.sampled_from(
    ["ann@example.com", "4111 1111 1111 1111", "+44 20 7946 0018", "DE89370400440532013000", "192.168.17.4",
     "\n\n", "\n", " ", ", ", "<EMAIL_ADDRESS>", "late", "Subject: ", "536-90-4399", "५५", "ß", "\u200f"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=12)), min_size=1, max_size=6).map("".join)
RECORDS = st.lists(TEXTS.map(lambda text: dpf.Record(f"{text}.", "a")), min_size=1, max_size=5)


def texts(records: object) -> list[str]:
    return [record.text for record in dpf.mask_identifiers(records)]


@settings(max_examples=60, deadline=None)
@given(records=RECORDS, other=RECORDS)
def test_neighbours_change_nothing(records: list[dpf.Record], other: list[dpf.Record]) -> None:
    alone = [text for record in records for text in texts([record])]
    assert texts(records) == alone
    assert texts([*other, *records])[len(other) :] == alone
    assert texts(records[::-1]) == alone[::-1]


@settings(max_examples=20, deadline=None)
@given(records=RECORDS, data=st.data())
def test_drawn_records_are_masked_as_all_are(records: list[dpf.Record], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        path.write_text("".join(json.dumps({"text": one.text, "label": "a"}) + "\n" for one in records))
        rows = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=6))
        drawn = dpf.mask_identifiers(dpf.index_records(path)).take(rows)
        assert [record.text for record in drawn] == [texts(records)[row] for row in rows]


@settings(max_examples=60, deadline=None)
@given(before=st.text("ab ,", max_size=9), after=st.text("ab ,", max_size=9))
def test_an_address_goes_wherever_it_stands(before: str, after: str) -> None:
    (text,) = texts([dpf.Record(f"{before} ann@example.com {after}", "a")])
    assert text == f"{before} <EMAIL_ADDRESS> {after}"
