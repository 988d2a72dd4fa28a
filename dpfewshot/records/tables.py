"""Parquet and Arrow files as groups of rows, each group read by itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from dpfewshot.errors import InvalidRecords, MissingExtra
from dpfewshot.records.checks import columns_to_read
from dpfewshot.records.pinned import PinnedFile
from dpfewshot.runtime.redaction import none_if_it_fails
from dpfewshot.values import Columns

_MAGIC: Final = b"ARROW1"
"""An Arrow file begins and ends with it. Between, from the eighth byte, it is like an Arrow stream."""


class Table(Protocol):
    """A file's table.

    Attributes:
        sizes: the rows of each group.
        names: the columns that are read.
    """

    sizes: list[int]
    names: list[str]

    def read(self, group: int) -> list[list[object]]:
        """The values of a group, for each of the columns.

        Args:
            group: its position.

        Raises:
            InvalidRecords: they cannot be read, or Python cannot hold one of them.
        """
        ...

    def take(self, group: int, rows: Sequence[int]) -> list[dict[str, object] | None]:
        """Rows of a group; None for one that Python cannot hold, by a rule of it alone.

        Args:
            group: its position.
            rows: the positions in it.

        Raises:
            InvalidRecords: the group cannot be read.
            MemoryError: likewise. Nulls would depend on the other records of the group.
        """
        ...


def tables_of(path: Path, columns: Columns) -> tuple[list[PinnedFile], list[Table]]:
    """The files that a path names, and the table of each.

    Args:
        path: a `.parquet`, `.arrow` or `.feather` file, or a folder that `datasets` saved.
        columns: must be in every table once.

    Raises:
        InvalidRecords: a file is damaged, or does not have these columns.
        MissingExtra: pyarrow is not installed.
    """
    kind = ParquetTable if path.name.lower().endswith(".parquet") else ArrowTable
    files = [PinnedFile(one) for one in (_saved_files(path) if path.is_dir() else [path])]
    return files, [kind(file, columns) for file in files]


class ParquetTable:
    """See `Table`. Its groups are row groups. Every thread has a reader of its own."""

    def __init__(self, file: PinnedFile, columns: Columns) -> None:
        self._arrow = _pyarrow("Parquet")
        self._file, self._local = file, threading.local()
        with _damage(self._arrow, "a Parquet file"):
            metadata = self._reader().metadata
            names = list(self._reader().schema_arrow.names)
            self.sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.names = columns_to_read(columns, names)

    def read(self, group: int) -> list[list[object]]:
        """See `Table.read`."""
        with _damage(self._arrow, "a Parquet file"):
            return _values(self._group(group))

    def take(self, group: int, rows: Sequence[int]) -> list[dict[str, object] | None]:
        """See `Table.take`."""
        with _damage(self._arrow, "a Parquet file"):
            return _rows(self._group(group), self.names, rows)

    def _group(self, group: int) -> list[Any]:
        found = self._reader().read_row_group(group, columns=self.names, use_threads=False)
        return [found.column(name) for name in self.names]

    def _reader(self) -> Any:
        if not hasattr(self._local, "reader"):
            from pyarrow import parquet

            self._local.reader = parquet.ParquetFile(self._file.stream(), pre_buffer=False)
        return self._local.reader


class ArrowTable:
    """See `Table`. Its groups are record batches."""

    def __init__(self, file: PinnedFile, columns: Columns) -> None:
        self._arrow = _pyarrow("Arrow")
        self._file = file
        self.sizes: list[int] = []
        self._positions: list[int] = []
        with _damage(self._arrow, "an Arrow file"), file.stream() as stream:
            stream.seek(_start(file))
            self._schema = self._arrow.ipc.read_schema(self._arrow.ipc.read_message(stream))
            self._find_batches(stream)
        self.names = columns_to_read(columns, list(self._schema.names))

    def read(self, group: int) -> list[list[object]]:
        """See `Table.read`."""
        with _damage(self._arrow, "an Arrow file"):
            return _values(self._group(group))

    def take(self, group: int, rows: Sequence[int]) -> list[dict[str, object] | None]:
        """See `Table.take`."""
        with _damage(self._arrow, "an Arrow file"):
            return _rows(self._group(group), self.names, rows)

    def _group(self, group: int) -> list[Any]:
        with self._file.stream() as stream:
            stream.seek(self._positions[group])
            message = self._arrow.ipc.read_message(stream)
            batch = self._arrow.ipc.read_record_batch(message, self._schema).select(self.names)
            batch.validate(full=True)  # Arrow follows an offset beyond its buffer, and ends the process
            return [batch.column(name) for name in self.names]

    def _find_batches(self, stream: Any) -> None:
        while True:
            position = stream.tell()
            try:
                message = self._arrow.ipc.read_message(stream)
            except EOFError:
                return
            if message.type != "record batch":
                raise InvalidRecords("holds dictionary-encoded columns; save them as plain strings")
            self._positions.append(position)
            self.sizes.append(self._arrow.ipc.read_record_batch(message, self._schema).num_rows)


def _start(file: PinnedFile) -> int:
    """Where the messages of an Arrow file or stream begin.

    Raises:
        InvalidRecords: it begins as a file, and does not end as one.
    """
    if file.read(0, len(_MAGIC)) != _MAGIC:
        return 0
    if file.read(file.size - len(_MAGIC), len(_MAGIC)) != _MAGIC:
        raise InvalidRecords("is truncated: it begins as an Arrow file, and does not end as one")
    return 8


def _values(columns: Sequence[Any]) -> list[list[object]]:
    return [[value.as_py() for value in column] for column in columns]


def _rows(
    columns: Sequence[Any], names: Sequence[str], rows: Sequence[int]
) -> list[dict[str, object] | None]:
    """Rows, element by element: Arrow's `take` lacks types of column that indexing reads."""

    def values(row: int) -> dict[str, object]:
        return {name: column[row].as_py() for name, column in zip(names, columns, strict=True)}

    return [none_if_it_fails(partial(values, row)) for row in rows]


def _saved_files(folder: Path) -> Iterator[Path]:
    """The files of a data set, in its own order."""
    try:
        state = json.loads((folder / "state.json").read_bytes())
        names = [str(one["filename"]) for one in state["_data_files"]]
    except (OSError, ValueError, TypeError, KeyError):
        raise InvalidRecords(
            "is a directory, and none that datasets.Dataset.save_to_disk wrote; give one file"
        ) from None
    return (folder / name for name in names)


def _pyarrow(kind: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError:
        raise MissingExtra(f"reading {kind} files", "parquet") from None
    return pa


@contextmanager
def _damage(arrow: Any, what: str) -> Iterator[None]:
    try:
        yield
    except (InvalidRecords, MemoryError):  # some are a ValueError, or an ArrowException, too
        raise
    except OverflowError:
        raise InvalidRecords("has a number or time beyond Python's range; convert it to a string") from None
    except (arrow.ArrowException, OSError, EOFError, ValueError):
        raise InvalidRecords(f"is damaged, or not {what}") from None
