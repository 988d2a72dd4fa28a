"""The typed accountant: reserves a plan, charges before each draw, and knows what is spent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from dpfewshot.budget.account import Account, Details
from dpfewshot.budget.draws import Draws, new_lease
from dpfewshot.budget.permit import Permit
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacySpend


class Reservation:
    """A plan's share of an account: a number of blocks whose noise was fixed beforehand.

    A block is one draw of records and up to `tokens_per_draw` tokens on it. What is left of a block
    is forfeited; whole blocks that are left serve further demonstrations of the same plan (design
    note 5.4). Nothing comes back to the account once a block was drawn.

    Args:
        account: who is charged; None for runs without a guarantee.
        entry: the account's number for the plan.
        blocks: draws from each part.
        tokens_per_draw: R.
        noise_multiplier: σ that the cost was computed for.
        parts: P, disjoint parts of the records, each with as many blocks: they compose in parallel.
        lease: names this run to the account, which counts each block before it is drawn.
        resumed: whether an earlier run may have drawn from it, so that nothing comes back.

    Attributes:
        lease: as above.
        asked: whether the account was asked for a block. It may have charged one without an answer, so
            from then on the reservation is kept.
    """

    def __init__(
        self,
        account: Account | None,
        entry: int,
        *,
        blocks: int,
        tokens_per_draw: int,
        noise_multiplier: float,
        parts: int = 1,
        lease: str = "",
        resumed: bool = False,
    ) -> None:
        self._blocks_left = [blocks] * parts
        self._account = account
        self._entry = entry
        self.lease = lease
        self._tokens_per_block = tokens_per_draw
        self._noise_multiplier = noise_multiplier
        self.asked = self._drawn = resumed
        self._closed = False
        self._lock = threading.Lock()

    @property
    def entry(self) -> int:
        """The account's number for the plan; 0 without an account."""
        return self._entry

    @property
    def draws_left(self) -> tuple[int, ...]:
        """Draws that are left, in each of the disjoint parts."""
        return tuple(self._blocks_left)

    def part_for(self, blocks: int) -> int:
        """The part with the most blocks left, which the next demonstration draws from.

        Args:
            blocks: that the demonstration may need.

        Raises:
            BudgetExceeded: no part has as many; says how many tokens are left.
        """
        part = max(range(len(self._blocks_left)), key=self._blocks_left.__getitem__)
        if self._blocks_left[part] < blocks:
            left = self._blocks_left[part] * self._tokens_per_block
            advice = (
                f"; max_tokens={left} would still fit" if left else ": a further plan needs further budget"
            )
            raise BudgetExceeded(f"the plan's tokens are used, but for {left}{advice}")
        return part

    @property
    def used_up(self) -> bool:
        """Whether no block is left in any part."""
        return not any(self._blocks_left)

    def draw(self, part: int = 0) -> Permit:
        """Charge one block of a part and return the permit for its tokens.

        Raises:
            BudgetExceeded: no block is left.
            LedgerError: the account could not record the charge, or its answer was lost; nothing may be
                drawn, and the block may be asked for again: the account counts for itself.
        """
        with self._lock:
            if self._blocks_left[part] < 1:
                raise BudgetExceeded("the plan's tokens are all used: a further plan needs further budget")
            self.asked = True
            if self._account is not None:
                self._account.draw(self._entry, self.lease, part)
            self._drawn = True
            self._blocks_left[part] -= 1
            return Permit(self._tokens_per_block, self._noise_multiplier)

    def hand_over(self) -> None:
        """Leave what is left to a later run, which resumes it. No block can be drawn here afterwards."""
        with self._lock:
            self._account = None
            self._blocks_left = [0] * len(self._blocks_left)

    def close(self) -> None:
        """Return everything to the account if nothing was drawn, else settle. No block can be drawn any more.

        Raises:
            LedgerError: what was not drawn could not be given back; it stays spent, and nothing changes
                here, so that `close` may be called again.
        """
        with self._lock:
            if self._account is not None and not self._closed:
                if not self._drawn:
                    self._account.cancel(self._entry)  # leaves what it may have charged as it is
                if self.asked:
                    # charged or settled, it counts the same: what was released must not be lost for it
                    with suppress(LedgerError):
                        self._account.settle(self._entry, self.lease)
            self._closed = True
            self._blocks_left = [0] * len(self._blocks_left)


class Accountant:
    """Tracks what is spent of one account.

    Args:
        account: where the budget is kept; None for runs without a guarantee, which spend nothing and
            say `private=False`.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account

    @property
    def durable(self) -> bool:
        """Whether the account counts draws for every process."""
        return self._account is not None and self._account.durable

    @property
    def keeps_account(self) -> bool:
        """Whether a budget is charged. Without one there is no guarantee."""
        return self._account is not None

    @property
    def spent(self) -> PrivacySpend:
        """A certified upper bound on what was reserved or charged, (0, 0) without an account."""
        return self._account.spent if self._account else PrivacySpend(0.0, 0.0)

    @property
    def remaining(self) -> PrivacySpend:
        """What a further plan over the whole data set may reserve, (0, 0) without an account."""
        return self._account.remaining if self._account else PrivacySpend(0.0, 0.0)

    def reserve(
        self,
        cost: PrivacySpend | None,
        *,
        scope: str | None,
        blocks: int,
        tokens_per_draw: int,
        noise_multiplier: float,
        details: Details,
        parts: int = 1,
    ) -> Reservation:
        """Reserve a whole plan.

        Args:
            cost: the plan's certified (ε, δ); None without an account.
            scope: the part of the account's partition that the plan draws from; None for all of it.
            blocks: how many draws of each part the cost was computed for.
            tokens_per_draw: how many tokens share one draw.
            noise_multiplier: the σ that the cost was computed for.
            details: public facts for the account's history.
            parts: P, disjoint parts of the records.

        Raises:
            BudgetExceeded: the cost does not fit; nothing is reserved.
        """
        entry, lease = 0, new_lease()
        if self._account is not None and cost is not None:
            entry = self._account.reserve(scope, cost, details, Draws((blocks,) * parts, lease))
        return Reservation(
            self._account,
            entry,
            blocks=blocks,
            tokens_per_draw=tokens_per_draw,
            noise_multiplier=noise_multiplier,
            parts=parts,
            lease=lease,
        )

    def resume(
        self,
        entry: int,
        cost: PrivacySpend | None,
        *,
        scope: str | None,
        blocks: int,
        tokens_per_draw: int,
        noise_multiplier: float,
        details: Details,
        known: Sequence[str],
        lease: str,
        parts: int = 1,
    ) -> Reservation:
        """Go on with what an earlier run reserved and may have drawn from (docs/proofs/resuming.md).

        Args:
            entry: the account's number for it.
            cost: the plan's certified (ε, δ), as it was reserved; None without an account.
            scope: the part of the account's partition, as it was reserved.
            blocks: that the checkpoint leaves, of each part; the account may leave fewer.
            tokens_per_draw: how many tokens share one draw.
            noise_multiplier: as it was reserved.
            details: as they were reserved.
            known: leases of the checkpoint.
            lease: this run's, which is in the checkpoint already; one of `known` leaves the entry as it is.
            parts: P, disjoint parts of the records.

        Raises:
            BudgetExceeded: an account in memory has not the room for it.
            LedgerError: the checkpoint is stale, or the account's entry is not the one that it names.
        """
        if self._account is not None and cost is not None:
            told = Draws((blocks,) * parts, lease)
            entry, left = self._account.resume(entry, scope, cost, details, known=known, draws=told)
            blocks = min(left)
        return Reservation(
            self._account,
            entry,
            blocks=blocks,
            tokens_per_draw=tokens_per_draw,
            noise_multiplier=noise_multiplier,
            parts=parts,
            lease=lease,
            resumed=True,
        )
