"""One row as a record: what is refused, in words that quote none of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Final

from dpfewshot.errors import InvalidRecords
from dpfewshot.values import Columns, Record

NAME_THEM: Final = (
    "name the columns with text=, label= and unit=, or on the command line with --text, "
    "--label-column and --unit"
)


def names_of(columns: Columns) -> list[str]:
    """The columns to read."""
    return [name for name in (columns.text, columns.label, columns.unit) if name is not None]


def check_columns(columns: Columns, present: list[object]) -> None:
    """Refuse a table that does not have exactly one column of each name."""
    for name in names_of(columns):
        if (count := present.count(name)) != 1:
            trouble = f"there {'is no column' if count == 0 else 'are several columns'} {name!r}"
            raise InvalidRecords(f"{trouble}; {NAME_THEM}")


def record_of(row: object, columns: Columns) -> Record:
    """The record of one row.

    Raises:
        InvalidRecords: the row cannot be used. The message quotes none of it.
    """
    if isinstance(row, Record):
        return _checked(row, columns)
    if not isinstance(row, Mapping):
        raise InvalidRecords("is neither a mapping nor a Record")
    for name in names_of(columns):
        if name not in row:
            raise InvalidRecords(f"has no {name!r}; {NAME_THEM}")
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
