"""One row as a record: what is refused, in words that quote none of it."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Final, TypeAlias, TypeVar

from dpfewshot.errors import InvalidRecords
from dpfewshot.tasks import Task
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.values import Columns, Record, columns_of

NAME_THEM: Final = "name the columns with text=, label= and unit="

_SHOWN: Final = 10
"""The most rows that are named where several cannot be used."""

Made = TypeVar("Made")

TextColumns: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""The text's column, or the columns of several text fields: their names, or a path by each field's name."""


def columns_for(text: TextColumns, label: str, unit: str | None) -> Columns:
    """The columns that a caller names: `text` is a string, several, or a mapping of strings."""
    if isinstance(text, str):
        return Columns(text, label, unit)
    named: list[tuple[str, str]] = []
    if isinstance(text, Mapping):
        named = list(text.items())
    elif isinstance(text, Sequence):  # a set has no order
        named = [(name, name) for name in text]
    strings = all(isinstance(one, str) for pair in named for one in pair)
    paths = dict(named) if strings else {}
    if not paths or len(paths) < len(named):
        raise InvalidRecords("text= names no column, or one twice: give a string, several, or a mapping")
    if len(paths) == 1:
        return Columns(named[0][1], label, unit)
    # A holdout's rule tells the columns, and divides by a text that holds the fields' names.
    return Columns(json.dumps(paths), label, unit, tuple(named))


def columns_to_read(columns: Columns | None, present: Sequence[object]) -> list[str]:
    """The table's columns that hold the values, each once; None is all of them.

    The table must have exactly one of each name.
    """
    if columns is None:
        return [name for name in dict.fromkeys(present) if isinstance(name, str)]
    texts = [path for _, path in columns.fields] or [columns.text]
    found = []
    for path in (*texts, columns.label, *([] if columns.unit is None else [columns.unit])):
        name = path if path in present else path.partition(".")[0]
        if (count := present.count(name)) != 1:
            trouble = f"there is no column {path!r}" if count == 0 else f"there are several columns {path!r}"
            raise InvalidRecords(f"{trouble}; {NAME_THEM}")
        found.append(name)
    return list(dict.fromkeys(found))


def check_fields(task: Task, records: Sequence[Record]) -> None:
    """Refuse records that were read with other text fields than the task has; say how to read them."""
    layout = task.layout
    expected = layout.fields if len(layout.fields) > 1 else ()
    if tuple(name for name, _ in columns_of(records).fields) == expected:
        return
    if not expected:
        raise InvalidRecords(
            f"task {task.name!r} has one text field: read the records with text= of one column"
        )
    raise InvalidRecords(
        f"task {task.name!r} has the text fields {layout.named}: read the records with text= of their "
        f"columns, as text={expected!r} or {{{expected[0]!r}: 'a column', ...}} in this order"
    )


def records_of(rows: Iterable[tuple[str, object]], columns: Columns) -> Iterator[Record]:
    """The records of rows, as by `made_of`."""
    return made_of(rows, lambda row: record_of(row, columns))


def made_of(rows: Iterable[tuple[str, object]], make: Callable[[Any], Made]) -> Iterator[Made]:
    """What is made of each row, at least one. What cannot be used is refused by position, and never quoted.

    All such rows are named at once: whoever mends a file needs one run. An error in place of a row is one.
    """
    where, bad, others = "", list[tuple[str, str]](), 0
    for where, row in rows:
        try:
            if isinstance(row, InvalidRecords):
                raise row
            made = make(row)
        except InvalidRecords as error:
            if len(bad) < _SHOWN:
                bad.append((where, str(error)))
            else:
                others += 1
        else:
            yield made
    if bad:
        raise InvalidRecords(_told(bad, others))
    if not where:
        raise InvalidRecords("there are no records")


def _told(bad: Sequence[tuple[str, str]], others: int) -> str:
    """What is wrong with rows, and behind it what to do about each kind of fault."""
    if len(bad) == 1:
        return ": ".join(bad[0])
    places: dict[str, list[str]] = {}
    for where, trouble in bad:
        places.setdefault(trouble, []).append(where)
    faults = [f"{', '.join(named)}: {trouble.partition('; ')[0]}" for trouble, named in places.items()]
    advice = "; ".join(filter(None, dict.fromkeys(trouble.partition("; ")[2] for trouble in places)))
    more = [f"and {others} more"] * bool(others)
    return "; ".join([*faults, *more]) + (f". What to do: {advice}" if advice else "")


def record_of(row: object, columns: Columns) -> Record:
    """The record of one row, which is refused without a quotation if it cannot be used."""
    if isinstance(row, Record):
        return _checked(row, columns)
    if not isinstance(row, Mapping):
        raise InvalidRecords("is neither a mapping nor a Record")
    return Record(
        text=_text(row, columns),
        label=_string(_value(row, columns.label), "label"),
        unit=None if columns.unit is None else _unit(_value(row, columns.unit)),
        columns=columns,
    )


def _text(row: Mapping[Any, object], columns: Columns) -> str:
    if not columns.fields:
        return _string(_value(row, columns.text), "text")
    values = {name: _string(_value(row, path), f"field {name!r}") for name, path in columns.fields}
    return TextLayout(tuple(values)).text(values)


def _value(row: Mapping[Any, object], path: str) -> object:
    """The value of a column or, if no column has that name, the one at the path "outer.inner"."""
    if path in row:
        return row[path]
    value: object = row
    for key in path.split("."):
        if _is_missing(value):
            return None
        if not isinstance(value, Mapping) or key not in value:
            raise InvalidRecords(f"has no {path!r}; {NAME_THEM}")
        value = value[key]
    return value


def _checked(record: Record, given: Columns) -> Record:
    """The same record, unless a value is not a plain string or the caller names columns that it lacks."""
    columns = given if record.columns is None else _with_unit(record.columns, given.unit)
    text = _string(record.text, "text")
    if columns.fields and not all(TextLayout(tuple(dict(columns.fields))).divided(text) or ("",)):
        raise InvalidRecords("does not have the text fields that text= names, or one of them is blank")
    unit = None if record.unit is None and columns.unit is None else _unit(record.unit)
    checked = Record(text, _string(record.label, "label"), unit, columns=columns)
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
    if _is_missing(value):
        raise InvalidRecords(
            "the unit is missing (null or NaN); drop the record, or give it a unit of its own: records that "
            "share one count as one person"
        )
    if isinstance(value, str):
        return _string(value, "unit")
    if isinstance(value, float):
        raise InvalidRecords(
            "the unit is neither a string nor an integer but a float, which pandas makes of integers where "
            'some are missing; convert the column with .astype("Int64")'
        )
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
