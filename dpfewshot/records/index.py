"""Records out of memory: an index of a file, from which draws read the records that they take.

An index holds, for each record, the position of the first record with its label and of the first with its
unit, and for JSONL where its line begins. Its file holds no text, no label and no unit's name. It shows which
records belong together, so it is as private as the records.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dpfewshot.errors import InvalidRecords
from dpfewshot.records.checks import TextColumns, columns_for, record_of
from dpfewshot.records.kept import Header, Kept, load, save
from dpfewshot.records.reading import errors_of
from dpfewshot.records.storage import Storage, open_storage
from dpfewshot.records.units import Integers, first_rows
from dpfewshot.runtime.files import replaced, write_errors
from dpfewshot.runtime.redaction import none_if_it_fails, redacts_errors
from dpfewshot.values import Columns, Record, StoredRecords

_BLOCK = 1024
"""Records that an iteration reads at once."""


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

    Every record is read and checked once, as by `read_records`. Then draws read what they take. The index
    takes 12 bytes a record in JSONL and 4 in tables, with a unit column 4 more, and the labels' names;
    grouping them, 4 more and 8 a unit. A record that a release cannot read is a null there: it contributes
    nothing, and nothing says so.

    Args:
        path: a `.jsonl`, `.parquet`, `.arrow` or `.feather` file, or the folder of `Dataset.save_to_disk`.
            It must not change while the records are in use. Parquet's row groups and Arrow's batches are
            read whole: write a thousand rows in each.
        text: as in `read_records`.
        label: as in `read_records`.
        unit: as in `read_records`.
        index: a file that keeps the index: read if it exists, whatever its mode, else written with mode 0600.
            It is bound to the SHA-256 of the records' file, and as private.

    Returns:
        The records, a sequence. `Synthesizer` and the other functions take it as they take a list.

    Raises:
        InvalidRecords: as `read_records`. Or the index is of another content or of other columns, or the file
            cannot be indexed: CSV and gzip cannot. Or the first record of a label cannot be read. Later,
            wherever records are read: the file has changed.
        DPFewShotError: the index cannot be written.
        MissingExtra: the file is a Parquet or Arrow file, and pyarrow is not installed.

    Example:
        >>> index_records("tickets.jsonl", unit="customer", index="tickets.index")  # doctest: +SKIP
    """
    path, columns = Path(path), columns_for(text, label, unit)
    with errors_of(path):
        storage = open_storage(path, columns)
        digest = storage.digest()
    if index is None:
        kept = _scanned(path, storage, columns)
    elif Path(index).exists():
        with errors_of(Path(index)):
            kept = load(Path(index), Header(digest, columns), storage.kept())
            storage.restore(kept)
    else:  # a place that cannot be written to is found first
        with write_errors(index), replaced(index, mode=0o600) as file:
            kept = _scanned(path, storage, columns)
            save(file, Header(digest, columns), kept)
    records = IndexedRecords(path.absolute(), columns, digest, kept, storage)
    _ = records.labels  # now: a record that cannot be read is for whoever loads it
    return records


class IndexedRecords(StoredRecords):
    """What `index_records` returns. Children and threads may read it.

    A pickled copy opens the file when it is first read, so that a worker can tell what is wrong with it.

    Args:
        path: of the file, absolute.
        columns: that were read.
        digest: the SHA-256 of the file.
        kept: the index.
        storage: the open file; None: a copy's.
    """

    def __init__(
        self, path: Path, columns: Columns, digest: str, kept: Kept, storage: Storage | None = None
    ) -> None:
        self.columns = columns
        self.label_rows = kept["label_rows"]
        self.unit_rows = kept.get("unit_rows")
        self._path, self._digest, self._kept, self._storage = path, digest, kept, storage

    @functools.cached_property
    def labels(self) -> dict[int, str]:
        """See `StoredRecords.labels`. A pickled copy reads them when it is first asked.

        Raises:
            InvalidRecords: the file has changed, or the first record of a label cannot be read.
        """
        rows = first_rows(self.label_rows)
        blocks = (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))
        return {
            row: record.label
            for block in blocks
            for row, record in zip(block, self._whole(block), strict=True)
        }

    def __repr__(self) -> str:
        return "IndexedRecords()"

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexedRecords, (self._path, self.columns, self._digest, self._kept)

    def __len__(self) -> int:
        return len(self.label_rows)

    def __getitem__(self, row: Any) -> Any:
        """One record, or a list of them for a slice.

        Raises:
            InvalidRecords: the file has changed, or cannot be read.
        """
        rows = range(len(self))[row]
        return self._whole(rows) if isinstance(rows, range) else self._whole([rows])[0]

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK]

    @redacts_errors(InvalidRecords, "reading")
    def take(self, rows: Sequence[int]) -> list[Record | None]:
        """See `StoredRecords.take`."""
        with errors_of(self._path):
            storage = self._opened()
            found = storage.take(rows)
            storage.check()  # only what an unchanged file does not yield is missing
        return [
            None if row is None else none_if_it_fails(functools.partial(record_of, row, self.columns))
            for row in found
        ]

    @redacts_errors(InvalidRecords, "reading")
    def _whole(self, rows: Sequence[int]) -> list[Record]:
        found = [record for record in self.take(rows) if record is not None]
        if len(found) < len(rows):
            raise InvalidRecords("a record can no longer be read")
        return found

    @redacts_errors(InvalidRecords, "reading")
    def check(self) -> None:
        """See `StoredRecords.check`."""
        with errors_of(self._path):
            self._opened().check()

    def _opened(self) -> Storage:
        if self._storage is None:
            storage = _unchanged(self._path, self.columns, self._digest)
            storage.restore(self._kept)
            self._storage = storage
        return self._storage


def _unchanged(path: Path, columns: Columns, digest: str) -> Storage:
    """The open file; opened again if it was written to since: its content may be that of the index again."""
    storage = _verified(path, columns, digest)
    try:
        storage.check()
    except InvalidRecords:
        _verified.cache_clear()
        with suppress(InvalidRecords):
            return _verified(path, columns, digest)
        raise
    return storage


@functools.lru_cache(maxsize=8)
def _verified(path: Path, columns: Columns, digest: str) -> Storage:
    """The open file, hashed once a process: a worker gets a copy of the records with each draw."""
    storage = open_storage(path, columns)
    if storage.digest() != digest:
        raise InvalidRecords("has changed since it was indexed, or another took its name: index it again")
    return storage


def _scanned(path: Path, storage: Storage, columns: Columns) -> Kept:
    """Read and check every record of a file.

    Raises:
        InvalidRecords: one of them cannot be used, there are no records, or the file changed meanwhile.
    """
    with errors_of(path):
        return _index(storage, columns)


def _index(storage: Storage, columns: Columns) -> Kept:
    labels, units, key = array("Q"), array("Q"), secrets.token_bytes(32)
    for where, row in storage.rows():
        try:
            record = record_of(row, columns)
        except InvalidRecords as error:
            raise InvalidRecords(f"{where}: {error}") from None
        labels.frombytes(_digest(record.label, key))
        if record.unit is not None:
            units.frombytes(_digest(record.unit, key))
    if not labels:
        raise InvalidRecords("there are no records")
    storage.check()
    kept = storage.kept()
    kept["label_rows"] = _first_rows(labels)
    del labels
    if units:
        kept["unit_rows"] = _first_rows(units)
    return kept


def _digest(name: str, key: bytes) -> bytes:
    """16 bytes that stand for a name: by a secret key, so that nobody can choose names that collide."""
    return hashlib.blake2b(name.encode(), digest_size=16, key=key).digest()


def _first_rows(digests: array[int]) -> Integers:
    """For each digest the position of the first equal one."""
    pairs = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # stable: of equal ones, the first comes first
    changed = np.ones(len(order), dtype=bool)
    changed[1:] = False
    for half in range(2):
        values = pairs[order, half]
        changed[1:] |= values[1:] != values[:-1]
    starts = np.flatnonzero(changed)
    firsts: Integers = np.empty(len(order), dtype=np.int32 if len(order) < 2**31 else np.int64)
    firsts[order] = np.repeat(order[starts].astype(firsts.dtype), np.diff(np.append(starts, len(order))))
    return firsts
