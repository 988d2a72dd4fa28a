"""The file of demonstrations that commands write, a line for each."""

from __future__ import annotations

import fcntl
import os
from codecs import BOM_UTF8
from collections import Counter
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NoReturn, Self

import click

from dpfewshot.demonstrations import json_line
from dpfewshot.errors import DPFewShotError
from dpfewshot.runtime.files import write_errors
from dpfewshot.values import Demonstration, counted


class Lines:
    """Writes each line as soon as it is released, so that an interruption loses nothing that was paid for."""

    def __init__(self, output: str | None, *, held: bool = False, alone: bool = False) -> None:
        self.output = output
        self._alone = alone  # no other process may write meanwhile
        self._held = held  # until all are printed as one object
        self._file: FileIO | None = None
        self._told: Counter[bytes] = Counter()  # lines of this run
        self._is_new = output is not None and not os.path.lexists(output)

    def __enter__(self) -> Self:
        if self.output is not None:
            with write_errors(self.output):
                self._file = self._locked(Path(self.output))
        return self

    def _locked(self, path: Path) -> FileIO:
        """The file, which no process that rewrites it has open."""
        while True:
            file = path.open("ab", buffering=0)
            try:
                fcntl.flock(file, (fcntl.LOCK_EX if self._alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise DPFewShotError(f"another process writes {path}: wait until it is done") from None
            except OSError:  # a file system, or a device, without locks
                return file
            if _is_at(path, file):
                return file
            file.close()  # it was rewritten or taken away meanwhile

    def close(self) -> None:
        """Write no more, so that another process may rewrite the file."""
        if self._file is not None:
            self._file.close()

    def __exit__(self, kind: object, *_: object) -> None:
        if self._file is None or self._file.closed or self.output is None:
            return
        if kind is not None and self._is_new:  # a failed run leaves no file, unless another one writes it
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._file.fileno()).st_size == 0:
                    Path(self.output).unlink()
        self.close()

    def write(self, demonstration: Demonstration, *, again: bool = False) -> None:
        """Write a line; `again`: unless the file has it from the run that this one continues."""
        line = json_line(demonstration)
        encoded = line.encode(errors="replace")
        self._told[encoded.strip()] += 1
        there = lines_of(self.output) if again else Counter()  # another process may have written more
        if self._held or there[encoded.strip()] >= self._told[encoded.strip()]:
            return
        if self._file is None or self.output is None:
            click.echo(line, nl=False)
            return
        try:
            if not _is_at(Path(self.output), self._file):  # an editor saves another file in its place
                self._file.close()
                self._file = self._locked(Path(self.output))
        except (OSError, DPFewShotError) as error:
            self._print(line, str(error))
        data = _missing_end(self.output) + encoded
        before = os.fstat(self._file.fileno()).st_size
        try:
            written, reason = self._file.write(data), "the disk is full"
        except OSError as error:
            written, reason = 0, str(error.strerror)
        if written != len(data):
            # half a line would make the whole file unreadable; who wrote behind it began a line of its own
            with suppress(OSError):
                if os.fstat(self._file.fileno()).st_size == before + written:
                    self._file.truncate(before)
            self._print(line, reason)

    def _print(self, line: str, reason: str) -> NoReturn:
        """Print a line that cannot be written, and raise: it was paid for, so it must not be lost."""
        click.echo(line, nl=False)
        raise DPFewShotError(f"cannot write {self.output}: {reason}; the last line went to standard output")

    def holding(self, released: int, planned: int) -> str:
        """Where what an interrupted run released is."""
        if not released:
            as_before = f", and {self.output} is as it was before" if self.output else ""
            return f"this run released no demonstration{as_before}"
        where = "not printed" if self._held else f"in {self.output}" if self.output else "printed"
        are = "is" if released == 1 else "are"
        return f"{released} of this run's {counted(planned, 'demonstration')} {are} {where}"


def lines_of(path: str | None) -> Counter[bytes]:
    """The lines of a file that are not blank, if there is one, as it is now, without their ends."""
    if path is None or not Path(path).is_file():
        return Counter()
    with write_errors(path):  # editors differ in ends
        text = Path(path).read_bytes().removeprefix(BOM_UTF8)
        return Counter(filter(None, map(bytes.strip, text.splitlines())))


def _is_at(path: Path, file: FileIO) -> bool:
    """Whether the file that is open is the one of this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _missing_end(path: str) -> bytes:
    """The line end that a file lacks, so that a truncated line stays a line of its own."""
    if not Path(path).is_file() or not Path(path).stat().st_size:
        return b""
    with Path(path).open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return b"" if file.read() == b"\n" else b"\n"
