"""An account: a budget, what is spent of it, and the rules by which plans spend it."""

from __future__ import annotations

import json
import secrets
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, SupportsIndex

from dpfewshot.account.amounts import LARGEST, Amount, Cost, in_words
from dpfewshot.account.draws import DrawCounts, Terms, draws_in, granted, new_lease, released_in
from dpfewshot.account.history import (
    CANCEL,
    CANCELLED,
    CHANGE_BUDGET,
    CHARGE,
    CHARGED,
    LEASE,
    MOVES,
    OPEN,
    PAID,
    POPULATION,
    RELEASE,
    RELEASED,
    RESERVATION,
    RESERVE,
    RESERVED,
    RESUME,
    SETTLE,
    SETTLED,
    VERIFY,
    Details,
    as_json,
    as_shown,
    plan_facts,
)
from dpfewshot.account.memory import AccountSettings, Entry, MemoryStore
from dpfewshot.account.rule import Admission, Rule
from dpfewshot.account.scopes import stratum_of
from dpfewshot.account.verification import Snapshot, Verification, check, tally_of, within
from dpfewshot.errors import BudgetExceeded, InvalidPlan, LedgerError, RunTakenOver
from dpfewshot.runtime.redaction import redacts_errors, redacts_errors_of_methods
from dpfewshot.values import PrivacyBudget, PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.account.sql import SqlStore, SqlTransaction

    Change = MemoryStore | SqlTransaction

NAME_IT: Final = (
    "these records were made by hand and have units of a column that nobody named: name it with unit="
)


class Reserved(NamedTuple):
    """A reserved plan: its number, and the random name that certificates have of it; None in memory."""

    entry: int
    reservation: str | None


@redacts_errors_of_methods(LedgerError, f"the account ({VERIFY})")
class Account:
    """A budget and what is spent of it. An entry is reserved, drawn from and settled, or cancelled unused.

    A `BudgetLedger` has durable ones, which threads, processes and forked children may use at the same time;
    `in_memory` makes one that ends with its process, for notebooks and for several releases that share it.
    Every method raises `LedgerError` if the store fails, and then nothing may be drawn.
    """

    def __init__(self, store: MemoryStore | SqlStore) -> None:
        self._store = store
        settings = store.settings
        self._relations = None if settings.relation is None else frozenset({settings.relation})
        self._unit = settings.unit

    @classmethod
    def in_memory(cls, budget: PrivacyBudget, *, parallel: bool = True, rule: str = Admission.SUM) -> Self:
        """An account that lives as long as its process. A forked child is refused: it would spend it again.

        Args:
            budget: what may be spent in all.
            parallel: as in `BudgetLedger.create`.
            rule: "sum" or "renyi", as in `BudgetLedger.create`.

        Raises:
            InvalidPlan: an unknown rule, or a budget too small for it.
        """
        limit = Amount.of_budget(budget)
        return cls(MemoryStore(limit, AccountSettings(Rule.of(rule, limit), parallel)))

    def __repr__(self) -> str:
        return f"Account({self.dataset or 'in memory'!r})"  # reads no database

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """A copy opens the same ledger. An account in memory refuses: a copy would spend the budget again."""
        if not self.durable:
            self._store.__reduce_ex__(protocol)
        return super().__reduce_ex__(protocol)

    @redacts_errors(LedgerError, f"the account ({VERIFY})")
    def __str__(self) -> str:
        standing = self._store.standing()
        spent, left = standing.spent.as_spend(), standing.left().as_remainder()
        return f"spent {in_words(spent)}; {in_words(left)} remain"

    # ---- what it is for

    @property
    def dataset(self) -> str | None:
        """The data set whose budget this is; None for an account in memory."""
        return self._store.settings.dataset

    @property
    def durable(self) -> bool:
        """Whether all processes see the same entries, so that a run can be resumed."""
        return self._store.durable

    @property
    def relation(self) -> str | None:
        """The neighbouring relation of every plan; None while several are possible, in memory."""
        relations = tuple(self._relations or ())
        return relations[0] if len(relations) == 1 else None

    @property
    def unit(self) -> str | None:
        """The column that names whom a record belongs to; None where each record is a unit of its own."""
        return self._unit

    @property
    def parallel(self) -> bool:
        """Whether plans over different strata of the recorded partition compose in parallel."""
        return self._store.settings.parallel

    @property
    def rule(self) -> str:
        """How plans count: "sum" or "renyi"."""
        return self._store.settings.rule.admission

    def bind(self, relations: frozenset[str], unit: str | None) -> str | None:
        """State what the costs to come hold for, and return the account's relation; None while it is open.

        Call it before spending: ε over records and ε over customers, or over two kinds of neighbours, cannot
        be combined.

        Args:
            relations: the neighbouring relations that they hold for, at least one.
            unit: the name of the unit column; "" where nobody named it; None where each record is a unit.

        Raises:
            LedgerError: the account is for another relation or unit, or durable, and nobody named the unit.
        """
        if unit == "" and self.durable:
            raise LedgerError(f"{NAME_IT}; an account of a ledger must be able to compare it")
        with nullcontext() if self.durable else self._store.change():  # threads take turns
            common = relations if self._relations is None else relations & self._relations
            if not common or (self._relations is not None and unit != self._unit):
                name = "the account" + (f" {self.dataset!r}" if self.dataset else "")
                raise LedgerError(other_kind(name, self._relations or (), self._unit, relations, unit))
            self._relations, self._unit = common, unit
        return self.relation

    # ---- what is spent

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        return self._store.standing().limit.as_budget()

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged, over all scopes: the smaller ε of those that the rule certifies."""
        return self._store.standing().spent.as_spend()

    @property
    def remaining(self) -> PrivacySpend:
        """What a plan over the whole data set may still reserve."""
        return self._store.standing().left().as_remainder()

    @property
    def entries(self) -> int:
        """The number of entries that make up what is spent; cancelled ones do not count."""
        return self._store.standing().totals.count

    @property
    def partition(self) -> str | None:
        """The one partition whose strata compose in parallel, as "task#fingerprint".

        None until a plan over a stratum is reserved.
        """
        return self._store.standing().partition

    @property
    def chain_tip(self) -> str:
        """The hash of the last event. Noted elsewhere, it lets `verify` find a copy or new history."""
        return self._store.standing().chain_tip

    @property
    def plans_left(self) -> int | None:
        """How many more plans like the last one fit, over the same units; None before the first plan.

        Counted up to a million. `summary` has the number of each stratum.
        """
        standing = self._store.standing()
        return standing.plans_left(standing.last[0]) if standing.last else None

    def summary(self) -> dict[str, object]:
        """Budget, spend, entries and strata at one moment, as `dpfewshot ledger show --json` prints them.

        A stratum's scope is None for the whole data set. Its spend is that of its own plans; `remaining` is
        what a plan over it may still cost, and `plans_left` how many more plans like the account's last fit.
        """
        standing = self._store.standing()
        return {
            "dataset": self.dataset,
            "budget": asdict(standing.limit.as_remainder()),
            "spent": asdict(standing.spent.as_spend()),
            "entries": standing.totals.count,
            "strata": [
                {
                    "scope": scope,
                    **asdict(amount.as_spend()),
                    "remaining": asdict(standing.left(scope).as_remainder()),
                    "plans_left": standing.plans_left(scope),
                }
                for scope, amount in standing.spent_by_scope.items()
            ],
        }

    def check(self, plans: Iterable[tuple[str | None, Cost]]) -> tuple[PrivacySpend, PrivacySpend]:
        """Refuse plans that do not all fit, one after another, and reserve none of them.

        Args:
            plans: the scope and the cost of each, as in `reserve`.

        Returns:
            What would be spent with them, and what a plan over the whole data set might then still reserve.

        Raises:
            BudgetExceeded: one does not fit.
            LedgerError: a scope belongs to another partition than the account's.
        """
        standing = self._store.standing()
        for scope, cost in plans:
            try:
                standing.admit(self._counted(scope), standing.rule.tally(cost))
            except BudgetExceeded:  # what is spent already says more than the plans before
                spent = self._store.standing()
                spent.admit(self._counted(scope), spent.rule.tally(cost))
                raise
        return standing.spent.as_spend(), standing.left().as_remainder()

    # ---- the life of an entry

    def reserve(self, scope: str | None, cost: Cost, details: Details, draws: DrawCounts) -> Reserved:
        """Reserve a plan's whole cost. It counts as spent until it is cancelled, even if this process dies.

        Args:
            scope: the stratum of the account's partition that the plan draws from; None for the whole data
                set. Scopes that name no partition ("refund", without "task#…: ") count as strata of one: the
                caller answers for it that they have no unit in common.
            cost: the plan's certified (ε, δ). A run passes an `Amount`, which counts ε in 10⁻¹² and δ in
                10⁻¹⁸; an `EventCost` also says what it was computed for. A `PrivacySpend` is rounded up.
            details: public facts for the history.
            draws: the draws that the cost pays for, which `draw` counts.

        Raises:
            BudgetExceeded: it does not fit; nothing is changed.
            InvalidPlan: the cost is negative or not finite.
            LedgerError: the scope belongs to another partition than the account's, or the account does not
                agree with its history.
        """
        reservation = secrets.token_hex(16)
        for name in (LEASE, RESERVATION):
            if name in details:
                raise LedgerError(f"an entry's details cannot be called {name!r}")
        draws.check()
        # random: an entry's number would count cancelled plans, and a hash of the event would cover times
        kept = as_json({**details, **granted(draws), RESERVATION: reservation})
        scope, tally = self._counted(scope), self._store.settings.rule.tally(cost)
        with self._store.change() as change:
            standing = change.checked()
            entry = change.add(scope, standing.admit(scope, tally), draws)
            change.record(RESERVE, entry, kept, totals=standing.totals)
        return Reserved(entry.number, reservation if self.durable else None)

    def charge(self, entry: int, lease: str) -> None:
        """Charge an entry before its first draw: from then on nothing of its cost comes back. Idempotent.

        Raises:
            RunTakenOver, LedgerError: as `draw`.
        """
        with self._store.change() as change:
            found = _drawing(change.entry(entry), entry, lease)
            _charge(change, found, found.draws)

    def draw(self, entry: int, lease: str, progress: str = "") -> None:
        """Charge a draw of an entry before it is made, and record what is released by now.

        The first one is the entry's charge in the history, unless `charge` was.

        Args:
            progress: of the run, as `Reservation` writes it. Public.

        Raises:
            BudgetExceeded: no draw is left.
            RunTakenOver: another run holds the lease; nothing may be drawn.
            LedgerError: the entry draws no more, or the charge could not be recorded; likewise.
        """
        with self._store.change() as change:
            found = _drawing(change.entry(entry), entry, lease)
            _charge(change, found, found.draws.after(progress))

    def record_progress(
        self, entry: int, lease: str, progress: str, before: str | None = None, *, counted: bool = False
    ) -> None:
        """Record what is in progress, and which released lines stand; nothing changes with another lease.

        Args:
            before: as of `record_release`.
            counted: whether it has the result of a draw: that is recorded even if another run has resumed.

        Raises:
            RunTakenOver: `progress` has other released lines than the entry.
            LedgerError: the entry was cancelled, or it could not be recorded.
        """
        with self._store.change() as change:
            found = change.entry(entry)
            if found is None or found.state not in (*OPEN, SETTLED):
                raise LedgerError(f"entry {entry} was {_state(found)}: it releases nothing")
            if found.draws.lease == lease:
                draws = found.draws.with_progress(entry, lease, progress, before)
                if released_in(progress) not in (None, released_in(found.draws.progress)):
                    raise RunTakenOver(f"entry {entry} has released other lines: resume it to continue")
                change.replace(replace(found, draws=draws))
            elif counted:
                change.replace(replace(found, draws=found.draws.with_count(progress)))

    def record_release(
        self, entry: int, lease: str, digest: str, progress: str, before: str | None = None
    ) -> None:
        """Record that an entry released a demonstration; recorded when this returns.

        Args:
            digest: `line_hash` of the demonstration.
            progress: of the run, with this demonstration. It is recorded once, so a call whose answer was
                lost may be repeated.
            before: the progress that the caller knows, where others share the lease; None: it is alone.

        Raises:
            RunTakenOver: another run holds the lease, or has recorded what `progress` lacks.
            LedgerError: the entry never drew, or it could not be recorded.
        """
        with self._store.change() as change:
            found = change.entry(entry)
            if found is None or found.state not in PAID:
                raise LedgerError(f"entry {entry} was never charged: it releases nothing")
            draws = found.draws.with_progress(entry, lease, progress, before)
            change.replace(replace(found, draws=draws))
            if released_in(progress) != released_in(found.draws.progress):  # else it was recorded before
                change.record(RELEASE, found, as_json({RELEASED: digest}))

    def run_of(self, plan: str, run: str | None = None, stratum: int | None = None) -> list[Entry]:
        """The entries of a run, which `resume` continues; none if there is no such run.

        Args:
            plan: `RunKey.plan`.
            run: `RunKey.run`; None is the newest run of the plan.
            stratum: `RunKey.stratum`; None for all of them.

        Raises:
            LedgerError: an entry was changed behind the ledger's back, or the account is in memory, whose
                runs end with their process.
        """
        return self._store.run_of(plan, run, stratum)

    def resume(self, run: Mapping[int, Terms], *, shared: bool = False) -> list[tuple[Reserved, DrawCounts]]:
        """Replace the leases of entries, all or none, so that only this run makes the draws that are left.

        An entry that is settled has no draw left and keeps its lease: it says what was released.

        Args:
            run: the numbers of the entries, and what was reserved for each.
            shared: leave the leases and the draws to those who have them, as of settled entries.

        Returns:
            Each entry, and its draws: with a new lease, if it is not settled.

        Raises:
            LedgerError: an entry was reserved for something else, was cancelled, or was changed behind the
                ledger's back.
        """
        with self._store.change() as change:
            found = [self._claimed(change, *claim) for claim in run.items()]  # all, before one is changed
            replaced = not shared and any(entry.state in OPEN for entry, _ in found)
            totals = change.checked().totals if replaced else None
            resumed = []
            for entry, reserve in found:
                draws = replace(entry.draws, lease=new_lease())
                if shared or entry.state == SETTLED:
                    draws = replace(entry.draws, left=0)
                else:
                    change.replace(replace(entry, state=CHARGED, draws=draws))
                    details = {**granted(draws), "previous": entry.draws.lease, "reserve": reserve["hash"]}
                    change.record(RESUME, entry, as_json(details), totals=totals)
                resumed.append((Reserved(entry.number, json.loads(reserve["details"])[RESERVATION]), draws))
            return resumed

    def _claimed(self, change: Change, entry: int, terms: Terms) -> tuple[Entry, Mapping[str, Any]]:
        """An entry that agrees with its terms and with its events, and the event that reserved it."""
        found, events = change.entry(entry), change.events(entry)
        if found is None or found.state not in (*OPEN, SETTLED):
            raise LedgerError(f"entry {entry} was {_state(found)}: it cannot be resumed")
        if not _agrees(found, events):
            raise LedgerError(f"entry {entry} was changed behind the ledger's back: {VERIFY}")
        reserve, facts = events[0], plan_facts(json.loads(events[0]["details"]))
        cost = None if terms.cost is None else Amount.of_cost(terms.cost)
        plan = [self._counted(terms.scope), cost, json.loads(as_json(terms.details))]
        if plan != [reserve["scope"], tally_of(reserve).cost, facts]:
            raise LedgerError(f"entry {entry} was reserved for another plan: start a new run")
        return found, reserve

    def settle(self, entry: int, lease: str) -> None:
        """Close an entry that drew: all of it stays spent, and it draws no more. Idempotent.

        Nothing changes if the entry has another lease: another run resumed it.

        Raises:
            LedgerError: the entry belongs to another account or was never charged.
        """
        with self._store.change() as change:
            found = change.entry(entry)
            if found is None or (found.draws.lease == lease and found.state not in PAID):
                raise LedgerError(f"entry {entry} was {_state(found)}: it cannot be settled")
            if found.draws.lease == lease and found.state == CHARGED:
                change.replace(replace(found, state=SETTLED))
                change.record(SETTLE, found, as_json(granted(found.draws)))

    def cancel(self, entry: int) -> None:
        """Give back the whole cost of a plan that never drew; one that drew stays charged.

        The history decides whether it drew: an entry's state is one word in a row.

        Raises:
            LedgerError: the entry was changed behind the ledger's back.
        """
        with self._store.change() as change:
            found = change.entry(entry)
            if found is None or found.state != RESERVED:
                return
            totals, events = change.totals, change.events(entry)
            if [event["act"] for event in events] != [RESERVE]:
                raise LedgerError(f"entry {entry} was changed behind the ledger's back: {VERIFY}")
            if totals is not None:
                totals.remove(events[0]["scope"], tally_of(events[0]))
            draws = replace(found.draws, key=None)  # the run may begin anew
            change.replace(replace(found, state=CANCELLED, draws=draws))
            change.record(CANCEL, found, totals=totals)

    def withdraw(self, lease: str) -> None:
        """Cancel the entry with this lease if there is one and it never drew: nobody learned its number."""
        entry = self._store.entry_of(lease)
        if entry is not None:
            self.cancel(entry)

    # ---- its history

    def change_budget(self, budget: PrivacyBudget) -> None:
        """Replace the budget, which the history records. A larger one weakens the promise that was given.

        Args:
            budget: what may be spent in all, including what is spent already. If it is less than that,
                nothing more fits.

        Raises:
            LedgerError: the ledger cannot store it, or the account was tampered with.
        """
        limit = storable(budget)
        with self._store.change() as change:
            change.record(CHANGE_BUDGET, limit=limit, totals=change.checked().totals)

    def changed_records(self, populations: Mapping[str | None, int]) -> str | None:
        """A warning if the newest plan over one of these scopes was for another number of units.

        It sees no other change, and none since a plan of a version that kept no numbers.
        A unit of changed records may count under another label than before. An account whose strata compose
        in parallel then counts the greater cost, and not both.
        """
        for scope, now in populations.items():
            if scope is None or not self.parallel:
                continue
            before = self._store.newest_plan(scope).get(LEASE, {}).get(POPULATION, now)
            if before != now:
                return (
                    f"the account paid for a plan of {before} units of {stratum_of(scope)}, and now "
                    f"there are {now}: a plan of changed records is paid for again, and needs a new account "
                    "(docs/how-to/ledger.md#what-counts)"
                )
        return None

    def history(self) -> list[dict[str, object]]:
        """Every event since the account was created: when, who, what. Numbers, scopes and settings only."""
        return [as_shown(row) for row in self._store.snapshot().history]

    def verify(self, chain_tip: str | None = None) -> Verification:
        """Recompute the chain of hashes and compare the account and its entries with the history.

        Args:
            chain_tip: the hash of an event, noted elsewhere, which the history must contain. An older copy
                and a rewritten history do not contain it.
        """
        return check(self._store.snapshot(), chain_tip)

    def snapshot(self) -> Snapshot:
        """The account, its entries and its history as they are stored at one moment."""
        return self._store.snapshot()

    def export(self) -> dict[str, object]:
        """The account, its entries and its history as they are stored, for archives and other programs."""
        return self._store.snapshot().as_dict()

    def _counted(self, scope: str | None) -> str | None:
        """The scope that a plan counts for."""
        return scope if self.parallel else None


def account_of_run(
    account: object, budget: PrivacyBudget | None, *, relation: str, unit: str | None
) -> Account | None:
    """The account that pays for a run, bound to the run's relation and unit.

    Args:
        account: the user's; None is one in memory with the run's budget.
        budget: of the run; None for a run without a guarantee, which has no account.
    """
    if account is not None and not isinstance(account, Account):
        raise InvalidPlan(
            'account= takes what dpfewshot.open_account("sqlite:///budget.db", NAME) returns, or '
            f"Account.in_memory(budget); {type(account).__name__} is no account"
        )
    if budget is None:
        if account is not None:
            raise InvalidPlan("a run without a guarantee (certified=False) is refused an account")
        return None
    paying = Account.in_memory(budget) if account is None else account
    paying.bind(frozenset({relation}), unit)
    return paying


def _state(entry: Entry | None) -> str:
    return "never made" if entry is None else entry.state


def _agrees(entry: Entry, events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an entry's row is what its events made of it: state, scope, cost, draws, what was released."""
    acts = [event["act"] for event in events if event["act"] != RELEASE]
    states = {RESERVE: RESERVED, **{act: after for act, (_, after) in MOVES.items()}, RESUME: CHARGED}
    recorded = Counter(json.loads(event["details"])[RELEASED] for event in events if event["act"] == RELEASE)
    grants = [draws_in(json.loads(event["details"])) for event in events if event["act"] in (RESERVE, RESUME)]
    return (
        acts[:1] == [RESERVE]
        and states.get(acts[-1]) == entry.state
        and (events[0]["scope"], tally_of(events[0])) == (entry.scope, entry.tally)
        and entry.draws.lease == grants[-1].lease
        and within(entry.draws, grants[-1])
        and released_in(entry.draws.progress) == recorded
    )


def _drawing(found: Entry | None, entry: int, lease: str) -> Entry:
    """An entry that may still draw, by this lease."""
    if found is not None and found.state in (*OPEN, SETTLED):  # another run may have resumed and settled it
        found.draws.held(entry, lease)
    if found is None or found.state not in OPEN:
        raise LedgerError(f"entry {entry} was {_state(found)}: it draws no more")
    return found


def _charge(change: Change, found: Entry, draws: DrawCounts) -> None:
    """Leave an entry charged, with these draws."""
    change.replace(replace(found, state=CHARGED, draws=draws))
    if found.state == RESERVED:
        change.record(CHARGE, found)


def storable(budget: PrivacyBudget) -> Amount:
    """A budget as an exact amount that the columns of a ledger hold."""
    limit = Amount.of_budget(budget)
    if min(limit) < 1 or max(limit) > LARGEST:
        raise LedgerError(f"a ledger keeps epsilon from 1e-12 to 9e6 and delta from 1e-18, not {budget}")
    return limit


def other_kind(
    account: str, relations: Iterable[str], unit: str | None, others: Iterable[str], other_unit: str | None
) -> str:
    """The refusal of a plan for another relation or unit than the account's, with what to do about it."""
    kept, asked = frozenset(relations), frozenset(others)
    return (
        f"{account} holds for relation={_listed(kept)}, unit={unit!r} and cannot be used with "
        f"relation={_listed(asked)}, unit={other_unit!r}"
        + _unit_advice(unit, other_unit)
        + ("" if kept & asked or not kept else _RELATION_ADVICE)
    )


_RELATION_ADVICE = (
    "; the population decides the relation: with population= it is add-remove, without it "
    "zero-out, and draws of fixed size have replace-one"
)


def _unit_advice(unit: str | None, other: str | None) -> str:
    if unit == other:
        return ""
    if "" in (unit, other):
        return f"; {NAME_IT}"
    if unit is None:
        return (
            "; each record is a unit of this account: to protect whole units, create an account of another "
            f"name with dpfewshot ledger create ... --unit {shlex.quote(str(other))}; records read without "
            "unit= fit this one, but protect single records only"
        )
    return f"; name the account's unit column when you read the records: unit={unit!r}"


def _listed(relations: Iterable[str]) -> str:
    return " or ".join(repr(relation) for relation in sorted(relations))
