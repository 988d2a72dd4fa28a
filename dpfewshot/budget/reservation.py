"""The accountant: reserves a plan, charges each draw before it is made, and knows what is spent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from dpfewshot.budget.account import Account, Cost, Details, Receipt, draws_ahead, in_words, receipts
from dpfewshot.budget.delegation import DelegatedDraw, OneCharge
from dpfewshot.budget.draws import USED_UP, DrawCounts, new_lease
from dpfewshot.budget.permit import Permit
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.values import PrivacySpend


class Reservation:
    """A number of draws reserved from an account, whose noise is fixed beforehand.

    One draw of records serves up to `tokens_per_draw` tokens; those left over are forfeited. Draws that are
    left serve further demonstrations of the same plan (docs/proofs/composition.md). Nothing comes back to the
    account after the first draw.

    Draws may be charged ahead, several in one commit. Those that are not made by `close` or `hand_over` are
    given back to the entry; those of a process that dies count as made (docs/proofs/resuming.md).

    Args:
        account: the account to charge; None for runs without a guarantee.
        entry: the account's number for the plan.
        draws: how many draws each disjoint part has.
        tokens_per_draw: R ≥ 1.
        noise_multiplier: the σ that the cost was computed for.
        disjoint_parts: P ≥ 1. The parts are disjoint, so their draws compose in parallel.
        lease: names this run to the account, which counts each draw before it is made.
        resumed: whether an earlier run may have drawn from it, so that nothing comes back.
        draws_at_once: how many draws to charge in one commit, at least 1.

    Attributes:
        lease: as above.
        asked: whether a draw was requested from the account. It may have charged one and lost the answer, so
            from then on the reservation is kept.
    """

    def __init__(
        self,
        account: Account | None,
        entry: int,
        *,
        draws: int,
        tokens_per_draw: int,
        noise_multiplier: float,
        disjoint_parts: int = 1,
        lease: str = "",
        resumed: bool = False,
        draws_at_once: int = 1,
    ) -> None:
        self._left = [draws] * disjoint_parts
        self._ahead = [0] * disjoint_parts  # charged, and not made
        self._at_once = draws_at_once
        self._account = account
        self._history = receipts(account)
        self._entry = entry
        self.lease = lease
        self._tokens_per_draw = tokens_per_draw
        self._noise_multiplier = noise_multiplier
        self.asked = self._drawn = resumed
        self._closed = False
        self._lock = threading.Lock()
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """Forget the draws that the parent charged ahead: it makes them."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._ahead[:] = [0] * len(self._ahead)

    @property
    def entry(self) -> int:
        """The account's number for the plan; 0 without an account."""
        return self._entry

    @property
    def draws_left(self) -> tuple[int, ...]:
        """The draws left in each disjoint part."""
        return tuple(self._left)

    def part_for(self, draws: int) -> int:
        """The disjoint part with the most draws left, which the next demonstration draws from.

        Args:
            draws: the most that the demonstration may need.

        Raises:
            BudgetExceeded: no part has as many; says how many tokens remain.
        """
        part = max(range(len(self._left)), key=self._left.__getitem__)
        if self._left[part] < draws:
            tokens = self._left[part] * self._tokens_per_draw
            if not tokens:
                raise BudgetExceeded("no tokens remain in this plan: a further plan needs further budget")
            raise BudgetExceeded(
                f"only {tokens} tokens remain in this plan; max_tokens={tokens} would still fit"
            )
        return part

    @property
    def used_up(self) -> bool:
        """Whether no disjoint part has a draw left."""
        return not any(self._left)

    def draw(self, part: int = 0) -> Permit:
        """Charge one draw from a disjoint part and return the permit for its tokens.

        Raises:
            BudgetExceeded: no draw is left.
            LedgerError: the account could not record the charge, or its answer was lost. Nothing may be
                drawn; the draw may be requested again, since the account keeps its own count.
        """
        with self._lock:
            draw = self._one_of(part)
            self.asked = True
            if not self._ahead[part]:
                self._ahead[part] = draw.charge_ahead(min(self._at_once, self._left[part]))
            self._drawn = True
            self._ahead[part] -= 1
            self._left[part] -= 1
            return Permit(self._tokens_per_draw, self._noise_multiplier)

    def delegate(self, part: int) -> DelegatedDraw:
        """One draw from a disjoint part for a worker to charge. It counts as made until `report` or `renew`.

        Raises:
            BudgetExceeded: no draw is left.
        """
        with self._lock:
            self._give_back()  # the worker takes a draw of its own
            draw = self._one_of(part)
            self._left[part] -= 1
            counted = self._account is None or self._account.durable
            return draw if counted else replace(draw, once=OneCharge())

    def report(self, part: int, *, asked: bool, charged: bool) -> None:
        """Count what a worker did with a delegated draw.

        Args:
            part: of the disjoint parts.
            asked: whether the worker asked the account for it.
            charged: whether the account granted it.
        """
        with self._lock:
            self.asked = self.asked or asked
            self._drawn = self._drawn or charged
            if not charged:
                self._left[part] += 1

    def renew(self, part: int, lease: str, scope: str | None, cost: Cost | None, details: Details) -> None:
        """Replace the lease after a worker died with a delegated draw, which can then be charged no more.

        With several disjoint parts the draw counts as made, and the lease stays: a resume would count the
        draws of one part for all of them.

        Args:
            part: that the draw was delegated from.
            lease: the new one, which is in the checkpoint already.
            scope: as it was reserved.
            cost: as it was reserved; None without an account.
            details: as they were reserved.

        Raises:
            LedgerError: the account cannot be asked, or another run resumed the reservation.
        """
        with self._lock:
            self.asked = self._drawn = True
            if self._account is None or cost is None or len(self._left) > 1:
                return
            self._ahead[part] = 0  # counts as made: the account's count is without it
            told = DrawCounts((self._left[part] + 1,), lease)
            _, left = self._account.resume(self._entry, scope, cost, details, known=(self.lease,), draws=told)
            self.lease, self._left = lease, list(left)

    def _one_of(self, part: int) -> DelegatedDraw:
        if self._left[part] < 1:
            raise BudgetExceeded(USED_UP)
        return DelegatedDraw(
            self._account, self._entry, self.lease, part, self._tokens_per_draw, self._noise_multiplier
        )

    def record_release(self, digest: str, times: int) -> None:
        """Record a released demonstration in the account's history, if it keeps one.

        See `Receipts.record_release`. It may follow `close` and `hand_over`: what was drawn is paid for.
        """
        if self._history is not None:
            self._history.record_release(self._entry, self.lease, digest, times)

    def hand_over(self) -> None:
        """Leave the remaining draws to a later run, which resumes them; this object draws no more."""
        with self._lock:
            self._give_back()
            self._account = None
            self._left = [0] * len(self._left)

    def close(self) -> None:
        """Give everything back to the account if nothing was drawn, else settle. No draw can follow.

        Raises:
            LedgerError: the cost could not be given back. It stays spent and nothing changes here, so `close`
                may be called again.
        """
        with self._lock:
            if self._account is not None and not self._closed:
                if not self._drawn:
                    self._account.cancel(self._entry)  # keeps an entry that it may have charged
                self._give_back()
                if self.asked:
                    # an entry counts the same charged or settled: a failure must not lose what was released
                    with suppress(LedgerError):
                        self._account.settle(self._entry, self.lease)
            self._closed = True
            self._left = [0] * len(self._left)

    def _give_back(self) -> None:
        """Give back what was charged and not made. What fails to come back counts as made."""
        for part, count in enumerate(self._ahead):
            self._ahead[part] = 0  # first: after a lost answer nothing may come back twice
            if count and (ahead := draws_ahead(self._account)):
                with suppress(LedgerError):
                    ahead.give_back(self._entry, self.lease, part, count)


class Accountant:
    """Reserves plans from one account and tells what is spent of it.

    Args:
        account: where the budget is kept; None for runs without a guarantee, which spend nothing and
            say `certified=False`.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account

    def __repr__(self) -> str:
        return f"Accountant({self._account!r})"  # reads no database

    def __str__(self) -> str:
        if self._account is None:
            return "no account: nothing is certified"
        return f"spent {in_words(self.spent)}; {in_words(self.remaining)} remain"

    @property
    def durable(self) -> bool:
        """Whether the account counts draws for every process."""
        return self._account is not None and self._account.durable

    @property
    def keeps_account(self) -> bool:
        """Whether a budget is charged. Without one there is no guarantee."""
        return self._account is not None

    def receipt(self, entry: int) -> Receipt:
        """Where an entry is recorded, as far as the account says so."""
        history = receipts(self._account)
        return history.receipt(entry) if history else Receipt(self._account.unit if self._account else None)

    @property
    def spent(self) -> PrivacySpend:
        """A certified upper bound on what is reserved or charged; (0, 0) without an account."""
        return self._account.spent if self._account else PrivacySpend(0.0, 0.0)

    @property
    def remaining(self) -> PrivacySpend:
        """What a further plan over the whole data set may reserve; (0, 0) without an account."""
        return self._account.remaining if self._account else PrivacySpend(0.0, 0.0)

    def reserve(
        self,
        cost: Cost | None,
        *,
        scope: str | None,
        draws: int,
        tokens_per_draw: int,
        noise_multiplier: float,
        details: Details,
        disjoint_parts: int = 1,
        draws_at_once: int = 1,
    ) -> Reservation:
        """Reserve a whole plan.

        Args:
            cost: the plan's certified (ε, δ); None without an account.
            scope: the stratum of the account's partition that the plan draws from; None for the whole data
                set.
            draws: how many draws from each disjoint part the cost was computed for.
            tokens_per_draw: R ≥ 1, how many tokens share one draw.
            noise_multiplier: the σ that the cost was computed for.
            details: public facts for the account's history.
            disjoint_parts: P ≥ 1, disjoint parts of the stratum's units.
            draws_at_once: how many draws to charge in one commit, at least 1.

        Raises:
            BudgetExceeded: the cost does not fit; nothing is reserved.
        """
        entry, lease = 0, new_lease()
        if self._account is not None and cost is not None:
            counts = DrawCounts((draws,) * disjoint_parts, lease)
            entry = self._account.reserve(scope, cost, details, counts)
        return Reservation(
            self._account,
            entry,
            draws=draws,
            tokens_per_draw=tokens_per_draw,
            noise_multiplier=noise_multiplier,
            disjoint_parts=disjoint_parts,
            lease=lease,
            draws_at_once=draws_at_once,
        )

    def resume(
        self,
        entry: int,
        cost: Cost | None,
        *,
        scope: str | None,
        draws: int,
        tokens_per_draw: int,
        noise_multiplier: float,
        details: Details,
        known: Sequence[str],
        lease: str,
        disjoint_parts: int = 1,
        draws_at_once: int = 1,
    ) -> Reservation:
        """Resume what an earlier run reserved and may have drawn from (docs/proofs/resuming.md).

        Args:
            entry: the account's number for it.
            cost: the plan's certified (ε, δ), as it was reserved; None without an account.
            scope: the stratum of the account's partition, as it was reserved.
            draws: what the checkpoint leaves in each disjoint part; the account may leave fewer.
            tokens_per_draw: R ≥ 1, how many tokens share one draw.
            noise_multiplier: as it was reserved.
            details: as they were reserved.
            known: leases of the checkpoint.
            lease: this run's, which is in the checkpoint already; one of `known` leaves the entry as it is.
            disjoint_parts: P ≥ 1, disjoint parts of the stratum's units.
            draws_at_once: how many draws to charge in one commit, at least 1.

        Raises:
            BudgetExceeded: an account in memory has no room for it.
            LedgerError: the checkpoint is stale, or the account's entry is not the one that it names.
        """
        if self._account is not None and cost is not None:
            told = DrawCounts((draws,) * disjoint_parts, lease)
            entry, left = self._account.resume(entry, scope, cost, details, known=known, draws=told)
            draws = min(left)
        return Reservation(
            self._account,
            entry,
            draws=draws,
            tokens_per_draw=tokens_per_draw,
            noise_multiplier=noise_multiplier,
            disjoint_parts=disjoint_parts,
            lease=lease,
            resumed=True,
            draws_at_once=draws_at_once,
        )
