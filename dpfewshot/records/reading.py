"""Private records from files and data frames: JSONL, CSV, Parquet and Arrow; pandas, datasets, mappings.

Records are read before any privacy protection applies, so two rules hold. First, a record is accepted or
refused independently of the others, except that either all hand-made records have a unit or none has. Second,
an error says what is wrong, in which file and line, and what to do, but never quotes the data: no value, no
JSON key, no CSV header (which is a private record if the header was forgotten). Load errors reach the
operator alone (docs/decisions/redaction.md).
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias, overload

from dpfewshot.errors import InvalidRecords, needs_extra
from dpfewshot.records.checks import TextColumns, columns_for, columns_to_read, made_of, records_of
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.values import LABEL_COLUMN, TEXT_COLUMN, Columns, Records, StoredRecords, columns_of, counted

_BOM: Final = b"\xef\xbb\xbf"
_MAGIC: Final = b"ARROW1"
"""How an Arrow file begins, and no Arrow stream."""

_BATCH: Final = 1024
"""Rows of a Parquet file that are read at once."""

_LONGEST_FIELD: Final = 2**31 - 1  # characters; the largest C long on every platform
SEPARATORS: Final = ",;\t|"
"""What may separate the columns of a CSV file, the first of equals first."""

Rows = Iterator[tuple[str, object]]
"""Each row with its position: ("line 3", {"text": ..., "label": ...}). A line that is none is its error."""

_Reader: TypeAlias = Callable[[Sequence[BufferedIOBase], Columns | None], Rows]


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
        path: a `.jsonl`, `.csv`, `.tsv` (these also `.gz`), `.parquet`, `.arrow` or `.feather` file,
            in UTF-8, or the folder of `Dataset.save_to_disk`. A CSV file's first line names its columns.
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
    with errors_of(path):
        return Records(records_of(_rows_in_file(path, columns), columns))


@redacts_errors(None)
def place_of(
    path: str | os.PathLike[str], number: int, *, text: TextColumns, label: str, unit: str | None
) -> str:
    """Where record `number`, from 1, stands in a file that `read_records` read: "line 7".

    A file without lines has records: "record 7".
    """
    with closing(_rows_in_file(Path(path), columns_for(text, label, unit))) as rows:
        return next(islice(rows, number - 1, None))[0]


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
    """Convert rows in memory to records like those of `read_records`.

    Args:
        source: a `pandas.DataFrame`, a `datasets.Dataset`, or an iterable of mappings or `Record` objects.
            What `index_records` returned is passed through.
            `Record` objects are checked and passed through. For those made by hand, `text`, `label` and
            `unit` name the columns that they come from; the others remember theirs.
        text: the column or key with the text, or those of several fields, as in `read_records`.
        label: the column or key with the label, a string: map class numbers to their names first.
        unit: the column or key that says whom a record belongs to, or None.

    Raises:
        InvalidRecords: a row cannot be used: the message has its number, from 1, and quotes none of it. Or
            the records come from different columns, or from others than the names given. Or some hand-made
            records have a unit and others do not.

    Example:
        >>> as_records([{"text": "Where is my parcel?", "label": "Delivery"}])
        Records(private)
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
        return numbered(_rows_of_frame(source, _columns_of_frame(list(source.columns), columns)))
    if isinstance(source, Mapping):  # a datasets.DatasetDict too
        raise InvalidRecords("as_records takes rows, not a mapping; pass one split, or a list of mappings")
    if type(source).__module__.partition(".")[0] == "datasets":
        return numbered(_rows_of_dataset(source))
    try:
        return numbered(iter(source))
    except TypeError:
        taken = "a pandas.DataFrame, a datasets.Dataset or an iterable of mappings"
        raise InvalidRecords(f"as_records takes {taken}, not {type(source).__name__}") from None


def _columns_of_frame(present: Sequence[object], columns: Columns) -> list[str]:
    """As `columns_to_read`. No refusal lists the names: of a file without a header they are a record."""
    try:
        return columns_to_read(columns, present)
    except InvalidRecords as error:
        raise InvalidRecords(f'{error}, as in dpf.as_records(frame, text="body", label="topic")') from None


# Libraries' errors quote what they fail on, and their frames hold whole columns.
@redacts_errors(InvalidRecords, "loading")
def _rows_of_frame(frame: Any, names: Sequence[str]) -> Iterator[object]:
    for row in frame[names].itertuples(index=False, name=None):
        yield dict(zip(names, row, strict=True))


@redacts_errors(InvalidRecords, "loading")
def _rows_of_dataset(dataset: Any) -> Iterator[object]:
    yield from dataset


FEW: Final = 50
"""The most values of a column of labels, for `columns_of_file`."""


@redacts_errors(InvalidRecords, "loading")
def columns_of_file(path: str | os.PathLike[str]) -> dict[str, bool]:
    """Return the columns of a file, and whether each holds a few strings that repeat, as labels do.

    The names are private too where a CSV file lacks the line that names its columns. Errors are those of
    `read_records`.
    """
    path, rows = Path(path), 0
    values: dict[str, set[object]] = {}
    with errors_of(path):
        for row in made_of(_rows_in_file(path, None), dict[str, object]):
            rows += 1
            for name, value in row.items():
                found = values.setdefault(name, set())
                if len(found) <= FEW:
                    found.add(value if isinstance(value, str) else None)
    return {name: None not in found and repeat(found, rows) for name, found in values.items()}


def repeat(values: Collection[object], rows: int) -> bool:
    """Whether different values of so many rows are few, and each in about two rows or more."""
    return len(values) <= FEW and 2 * len(values) <= rows


# ---- files -----------------------------------------------------------------------------------------------


def files_of(path: Path) -> list[Path]:
    """The file that a path names, or those of a data set that `datasets` saved, in its own order."""
    if not path.exists():
        raise InvalidRecords("no such file")
    if not path.is_dir():
        return [path]
    try:
        state = json.loads((path / "state.json").read_bytes())
        return [path / str(one["filename"]) for one in state["_data_files"]]
    except (OSError, ValueError, TypeError, KeyError):
        raise InvalidRecords(
            "is a directory, and none that datasets.Dataset.save_to_disk wrote; give one file"
        ) from None


def _rows_in_file(path: Path, columns: Columns | None) -> Generator[tuple[str, object]]:
    with ExitStack() as opened:
        yield from rows_of(path, [opened.enter_context(one.open("rb")) for one in files_of(path)], columns)


def rows_of(path: Path, files: Sequence[BufferedIOBase], columns: Columns | None) -> Rows:
    """The rows of the open `files` of `files_of`; the path's name tells their kind. None is all columns."""
    name = "x.arrow" if path.is_dir() else path.name.lower()
    for suffix, rows in _READERS.items():
        if name.endswith(suffix):
            return rows(files, columns)
    raise InvalidRecords(f"unknown suffix; known are {', '.join(_READERS)}: save a spreadsheet as CSV")


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Name the file in what goes wrong with it, on one line."""
    shown = str(path) if str(path).isprintable() else ascii(str(path))
    try:
        yield
    except InvalidRecords as error:
        raise InvalidRecords(f"{shown}: {error}") from None
    except OSError as error:
        # A library's OSError may carry any text, or none, where the system's reason stands.
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise InvalidRecords(f"{shown}: cannot be read: {reason}") from None


def _unpacked(rows: _Reader) -> _Reader:
    """The reader of a file that gzip packed."""
    return lambda files, columns: rows([gzip.open(file) for file in files], columns)


def _lines(file: BufferedIOBase) -> Iterator[str]:
    """The lines of a text file in UTF-8. Only a line feed ends one: texts may contain other separators."""
    number = 0
    try:
        for number, line in enumerate(file, start=1):
            yield (line.removeprefix(_BOM) if number == 1 else line).decode()
    except UnicodeDecodeError:
        raise InvalidRecords(
            f"line {number}: is not UTF-8; convert the file: iconv -f latin1 -t utf-8 old.csv > new.csv, or "
            'save it in Excel as "CSV UTF-8"'
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InvalidRecords("is damaged or truncated: not a complete gzip file") from None


def _jsonl_rows(files: Sequence[BufferedIOBase], _columns: Columns | None) -> Rows:
    for number, line in enumerate(_lines(files[0]), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # a number of thousands of digits raises ValueError too
            row = InvalidRecords("is not JSON; put one object on each line")
        else:
            if not isinstance(row, dict):
                row = InvalidRecords("is not a JSON object; put one object on each line")
        yield f"line {number}", row


def _csv_rows(files: Sequence[BufferedIOBase], columns: Columns | None) -> Rows:
    # The limit (131,072 characters by default) is global. Restoring it would break a thread that reads now.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    lines = _lines(files[0])
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
            advice = f"quote a field that holds {separator!r} or line ends"
            yield where, InvalidRecords(f"{trouble}; {advice}")
        else:
            yield where, dict(zip(header, row, strict=True))


def _separator(header: str, columns: Columns | None) -> str:
    """What splits the first line into the columns that are asked for, or else into most columns."""
    split: dict[str, list[str]] = {}
    for separator in SEPARATORS:
        with suppress(csv.Error, StopIteration):
            split[separator] = next(csv.reader([header], delimiter=separator, strict=True))
    for separator, names in split.items() if columns else ():
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


def _parquet_rows(file: BufferedIOBase, columns: Columns | None) -> Iterator[object]:
    pyarrow_for("reading Parquet files")
    from pyarrow import parquet

    with refused_if_damaged("is damaged, or not a Parquet file"):
        reader = parquet.ParquetFile(file, pre_buffer=False)
        names = columns_to_read(columns, list(reader.schema_arrow.names))
        yield from _rows_of_batches(reader.iter_batches(_BATCH, columns=names, use_threads=False), names)


def _arrow_rows(file: BufferedIOBase, columns: Columns | None) -> Iterator[object]:
    """The rows of an Arrow file or stream."""
    arrow = pyarrow_for("reading Arrow files")
    with refused_if_damaged("is damaged, or not an Arrow file"):
        magic = file.read(len(_MAGIC))
        file.seek(0)
        if magic == _MAGIC:
            reader = arrow.ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            reader = batches = arrow.ipc.open_stream(file)
        yield from _rows_of_batches(batches, columns_to_read(columns, list(reader.schema.names)))


def _rows_of_batches(batches: Iterable[Any], names: Sequence[str]) -> Iterator[object]:
    for each in batches:
        batch = each.select(names)
        batch.validate(full=True)  # Arrow follows an offset beyond its buffer, and ends the process
        yield from batch.to_pylist()


def numbered(rows: Iterable[object]) -> Rows:
    """Each row with its number, from 1."""
    for number, row in enumerate(rows, start=1):
        yield f"record {number}", row


def _table_rows(rows: Callable[[BufferedIOBase, Columns | None], Iterator[object]]) -> _Reader:
    return lambda files, columns: numbered(row for file in files for row in rows(file, columns))


def pyarrow_for(what: str) -> Any:
    """The package pyarrow. Without it, `MissingExtra` names what it is for."""
    with needs_extra(what, "parquet"):
        import pyarrow as pa
        import pyarrow.ipc
    return pa


@contextmanager
def refused_if_damaged(what: str) -> Iterator[None]:
    """Refuse a file that Arrow cannot read, in these words."""
    import pyarrow as pa

    try:
        yield
    except (InvalidRecords, MemoryError):  # some are a ValueError, or an ArrowException, too
        raise
    except OverflowError:
        raise InvalidRecords("has a number or time beyond Python's range; convert it to a string") from None
    except (pa.ArrowException, OSError, EOFError, ValueError):
        raise InvalidRecords(what) from None


_READERS: Final[Mapping[str, _Reader]] = {
    ".jsonl": _jsonl_rows,
    ".jsonl.gz": _unpacked(_jsonl_rows),
    ".csv": _csv_rows,
    ".csv.gz": _unpacked(_csv_rows),
    ".tsv": _csv_rows,
    ".tsv.gz": _unpacked(_csv_rows),
    ".parquet": _table_rows(_parquet_rows),
    ".arrow": _table_rows(_arrow_rows),
    ".feather": _table_rows(_arrow_rows),
}
