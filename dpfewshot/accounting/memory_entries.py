"""The entries of an account in memory: what became of each, and which draws are left of it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfewshot.accounting.draws import COUNTED, NOT_COUNTED, WHAT_TO_DO, Draws
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.accounting.account import Details, Units


@dataclass
class Entry:
    """One plan: its cost, and how far it got."""

    scope: str | None
    cost: Units
    draws: Draws | None = None
    charged: bool = False
    settled: bool = False


class MemoryEntries(ABC):
    """Entries by their number, under the lock of the account that adds them."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    @property
    @abstractmethod
    def _lock(self) -> threading.Lock: ...

    @abstractmethod
    def reserve(
        self, scope: str | None, cost: PrivacySpend, details: Details, draws: Draws | None = None
    ) -> int:
        """Add an entry."""

    @property
    def durable(self) -> bool:
        """False: other processes see nothing of it."""
        return False

    def charge(self, entry: int) -> None:
        """Mark an entry as drawn."""
        with self._lock:
            found = self._open(entry, counted=False)
            found.charged = True

    def draw(self, entry: int, lease: str, part: int) -> None:
        """Count one block of an entry's part as drawn."""
        with self._lock:
            found = self._open(entry, counted=True)
            assert found.draws is not None  # noqa: S101 - `_open` looked
            found.draws = found.draws.after_one(entry, lease, part)
            found.charged = True

    def resume(
        self,
        entry: int,
        scope: str | None,
        cost: PrivacySpend,
        details: Details,
        *,
        known: Collection[str],
        draws: Draws,
    ) -> tuple[int, tuple[int, ...]]:
        """Replace an entry's lease. An entry of a process that is gone is set aside anew, whole."""
        with self._lock:
            unknown = entry not in self._entries
        if unknown:
            entry, known = self.reserve(scope, cost, details, draws), (draws.lease,)
        elif not any(draws.blocks):
            return entry, draws.blocks
        with self._lock:
            found = self._entries[entry]
            if found.settled or found.draws is None:
                raise LedgerError(f"entry {entry} draws no more: {WHAT_TO_DO}")
            found.draws = found.draws.resumed(entry, known, draws)
            found.charged = True
            return entry, found.draws.blocks

    def settle(self, entry: int, lease: str | None = None) -> None:
        """Mark an entry that drew as finished, unless another run resumed it."""
        with self._lock:
            found = self._entries.get(entry)
            if found is None or not found.charged:
                raise LedgerError("this reservation was never charged: it cannot be settled")
            if lease is None or (found.draws is not None and found.draws.lease == lease):
                found.settled = True

    def cancel(self, entry: int) -> None:
        """Forget an entry that never drew; one that did stays."""
        with self._lock:
            if entry in self._entries and not self._entries[entry].charged:
                del self._entries[entry]

    def _open(self, entry: int, *, counted: bool) -> Entry:
        found = self._entries.get(entry)
        if found is None or found.settled:
            state = "cancelled" if found is None else "settled"
            raise LedgerError(f"this reservation was {state}: it cannot be charged")
        if (found.draws is not None) != counted:
            raise LedgerError(NOT_COUNTED if counted else COUNTED)
        return found
