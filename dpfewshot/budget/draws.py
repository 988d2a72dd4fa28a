"""The draws of one reservation: how many are left, and which run may make them (docs/proofs/resuming.md)."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from dpfewshot.errors import BudgetExceeded, LedgerError

WHAT_TO_DO = (
    "go on from the newest checkpoint and its own ledger, or name another file to start anew; "
    "Demonstrations.from_jsonl reads the demonstrations that this one holds"
)
"""The advice of every refusal to resume."""

COUNTED = "this entry counts its draws: charge each with draw()"
NOT_COUNTED = "this entry counts no draws: charge it as a whole with charge()"


@dataclass(frozen=True)
class Draws:
    """The draws that are left of a reservation.

    Attributes:
        blocks: left in each of the disjoint parts.
        lease: a random public value that names the run which may draw. Every resume replaces it.
    """

    blocks: tuple[int, ...]
    lease: str

    def after_one(self, entry: int, lease: str, part: int) -> Draws:
        """What is left after one block of a part.

        Args:
            entry: the reservation's number, for the message.
            lease: of the run that draws.
            part: which of the disjoint parts.

        Raises:
            LedgerError: another run resumed the reservation.
            BudgetExceeded: the part has no block left.
        """
        if lease != self.lease:
            raise LedgerError(f"entry {entry} was resumed by another run: this run draws no more")
        if not 0 <= part < len(self.blocks) or self.blocks[part] < 1:
            raise BudgetExceeded("the plan's tokens are all used: a further plan needs further budget")
        return Draws((*self.blocks[:part], self.blocks[part] - 1, *self.blocks[part + 1 :]), self.lease)

    def resumed(self, entry: int, known: Collection[str], told: Draws) -> Draws:
        """What a resuming run may draw: in every part the least that either count leaves.

        Who is in which disjoint part is private and not stored, so all parts count as far as the furthest.

        Args:
            entry: the reservation's number, for the message.
            known: leases of the checkpoint; one of them must be the present one.
            told: the blocks that the checkpoint leaves, and the new lease.

        Raises:
            LedgerError: the checkpoint is stale, or a count is below 0.
        """
        if self.lease not in known:
            raise LedgerError(
                f"entry {entry} was resumed since this checkpoint was written, from another copy of it: "
                + WHAT_TO_DO
            )
        least = min((*self.blocks, *told.blocks))
        if least < 0:
            raise LedgerError(f"entry {entry} cannot have {least} draws left: {WHAT_TO_DO}")
        return Draws((least,) * len(self.blocks), told.lease)


def new_lease() -> str:
    """A lease that no other run has."""
    return secrets.token_hex(16)
