"""How many draws an entry has left, and which run may make them (docs/proofs/resuming.md).

A ledger stores an entry's draws, its lease and a hash over both. The history has them where they are granted
("reserve", "resume") and where they end ("settle"). A draw changes the entry alone: a row for each draw would
store the order in which plans drew, which depends on how many records they drew
(docs/decisions/checkpoints.md).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dpfewshot.account.history import LEASE, VERIFY, hash_of
from dpfewshot.errors import BudgetExceeded, LedgerError

WHAT_TO_DO = (
    "resume from the newest checkpoint and its own ledger, or name another file to start anew; "
    "Demonstrations.from_jsonl reads the demonstrations that this one holds"
)
"""The advice of every refusal to resume."""

USED_UP = "all draws of the plan are used: a further plan needs further budget"
COUNTED = "this entry counts its draws: charge each with draw()"
NOT_COUNTED = "this entry counts no draws: charge it as a whole with charge()"


@dataclass(frozen=True)
class DrawCounts:
    """The draws that a reservation has left.

    Attributes:
        left: in each of the disjoint parts.
        lease: a random public value that names the one run that may draw. Every resume replaces it.
    """

    left: tuple[int, ...]
    lease: str

    def check(self) -> None:
        """Refuse what an account could not read back.

        Raises:
            LedgerError: a count is no whole number of at least 0, no part has one, or the lease is no text.
        """
        sound = all(type(count) is int and count >= 0 for count in self.left)
        if not self.left or not sound or not isinstance(self.lease, str):
            raise LedgerError("draws are counted by whole numbers of at least 0, one for each disjoint part")

    def after(self, entry: int, lease: str, part: int, count: int = 1) -> DrawCounts:
        """What is left after some draws.

        Args:
            entry: the reservation's number, for the message.
            lease: of the run that draws.
            part: the disjoint part that it draws from.
            count: how many, at least 1; fewer are taken if fewer are left.

        Raises:
            LedgerError: another run resumed the reservation.
            BudgetExceeded: the part has no draw left.
        """
        if lease != self.lease:
            raise LedgerError(f"entry {entry} was resumed by another run: this run draws no more")
        if not 0 <= part < len(self.left) or self.left[part] < 1:
            raise BudgetExceeded(USED_UP)
        return self._with(part, self.left[part] - min(max(1, _whole(count)), self.left[part]))

    def given_back(self, part: int, count: int, granted: DrawCounts) -> DrawCounts:
        """What is left once draws that were taken and not made are given back.

        Args:
            part: the disjoint part that they were taken from.
            count: how many, at least 0.
            granted: what the lease began with.

        Raises:
            LedgerError: more would be left than the lease began with.
        """
        known = 0 <= part < len(self.left)
        if not known or _whole(count) < 0 or self.left[part] + count > granted.left[part]:
            raise LedgerError("more draws are given back than were taken")
        return self._with(part, self.left[part] + count)

    def _with(self, part: int, left: int) -> DrawCounts:
        return DrawCounts((*self.left[:part], left, *self.left[part + 1 :]), self.lease)

    def resumed(self, entry: int, known: Collection[str], told: DrawCounts) -> DrawCounts:
        """What a resuming run may draw: in every disjoint part the least that either count leaves.

        Which units are in which disjoint part is private and not stored, so every part counts as far as the
        one that drew most.

        Args:
            entry: the reservation's number, for the message.
            known: leases of the checkpoint; one of them must be the present one.
            told: the draws that the checkpoint leaves, and the new lease.

        Raises:
            LedgerError: the checkpoint is stale, or a count is below 0.
        """
        if self.lease not in known:
            raise LedgerError(
                f"entry {entry} was resumed since this checkpoint was written, from another copy of it: "
                + WHAT_TO_DO
            )
        least = min((*self.left, *told.left))
        if least < 0:
            raise LedgerError(f"entry {entry} cannot have {least} draws left: {WHAT_TO_DO}")
        return DrawCounts((least,) * len(self.left), told.lease)


def _whole(count: int) -> int:
    if type(count) is not int:
        raise LedgerError("draws are counted by whole numbers")
    return count


def new_lease() -> str:
    """A lease that no other run has."""
    return secrets.token_hex(16)


def columns(draws: DrawCounts | None) -> dict[str, str | None]:
    """The entry's columns for its draws; empty if it counts none."""
    if draws is None:
        return {"blocks": None, "lease": None, "draws_hash": None}
    return {"blocks": json.dumps(draws.left), "lease": draws.lease, "draws_hash": hash_of(_named(draws))}


def draws_of(row: Mapping[str, Any]) -> DrawCounts | None:
    """The draws in an entry's columns; None if it counts none.

    Raises:
        LedgerError: the columns do not match their hash.
    """
    if row["blocks"] is None and row["lease"] is None:
        return None
    try:
        draws = DrawCounts(tuple(json.loads(row["blocks"])), row["lease"])
        agrees = hash_of(_named(draws)) == row["draws_hash"]
    except (TypeError, ValueError):
        agrees = False
    if not agrees:
        raise LedgerError(f"the draws of entry {row['id']} were changed behind the ledger's back: {VERIFY}")
    return draws


def granted(draws: DrawCounts | None) -> dict[str, object]:
    """The details of an event that grants draws, or ends them."""
    return {} if draws is None else {LEASE: _named(draws)}


def draws_in(details: Mapping[str, Any]) -> DrawCounts | None:
    """The draws in an event's details; None if there are none."""
    match details.get(LEASE):
        case {"id": str(lease), "blocks": [*blocks]} if all(isinstance(left, int) for left in blocks):
            return DrawCounts(tuple(blocks), lease)
        case _:
            return None


def _named(draws: DrawCounts) -> dict[str, object]:
    return {"id": draws.lease, "blocks": list(draws.left)}
