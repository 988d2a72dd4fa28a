"""A run's checkpoint: what it released, and which draws were paid for, each on disk before it matters.

One JSON line each, appended and never changed:

    {"checkpoint": "run", "version": 2, "plan": "5c0f...", "file": [64768, 1234567]}
    {"checkpoint": "reserved", "part": 0, "entry": 7, "lease": "9e1b...", "blocks": [15]}
    {"checkpoint": "draw", "part": 0, "of": 0, "label": "Location"}
    {"checkpoint": "not drawn", "part": 0, "of": 0}
    {"checkpoint": "token", "id": 1812}
    {"text": "Where is ...", "label": "Location", "epsilon": 3.99, ...}
    {"checkpoint": "returned", "part": 1}
    {"checkpoint": "resuming", "part": 0, "lease": "04d7..."}

A draw's line is on disk before the draw, so that a later run counts at least the draws there were
(docs/proofs/resuming.md). Where the account then refuses it, another line takes it back. A ledger counts too,
and accepts the newest lease: a stale copy is refused. A budget in memory knows nothing of earlier
processes: without a ledger, a copy is known by the file's device and number. One run at a time holds the
file. It has released text and public facts alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dpfewshot.budget.reservation import Reservation
from dpfewshot.demonstrations import from_line, json_line
from dpfewshot.errors import InvalidPlan, LedgerError
from dpfewshot.values import Demonstration

VERSION = 2

_START = b'{"checkpoint": "run", '

_LARGEST: Final = 2**63 - 1


@dataclass
class KeptReservation:
    """What a part reserved.

    Attributes:
        entry: the account's number for it.
        leases: the one that the account granted last, and those that were asked for since.
        blocks: what is left of it in each of the disjoint parts.
    """

    entry: int
    leases: list[str]
    blocks: list[int]


@dataclass
class Progress:
    """What the lines of a checkpoint say, one after another.

    Attributes:
        finished: the demonstrations, in order.
        reserved: by the number of the plan's part.
        label: of the demonstration in the making; None where there is none.
        released: its tokens so far.
    """

    finished: list[Demonstration] = field(default_factory=list)
    reserved: dict[int, KeptReservation] = field(default_factory=dict)
    label: str | None = None
    released: list[int] = field(default_factory=list)

    def add(self, line: Mapping[str, Any]) -> None:
        """Take up a line after the first.

        Raises:
            KeyError, IndexError, TypeError, ValueError: it is not a line of a checkpoint.
        """
        match line.get("checkpoint"):
            case "reserved":
                blocks = [_count(left) for left in line["blocks"]]
                kept = KeptReservation(_count(line["entry"]), [_words(line["lease"])], blocks)
                self.reserved[_count(line["part"])] = kept
            case "resuming":
                self.reserved[_count(line["part"])].leases.append(_words(line["lease"]))
            case "returned":
                del self.reserved[_count(line["part"])]
            case "draw":
                blocks, of = self.reserved[_count(line["part"])].blocks, _count(line["of"])
                blocks[of] = max(0, blocks[of] - 1)  # of more lines than blocks none is left
                self.label = self.label if line["label"] is None else _words(line["label"])
            case "not drawn":
                self.reserved[_count(line["part"])].blocks[_count(line["of"])] += 1
            case "token":
                self.released.append(_count(line["id"]))
            case None:
                self.finished.append(from_line(line))
                self.label, self.released = None, []
            case _:
                raise ValueError("unknown line")


class Checkpoint:
    """The file, open and locked until `close`, until this is collected, or until the process ends.

    Args:
        path: made if it is not there.
        plan: says what is being made: all public settings. Another plan's checkpoint is refused.
        copies: whether a copy may be opened, since a ledger finds the stale ones.

    Attributes:
        progress: what was done, by earlier processes and by this one.

    Raises:
        InvalidPlan: the checkpoint is of another plan.
        LedgerError: it cannot be read or written, is damaged, a copy, or held by another run.
    """

    def __init__(
        self, path: str | os.PathLike[str], plan: Mapping[str, object], *, copies: bool = False
    ) -> None:
        self.path = Path(path).absolute()
        self.progress = Progress()
        self._lock = threading.Lock()
        self._broken = False
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened: {error.strerror}") from None
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            self._open(_fingerprint(plan), copies=copies)
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """Let another run have it."""
        self._close()

    def reserved(self, part: int, entry: int, lease: str, blocks: list[int]) -> None:
        """A part has so many blocks under this lease, in each of its disjoint parts."""
        self._write(
            {"checkpoint": "reserved", "part": part, "entry": entry, "lease": lease, "blocks": blocks}
        )

    def keep(self, part: int, reservation: Reservation) -> None:
        """A part has what is left of a reservation."""
        self.reserved(part, reservation.entry, reservation.lease, list(reservation.draws_left))

    def resuming(self, part: int, lease: str) -> None:
        """A part is about to ask the account for a new lease, which may be granted without an answer."""
        self._write({"checkpoint": "resuming", "part": part, "lease": lease})

    def returned(self, part: int) -> None:
        """A part is about to give back what it reserved, for nothing was drawn."""
        self._write({"checkpoint": "returned", "part": part})

    def draw(self, part: int, of: int, label: str | None) -> None:
        """A block is about to be drawn.

        Args:
            part: of the plan.
            of: which of its disjoint parts.
            label: of the run's demonstration; None where the draw is for another caller.
        """
        self._write({"checkpoint": "draw", "part": part, "of": of, "label": label})

    def not_drawn(self, part: int, of: int) -> None:
        """The block of the last `draw` was not drawn: the account gave no leave."""
        self._write({"checkpoint": "not drawn", "part": part, "of": of})

    def token(self, token: int) -> None:
        """A token of the run's demonstration was released."""
        # not forced to the disk: a power failure may cost it, and it was paid for
        self._write({"checkpoint": "token", "id": token}, durable=False)

    def finish(self, demonstration: Demonstration) -> None:
        """The run's demonstration is done."""
        self._check_alive()
        with self._lock:
            self._append(json_line(demonstration).encode(errors="replace"), durable=True)
            self.progress.add(demonstration.as_line())

    def _open(self, plan: str, *, copies: bool) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):  # reading a pipe would wait for ever
            raise LedgerError(f"{self.path}: is not a regular file: name another one")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = self.path.read_bytes()
        except BlockingIOError:
            raise LedgerError(
                f"{self.path}: another run holds this checkpoint: wait until it ends, or name another file"
            ) from None
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read: {error.strerror}") from None
        whole = content[: content.rfind(b"\n") + 1]
        started = content[: len(_START)] == _START[: len(content)]
        if whole or not started:
            self._read(content[: len(whole) or None].splitlines(), plan, copies=copies)
        if len(whole) < len(content):  # a line that was not written to its end: what it says did not happen
            os.ftruncate(self._file, len(whole))
        if not whole:
            self._write_first(plan)

    def _write_first(self, plan: str) -> None:
        first = {"checkpoint": "run", "version": VERSION, "plan": plan, "file": self._identity()}
        self._append(_encoded(first), durable=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the file's name too
        finally:
            os.close(folder)

    def _identity(self) -> list[int]:
        """Which file this is, as a copy is not."""
        status = os.fstat(self._file)
        return [status.st_dev, status.st_ino]

    def _read(self, lines: list[bytes], plan: str, *, copies: bool) -> None:
        number = 1
        try:
            first = _first(lines[0])
            for number, line in enumerate(lines[1:], start=2):  # noqa: B007 - the message names it
                self.progress.add(json.loads(line))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError):
            raise LedgerError(
                f"{self.path}: line {number} is not a checkpoint's of version {VERSION}: name another file"
            ) from None
        if not copies and first["file"] != self._identity():
            raise LedgerError(
                f"{self.path}: this checkpoint is a copy, and without a ledger nobody knows what its "
                "original drew since. Use the original; or name another file to start anew: "
                "Demonstrations.from_jsonl reads the demonstrations that are here"
            )
        if first["plan"] != plan:
            raise InvalidPlan(
                f"{self.path}: this checkpoint is of another plan: the task, labels, settings, budget, data "
                "set or the model's vocabulary differ. Give what it was made with, or name another file"
            )

    def _check_alive(self) -> None:
        """The descriptor of a closed file may be somebody else's by now."""
        if not self._close.alive:
            raise LedgerError(
                f"{self.path}: this checkpoint is closed, or it is the parent's of this process"
            )

    def _write(self, line: Mapping[str, object], *, durable: bool = True) -> None:
        self._check_alive()
        with self._lock:
            self._append(_encoded(line), durable=durable)
            self.progress.add(line)

    def _append(self, data: bytes, *, durable: bool) -> None:
        if self._broken:
            raise LedgerError(f"{self.path}: a write failed before: start again to go on from what is there")
        before = os.fstat(self._file).st_size
        try:
            whole, reason = os.write(self._file, data) == len(data), "the disk is full"
            if whole and durable:
                os.fsync(self._file)
        except OSError as error:
            whole, reason = False, str(error.strerror)
        if not whole:
            self._broken = True
            with suppress(OSError):  # what the line says does not happen
                os.ftruncate(self._file, before)
            raise LedgerError(f"{self.path}: cannot be written: {reason}")


def _first(line: bytes) -> dict[str, Any]:
    first: dict[str, Any] = json.loads(line)
    if (first["checkpoint"], first["version"]) != ("run", VERSION) or not {"plan", "file"} <= first.keys():
        raise ValueError("not the first line of a checkpoint")
    return first


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError("not a number of a checkpoint")
    return value


def _words(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not words of a checkpoint")
    return value


def _encoded(line: Mapping[str, object]) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _fingerprint(plan: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
