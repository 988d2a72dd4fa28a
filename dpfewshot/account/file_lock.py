"""One transaction at a time on a SQLite file, whatever its path and whoever opens it meanwhile.

SQLite's own locks do not suffice. It names the -wal and -shm files, through which writers exclude each other,
after the path, so two names of one file get two locks. And POSIX drops a process's locks when it closes any
descriptor of the file, as a copy by another thread does. An `flock` belongs to the file and the descriptor.
The descriptor stays open for the process's life: closing it would drop SQLite's locks.

Who waits for the file waits in the kernel's queue, which serves the oldest request first. A blocking `flock`
has no time limit, so a thread asks, and the caller waits for the thread.

What a killed process leaves in its -wal is found only under the same name. So a file with a visible second
name, a hard link or a mount of its own, is refused.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dpfewshot.errors import LedgerError

_MOUNTS: Final = Path("/proc/self/mountinfo")
_PAUSE: Final = 0.02

LOCKED: Final = "another process held it for too long; nothing was changed, try again later"


class _Request:
    """A request for the file that waits in the kernel's queue.

    A caller whose time is up leaves it there, and the next caller takes it over. A second request on the same
    descriptor would succeed together with the first, which would then give the file away.
    """

    def __init__(self, descriptor: int) -> None:
        self.answered = False
        self._granted = self._asked = self._wanted = False
        self._descriptor = descriptor
        self._changed = threading.Condition()

    def wait(self, seconds: float) -> bool:
        """Wait for the answer; returns whether the file is taken."""
        with self._changed:
            if self.answered:  # nobody wanted the file when its turn came
                return False
            self._wanted = True
            try:
                self._ask()
                self._changed.wait_for(lambda: self.answered, max(0.0, seconds))
            except BaseException:
                self._give_away()
                raise
            finally:
                self._wanted = False
            return self._granted

    def _give_away(self) -> None:
        if self._granted:
            self._granted = False
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _ask(self) -> None:
        if self._asked:
            return
        try:
            threading.Thread(target=self._wait_in_queue, name="dpfewshot-ledger-lock", daemon=True).start()
            self._asked = True
        except RuntimeError:  # no thread starts while the interpreter ends
            self.answered = True
            time.sleep(_PAUSE)

    def _wait_in_queue(self) -> None:
        granted = False
        with suppress(OSError):  # the next call meets it too, and reports it
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            granted = True
        with self._changed:
            self.answered, self._granted = True, granted
            if not self._wanted:
                self._give_away()
            self._changed.notify_all()


@dataclass
class _Opened:
    descriptor: int
    depth: int = 0
    request: _Request | None = None


_opened: dict[tuple[int, int], _Opened] = {}


def _open_afresh() -> None:
    # an inherited descriptor shares the parent's lock
    for opened in _opened.values():
        with suppress(OSError):  # a daemon closes all descriptors
            os.close(opened.descriptor)
    _opened.clear()


os.register_at_fork(after_in_child=_open_afresh)


@contextmanager
def locked(file: Path, seconds: float, *, create: bool) -> Iterator[int]:
    """Hold the file, waiting for other processes; yields its descriptor. `LedgerError` if it stayed held.

    Threads take turns before they call this. A thread may begin a transaction within another.
    """
    deadline = time.monotonic() + seconds
    while True:
        opened = _open(file, create=create)
        if not opened.depth and not _taken(opened, deadline):
            raise LedgerError(LOCKED)
        if opened.depth or _open(file, create=create) is opened:  # else another file took its place
            break
        fcntl.flock(opened.descriptor, fcntl.LOCK_UN)
    opened.depth += 1
    try:
        yield opened.descriptor
    finally:
        opened.depth -= 1
        if not opened.depth:
            fcntl.flock(opened.descriptor, fcntl.LOCK_UN)


def check_names(file: Path) -> None:
    """Refuse a file that has a second name: hard links, or a mount of its own."""
    with suppress(FileNotFoundError):
        found = file.stat()
        if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
            raise LedgerError(
                f"the file has {found.st_nlink} names (hard links), of which only one may be left"
            )
    mounts = _MOUNTS.read_text(errors="replace").splitlines() if _MOUNTS.exists() else []
    point = os.path.realpath(file)
    for character in ("\\", " ", "\t", "\n"):  # as the list of mounts has them
        point = point.replace(character, f"\\{ord(character):03o}")
    if point in [line.split(" ", 5)[4] for line in mounts]:
        raise LedgerError("the file is mounted by itself: mount its folder, where SQLite keeps its log")


def _open(file: Path, *, create: bool) -> _Opened:
    with suppress(FileNotFoundError):
        found = file.stat()
        if (found.st_dev, found.st_ino) in _opened:
            return _opened[found.st_dev, found.st_ino]
    _close_deleted()
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
    found = os.fstat(descriptor)
    key = (found.st_dev, found.st_ino)
    if key in _opened:  # another file was put there meanwhile
        os.close(descriptor)
        return _opened[key]
    _opened[key] = _Opened(descriptor)
    return _opened[key]


def _close_deleted() -> None:
    for key, opened in list(_opened.items()):
        waiting = opened.request is not None and not opened.request.answered
        if not opened.depth and not waiting and not os.fstat(opened.descriptor).st_nlink:
            os.close(_opened.pop(key).descriptor)


def _taken(opened: _Opened, deadline: float) -> bool:
    while True:
        if opened.request is None or opened.request.answered:
            try:
                fcntl.flock(opened.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                opened.request = _Request(opened.descriptor)
            else:
                return True
        if opened.request.wait(deadline - time.monotonic()):
            return True
        if time.monotonic() >= deadline:
            return False
