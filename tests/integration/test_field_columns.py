"""Which columns and nested values become the fields of a text, and which rows are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpfewshot as dpf
from dpfewshot.errors import InvalidRecords
from dpfewshot.values import columns_of
from tests.support.commands import Run
from tests.support.fields import COLUMNS, TOML, records, rows

WRONG = {
    "a field missing": ({"mail": {"subject": "private"}, "label": "refund"}, "has no 'mail.text'"),
    "a null": ({"mail": {"subject": "private", "text": None}, "label": "refund"}, "field 'Body' is missing"),
    "a null above": ({"mail": None, "label": "refund"}, "field 'Subject' is missing"),
    "no object": ({"mail": "private", "label": "refund"}, "has no 'mail.subject'"),
    "a blank": (
        {"mail": {"subject": "private", "text": "\n \n"}, "label": "refund"},
        "field 'Body' is blank",
    ),
    "a number": (
        {"mail": {"subject": "private", "text": 3}, "label": "refund"},
        "field 'Body' is not a string",
    ),
}


@pytest.mark.parametrize(("row", "trouble"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("read", [dpf.read_records, dpf.index_records])
def test_a_wrong_row_is_refused_by_its_position(row: Any, trouble: str, read: Any, tmp_path: Path) -> None:
    path = tmp_path / "mails.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [*rows(2), row]))
    with pytest.raises(InvalidRecords, match=f"mails.jsonl: line 3: .*{trouble}") as raised:
        read(path, text=COLUMNS)
    assert "private" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "row", "trouble"),
    [
        *((source, *wrong) for source in (list, iter, pd.DataFrame) for wrong in WRONG.values()),
        (list, {"mail": ["private"], "label": "refund"}, "has no 'mail.subject'"),
        (list, {"mail": {"subject": ["private"]}, "label": "refund"}, "'Subject' is not a string"),
        (list, {"label": "refund"}, "has no 'mail.subject'"),
        (list, {"mail": float("nan"), "label": "refund"}, "field 'Subject' is missing"),
        (list, rows(1)[0] | {"label": None}, "the label is missing"),
    ],
)
def test_a_wrong_row_in_memory_is_refused_by_its_position(source: Any, row: Any, trouble: str) -> None:
    with pytest.raises(InvalidRecords, match=f"record 3: .*{trouble}") as raised:
        dpf.as_records(source([*rows(2), row]), text=COLUMNS)
    assert "private" not in str(raised.value)


def test_a_record_by_hand_is_a_string() -> None:
    with pytest.raises(InvalidRecords, match=r"record 1: .*the text is not a string"):
        dpf.as_records([dpf.Record(3, "refund")], text=COLUMNS)  # type: ignore[arg-type]


@pytest.mark.parametrize("read", [dpf.read_records, dpf.index_records])
@pytest.mark.parametrize(
    ("mail", "trouble"),
    [
        ({"subject": "private"}, "field 'Body' is missing"),  # a struct has all members of the table
        (None, "field 'Subject' is missing"),
        ({"subject": "private", "text": " "}, "field 'Body' is blank"),
    ],
)
def test_a_wrong_row_of_a_table_is_refused_by_its_position(
    mail: Any, trouble: str, read: Any, tmp_path: Path
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "mails.parquet"
    parquet.write_table(arrow.Table.from_pylist([*rows(2), {"mail": mail, "label": "refund"}]), path)
    with pytest.raises(InvalidRecords, match=f"mails.parquet: record 3: .*{trouble}") as raised:
        read(path, text=COLUMNS)
    assert "private" not in str(raised.value)


def test_a_wrong_row_costs_nothing(command: Run, tmp_path: Path) -> None:
    mails, task, ledger = tmp_path / "mails.jsonl", tmp_path / "task.toml", tmp_path / "budget.db"
    mails.write_text("".join(json.dumps(row) + "\n" for row in [*rows(), WRONG["a null"][0]]))
    task.write_text(TOML)
    status, out, error = command(
        "generate", "--task", task, "--records", mails, "--backend", "tests.support.fields:backend",
        "--set", "text.Subject=mail.subject", "--set", "text.Body=mail.text", "--epsilon", "4",
        "--ledger", f"sqlite:///{ledger}", "--dataset", "mails", "--set", "create=true",
    )  # fmt: skip
    assert (status, out) == (2, "")
    assert error.count("\n") == 1
    assert "mails.jsonl: line 401: the field 'Body' is missing" in error
    assert not ledger.exists()


def test_an_index_of_fields_is_used_again(tmp_path: Path) -> None:
    path, index = tmp_path / "mails.jsonl", tmp_path / "mails.index"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(4)))
    for _ in range(2):
        assert list(dpf.index_records(path, text=COLUMNS, index=index)) == records(4)
    other = {"Body": "mail.text", "Subject": "mail.subject"}
    with pytest.raises(InvalidRecords, match="is an index of other columns"):
        dpf.index_records(path, text=other, index=index)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("read", [dpf.read_records, dpf.index_records])
def test_nested_values_are_read_by_their_paths(kind: str, read: Any, tmp_path: Path) -> None:
    path = tmp_path / f"mails.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(4)))
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows(4)), path)
    found = read(path, text=COLUMNS)
    assert list(found) == records(4)
    assert found[0].text == "Subject: Order 0\n\nBody: Hello,\nwhere is order 0?\nBody: no\nBye"
    assert json.loads(columns_of(found).text) == COLUMNS


def test_a_column_of_that_name_comes_before_a_path() -> None:
    [record] = dpf.as_records([{"a.b": "this", "a": {"b": "that"}, "label": "refund"}], text="a.b")
    assert record.text == "this"


@pytest.mark.parametrize("text", [(), {}, ("a", "a"), {"A": 3}, [3], 3, [["a"]], {"a", "b"}])
def test_columns_that_name_nothing_are_refused(text: Any) -> None:
    with pytest.raises(InvalidRecords, match="text= names no column"):
        dpf.as_records(rows(1), text=text)
