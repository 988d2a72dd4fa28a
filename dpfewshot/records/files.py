"""The rows of one file: JSONL, CSV, Parquet and Arrow."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from dpfewshot.errors import InvalidRecords
from dpfewshot.records.checks import columns_to_read
from dpfewshot.records.tables import Table, tables_of
from dpfewshot.values import Columns, counted

BOM: Final = b"\xef\xbb\xbf"
_LONGEST_FIELD: Final = 2**31 - 1  # characters; the largest C long on every platform
_DEEPEST: Final = 50
"""Levels of one row's JSON: far fewer than make reading it depend on the depth of the caller's stack."""

SEPARATORS: Final = ",;\t|"
"""What may separate the columns of a CSV file, the first of equals first."""

Rows = Iterator[tuple[str, object]]
"""Each row with its position: ("line 3", {"text": ..., "label": ...})."""


def rows_of_file(path: Path, columns: Columns) -> Rows:
    """The rows of the file, or of the folder that `datasets` saved."""
    if path.is_dir():
        return _table_rows(path, columns)
    if not path.exists():
        raise InvalidRecords("no such file")
    for suffix, rows in _READERS.items():
        if path.name.lower().endswith(suffix):
            return rows(path, columns)
    raise InvalidRecords(f"unknown suffix; known are {', '.join(_READERS)}")


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file. Only a line feed ends one: texts may contain other separators."""
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                yield decoded(line.removeprefix(BOM) if number == 1 else line, number)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise InvalidRecords("is damaged or truncated: not a complete gzip file") from None


def decoded(line: bytes, number: int) -> str:
    """The text of a line in UTF-8; its number is for the message."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidRecords(f"line {number}: is not UTF-8; convert the file") from None


def _jsonl_rows(path: Path, _columns: Columns) -> Rows:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield f"line {number}", json_object(line, number)


def json_object(line: str | bytes, number: int) -> dict[str, object]:
    """The object of one line.

    Args:
        line: text, or UTF-8.
        number: of the line, for the message.

    Raises:
        InvalidRecords: it is not one.
    """
    where, text = f"line {number}", line if isinstance(line, str) else decoded(line, number)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):  # a number of thousands of digits raises ValueError too
        raise InvalidRecords(f"{where}: is not JSON; put one object on each line") from None
    if not isinstance(row, dict):
        raise InvalidRecords(f"{where}: is not a JSON object; put one object on each line")
    if _levels(row) > _DEEPEST:
        raise InvalidRecords(f"{where}: is nested more than {_DEEPEST} levels deep; leave out what is")
    return row


def _levels(row: dict[str, object]) -> int:
    """The levels of nested objects and arrays, counted to one more than the deepest allowed."""
    level: list[Any] = [row]
    for depth in range(1, _DEEPEST + 1):
        values = (value for each in level for value in (each.values() if isinstance(each, dict) else each))
        level = [value for value in values if isinstance(value, (dict, list))]
        if not level:
            return depth
    return _DEEPEST + 1


def _csv_rows(path: Path, columns: Columns) -> Rows:
    # The limit (131,072 characters by default) is global. Restoring it would break a thread that reads now.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    lines = _lines(path)
    first = next(lines, "")
    separator = _separator(first, columns)
    # Without `strict`, an unclosed quote would swallow the rest of the file into one record.
    reader = csv.reader(chain([first] if first else [], lines), delimiter=separator, strict=True)
    _, header = _next_csv_row(reader)
    if header is None:
        raise InvalidRecords("is empty; the first line must name the columns")
    try:
        columns_to_read(columns, header)
    except InvalidRecords as error:
        split = f"the first line has {counted(len(header), 'column')}, separated by {separator!r}"
        raise InvalidRecords(f"{error}; {split}") from None
    while True:
        where, row = _next_csv_row(reader)
        if row is None:
            return
        if not row:  # a blank line
            continue
        if len(row) != len(header):
            trouble = f"has {'fewer' if len(row) < len(header) else 'more'} fields than the first line"
            raise InvalidRecords(f"{where}: {trouble}; quote a field that holds {separator!r} or line ends")
        yield where, dict(zip(header, row, strict=True))


def _separator(header: str, columns: Columns) -> str:
    """What separates the columns: what splits the first line into those that are asked for.

    Without one, it is what splits the line most often, and a comma among equals.
    """
    split: dict[str, list[str]] = {}
    for separator in SEPARATORS:
        with suppress(csv.Error, StopIteration):
            split[separator] = next(csv.reader([header], delimiter=separator, strict=True))
    for separator, names in split.items():
        with suppress(InvalidRecords):
            columns_to_read(columns, names)
            return separator
    return max(split, key=lambda one: len(split[one]), default=SEPARATORS[0])


def _next_csv_row(reader: Any) -> tuple[str, list[str] | None]:
    where = f"line {reader.line_num + 1}"  # its start: a quoted field may span lines
    try:
        return where, next(reader, None)
    except csv.Error:
        trouble = "is not CSV: a quote is not closed or not doubled, or a line end is not quoted"
        raise InvalidRecords(f"{where}: {trouble}") from None


def _table_rows(path: Path, columns: Columns) -> Rows:
    return numbered(rows_of_tables(tables_of(path, columns)[1]))


def rows_of_tables(tables: Iterable[Table]) -> Iterator[dict[str, object]]:
    """The rows of tables, group by group."""
    for table in tables:
        for group in range(len(table.sizes)):
            yield from zipped(table.names, table.read(group))


def zipped(names: Sequence[str], values: list[list[object]]) -> Iterator[dict[str, object]]:
    """The rows of these columns."""
    for row in zip(*values, strict=True):
        yield dict(zip(names, row, strict=True))


def numbered(rows: Iterable[object]) -> Rows:
    """Each row with its number, from 1."""
    for number, row in enumerate(rows, start=1):
        yield f"record {number}", row


_READERS: Final[Mapping[str, Callable[[Path, Columns], Rows]]] = {
    ".jsonl": _jsonl_rows,
    ".jsonl.gz": _jsonl_rows,
    ".csv": _csv_rows,
    ".csv.gz": _csv_rows,
    ".parquet": _table_rows,
    ".arrow": _table_rows,
    ".feather": _table_rows,
}
