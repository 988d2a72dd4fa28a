"""How many draws a reservation has left, and which run may make them (docs/proofs/resuming.md)."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

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
        if _whole(count) < 0 or self.left[part] + count > granted.left[part]:
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
