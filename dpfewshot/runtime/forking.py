"""Resets locks, threads and reservations after a fork, and caches without a lock."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

Value = TypeVar("Value")


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


class Home:
    """The process that an object was made in. A forked child is another one, in whichever container it is."""

    def __init__(self) -> None:
        self._process, self._forked = os.getpid(), False
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """Note that this is a child's copy. Its number would not tell: every container has a process 1."""
        self._forked = True

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return not self._forked and os.getpid() == self._process


class cached_property(Generic[Value]):  # noqa: N801 - named as in functools
    """`functools.cached_property` without its lock.

    Before Python 3.12 that lock is one for all objects of a class. A child that is forked while another
    thread computes would wait for it for ever, in the ledger with the account's row locked.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
