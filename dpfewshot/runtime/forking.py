"""What a forked child must not take over: locks that nobody will open, threads, reservations."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that starts afresh in a child."""

    def after_fork(self) -> None:
        """Called in the child, where no other thread runs, before anything else."""
        ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def start_afresh_in_children(thing: Forkable) -> None:
    """Have `thing.after_fork()` called in every child, for as long as the thing lives."""
    _watched.add(thing)


def _after_fork() -> None:
    for thing in list(_watched):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork)
