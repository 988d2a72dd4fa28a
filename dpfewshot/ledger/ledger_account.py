"""One data set's budget in a ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dpfewshot.budget.account import Cost, Details, Receipt, other_kind
from dpfewshot.budget.amounts import LARGEST, Amount
from dpfewshot.budget.draws import DrawCounts
from dpfewshot.budget.scopes import check_partition
from dpfewshot.budget.tally import EMPTY
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import VERIFY, details_of
from dpfewshot.ledger.history import CANCEL, CHARGE, SETTLE, as_json, as_shown
from dpfewshot.ledger.verification import Snapshot, Verification, check
from dpfewshot.runtime.redaction import redacts_errors_of_methods
from dpfewshot.values import UNNAMED_UNIT, PrivacyBudget, PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.ledger.store import Store
    from dpfewshot.ledger.stored_account import StoredAccount


@redacts_errors_of_methods(LedgerError, f"the ledger ({VERIFY})")
class LedgerAccount:
    """One data set's budget in a ledger; an `Account` (dpfewshot.budget.account).

    Threads, processes and forked children may use it at the same time. Every method raises `LedgerError` if
    the database fails, and then nothing may be drawn.
    """

    def __init__(self, store: Store, stored: StoredAccount) -> None:
        self._store = store
        self._stored = stored

    def __repr__(self) -> str:
        return f"LedgerAccount({self.dataset!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process opens the ledger at the same address. The pickle holds its password."""
        return _reopened, (self._store.address, self._stored)

    @property
    def dataset(self) -> str:
        """The data set whose budget this is."""
        return self._stored.dataset

    @property
    def relation(self) -> str:
        """The neighbouring relation of every plan on this account."""
        return self._stored.relation

    @property
    def unit(self) -> str | None:
        """The column that names whom a record belongs to; None where each record is a unit of its own."""
        return self._stored.unit

    @property
    def parallel(self) -> bool:
        """Whether plans over different strata of the recorded partition compose in parallel."""
        return self._stored.parallel

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        return self._store.standing(self._stored).limit.as_budget()

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged, by every process: the smaller ε of those that the rule certifies."""
        return self._store.standing(self._stored).spent.as_spend()

    @property
    def remaining(self) -> PrivacySpend:
        """What a plan over the whole data set may still reserve."""
        return self._store.standing(self._stored).left.as_remainder()

    @property
    def entries(self) -> int:
        """The number of entries that make up what is spent; cancelled ones do not count."""
        return self._store.standing(self._stored).entries

    @property
    def partition(self) -> str | None:
        """The one partition whose strata compose in parallel, as "task#fingerprint".

        None until a plan over a stratum is reserved.
        """
        return self._store.standing(self._stored).partition

    @property
    def chain_tip(self) -> str:
        """The hash of the last event. Noted elsewhere, it lets `verify` find a copy or new history."""
        return self._store.standing(self._stored).chain_tip

    @property
    def rule(self) -> str:
        """How plans count: "sum" or "renyi"."""
        return self._stored.rule.admission

    @property
    def plans_left(self) -> int | None:
        """How many more plans like the last one fit, over the same units; None before the first plan.

        Counted up to a million. `summary` has the number of each stratum.
        """
        return self._store.standing(self._stored).plans_left

    def summary(self) -> dict[str, object]:
        """Budget, spend, entries and strata at one moment, as `dpfewshot ledger show --json` prints them.

        A stratum's scope is None for the whole data set. Its spend is that of its own plans; `remaining` is
        what a plan over it may still cost, and `plans_left` how many more plans like the account's last fit.
        """
        standing = self._store.standing(self._stored)
        budget, spent = standing.limit.as_budget(), standing.spent.as_spend()
        return {
            "dataset": self.dataset,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
            "entries": standing.entries,
            "strata": [
                {
                    "scope": scope,
                    **asdict(amount.as_spend()),
                    "remaining": asdict(standing.left_in(scope).as_remainder()),
                    "plans_left": standing.plans_left_in(scope),
                }
                for scope, amount in standing.spent_by_scope.items()
            ],
        }

    def bind(self, relations: frozenset[str], unit: str | None) -> None:
        """State what the costs to come hold for. See `Account.bind`."""
        if self.relation not in relations or self.unit != unit or unit == UNNAMED_UNIT:
            name = f"the account of the data set {self.dataset!r}"
            raise LedgerError(other_kind(name, [self.relation], self.unit, relations, unit))

    @property
    def durable(self) -> bool:
        """True: every process sees the same entries and their draws."""
        return True

    def reserve(
        self, scope: str | None, cost: Cost, details: Details, draws: DrawCounts | None = None
    ) -> int:
        """Reserve a plan's whole cost, on disk, and return the entry's number. See `Account.reserve`.

        What is reserved counts as spent until it is cancelled, even if this process dies.

        Raises:
            BudgetExceeded: it does not fit; nothing is changed.
            InvalidPlan: the cost is negative or not finite.
            LedgerError: the scope belongs to another partition than the account's, or the account does not
                agree with its history.
        """
        kept = details_of(details, draws)
        return self._store.reserve(self._stored, scope, self._stored.rule.tally(cost), kept, draws)

    def check(self, plans: Iterable[tuple[str | None, Cost]]) -> None:
        """Refuse plans that do not all fit, one after another, and reserve none of them.

        Args:
            plans: the scope and the cost of each, as in `reserve`.

        Raises:
            BudgetExceeded: one does not fit.
            LedgerError: a scope belongs to another partition than the account's.
        """
        standing, rule = self._store.standing(self._stored), self._stored.rule
        sums = dict(standing.totals.sums)
        for scope, cost in plans:
            where = scope if self.parallel else None
            if where is not None:
                check_partition(standing.partition, where)
            tally = rule.admitted(sums, where, rule.tally(cost), standing.limit)
            sums[where] = sums.get(where, EMPTY).plus(tally)

    def receipt(self, entry: int) -> Receipt:
        """Where an entry is recorded. See `Receipts`."""
        return Receipt(self.unit, self.dataset, self._store.reservation_of(self._stored, entry))

    def record_release(self, entry: int, lease: str, digest: str, times: int) -> None:
        """Record that an entry released a demonstration. See `Receipts.record_release`."""
        self._store.record_release(self._stored, entry, lease, digest, times)

    def charge(self, entry: int) -> None:
        """Charge the whole entry before the plan draws; on disk when this returns. Idempotent.

        Raises:
            LedgerError: the entry belongs to another account, was settled or cancelled, or the charge could
                not be recorded; nothing may be drawn.
        """
        self._store.move(self._stored, entry, CHARGE)

    def draw(self, entry: int, lease: str, part: int) -> None:
        """Charge one draw; on disk when this returns. The first one is the entry's charge in the history.

        Raises:
            BudgetExceeded: the disjoint part has no draw left.
            LedgerError: another run resumed the entry, it draws no more, or the charge could not be
                recorded; nothing may be drawn.
        """
        self._store.draw(self._stored, entry, lease, part)

    def draw_ahead(self, entry: int, lease: str, part: int, count: int) -> int:
        """Charge several draws in one commit. See `DrawsAhead`."""
        return self._store.draw(self._stored, entry, lease, part, count)

    def give_back(self, entry: int, lease: str, part: int, count: int) -> None:
        """Give back draws that were charged ahead. See `DrawsAhead`."""
        self._store.give_back(self._stored, entry, lease, part, count)

    def resume(
        self,
        entry: int,
        scope: str | None,
        cost: Cost,
        details: Details,
        *,
        known: Collection[str],
        draws: DrawCounts,
    ) -> tuple[int, tuple[int, ...]]:
        """Replace an entry's lease, which the history records; a run with an older lease draws no more.

        Raises:
            LedgerError: the checkpoint is stale, or the entry was reserved by another event, for another
                plan, or by a version that counted no draws.
        """
        if draws.lease in known:
            return entry, draws.left
        plan = scope, Amount.of_cost(cost), as_json(details)
        return entry, self._store.resume(self._stored, entry, plan, known, draws)

    def settle(self, entry: int, lease: str | None = None) -> None:
        """Close an entry that drew: all of it stays spent, and it draws no more. Idempotent.

        Nothing changes if the entry has another lease: another run resumed it.

        Raises:
            LedgerError: the entry belongs to another account or was never charged.
        """
        self._store.move(self._stored, entry, SETTLE, lease)

    def cancel(self, entry: int) -> None:
        """Give back the whole cost of a plan that never drew; one that drew stays charged."""
        self._store.move(self._stored, entry, CANCEL)

    def change_budget(self, budget: PrivacyBudget) -> None:
        """Replace the budget, which the history records. A larger one weakens the promise that was given.

        Args:
            budget: what may be spent in all, including what is spent already. If it is less than that,
                nothing more fits.

        Raises:
            LedgerError: the ledger cannot store it.
        """
        self._store.change_budget(self._stored, limit_of(budget))

    def history(self) -> list[dict[str, object]]:
        """Every event since the account was created: when, who, what. Numbers, scopes and settings only."""
        return [as_shown(row) for row in self.snapshot().history]

    def verify(self, chain_tip: str | None = None) -> Verification:
        """Recompute the chain of hashes and compare the account and its entries with the history.

        Args:
            chain_tip: the hash of an event, noted elsewhere, which the history must contain. An older copy
                and a rewritten history do not contain it.
        """
        return check(self.snapshot(), chain_tip)

    def snapshot(self) -> Snapshot:
        """The account, its entries and its history as they are stored at one moment."""
        return self._store.snapshot(self._stored)

    def export(self) -> dict[str, object]:
        """The account, its entries and its history as they are stored, for archives and other programs."""
        return self.snapshot().as_dict()


def _reopened(address: str, stored: StoredAccount) -> LedgerAccount:
    return LedgerAccount(_store_at(address), stored)


@lru_cache(maxsize=8)
def _store_at(address: str) -> Store:
    """One store a process for each ledger that pickled accounts name."""
    from dpfewshot.ledger.store import Store

    return Store(address)


def limit_of(budget: PrivacyBudget) -> Amount:
    """A budget as an exact amount.

    Raises:
        LedgerError: the columns cannot hold it.
    """
    limit = Amount.of_budget(budget)
    if min(limit) < 1 or max(limit) > LARGEST:
        raise LedgerError(f"a ledger keeps epsilon from 1e-12 to 9e6 and delta from 1e-18, not {budget}")
    return limit


def check_unit(unit: str | None) -> None:
    """Refuse a unit column without a name, or with the name that stands for none.

    Raises:
        LedgerError: it is blank or that name.
    """
    if unit is not None and not unit.strip():
        raise LedgerError("unit must be the name of a column, or None where a unit is one record")
    if unit == UNNAMED_UNIT:
        raise LedgerError(
            f"{unit!r} stands for a unit column that nobody named: give the column another name"
        )
