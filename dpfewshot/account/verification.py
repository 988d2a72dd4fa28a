"""Whether an account agrees with its history: recomputes the chain of hashes and replays every event."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from dpfewshot.account.amounts import DELTA_SCALE, EPSILON_SCALE, Amount
from dpfewshot.account.draws import COLUMNS, HASH, DrawCounts, draws_in, draws_of, released_in
from dpfewshot.account.history import (
    CANCELLED,
    CHANGE_BUDGET,
    CHARGED,
    CREATE,
    MOVES,
    NOTHING_BEFORE,
    OPEN,
    PAID,
    RELEASE,
    RELEASED,
    RESERVE,
    RESERVED,
    RESUME,
    SETTLED,
    hash_if_readable,
    with_units,
)
from dpfewshot.account.rule import Rule, Tally, Totals
from dpfewshot.account.scopes import partition_of
from dpfewshot.errors import LedgerError

Row = dict[str, Any]

_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What values raise that no ledger wrote."""

_NOT_IN_HISTORY = ("id", *COLUMNS, HASH)


@dataclass(frozen=True)
class Snapshot:
    """Everything that a ledger stores of one account at one moment.

    Attributes:
        totals: its running totals; None if they are missing or without the right seal, and so unused.
    """

    account: Row
    entries: list[Row]
    history: list[Row]
    totals: Totals | None = None

    @property
    def chain_tip(self) -> str:
        """The hash of the last event."""
        return str(self.history[-1]["hash"]) if self.history else NOTHING_BEFORE

    @property
    def released(self) -> dict[int, Counter[str]]:
        """The hashes of the lines that each entry of a sound history released, and how often it did."""
        found: dict[int, Counter[str]] = {}
        for row in self.history:
            if row["act"] == RELEASE:
                found.setdefault(row["entry"], Counter())[json.loads(row["details"])[RELEASED]] += 1
        return found

    def as_dict(self) -> dict[str, object]:
        """As JSON. Amounts are integers, named with their units: "epsilon_in_1e-12", "delta_in_1e-18"."""
        return {
            "account": with_units(self.account),
            "entries": [with_units(row) for row in self.entries],
            "history": [with_units(row) for row in self.history],
            "head": self.chain_tip,
        }


@dataclass(frozen=True)
class Verification:
    """What `Account.verify` found.

    Attributes:
        events: the number of rows in its history.
        chain_tip: the hash of the last row. Note it elsewhere, and compare later.
        problems: one sentence each; empty if everything agrees.
        totals: what follows from the history.
    """

    dataset: str
    events: int
    chain_tip: str
    problems: tuple[str, ...]
    totals: Totals = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether everything agrees."""
        return not self.problems


def check(snapshot: Snapshot, chain_tip: str | None = None) -> Verification:
    """Compare an account with its history, and the history with its hashes.

    Args:
        chain_tip: a hash noted earlier, which the history must contain; None skips this check.
    """
    replay = _Replay()
    problems = [*_broken_links(snapshot), *_disagreements(snapshot, replay)]
    if chain_tip is not None and chain_tip not in {row["hash"] for row in snapshot.history}:
        problems.append(
            f"no event has the hash {chain_tip}: this is a copy from before that event, another account, or "
            "a rewritten history"
        )
    dataset, events = str(snapshot.account["dataset"]), len(snapshot.history)
    return Verification(dataset, events, snapshot.chain_tip, tuple(problems), replay.totals)


def _broken_links(snapshot: Snapshot) -> Iterator[str]:
    previous = NOTHING_BEFORE
    for number, row in enumerate(snapshot.history, start=1):
        if row["number"] != number:
            yield f"event {number} is missing"
            return
        if row["previous"] != previous:
            yield f"event {number} does not follow the event before it: a row was changed, dropped or added"
            return
        if row["hash"] != hash_if_readable(row):
            yield f"event {number} was changed after it was recorded"
            return
        previous = row["hash"]


@dataclass
class _Replay:
    """The account, its entries and the draws that were last granted, rebuilt from the history."""

    account: Row = field(default_factory=dict)
    entries: dict[int, Row] = field(default_factory=dict)
    draws: dict[int, DrawCounts] = field(default_factory=dict)
    reserved_by: dict[int, str] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)

    def follow(self, row: Row) -> str | None:
        """Apply one event; returns why it cannot have happened, or None."""
        act, entry = row["act"], row["entry"]
        if not isinstance(entry, NoneType if act in (CREATE, CHANGE_BUDGET) else int):
            return f"{entry!r} is no entry"
        if (act == CREATE) != (not self.account):
            return "an account is created once, and first"
        if act in (CREATE, CHANGE_BUDGET):
            self.account |= {"partition": None, "renyi_order": None} if act == CREATE else {}
            self.account |= json.loads(row["details"]) | amount_of(row)._asdict()
            return None
        if act == RESERVE:
            return self._reserve(row)
        if act not in (*MOVES, RELEASE, RESUME) or entry not in self.entries:
            return f"there is no entry {entry} to {act}"
        others = {RELEASE: self._release, RESUME: self._resume}
        return others[act](row) if act in others else self._move(row, *MOVES[act])

    def _reserve(self, row: Row) -> str | None:
        if row["entry"] in self.entries:
            return f"entry {row['entry']} was reserved twice"
        scope = row["scope"]
        amounts = {**amount_of(row)._asdict(), "renyi": row["renyi"]}
        self.entries[row["entry"]] = {"scope": scope, "state": RESERVED, **amounts}
        self.draws[row["entry"]] = draws_in(json.loads(row["details"]))
        self.reserved_by[row["entry"]] = row["hash"]
        if scope is not None and self.account["partition"] is None:
            self.account["partition"] = partition_of(scope)
        self.totals.add(scope, tally_of(row))
        if not Rule(self.account["renyi_order"]).fits(self.totals.total, amount_of(self.account)):
            return f"entry {row['entry']} did not fit the budget"
        return None

    def _move(self, row: Row, before: str, after: str) -> str | None:
        entry = self.entries[row["entry"]]
        if entry["state"] != before:
            return f"what was {entry['state']} became {after}"
        entry["state"] = after
        if after == CANCELLED:
            self.totals.remove(entry["scope"], tally_of(entry))
        if after == SETTLED:
            granted = self.draws[row["entry"]]
            return self._grant(row, granted, granted.lease)
        return None

    def _release(self, row: Row) -> str | None:
        state = self.entries[row["entry"]]["state"]
        if state not in PAID or not isinstance(json.loads(row["details"])[RELEASED], str):
            return f"what was {state} released a demonstration"
        return None

    def _resume(self, row: Row) -> str | None:
        entry, granted, details = row["entry"], self.draws[row["entry"]], json.loads(row["details"])
        state = self.entries[entry]["state"]
        if state not in OPEN:
            return f"what was {state} was resumed"
        if details.get("previous") != granted.lease:
            return f"entry {entry} was resumed by a run without a lease of it"
        if details.get("reserve") != self.reserved_by[entry]:
            return f"entry {entry} was resumed for another event than the one that reserved it"
        self.entries[entry]["state"] = CHARGED
        return self._grant(row, granted)

    def _grant(self, row: Row, before: DrawCounts, lease: str | None = None) -> str | None:
        """Record the draws that an event leaves: never more than there were."""
        after = draws_in(json.loads(row["details"]))
        if lease not in (None, after.lease) or not within(after, before):
            return f"entry {row['entry']} had {before.left} draws left, and then {after.left}"
        self.draws[row["entry"]] = after
        return None


def within(after: DrawCounts, before: DrawCounts) -> bool:
    """Whether no more draws are left than before, and not fewer than zero."""
    return 0 <= after.left <= before.left


def amount_of(row: Mapping[str, Any]) -> Amount:
    """The (ε, δ) of a row: of an account's budget, of an entry, or of an event."""
    return Amount(row["epsilon"], row["delta"])


def tally_of(row: Mapping[str, Any]) -> Tally:
    """What an entry costs, or the plan that an event reserved."""
    return Tally.of(amount_of(row), row["renyi"])


def _disagreements(snapshot: Snapshot, replay: _Replay) -> Iterator[str]:
    for number, row in enumerate(snapshot.history, start=1):
        try:
            impossible = replay.follow(row)
        except _UNREADABLE:
            impossible = "a value in it cannot be read"
        if impossible is not None:
            yield f"event {number} cannot be: {impossible}"
            return
    for name, told in replay.account.items():
        if snapshot.account.get(name) != told:
            stored_value, told_value = _value(name, snapshot.account.get(name)), _value(name, told)
            yield f"the account's {name} is {stored_value}, its history says {told_value}"
    stored = {
        row["id"]: {name: row[name] for name in row if name not in _NOT_IN_HISTORY}
        for row in snapshot.entries
    }
    for entry in sorted(stored.keys() | replay.entries.keys()):
        if stored.get(entry) != replay.entries.get(entry):
            yield (
                f"entry {entry} is {_in_words(stored.get(entry))}, its history says "
                f"{_in_words(replay.entries.get(entry))}"
            )
    yield from _other_draws(snapshot, replay)
    if snapshot.totals not in (None, replay.totals):
        yield "the running totals are not those of its history"
    if not replay.account:
        yield "the account has no history"


def _in_words(entry: Row | None) -> str:
    """An entry as a message shows it."""
    if entry is None:
        return "missing"
    names = ("epsilon", "delta", *(["renyi"] if entry["renyi"] else []))
    amounts = ", ".join(f"{name}={_value(name, entry[name])}" for name in names)
    scope = "the whole data set" if entry["scope"] is None else repr(entry["scope"])
    return f"{entry['state']} with {amounts} for {scope}"


def _value(name: str, value: object) -> str:
    """A stored value as a message shows it: an amount in decimals. Whoever tampers may store anything."""
    scale = {"epsilon": EPSILON_SCALE, "delta": DELTA_SCALE, "renyi": EPSILON_SCALE}.get(name)
    return repr(value if scale is None or not isinstance(value, int) else value / scale)


def _other_draws(snapshot: Snapshot, replay: _Replay) -> Iterator[str]:
    """Compare entries' draws with those last granted; any fewer may be left, since draws are no events."""
    recorded = snapshot.released
    for row in snapshot.entries:
        granted = replay.draws.get(row["id"])
        if granted is None:
            continue
        try:
            now = draws_of(row)
        except LedgerError as error:
            yield str(error)
        else:
            least = 0 if row["state"] == CHARGED else granted.left
            if now.lease != granted.lease or now.left < least or not within(now, granted):
                yield f"entry {row['id']} has {now.left} draws left, its history grants {granted.left}"
        lines = released_in(row["progress"] or "")
        if row["progress"] and lines != recorded.get(row["id"], Counter()):
            yield f"entry {row['id']} does not hold the demonstrations that its history says it released"
