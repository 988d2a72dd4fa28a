"""A run's checkpoint: what it released and which draws were paid for, each on disk before it matters.

The file has one JSON line for each, which is appended and never changed:

    {"checkpoint": "run", "version": 2, "plan": "5c0f...", "file": [64768, 1234567], "weights": "bf16"}
    {"checkpoint": "reserved", "part": 0, "entry": 7, "lease": "9e1b...", "blocks": [15]}
    {"checkpoint": "draw", "part": 0, "of": 0, "label": "Location"}
    {"checkpoint": "not drawn", "part": 0, "of": 0}
    {"checkpoint": "token", "part": 0, "id": 1812}
    {"text": "Where is ...", "label": "Location", "epsilon": 3.99, ...}
    {"checkpoint": "returned", "part": 1}
    {"checkpoint": "resuming", "part": 0, "lease": "04d7..."}

"part" is a stratum's number in the plan, "of" one of its disjoint parts, and "blocks" are draws left. The
line of a draw is on disk before the draw, so that a later run counts at least the draws that were made
(docs/proofs/resuming.md). If the account then refuses the draw, another line takes it back. A ledger counts
draws too and accepts only the newest lease, so it refuses a stale copy. A budget in memory knows nothing of
earlier processes: without a ledger, the file's device and inode tell a copy. One run at a time holds the
file, which holds no private text. It is for the operator alone: an entry's number counts cancelled plans.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dpfewshot.account.reservation import Reservation
from dpfewshot.demonstrations import from_line, json_line
from dpfewshot.errors import InvalidPlan, LedgerError
from dpfewshot.values import Demonstration

_LARGEST: Final = 2**63 - 1


@dataclass
class CheckpointedReservation:
    """What is left of a stratum's reservation.

    Attributes:
        entry: the account's number for it.
        leases: the last one that the account granted, then those requested since.
        draws_left: in each disjoint part.
    """

    entry: int
    leases: list[str]
    draws_left: list[int]


@dataclass
class Unfinished:
    """A demonstration in progress.

    Attributes:
        label: its label.
        released: its tokens so far.
    """

    label: str
    released: list[int] = field(default_factory=list)


@dataclass
class Progress:
    """The state that a checkpoint's lines add up to.

    Attributes:
        finished: the demonstrations, in order.
        reserved: by the number of the stratum.
        unfinished: by the number of the stratum, each of which has one demonstration in progress at most.
    """

    finished: list[Demonstration] = field(default_factory=list)
    reserved: dict[int, CheckpointedReservation] = field(default_factory=dict)
    unfinished: dict[int, Unfinished] = field(default_factory=dict)
    _last: int = field(default=0, repr=False)
    """The stratum of the last draw, whose tokens older versions wrote without its number."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Apply a line; not the first, which names the plan.

        Raises:
            KeyError, IndexError, TypeError, ValueError: it is not a line of a checkpoint.
        """
        match line.get("checkpoint"):
            case "reserved":
                left = [_count(draws) for draws in line["blocks"]]
                reservation = CheckpointedReservation(_count(line["entry"]), [_text(line["lease"])], left)
                self.reserved[_count(line["part"])] = reservation
            case "resuming":
                self.reserved[_count(line["part"])].leases.append(_text(line["lease"]))
            case "returned":
                del self.reserved[_count(line["part"])]
            case "draw":
                self._draw(_count(line["part"]), _count(line["of"]), line["label"])
            case "not drawn":
                self.reserved[_count(line["part"])].draws_left[_count(line["of"])] += 1
            case "token":
                stratum, token = _count(line.get("part", self._last)), _count(line["id"])
                if stratum in self.unfinished:  # else its draw is missing, and the token of no use
                    self.unfinished[stratum].released.append(token)
            case None:
                self._finish(from_line(line))
            case _:
                raise ValueError("unknown line")

    def _draw(self, stratum: int, part: int, label: object) -> None:
        left = self.reserved[stratum].draws_left
        left[part] = max(0, left[part] - 1)  # more lines than draws leave none
        if label is None:  # it serves another caller
            return
        self._last = stratum
        if stratum not in self.unfinished or self.unfinished[stratum].label != label:
            self.unfinished[stratum] = Unfinished(_text(label))

    def _finish(self, demonstration: Demonstration) -> None:
        self.finished.append(demonstration)
        done = [number for number, each in self.unfinished.items() if each.label == demonstration.label]
        for number in done:
            del self.unfinished[number]


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError("not a number of a checkpoint")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not words of a checkpoint")
    return value


VERSION = 2

_START = b'{"checkpoint": "run", '


class NoCheckpoint:
    """Records nothing: what a run without a checkpoint writes to.

    Attributes:
        resumable: whether a later run can resume what this one reserved.
    """

    resumable = False

    @property
    def progress(self) -> Progress:
        """Always that of a new run."""
        return Progress()

    def reserved(self, stratum: int, reservation: Reservation) -> None:
        """See `Checkpoint.reserved`."""

    def resuming(self, stratum: int, lease: str) -> None:
        """See `Checkpoint.resuming`."""

    def returned(self, stratum: int) -> None:
        """See `Checkpoint.returned`."""

    def draw(self, stratum: int, part: int, label: str | None) -> None:
        """See `Checkpoint.draw`."""

    def not_drawn(self, stratum: int, part: int) -> None:
        """See `Checkpoint.not_drawn`."""

    def token(self, stratum: int, token: int) -> None:
        """See `Checkpoint.token`."""

    def finish(self, demonstration: Demonstration) -> None:
        """See `Checkpoint.finish`."""

    def close(self) -> None:
        """See `Checkpoint.close`."""


NO_CHECKPOINT: Final = NoCheckpoint()


class Checkpoint:
    """The file, open and locked until `close`, until this is collected, or until the process ends.

    Args:
        path: created if it does not exist.
        identity: public settings that all runs of one checkpoint share; other ones are refused.
        weights: the form of the model's weights, if it is known; other ones are refused. Older files do not
            name it.
        copies: whether a copy of the file may be opened, because a ledger detects stale ones.

    Attributes:
        progress: of earlier processes and of this one.

    Raises:
        InvalidPlan: the checkpoint is of another plan, or of a model with other weights.
        LedgerError: it cannot be read or written, is damaged, a copy, or held by another run.
    """

    resumable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        identity: Mapping[str, object],
        *,
        weights: str | None = None,
        copies: bool = False,
    ) -> None:
        self.path = Path(path).absolute()
        self.progress = Progress()
        self._weights = weights
        self._lock = threading.Lock()
        self._broken = False
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened: {error.strerror}") from None
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            self._open(_fingerprint(identity), copies=copies)
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """Close and unlock the file."""
        self._close()

    def reserved(
        self, stratum: int, reservation: Reservation, draws_left: Sequence[int] | None = None
    ) -> None:
        """Record what is left of a reservation.

        Args:
            stratum: its number in the plan.
            reservation: of the account.
            draws_left: in each disjoint part; the reservation's by default.
        """
        self._write(
            {
                "checkpoint": "reserved",
                "part": stratum,
                "entry": reservation.entry,
                "lease": reservation.lease,
                "blocks": list(reservation.draws_left if draws_left is None else draws_left),
            }
        )

    def resuming(self, stratum: int, lease: str) -> None:
        """Record a lease before the account is asked for it: it may be granted and the answer lost."""
        self._write({"checkpoint": "resuming", "part": stratum, "lease": lease})

    def returned(self, stratum: int) -> None:
        """Record that an unused reservation is about to go back to the account."""
        self._write({"checkpoint": "returned", "part": stratum})

    def draw(self, stratum: int, part: int, label: str | None) -> None:
        """Record a draw before it is made.

        Args:
            stratum: its number in the plan.
            part: of the disjoint parts.
            label: of the run's demonstration; None if the draw serves another caller.
        """
        self._write({"checkpoint": "draw", "part": stratum, "of": part, "label": label})

    def not_drawn(self, stratum: int, part: int) -> None:
        """Take back the last `draw`: the account refused it."""
        self._write({"checkpoint": "not drawn", "part": stratum, "of": part})

    def token(self, stratum: int, token: int) -> None:
        """Record a released token of the demonstration that a stratum has in progress."""
        # Not forced to disk: a power failure may lose the token, but not its charge.
        self._write({"checkpoint": "token", "part": stratum, "id": token}, durable=False)

    def finish(self, demonstration: Demonstration) -> None:
        """Record the run's demonstration."""
        self._check_open()
        with self._lock:
            self._append(json_line(demonstration).encode(errors="replace"), durable=True)
            self.progress.add(demonstration.as_line())

    def _open(self, identity: str, *, copies: bool) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):  # reading a pipe could block forever
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
            self._read(content[: len(whole) or None].splitlines(), identity, copies=copies)
        if len(whole) < len(content):  # an incomplete line: what it says did not happen
            os.ftruncate(self._file, len(whole))
        if not whole:
            self._write_first(identity)

    def _write_first(self, identity: str) -> None:
        first = {"checkpoint": "run", "version": VERSION, "plan": identity, "file": self._identity()}
        first |= {} if self._weights is None else {"weights": self._weights}
        self._append(json.dumps(first).encode() + b"\n", durable=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # its name too
        finally:
            os.close(folder)

    def _identity(self) -> list[int]:
        """Device and inode, which a copy does not share."""
        status = os.fstat(self._file)
        return [status.st_dev, status.st_ino]

    def _read(self, lines: list[bytes], identity: str, *, copies: bool) -> None:
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
                f"{self.path}: this checkpoint is a copy, and without a ledger it is unknown what its "
                "original drew since. Use the original, or name another file to start anew; "
                "Demonstrations.from_jsonl reads the demonstrations that this one holds"
            )
        if first["plan"] != identity:
            raise InvalidPlan(
                f"{self.path}: this checkpoint is of another plan: the task, labels, settings, budget, data "
                "set or the model's vocabulary differ. Use what it was made with, or name another file"
            )
        weights = first.get("weights")
        if None not in (weights, self._weights) and weights != self._weights:
            raise InvalidPlan(
                f"{self.path}: this checkpoint's model has weights={weights!r}, and this run's has "
                f"weights={self._weights!r}: load it with the former, or name another file"
            )

    def _check_open(self) -> None:
        """Refuse a closed file, whose descriptor may belong to another one by now."""
        if not self._close.alive:
            raise LedgerError(
                f"{self.path}: this checkpoint is closed, or belongs to the parent of this process"
            )

    def _write(self, line: Mapping[str, object], *, durable: bool = True) -> None:
        self._check_open()
        with self._lock:
            self._append(json.dumps(line).encode() + b"\n", durable=durable)
            self.progress.add(line)

    def _append(self, data: bytes, *, durable: bool) -> None:
        if self._broken:
            raise LedgerError(f"{self.path}: an earlier write failed: start again to resume what is there")
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


def _fingerprint(identity: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
