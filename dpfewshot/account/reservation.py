"""A plan's reservation: charges each draw before it is made. Without an account nothing is charged."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn, SupportsIndex

from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.amounts import Cost
from dpfewshot.account.draws import USED_UP, DrawCounts, new_lease
from dpfewshot.account.history import Details
from dpfewshot.account.memory import ELSEWHERE
from dpfewshot.account.permit import Permit
from dpfewshot.errors import BudgetExceeded, InvalidPlan, LedgerError
from dpfewshot.runtime.forking import start_afresh_in_children


@dataclass(frozen=True)
class Terms:
    """What is reserved. A run that resumes states the same.

    Attributes:
        cost: the plan's certified (ε, δ); None without an account.
        scope: the stratum of the account's partition that the plan draws from; None for the whole data set.
        draws: how many draws from each disjoint part the cost was computed for.
        tokens_per_draw: R ≥ 1, how many tokens share one draw.
        noise_multiplier: the σ that the cost was computed for.
        details: public facts for the account's history.
        disjoint_parts: P ≥ 1. The parts are disjoint, so their draws compose in parallel.
        draws_at_once: how many draws to charge in one commit, at least 1.
    """

    cost: Cost | None
    scope: str | None
    draws: int
    tokens_per_draw: int
    noise_multiplier: float
    details: Details
    disjoint_parts: int = 1
    draws_at_once: int = 1


class Reservation:
    """A number of draws reserved from an account, whose noise is fixed beforehand.

    One draw of records serves up to `tokens_per_draw` tokens; those left over are forfeited. Draws that are
    left serve further demonstrations of the same plan (docs/proofs/composition.md). Nothing comes back to the
    account after the first draw.

    Draws may be charged ahead, several in one commit. Those that are not made by `close` or `hand_over` are
    given back to the entry; those of a process that dies count as made (docs/proofs/resuming.md).

    Args:
        account: the account to charge; None for runs without a guarantee.
        terms: what is reserved.
        reserved: the account's number and identifier for the plan.
        lease: names this run to the account, which counts each draw before it is made.
        left: the draws left in each disjoint part; None for all of them.

    Attributes:
        lease: as above.
        asked: whether a draw was requested from the account. It may have charged one and lost the answer, so
            from then on the reservation is kept.
    """

    def __init__(
        self,
        account: Account | None,
        terms: Terms,
        reserved: Reserved,
        lease: str,
        left: tuple[int, ...] | None = None,
    ) -> None:
        self._left = [terms.draws] * terms.disjoint_parts if left is None else list(left)
        self._ahead = [0] * len(self._left)  # charged, and not made
        self._account = self._history = account
        self._terms = terms
        self._reserved = reserved
        self.lease = lease
        self.asked = self._drawn = left is not None  # an earlier run may have drawn: nothing comes back
        self._closed = False
        self._lock = threading.Lock()
        start_afresh_in_children(self)

    @classmethod
    def make(cls, account: Account | None, terms: Terms) -> Reservation:
        """Reserve a whole plan.

        Raises:
            BudgetExceeded: the cost does not fit; nothing is reserved.
        """
        lease = new_lease()
        if account is None or terms.cost is None:
            return cls(None, terms, Reserved(0, None), lease)
        counts = DrawCounts((terms.draws,) * terms.disjoint_parts, lease)
        try:
            return cls(account, terms, account.reserve(terms.scope, terms.cost, terms.details, counts), lease)
        except (BudgetExceeded, InvalidPlan):
            raise
        except BaseException:  # an interrupt or a lost answer may come after the commit
            with suppress(LedgerError):
                account.withdraw(lease)
            raise

    @classmethod
    def resume(
        cls,
        account: Account | None,
        terms: Terms,
        entry: int,
        *,
        draws: int,
        known: Collection[str],
        lease: str,
    ) -> Reservation:
        """Resume what an earlier run reserved and may have drawn from (docs/proofs/resuming.md).

        Args:
            account: the account that it was reserved from; None for runs without a guarantee.
            terms: as it was reserved.
            entry: the account's number for it.
            draws: what the checkpoint leaves in each disjoint part; the account may leave fewer.
            known: leases of the checkpoint.
            lease: this run's, which is in the checkpoint already; one of `known` leaves the entry as it is.

        Raises:
            BudgetExceeded: an account in memory has no room for it.
            LedgerError: the checkpoint is stale, or the account's entry is not the one that it names.
        """
        told = DrawCounts((draws,) * terms.disjoint_parts, lease)
        if account is None or terms.cost is None:
            return cls(None, terms, Reserved(entry, None), lease, told.left)
        reserved, left = account.resume(
            entry, terms.scope, terms.cost, terms.details, known=known, draws=told
        )
        return cls(account, terms, reserved, lease, (min(left),) * terms.disjoint_parts)

    def after_fork(self) -> None:
        """Forget the draws that the parent charged ahead: it makes them."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._ahead[:] = [0] * len(self._ahead)

    @property
    def entry(self) -> int:
        """The account's number for the plan; 0 without an account."""
        return self._reserved.entry

    @property
    def identifier(self) -> str | None:
        """The random identifier that certificates name; None where no ledger keeps one."""
        return self._reserved.reservation

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
            tokens = self._left[part] * self._terms.tokens_per_draw
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
                self._ahead[part] = draw.charge_ahead(min(self._terms.draws_at_once, self._left[part]))
            self._drawn = True
            self._ahead[part] -= 1
            self._left[part] -= 1
            return Permit(self._terms.tokens_per_draw, self._terms.noise_multiplier)

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

    def renew(self, part: int, lease: str) -> None:
        """Replace the lease after a worker died with a delegated draw, which can then be charged no more.

        With several disjoint parts the draw counts as made, and the lease stays: a resume would count the
        draws of one part for all of them.

        Args:
            part: that the draw was delegated from.
            lease: the new one, which is in the checkpoint already.

        Raises:
            LedgerError: the account cannot be asked, or another run resumed the reservation.
        """
        with self._lock:
            self.asked = self._drawn = True
            terms = self._terms
            if self._account is None or terms.cost is None or len(self._left) > 1:
                return
            self._ahead[part] = 0  # counts as made: the account's count is without it
            told = DrawCounts((self._left[part] + 1,), lease)
            _, left = self._account.resume(
                self.entry, terms.scope, terms.cost, terms.details, known=(self.lease,), draws=told
            )
            self.lease, self._left = lease, list(left)

    def _one_of(self, part: int) -> DelegatedDraw:
        if self._closed or self._left[part] < 1:
            raise BudgetExceeded(USED_UP)
        tokens, noise = self._terms.tokens_per_draw, self._terms.noise_multiplier
        return DelegatedDraw(self._account, self.entry, self.lease, part, tokens, noise)

    def record_release(self, digest: str, times: int) -> None:
        """Record a released demonstration in the account's history, if a ledger keeps one.

        See `Account.record_release`. It may follow `close` and `hand_over`: what was drawn is paid for.
        """
        if self._history is not None and self.identifier is not None:
            self._history.record_release(self.entry, self.lease, digest, times)

    def hand_over(self) -> None:
        """Leave the remaining draws to a later run, which resumes them; this object draws no more."""
        with self._lock:
            self._give_back()
            self._account, self._closed = None, True
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
                    self._account.cancel(self.entry)  # keeps an entry that it may have charged
                self._give_back()
                if self.asked:
                    # an entry counts the same charged or settled: a failure must not lose what was released
                    with suppress(LedgerError):
                        self._account.settle(self.entry, self.lease)
            self._closed = True
            self._left = [0] * len(self._left)

    def _give_back(self) -> None:
        """Give back what was charged and not made. What fails to come back counts as made."""
        for part, count in enumerate(self._ahead):
            self._ahead[part] = 0  # first: after a lost answer nothing may come back twice
            if count and self._account is not None:
                with suppress(LedgerError):
                    self._account.give_back(self.entry, self.lease, part, count)


class OneCharge:
    """Lets a delegated draw be charged once. Its caller can take it back as long as it is not charged.

    Accounts without a ledger need it: a run that resumes goes by the checkpoint alone, so what became of a
    draw must be known.
    """

    def __init__(self) -> None:
        self._used = False
        self._lock = threading.Lock()

    def use(self) -> bool:
        """Use it up, and return whether that was left to do."""
        with self._lock:
            used, self._used = self._used, True
            return not used

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: each copy could be charged."""
        raise LedgerError("workers of other processes need a ledger, which counts their draws: " + ELSEWHERE)


@dataclass(frozen=True, repr=False)
class DelegatedDraw:
    """One draw of a reservation, for a thread, process or host that charges it and makes it.

    It pickles where its account does. With a ledger each copy charges a draw of its own, so a task that an
    executor runs twice is paid for twice, and never exceeds the reservation. Without one it is charged once.

    Attributes:
        account: the account to charge; None for runs without a guarantee.
        entry: the account's number for the plan.
        lease: names the run to the account.
        part: the disjoint part to draw from.
        tokens_per_draw: R ≥ 1.
        noise_multiplier: the σ that the cost was computed for.
        once: where no ledger counts the draws; else None.
    """

    account: Account | None
    entry: int
    lease: str
    part: int
    tokens_per_draw: int
    noise_multiplier: float
    once: OneCharge | None = None

    def charge(self) -> Permit:
        """Charge the draw and return the permit for its tokens.

        Raises:
            BudgetExceeded: no draw is left.
            LedgerError: the account could not record the charge, or it was charged or taken back before;
                nothing may be drawn.
        """
        if self.once is not None and not self.once.use():
            raise LedgerError("this draw was charged or taken back before: nothing is drawn")
        self.charge_ahead(1)
        return Permit(self.tokens_per_draw, self.noise_multiplier)

    def take_back(self) -> bool:
        """Prevent a charge that has not happened, and return whether the draw is left.

        With a ledger nothing is prevented, and the ledger's own count says what is left.
        """
        return self.once is None or self.once.use()

    def charge_ahead(self, count: int) -> int:
        """Charge several draws of the part in one commit, and return how many.

        Raises:
            BudgetExceeded: no draw is left.
            LedgerError: the account could not record the charge; nothing may be drawn.
        """
        if self.account is None:
            return count
        return self.account.draw(self.entry, self.lease, self.part, count)
