"""The file that keeps an index: arrays in an .npz file, behind a header that names what they index."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import numpy as np

from dpfewshot.errors import InvalidRecords
from dpfewshot.records.units import Integers, positions
from dpfewshot.values import Columns

Kept: TypeAlias = dict[str, Integers]
"""An index's arrays by name: `label_rows`, `unit_rows` if units are named, and those of the storage."""

DAMAGED: Final = "is damaged, or not an index; name another file"
_FORMAT: Final = "dpfewshot index 1"
_PRIVATE: Final = "as private as the records: it shows which of them share a label or a unit"


@dataclass(frozen=True, slots=True)
class Header:
    """What an index is of.

    Args:
        digest: the SHA-256 of the records' file, in hexadecimal.
        columns: that were read.
    """

    digest: str
    columns: Columns

    def lines(self) -> dict[str, object]:
        """The header as it is stored."""
        columns = dataclasses.asdict(self.columns)
        del columns["fields"]  # the text column's name tells them
        del columns["masked"]  # a file's texts are as they are
        return {"format": _FORMAT, "confidential": _PRIVATE, "sha256": self.digest, "columns": columns}


def save(file: BinaryIO, header: Header, kept: Kept) -> None:
    """Write an index.

    Raises:
        OSError: it cannot be written.
    """
    told = np.frombuffer(json.dumps(header.lines()).encode(), dtype=np.uint8)
    np.savez(file, header=told, **kept)  # type: ignore[arg-type]


def load(path: Path, header: Header, of_storage: Collection[str]) -> Kept:
    """Read an index.

    Args:
        path: the file that `save` wrote.
        header: what the index must be of.
        of_storage: the names of the arrays that the storage keeps, and checks.

    Raises:
        InvalidRecords: it is of other columns or of another content, or damaged.
        OSError: it cannot be read.
    """
    if not path.is_file():
        raise InvalidRecords("is not a file; name another")
    told, kept = _stored(path)
    expected = header.lines()
    if told == expected:
        firsts = {"label_rows"} if header.columns.unit is None else {"label_rows", "unit_rows"}
        _check(kept, firsts, of_storage)
        return kept
    if told.get("format") == _FORMAT and told.get("columns") == expected["columns"]:
        raise InvalidRecords("is the index of another content: the records have changed; delete it")
    raise InvalidRecords("is an index of other columns, or of another version; delete it, or name another")


def _stored(path: Path) -> tuple[dict[str, object], Kept]:
    """The header and the arrays of a file that may be anything."""
    try:
        with path.open("rb") as file:
            kept = {name: np.asarray(array) for name, array in np.load(file, allow_pickle=False).items()}
            return dict(json.loads(kept.pop("header").tobytes())), kept
    except OSError:
        raise
    except MemoryError:
        raise InvalidRecords("does not fit into memory, or is damaged") from None
    except Exception:  # noqa: BLE001 - readers of archives raise many kinds
        raise InvalidRecords(DAMAGED) from None


def _check(kept: Kept, firsts: set[str], others: Collection[str]) -> None:
    """Refuse arrays that no index has: a position of the first equal record is its own, or a smaller one."""
    if kept.keys() != firsts | set(others):
        raise InvalidRecords(DAMAGED)
    own = positions(len(np.atleast_1d(kept["label_rows"])))
    for name in firsts:
        rows = kept[name]
        if not len(own) or rows.shape != own.shape or rows.dtype != own.dtype:
            raise InvalidRecords(DAMAGED)
        if (rows < 0).any() or (rows > own).any() or (rows[rows] != rows).any():
            raise InvalidRecords(DAMAGED)
