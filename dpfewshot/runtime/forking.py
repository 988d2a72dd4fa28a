"""Resets locks, threads and reservations after a fork."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that a forked child must reset."""

    def after_fork(self) -> None:
        """Reset the object. Runs first in the child, where no other thread exists."""
        ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def start_afresh_in_children(thing: Forkable) -> None:
    """Call `thing.after_fork()` in every forked child for as long as the object lives."""
    _watched.add(thing)


def _after_fork() -> None:
    for thing in list(_watched):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork)
