"""Private records from files and data frames: JSONL, CSV and Parquet; pandas, datasets, mappings.

Records are read before any privacy protection applies, so two rules hold. First, a record is accepted or
refused independently of the others, except that either all hand-made records have a unit or none has. Second,
an error says what is wrong, in which file and line, and what to do, but never quotes the data: no value, no
JSON key, no CSV header (which is a private record if the header was forgotten). Load errors reach the
operator alone (design note 5.7).
"""

from __future__ import annotations

import csv
import functools
import gzip
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Final

from dpfewshot.errors import InvalidRecords, MissingExtra
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.values import LABEL_COLUMN, TEXT_COLUMN, Columns, Record, Records, columns_of

_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_FIELD: Final = 2**31 - 1  # characters; the largest C long on every platform


@redacts_errors(InvalidRecords, "loading")
def read_records(
    path: str | os.PathLike[str], *, text: str = "text", label: str = "label", unit: str | None = None
) -> Records:
    """Read the private records of one file.

    Texts are kept as they are: nothing is stripped, folded or normalised.

    Args:
        path: a `.jsonl`, `.jsonl.gz`, `.csv`, `.csv.gz` or `.parquet` file, in UTF-8. A CSV file's first
            line names its columns.
        text: the column with the text, a string that is not blank.
        label: the column with the label, a string that is not blank.
        unit: the column that says whom a record belongs to (a customer id), a string or an integer. None:
            each record is a unit of its own.

    Returns:
        The records. Each remembers the columns' names, in whatever list it ends up.

    Raises:
        InvalidRecords: the file or one of its records cannot be used. The one-line message names the file
            and the line. It, its chain and its traceback's variables contain no private text.
        MissingExtra: the file is a Parquet file, and pyarrow is not installed.

    Example:
        >>> read_records("tickets.jsonl.gz", text="body", label="topic", unit="customer")  # doctest: +SKIP
    """
    return _read(Path(path), Columns(text, label, unit))


@redacts_errors(None)
def as_records(source: Any, *, text: str = "text", label: str = "label", unit: str | None = None) -> Records:
    """Convert rows in memory to records.

    Args:
        source: a `pandas.DataFrame`, a `datasets.Dataset`, or an iterable of mappings or `Record` objects.
            `Record` objects are checked and passed through. For those made by hand, `text`, `label` and
            `unit` name the columns that they come from; the others remember theirs.
        text: the column or key with the text.
        label: the column or key with the label, a string: map class numbers to their names first.
        unit: the column or key that says whom a record belongs to, or None.

    Returns:
        The records. Each remembers the columns' names, in whatever list it ends up.

    Raises:
        InvalidRecords: a row cannot be used: the message has its number, from 1, and quotes none of it. Or
            the records come from different columns, or from others than the names given. Or some hand-made
            records have a unit and others do not.

    Example:
        >>> as_records([{"text": "Where is my parcel?", "label": "Delivery"}])
        [Record()]
    """
    given = Columns(text, label, unit)
    records = _collect(_rows_in_memory(source, given), given)
    columns = columns_of(records)
    _check_names(columns, given)
    if columns.unit is None and len({record.unit is None for record in records}) > 1:
        raise InvalidRecords(
            "some records have a unit and others do not: give each record one, and name it with unit="
        )
    return records


# A row and its position: ("line 3", {"text": ..., "label": ...}).
_Rows = Iterator[tuple[str, object]]

_NAME_THEM: Final = (
    "name the columns with text=, label= and unit=, or on the command line with --text, "
    "--label-column and --unit"
)


def _names(columns: Columns) -> list[str]:
    return [name for name in (columns.text, columns.label, columns.unit) if name is not None]


def _check(columns: Columns, present: list[object]) -> None:
    """Refuse a table that does not have exactly one column of each name."""
    for name in _names(columns):
        if (count := present.count(name)) != 1:
            trouble = f"there {'is no column' if count == 0 else 'are several columns'} {name!r}"
            raise InvalidRecords(f"{trouble}; {_NAME_THEM}")


def _check_names(remembered: Columns, given: Columns) -> None:
    """Refuse names that contradict those that the records remember."""
    for what, known, name, default in (
        ("text", remembered.text, given.text, TEXT_COLUMN),
        ("label", remembered.label, given.label, LABEL_COLUMN),
        ("unit", remembered.unit, given.unit, None),
    ):
        if name not in (known, default):
            raise InvalidRecords(f"these records were read with {what}={known!r}, which is not {name!r}")


def _read(path: Path, columns: Columns) -> Records:
    shown = str(path) if str(path).isprintable() else ascii(str(path))  # a message is one line
    try:
        return _collect(_rows_of_file(path, columns), columns)
    except InvalidRecords as error:
        raise InvalidRecords(f"{shown}: {error}") from None
    except OSError as error:
        raise InvalidRecords(f"{shown}: cannot be read: {error.strerror}") from None


def _rows_of_file(path: Path, columns: Columns) -> _Rows:
    if path.is_dir():
        raise InvalidRecords("is a directory; give one file")
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
                yield _decoded(line.removeprefix(_BOM) if number == 1 else line, number)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise InvalidRecords("is damaged or truncated: not a complete gzip file") from None


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidRecords(f"line {number}: is not UTF-8; convert the file") from None


def _jsonl_rows(path: Path, _columns: Columns) -> _Rows:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # a number of thousands of digits raises ValueError too
            raise InvalidRecords(f"{where}: is not JSON; put one object on each line") from None
        if not isinstance(row, dict):
            raise InvalidRecords(f"{where}: is not a JSON object; put one object on each line")
        yield where, row


def _csv_rows(path: Path, columns: Columns) -> _Rows:
    # The limit (131,072 characters by default) is global. Restoring it would break a thread that reads now.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    # Without `strict`, an unclosed quote would swallow the rest of the file into one record.
    reader = csv.reader(_lines(path), strict=True)
    _, header = _next_csv_row(reader)
    if header is None:
        raise InvalidRecords("is empty; the first line must name the columns")
    _check(columns, list(header))
    while True:
        where, row = _next_csv_row(reader)
        if row is None:
            return
        if not row:  # a blank line
            continue
        if len(row) != len(header):
            trouble = f"has {'fewer' if len(row) < len(header) else 'more'} fields than the first line"
            raise InvalidRecords(f"{where}: {trouble}; quote a field that holds commas or line ends")
        yield where, dict(zip(header, row, strict=True))


def _next_csv_row(reader: Any) -> tuple[str, list[str] | None]:
    where = f"line {reader.line_num + 1}"  # its start: a quoted field may span lines
    try:
        return where, next(reader, None)
    except csv.Error:
        trouble = "is not CSV: a quote is not closed or not doubled, or a line end is not quoted"
        raise InvalidRecords(f"{where}: {trouble}") from None


def _parquet_rows(path: Path, columns: Columns) -> _Rows:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    broken = InvalidRecords("is damaged, or not a Parquet file")
    with path.open("rb") as opened:
        try:
            file = parquet.ParquetFile(opened)
            names = list(file.schema_arrow.names)
        except (pa.ArrowException, OSError, ValueError):
            raise broken from None
        _check(columns, names)
        try:
            table = file.read(columns=_names(columns))
            values = [table.column(name).to_pylist() for name in _names(columns)]
        except OverflowError:
            raise InvalidRecords(
                "has a number or time beyond Python's range; convert it to a string"
            ) from None
        except (pa.ArrowException, OSError, ValueError):
            raise broken from None
    yield from _numbered(_zipped(columns, values))


def _rows_in_memory(source: Any, columns: Columns) -> _Rows:
    if isinstance(source, (str, bytes, os.PathLike)):
        raise InvalidRecords("as_records takes rows; for a file, use read_records")
    if hasattr(source, "itertuples"):  # a pandas.DataFrame, which iterates over column names
        _check(columns, list(source.columns))
        return _numbered(_zipped(columns, [source[name].to_list() for name in _names(columns)]))
    if isinstance(source, Mapping):  # a datasets.DatasetDict too
        raise InvalidRecords("as_records takes rows, not a mapping; pass one split, or a list of mappings")
    try:
        return _numbered(iter(source))
    except TypeError:
        taken = "a pandas.DataFrame, a datasets.Dataset or an iterable of mappings"
        raise InvalidRecords(f"as_records takes {taken}, not {type(source).__name__}") from None


def _zipped(columns: Columns, values: list[list[object]]) -> Iterator[dict[str, object]]:
    for row in zip(*values, strict=True):
        yield dict(zip(_names(columns), row, strict=True))


def _numbered(rows: Iterator[object]) -> _Rows:
    for number, row in enumerate(rows, start=1):
        yield f"record {number}", row


def _collect(rows: _Rows, columns: Columns) -> Records:
    records = Records()
    for where, row in rows:
        try:
            records.append(_record(row, columns))
        except InvalidRecords as error:
            raise InvalidRecords(f"{where}: {error}") from None
    if not records:
        raise InvalidRecords("there are no records")
    return records


def _record(row: object, columns: Columns) -> Record:
    if isinstance(row, Record):
        return _checked(row, columns)
    if not isinstance(row, Mapping):
        raise InvalidRecords("is neither a mapping nor a Record")
    for name in _names(columns):
        if name not in row:
            raise InvalidRecords(f"has no {name!r}; {_NAME_THEM}")
    return Record(
        text=_string(row[columns.text], "text"),
        label=_string(row[columns.label], "label"),
        unit=None if columns.unit is None else _unit(row[columns.unit]),
        columns=columns,
    )


def _checked(record: Record, given: Columns) -> Record:
    """The same record, unless a value is not a plain string or the caller names columns that it lacks."""
    columns = given if record.columns is None else _with_unit(record.columns, given.unit)
    unit = None if record.unit is None and columns.unit is None else _unit(record.unit)
    checked = Record(_string(record.text, "text"), _string(record.label, "label"), unit, columns=columns)
    return record if checked == record and columns == (record.columns or Columns()) else checked


@functools.lru_cache
def _with_unit(columns: Columns, unit: str | None) -> Columns:
    return replace(columns, unit=unit) if columns.unit is None else columns


def _string(value: object, what: str) -> str:
    if not isinstance(value, str):
        if _is_missing(value):
            raise InvalidRecords(f"the {what} is missing (null or NaN); fill it in or drop the record")
        raise InvalidRecords(f"the {what} is not a string; convert it (class numbers to their names)")
    if not value.strip():
        raise InvalidRecords(f"the {what} is blank; fill it in or drop the record")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRecords(f"the {what} contains half of a surrogate pair, which is not text") from None
    return str.__str__(value)  # plain, also if it is one of NumPy


def _unit(value: object) -> str:
    if isinstance(value, str) or _is_missing(value):
        return _string(value, "unit")
    if isinstance(value, bool) or not isinstance(value, Integral):  # NumPy's integers are Integral
        raise InvalidRecords("the unit is neither a string nor an integer; convert it")
    try:
        return str(int(value))
    except ValueError:  # Python does not print an integer of thousands of digits
        raise InvalidRecords("the unit is an integer with too many digits; convert it to a string") from None


def _is_missing(value: object) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in {"NAType", "NaTType"}  # of pandas


_READERS: Final[Mapping[str, Callable[[Path, Columns], _Rows]]] = {
    ".jsonl": _jsonl_rows,
    ".jsonl.gz": _jsonl_rows,
    ".csv": _csv_rows,
    ".csv.gz": _csv_rows,
    ".parquet": _parquet_rows,
}
