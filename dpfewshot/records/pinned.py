"""A file that must not change: opened once, and read at any position by threads and forked children."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from pathlib import Path

from dpfewshot.errors import InvalidRecords

_CHANGED = "has changed since it was indexed: index it again"


class PinnedFile:
    """One open file. Its repr shows its class alone.

    A file that takes this one's name later is not read: the open one is. Reads name their own positions, so
    threads and forked children share no position.

    Args:
        path: of a file.

    Raises:
        OSError: it cannot be opened.
        InvalidRecords: it is a pipe or a device.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise InvalidRecords("is not a regular file; write its content to one")
        self._state = self._seen()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    @property
    def size(self) -> int:
        """In bytes, when it was opened."""
        return self._state[0]

    def check(self) -> None:
        """Refuse a file that was written to, or truncated, since it was opened.

        Raises:
            InvalidRecords: its size or its time of modification is another, or it cannot be read at all.
        """
        try:
            changed = self._seen() != self._state
        except OSError:
            changed = True
        if changed:
            raise InvalidRecords(_CHANGED)

    def digest(self) -> str:
        """The SHA-256 of its content, in hexadecimal."""
        with self.stream() as content:
            return hashlib.file_digest(content, "sha256").hexdigest()

    def stream(self) -> io.BufferedReader:
        """Its content from the start, with a position of its own."""
        return io.BufferedReader(_Stream(self), 2**16)

    def read(self, position: int, length: int) -> bytes:
        """At most so many bytes from a position; fewer at the end of the file.

        Raises:
            OSError: they cannot be read.
        """
        return os.pread(self._descriptor, length, position)

    def _seen(self) -> tuple[int, int]:
        seen = os.fstat(self._descriptor)
        return seen.st_size, seen.st_mtime_ns


class _Stream(io.RawIOBase):
    def __init__(self, file: PinnedFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._file.read(self._position, len(buffer))
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)
