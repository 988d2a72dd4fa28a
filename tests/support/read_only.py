"""Files and folders that nobody may write, root included."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DAC_OVERRIDE = 1 << 1
_VERSION = 0x20080522


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take all rights to write from a folder and its files; root loses its power to ignore that."""
    before = {path: path.stat().st_mode for path in (folder, *folder.iterdir())}
    for path, mode in before.items():
        path.chmod(mode & 0o555)
    try:
        with _without_override():
            yield
    finally:
        for path, mode in before.items():
            path.chmod(mode)


@contextmanager
def _without_override() -> Iterator[None]:
    """Drop one capability of this thread for a while."""
    if os.geteuid() != 0:
        yield
        return
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    library = ctypes.CDLL(None, use_errno=True)
    assert library.capget(header, sets) == 0
    before = sets[0]
    sets[0] = before & ~_DAC_OVERRIDE
    assert library.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert library.capset(header, sets) == 0
