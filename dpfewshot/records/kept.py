"""The file that keeps an index: arrays in an .npz file, behind a header that names what they index."""

from __future__ import annotations

import dataclasses
import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from dpfewshot.errors import InvalidRecords
from dpfewshot.records.units import Integers
from dpfewshot.runtime.files import replaced
from dpfewshot.values import Columns

Kept: TypeAlias = dict[str, Integers]
"""An index's arrays by name: `label_rows`, `unit_rows` if units are named, and those of the storage."""

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
        if not self.columns.fields:  # as in the indexes of texts of one field
            del columns["fields"]
        return {"format": _FORMAT, "confidential": _PRIVATE, "sha256": self.digest, "columns": columns}


def save(path: Path, header: Header, kept: Kept) -> None:
    """Write an index, readable for its owner alone.

    Raises:
        OSError: it cannot be written.
    """
    told = np.frombuffer(json.dumps(header.lines()).encode(), dtype=np.uint8)
    with replaced(path, mode=0o600) as file:
        np.savez(file, header=told, **kept)  # type: ignore[arg-type]


def load(path: Path, header: Header) -> Kept:
    """Read an index.

    Args:
        path: the file that `save` wrote.
        header: what the index must be of.

    Raises:
        InvalidRecords: it is of other columns or of another content, or damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            stored = dict(np.load(file, allow_pickle=False))
            told = json.loads(stored.pop("header").tobytes())
        except (ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error):
            raise InvalidRecords("is damaged, or not an index; delete it, and a new one is made") from None
    expected = header.lines()
    if told == expected:
        return stored
    if told.get("format") == _FORMAT and told.get("columns") == expected["columns"]:
        raise InvalidRecords("is the index of another content: the records have changed; delete it")
    raise InvalidRecords("is an index of other columns, or of another version; delete it, or name another")
