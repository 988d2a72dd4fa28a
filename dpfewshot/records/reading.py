"""Private records from files and data frames: JSONL, CSV, Parquet and Arrow; pandas, datasets, mappings.

Records are read before any privacy protection applies, so two rules hold. First, a record is accepted or
refused independently of the others, except that either all hand-made records have a unit or none has. Second,
an error says what is wrong, in which file and line, and what to do, but never quotes the data: no value, no
JSON key, no CSV header (which is a private record if the header was forgotten). Load errors reach the
operator alone (design note 5.7).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, overload

from dpfewshot.errors import InvalidRecords
from dpfewshot.records.checks import TextColumns, columns_for, columns_to_read, records_of
from dpfewshot.records.files import Rows, errors_of, files_of, numbered, rows_of, zipped
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.values import (
    LABEL_COLUMN,
    TEXT_COLUMN,
    Columns,
    Records,
    StoredRecords,
    columns_of,
)


@redacts_errors(InvalidRecords, "loading")
def read_records(
    path: str | os.PathLike[str],
    *,
    text: TextColumns = "text",
    label: str = "label",
    unit: str | None = None,
) -> Records:
    """Read the private records of one file, or of a data set that `datasets` saved.

    A text of one field is kept as it is: nothing is stripped, folded or normalised. Several fields make one
    text, whose line breaks remain. For more records than memory holds, use `index_records`.

    A name that no column has is a path: "ticket.body" is the member "body" of the column, or JSON member,
    "ticket".

    Args:
        path: a `.jsonl`, `.jsonl.gz`, `.csv`, `.csv.gz`, `.parquet`, `.arrow` or `.feather` file, in UTF-8,
            or the folder of `Dataset.save_to_disk`. A CSV file's first line names its columns.
        text: the column with the text, a string that is not blank. For a task with several text fields:
            their columns, ("Subject", "Body"), or each one's column, {"Subject": "title", "Body": "body"}.
        label: the column with the label, a string that is not blank.
        unit: the column that says whom a record belongs to (a customer id), a string or an integer. None:
            each record is a unit of its own.

    Returns:
        The records. Each remembers the columns' names, in whatever list it ends up.

    Raises:
        InvalidRecords: the file or one of its records cannot be used. The one-line message names the file
            and the line. It, its chain and its traceback's variables contain no private text.
        MissingExtra: the file is a Parquet or Arrow file, and pyarrow is not installed.

    Example:
        >>> read_records("tickets.jsonl.gz", text="body", label="topic", unit="customer")  # doctest: +SKIP
    """
    path, columns = Path(path), columns_for(text, label, unit)
    with errors_of(path), ExitStack() as opened:
        files = [opened.enter_context(one.open("rb")) for one in files_of(path)]
        return Records(records_of(rows_of(path, files, columns), columns))


@overload
def as_records(
    source: StoredRecords, *, text: TextColumns = ..., label: str = ..., unit: str | None = ...
) -> StoredRecords: ...


@overload
def as_records(
    source: Any, *, text: TextColumns = ..., label: str = ..., unit: str | None = ...
) -> Records: ...


@redacts_errors(None)
def as_records(
    source: Any, *, text: TextColumns = "text", label: str = "label", unit: str | None = None
) -> Records | StoredRecords:
    """Convert rows in memory to records.

    Args:
        source: a `pandas.DataFrame`, a `datasets.Dataset`, or an iterable of mappings or `Record` objects.
            What `index_records` returned is passed through.
            `Record` objects are checked and passed through. For those made by hand, `text`, `label` and
            `unit` name the columns that they come from; the others remember theirs.
        text: the column or key with the text, or those of several fields, as in `read_records`.
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
    given = columns_for(text, label, unit)
    if isinstance(source, StoredRecords):
        _check_names(source.columns, given)
        return source
    records = Records(records_of(_rows_in_memory(source, given), given))
    columns = columns_of(records)
    _check_names(columns, given)
    if columns.unit is None and len({record.unit is None for record in records}) > 1:
        raise InvalidRecords(
            "some records have a unit and others do not: give each record one, and name it with unit="
        )
    return records


def _check_names(remembered: Columns, given: Columns) -> None:
    """Refuse names that contradict those that the records remember."""
    for what, known, name, default in (
        ("text", _text_named(remembered), _text_named(given), TEXT_COLUMN),
        ("label", remembered.label, given.label, LABEL_COLUMN),
        ("unit", remembered.unit, given.unit, None),
    ):
        if name not in (known, default):
            raise InvalidRecords(f"these records were read with {what}={known!r}, which is not {name!r}")


def _text_named(columns: Columns) -> str | dict[str, str]:
    return dict(columns.fields) or columns.text


def _rows_in_memory(source: Any, columns: Columns) -> Rows:
    if isinstance(source, (str, bytes, os.PathLike)):
        raise InvalidRecords("as_records takes rows; for a file, use read_records")
    if hasattr(source, "itertuples"):  # a pandas.DataFrame, which iterates over column names
        names = columns_to_read(columns, list(source.columns))
        return numbered(zipped(names, _columns_of_frame(source, names)))
    if isinstance(source, Mapping):  # a datasets.DatasetDict too
        raise InvalidRecords("as_records takes rows, not a mapping; pass one split, or a list of mappings")
    if type(source).__module__.partition(".")[0] == "datasets":
        return numbered(_rows_of_dataset(source))
    try:
        return numbered(iter(source))
    except TypeError:
        taken = "a pandas.DataFrame, a datasets.Dataset or an iterable of mappings"
        raise InvalidRecords(f"as_records takes {taken}, not {type(source).__name__}") from None


# Libraries' errors quote what they fail on, and their frames hold whole columns.
@redacts_errors(InvalidRecords, "loading")
def _columns_of_frame(frame: Any, names: Sequence[str]) -> list[list[object]]:
    return [frame[name].to_list() for name in names]


@redacts_errors(InvalidRecords, "loading")
def _rows_of_dataset(dataset: Any) -> Iterator[object]:
    yield from dataset
