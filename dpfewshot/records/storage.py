"""Where indexed records lie: the lines of a JSONL file, or the tables of Parquet and Arrow files."""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from dpfewshot.errors import InvalidRecords
from dpfewshot.records.files import BOM, Rows, json_object, numbered, rows_of_tables
from dpfewshot.records.kept import DAMAGED, Kept
from dpfewshot.records.pinned import PinnedFile
from dpfewshot.records.tables import Table, tables_of
from dpfewshot.records.units import Integers
from dpfewshot.runtime.redaction import none_if_it_fails
from dpfewshot.values import Columns


class Storage(Protocol):
    """The rows of a file, in turn once and then by their positions."""

    def rows(self) -> Rows:
        """All rows, in turn; see `files.Rows`."""
        ...

    def take(self, rows: Sequence[int]) -> list[object | None]:
        """The rows at these positions; None for one that cannot be read, by a rule of it alone."""
        ...

    def kept(self) -> Kept:
        """What finds the rows again, once `rows` has ended."""
        ...

    def restore(self, kept: Kept) -> None:
        """Take what `kept` returned for the same content.

        Raises:
            InvalidRecords: it cannot be that.
        """
        ...

    def check(self) -> None:
        """Refuse a file that has changed since it was opened.

        Raises:
            InvalidRecords: it has.
        """
        ...

    def digest(self) -> str:
        """The SHA-256 of the content, in hexadecimal; of several files, that of theirs."""
        ...


def open_storage(path: Path, columns: Columns) -> Storage:
    """Open what a path names.

    Raises:
        InvalidRecords: there is no such file, or its kind cannot be indexed.
        OSError: it cannot be opened.
        MissingExtra: pyarrow is not installed.
    """
    if not path.exists():
        raise InvalidRecords("no such file")
    name = path.name.lower()
    if name.endswith(".gz"):
        raise InvalidRecords("gzip cannot be read from the middle: unpack the file, and index that")
    if path.is_dir() or name.endswith((".parquet", ".arrow", ".feather")):
        return _Tables(*tables_of(path, columns))
    if name.endswith(".jsonl"):
        return _Lines(PinnedFile(path))
    raise InvalidRecords("only .jsonl, .parquet, .arrow and .feather files can be indexed; convert it")


class _Lines:
    """The lines of a JSONL file. See `Storage`."""

    def __init__(self, file: PinnedFile) -> None:
        self._file = file
        self._starts: Integers = np.empty(0, dtype=np.int64)

    def rows(self) -> Rows:
        starts, position = array("q"), 0
        with self._file.stream() as lines:
            for number, line in enumerate(lines, start=1):
                begin = len(BOM) if number == 1 and line.startswith(BOM) else 0
                row = line[begin:]
                if row.decode(errors="replace").strip():
                    starts.append(position + begin)
                    yield f"line {number}", json_object(row, number)
                position += len(line)
        self._starts = np.frombuffer(starts, dtype=np.int64)

    def take(self, rows: Sequence[int]) -> list[object | None]:
        return [none_if_it_fails(functools.partial(self._row, row)) for row in rows]

    def kept(self) -> Kept:
        return {"starts": self._starts}

    def restore(self, kept: Kept) -> None:
        starts = kept["starts"]
        if starts.dtype != np.int64 or starts.shape != kept["label_rows"].shape:
            raise InvalidRecords(DAMAGED)
        if starts[0] < 0 or starts[-1] >= self._file.size or (starts[1:] <= starts[:-1]).any():
            raise InvalidRecords(DAMAGED)
        self._starts = starts

    def check(self) -> None:
        self._file.check()

    def digest(self) -> str:
        return self._file.digest()

    def _row(self, row: int) -> object:
        begin = int(self._starts[row])
        end = int(self._starts[row + 1]) if row + 1 < len(self._starts) else self._file.size
        return json_object(self._file.read(begin, end - begin).partition(b"\n")[0], row)


class _Tables:
    """The rows of tables, of which whole groups are read. See `Storage`."""

    def __init__(self, files: Sequence[PinnedFile], tables: Sequence[Table]) -> None:
        self._files, self._tables = files, tables
        self._groups = [(table, group) for table in tables for group in range(len(table.sizes))]
        self._ends = np.cumsum([size for table in tables for size in table.sizes], dtype=np.int64)

    def rows(self) -> Rows:
        return numbered(rows_of_tables(self._tables))

    def take(self, rows: Sequence[int]) -> list[object | None]:
        of_group: defaultdict[int, list[int]] = defaultdict(list)  # the places in `rows`
        for place, group in enumerate(np.searchsorted(self._ends, rows, side="right").tolist()):
            of_group[group].append(place)
        found: list[object | None] = [None] * len(rows)
        for group, places in sorted(of_group.items()):
            first = int(self._ends[group - 1]) if group else 0
            for place, row in zip(places, self._read(group, [rows[p] - first for p in places]), strict=True):
                found[place] = row
        return found

    def kept(self) -> Kept:
        return {}

    def restore(self, kept: Kept) -> None:
        """The files themselves tell where their groups are."""
        if len(kept["label_rows"]) != self._ends[-1]:
            raise InvalidRecords(DAMAGED)

    def check(self) -> None:
        for file in self._files:
            file.check()

    def digest(self) -> str:
        digests = [file.digest() for file in self._files]
        return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def _read(self, group: int, rows: Sequence[int]) -> Sequence[object | None]:
        """Rows of one group. All are None if the disk no longer yields the group, whatever is in it."""
        table, number = self._groups[group]
        try:
            return table.take(number, rows)
        except InvalidRecords:
            return [None] * len(rows)
