"""Records out of memory: an Arrow file that holds a copy of them, mapped into memory.

A draw takes records by their numbers. Beside the copy, memory holds two numbers for each record: of the first
record with its label, and of the first with its unit.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final

import numpy as np

from dpfewshot.errors import InvalidRecords
from dpfewshot.records.checks import TextColumns, columns_for, records_of
from dpfewshot.records.reading import errors_of, files_of, pyarrow_for, refused_if_damaged, rows_of
from dpfewshot.records.units import Integers, first_equal, first_rows
from dpfewshot.runtime.files import replaced, write_errors
from dpfewshot.runtime.forking import cached_property
from dpfewshot.runtime.redaction import none_if_it_fails, redacts_errors
from dpfewshot.values import Columns, Record, StoredRecords

_BATCH: Final = 2**14
"""The most records of a batch: the memory that a mapped file takes grows with the number of its batches."""

_CHARACTERS: Final = 2**24
"""A batch ends when its texts have so many, so that writing it takes little memory."""

_DIGEST: Final = 16
"""The bytes that stand for the name of a label or a unit."""

_DAMAGED: Final = "is damaged, or not an index; name another file"


@redacts_errors(InvalidRecords, "indexing")
def index_records(
    path: str | os.PathLike[str],
    *,
    text: TextColumns = "text",
    label: str = "label",
    unit: str | None = None,
    index: str | os.PathLike[str] | None = None,
) -> StoredRecords:
    """Index the private records of one file, for data that memory does not hold.

    Every record is read and checked once, as by `read_records`, and copied to an Arrow file: the index. Draws
    read from it what they take. Memory holds 8 bytes a record, the labels' names, and 8 bytes a record more
    once they are grouped. A record that a release cannot read is a null there: it contributes nothing, and
    nothing says so.

    Args:
        path: what `read_records` takes. It must not change while the records are in use.
        text, label, unit: as in `read_records`.
        index: a file that keeps the index: read if it exists, whatever its mode, else written with mode 0600.
            It is bound to the SHA-256 of the records' file, and as private: it holds the records. None: a
            file without a name, in the folder of the records, for as long as they are in use.

    Returns:
        The records, a sequence. `Synthesizer` and the other functions take it as they take a list.

    Raises:
        InvalidRecords: as `read_records`. Or the index is of another content or of other columns. Or the
            first record of a label cannot be read. Later, wherever records are read: the file has changed.
        DPFewShotError: the index cannot be written.
        MissingExtra: pyarrow is not installed.

    Example:
        >>> index_records("tickets.jsonl", unit="customer", index="tickets.index")  # doctest: +SKIP
    """
    pyarrow_for("index_records")
    path, columns = Path(path).absolute(), columns_for(text, label, unit)
    with errors_of(path):
        source = _Pinned(path, files_of(path))
        place = _Place(path, columns, source.digest(), None if index is None else Path(index).absolute())
    opened = _opened(place, source)
    records = IndexedRecords(place, opened.label_rows, opened.unit_rows, opened)
    _ = records.labels  # now: a record that cannot be read is for whoever loads it
    return records


@dataclass(frozen=True, slots=True, repr=False)
class _Place:
    """Where records lie: the path of their file, what is read, the file's SHA-256, and the index if kept.

    Paths are absolute. The repr does not show the digest.
    """

    path: Path
    columns: Columns
    digest: str
    index: Path | None


class IndexedRecords(StoredRecords):
    """What `index_records` returns. Children and threads may read it.

    A pickled copy opens the index when it is first read, so that a worker can tell what is wrong with it. If
    the index has no name, the copy makes its own.
    """

    def __init__(
        self, place: _Place, label_rows: Integers, unit_rows: Integers | None, index: _Index | None = None
    ) -> None:
        self.columns = place.columns
        self.label_rows, self.unit_rows = label_rows, unit_rows
        self._place, self._index = place, index

    @cached_property
    def labels(self) -> dict[int, str]:
        """See `StoredRecords.labels`. A pickled copy reads them when it is first asked."""
        rows = first_rows(self.label_rows)
        return {row: record.label for row, record in zip(rows, self.in_turn(rows), strict=True)}

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexedRecords, (self._place, self.label_rows, self.unit_rows)

    @redacts_errors(InvalidRecords, "reading")
    def unit_names(self, rows: Integers) -> list[str]:
        """See `StoredRecords.unit_names`."""
        self.check()
        return self._opened().unit_names(rows)

    @redacts_errors(InvalidRecords, "reading")
    def take(self, rows: Sequence[int]) -> list[Record | None]:
        """See `StoredRecords.take`."""
        index = self._opened()
        index.check()  # a truncated map would end the process
        found = [none_if_it_fails(functools.partial(index.record, row)) for row in rows]
        index.check()  # only what an unchanged file does not yield is missing
        return found

    @redacts_errors(InvalidRecords, "reading")
    def check(self) -> None:
        """See `StoredRecords.check`."""
        self._opened().check()

    def _opened(self) -> _Index:
        if self._index is None:
            path = self._place.path
            with errors_of(path):
                seen = [one.stat() for one in files_of(path)]
            self._index = _verified(
                self._place, tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in seen)
            )
        return self._index


class _Pinned:
    """Files that must not change, open: one that takes the name of another later is not read.

    `path` is their name in messages. Each must be a regular file.
    """

    def __init__(self, path: Path, files: Iterable[Path]) -> None:
        self._path = path
        self._descriptors: list[int] = []
        for one in files:
            self._descriptors.append(os.open(one, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            if not stat.S_ISREG(os.fstat(self._descriptors[-1]).st_mode):  # a pipe would wait
                raise InvalidRecords("is not a regular file; name one")
        self._state = self._seen()

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def streams(self) -> list[BufferedReader]:
        """The content of each file from its start. All streams of a file share one position."""
        for descriptor in self._descriptors:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return [os.fdopen(descriptor, "rb", closefd=False) for descriptor in self._descriptors]

    def digest(self) -> str:
        """The SHA-256 of the content, in hexadecimal; of several files, that of theirs."""
        digests = [hashlib.file_digest(file, "sha256").hexdigest() for file in self.streams()]
        return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def check(self) -> None:
        """Refuse a file that was written to, truncated or lost since it was opened."""
        try:
            changed = self._seen() != self._state
        except OSError:
            changed = True
        if changed:
            with errors_of(self._path):
                raise InvalidRecords("has changed since it was indexed: index it again")

    def _seen(self) -> list[tuple[int, int]]:
        seen = map(os.fstat, self._descriptors)
        return [(one.st_size, one.st_mtime_ns) for one in seen]


class _Index:
    """An Arrow file of records that `_write` wrote, mapped into memory. What is `pinned` must not change.

    Arrow's columns show their values wherever an error's variables, or their attributes, are printed. Slots
    are not.
    """

    __slots__ = ("_columns", "_pinned", "_values", "label_rows", "unit_rows")

    def __init__(self, file: BinaryIO, place: _Place, *pinned: _Pinned) -> None:
        arrow, names = pyarrow_for("index_records"), _names(place.columns)
        with refused_if_damaged(_DAMAGED):
            file.seek(0)
            reader = arrow.ipc.open_file(file)
            _check_schema(reader.schema, _schema(place))
            self.label_rows, self.unit_rows = _first_rows(reader, names)
            mapped = arrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            table = arrow.ipc.open_file(mapped).read_all()
        self._values = [table.column(name) for name in ("text", *names)]
        self._columns, self._pinned = place.columns, pinned

    def record(self, row: int) -> Record:
        """One record, by its number."""
        return Record(*(column[row].as_py() for column in self._values), columns=self._columns)

    def unit_names(self, rows: Integers) -> list[str]:
        """The names of some records' units, which are the last column."""
        names: list[str] = self._values[-1].take(rows).to_pylist()
        return names

    def check(self) -> None:
        """See `_Pinned.check`."""
        for one in self._pinned:
            one.check()


@functools.lru_cache(maxsize=8)
def _verified(place: _Place, _seen: tuple[tuple[int, int, int], ...]) -> _Index:
    """The open index, found once a process and state of the files: a worker may get many copies."""
    with errors_of(place.path):
        source = _Pinned(place.path, files_of(place.path))
        if source.digest() != place.digest:
            raise InvalidRecords("has changed since it was indexed, or another took its name: index it again")
    return _opened(place, source)


def _opened(place: _Place, source: _Pinned) -> _Index:
    """The open index, which is made if there is none."""
    if place.index is None:
        folder = place.path.parent
        with write_errors(folder), TemporaryFile(dir=folder) as file:
            _write(file, place, source)
            return _Index(file, place, source)
    if not place.index.exists():
        with write_errors(place.index), replaced(place.index, mode=0o600) as file:
            _write(file, place, source)
    with errors_of(place.index):
        kept = _Pinned(place.index, [place.index])
        return _Index(kept.streams()[0], place, source, kept)


def _write(file: BinaryIO, place: _Place, source: _Pinned) -> None:
    """Copy all records to an Arrow file."""
    arrow, schema = pyarrow_for("index_records"), _schema(place)
    names, key = _names(place.columns), secrets.token_bytes(32)
    with arrow.ipc.new_file(file, schema) as writer:
        for batch in _batches(_checked(place, source)):
            values: list[list[Any]] = [[record.text for record in batch]]
            for name in names:
                named = [getattr(record, name) for record in batch]
                values += [named, [_digest(one, key) for one in named]]
            arrays = [arrow.array(each, field.type) for each, field in zip(values, schema, strict=True)]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
    file.flush()
    source.check()


def _checked(place: _Place, source: _Pinned) -> Iterator[Record]:
    with errors_of(place.path):  # and not those of writing the index
        yield from records_of(rows_of(place.path, source.streams(), place.columns), place.columns)


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    characters = 0
    for record in records:
        batch.append(record)
        characters += len(record.text)
        if len(batch) == _BATCH or characters >= _CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _names(columns: Columns) -> list[str]:
    """What records are grouped by."""
    return ["label"] if columns.unit is None else ["label", "unit"]


def _digest(name: str, key: bytes) -> bytes:
    """What stands for a name: by a secret key, so that nobody can choose names that collide."""
    return hashlib.blake2b(name.encode(), digest_size=_DIGEST, key=key).digest()


def _schema(place: _Place) -> Any:
    """The columns of an index: texts, names, and a digest for each name."""
    arrow = pyarrow_for("index_records")
    # the text column's name tells its fields, and a file's texts are not masked
    columns = {name: getattr(place.columns, name) for name in ("text", "label", "unit")}
    told = {
        "format": "dpfewshot index 2",
        "confidential": "as private as the records: it holds them",
        "sha256": place.digest,
        "columns": json.dumps(columns),
    }
    fields = [("text", arrow.large_string())]
    for name in _names(place.columns):
        fields += [(name, arrow.large_string()), (f"{name}_digest", arrow.binary(_DIGEST))]
    return arrow.schema(fields, metadata=told)


def _check_schema(found: Any, expected: Any) -> None:
    told, wanted = found.metadata or {}, expected.metadata
    if b"sha256" not in told:
        raise InvalidRecords(_DAMAGED)
    if not found.equals(expected) or told | {b"sha256": wanted[b"sha256"]} != wanted:
        raise InvalidRecords(
            "is an index of other columns, or of another version; delete it, or name another"
        )
    if told[b"sha256"] != wanted[b"sha256"]:
        raise InvalidRecords("is the index of another content: the records have changed; delete it")


def _first_rows(reader: Any, names: Sequence[str]) -> tuple[Integers, Integers | None]:
    """For each record the first one with its label, and the first one with its unit, by their digests.

    Every batch is validated: Arrow follows an offset beyond its buffer, and ends the process.
    """
    digests = {name: bytearray() for name in names}
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise InvalidRecords(_DAMAGED)
        for name in names:
            digests[name] += batch.column(f"{name}_digest").buffers()[1][: _DIGEST * len(batch)]
    if not digests["label"]:
        raise InvalidRecords(_DAMAGED)
    label_rows, *unit_rows = (first_equal(np.frombuffer(each, f"S{_DIGEST}")) for each in digests.values())
    return label_rows, unit_rows[0] if unit_rows else None
