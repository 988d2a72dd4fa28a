"""Compares demonstrations' certificates with the ledger that they name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfewshot.budget.amounts import NOTHING, Amount
from dpfewshot.budget.scopes import total_over_scopes
from dpfewshot.certificates import Certificate, plan_hash
from dpfewshot.ledger import BudgetLedger
from dpfewshot.ledger.counting import LEASE, draws_in, draws_of
from dpfewshot.ledger.history import CHARGED, RESERVE, SETTLED
from dpfewshot.ledger.verification import Snapshot, Verification, check
from dpfewshot.values import Demonstration, PrivacySpend, counted

Row = Mapping[str, Any]
_Key = tuple[str, int, str]
"""Dataset, entry and event."""

PAID = (CHARGED, SETTLED)
"""The states of an entry that may have drawn."""


@dataclass(frozen=True)
class _Ledgered:
    """An account and what its history says of it, replayed once for all lines that name it."""

    snapshot: Snapshot
    verification: Verification
    entries: Mapping[int, Row]
    events: Mapping[str, Row]


@dataclass(frozen=True)
class CheckedEntry:
    """What a ledger says of the demonstrations that name one of its entries.

    Attributes:
        dataset: the account that they name.
        entry: the number that they name.
        event: the hash of the event that reserved it, as they state it.
        demonstrations: how many name it.
        state: "reserved", "charged", "settled" or "cancelled"; None if the ledger has no such entry.
        cost: the entry's (ε, δ), as the ledger has it; None likewise.
        problems: a sentence for each disagreement; empty if the ledger agrees.
    """

    dataset: str
    entry: int
    event: str
    demonstrations: int
    state: str | None
    cost: PrivacySpend | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class CheckedAccount:
    """What an account says of all entries that demonstrations name.

    Attributes:
        dataset: its name.
        chain_tip: the hash of its last event.
        together: what these entries cost together by the account's composition, at most.
        problems: why the account cannot be trusted; empty if it agrees with its history.
    """

    dataset: str
    chain_tip: str
    together: PrivacySpend
    problems: tuple[str, ...]


@dataclass(frozen=True)
class CheckedDemonstrations:
    """Whether a ledger agrees with demonstrations' certificates.

    Attributes:
        demonstrations: how many there are.
        without_certificate: how many have none, such as those of older versions and baselines.
        without_ledger: how many have a certificate that names no ledger.
        accounts: the accounts that the others name and the ledger has.
        entries: the entries that they name.
    """

    demonstrations: int
    without_certificate: int
    without_ledger: int
    accounts: tuple[CheckedAccount, ...]
    entries: tuple[CheckedEntry, ...]

    @property
    def verified(self) -> bool:
        """Whether the ledger has paid for every demonstration as its line states. Without any, False."""
        uncovered = self.without_certificate + self.without_ledger
        problems = [part.problems for part in self.accounts] + [part.problems for part in self.entries]
        return bool(self.demonstrations) and not uncovered and not any(problems)


def check_certificates(
    demonstrations: Iterable[Demonstration], ledger: BudgetLedger
) -> CheckedDemonstrations:
    """Compare demonstrations with the entries of a ledger that their certificates name.

    A ledger stores no texts: this cannot show that a text is the one that the plan released.

    Raises:
        LedgerError: the ledger does not exist or cannot be read.
    """
    lines = list(demonstrations)
    named = [one.certificate for one in lines if one.certificate is not None]
    groups: dict[_Key, list[Demonstration]] = {}
    for one in lines:
        if one.certificate is not None and (key := _entry_of(one.certificate)) is not None:
            groups.setdefault(key, []).append(one)
    there = _ledgered(ledger, {dataset for dataset, _, _ in groups})
    entries = tuple(_checked(key, groups[key], there.get(key[0])) for key in sorted(groups))
    return CheckedDemonstrations(
        len(lines),
        without_certificate=len(lines) - len(named),
        without_ledger=sum(each.event is None for each in named),
        accounts=tuple(_account(account, entries) for account in there.values()),
        entries=entries,
    )


def _entry_of(certificate: Certificate) -> _Key | None:
    """The entry that a certificate names; None without a ledger."""
    dataset, entry, event = certificate.dataset, certificate.entry, certificate.event
    return None if dataset is None or entry is None or event is None else (dataset, entry, event)


def _ledgered(ledger: BudgetLedger, datasets: Iterable[str]) -> dict[str, _Ledgered]:
    there = ledger.datasets()
    return {
        name: _replayed(ledger.account(name).snapshot())
        for name in sorted(datasets)
        if name in there or not there  # without any account the ledger's own refusal says why
    }


def _replayed(snapshot: Snapshot) -> _Ledgered:
    entries = {row["id"]: row for row in snapshot.entries}
    return _Ledgered(snapshot, check(snapshot), entries, {each["hash"]: each for each in snapshot.history})


def _account(account: _Ledgered, entries: Iterable[CheckedEntry]) -> CheckedAccount:
    found = account.verification
    there = {each.entry for each in entries if each.dataset == found.dataset and each.cost is not None}
    costs: dict[str | None, Amount] = {}
    for row in map(account.entries.__getitem__, sorted(there)):
        amount = Amount(row["epsilon"], row["delta"])
        costs[row["scope"]] = costs.get(row["scope"], NOTHING).plus(amount)
    return CheckedAccount(found.dataset, found.chain_tip, total_over_scopes(costs).as_spend(), found.problems)


def _checked(key: _Key, lines: Sequence[Demonstration], account: _Ledgered | None) -> CheckedEntry:
    row, problems = _compared(key, lines, account)
    cost = None if row is None else Amount(row["epsilon"], row["delta"]).as_spend()
    return CheckedEntry(*key, len(lines), None if row is None else row["state"], cost, tuple(problems))


def _compared(
    key: _Key, lines: Sequence[Demonstration], account: _Ledgered | None
) -> tuple[Row | None, Iterable[str]]:
    """The row of an entry, if it is the one that the lines name, and what disagrees."""
    dataset, entry, event = key
    if account is None:
        return None, [f"the ledger has no account {dataset!r}"]
    if not account.verification.ok:
        return None, ["the account does not agree with its own history"]
    row, reserved = account.entries.get(entry), account.events.get(event)
    if row is None or reserved is None or (reserved["act"], reserved["entry"]) != (RESERVE, entry):
        event_text = f"event {event[:12]}… that reserved entry {entry}"
        return None, [f"the account has no {event_text}: another ledger paid, or this one is an older copy"]
    return row, dict.fromkeys(_disagreements(lines, account.snapshot.account, row, reserved))


def _disagreements(
    lines: Sequence[Demonstration],
    account: Row,
    row: Row,
    reserved: Row,
) -> Iterator[str]:
    """What the lines of one entry state otherwise than the ledger."""
    if row["state"] not in PAID:
        yield f"the entry is {row['state']}: no draw of it was paid for"
    cost = Amount(row["epsilon"], row["delta"])
    details = json.loads(reserved["details"])
    facts = {name: value for name, value in details.items() if name != LEASE}
    plan = plan_hash(*cost, facts)
    for one in lines:
        yield from _claims(one, cost)
        stated = one.certificate
        if stated is not None and stated.plan != plan:
            yield f"a line has the plan {stated.plan[:12]}…, the entry {plan[:12]}…"
        if stated is not None and stated.unit != account["unit"]:
            yield f"a line has the unit {stated.unit!r}, the account {account['unit']!r}"
        if one.relation != account["relation"]:
            yield f"a line has the relation {one.relation!r}, the account {account['relation']!r}"
        if one.mechanism != details.get("mechanism"):
            yield f"a line has the mechanism {one.mechanism!r}, the plan {details.get('mechanism')!r}"
    if any(one.text and not one.token_count for one in lines):
        yield "a line has a text and states no tokens"
    tokens = sum(one.token_count for one in lines)
    paid = _tokens_paid(row, details)
    if paid is None and row["state"] in PAID:
        yield "the entry is no generation's: it paid for no demonstration"
    if paid is not None and tokens > paid:
        yield f"the lines have {counted(tokens, 'token')}, but the entry paid for {paid} at most"


def _claims(one: Demonstration, cost: Amount) -> Iterator[str]:
    """Whether a line states the entry's cost."""
    stated = None if one.spent is None else Amount.of_cost(one.spent)
    if stated is None:
        yield "a line states no epsilon"
    elif one.spent == cost.as_spend():  # rounded as a line is, which loses more than 10⁻¹² of a large amount
        return
    elif not stated.fits(cost):
        yield f"a line states {_words(stated)}, more than the entry's {_words(cost)}"
    elif not cost.fits(stated):
        yield f"a line states {_words(stated)}, less than the entry's {_words(cost)}"


def _words(amount: Amount) -> str:
    spend = amount.as_spend()
    return f"epsilon={spend.epsilon} delta={spend.delta}"


def _tokens_paid(row: Row, details: Row) -> int | None:
    """The tokens that the entry's draws served at most; None if they release none, as those of `choose`."""
    granted, left, each = draws_in(details), draws_of(row), details.get("tokens_per_step")
    if granted is None or left is None or not isinstance(each, int):
        return None
    return (sum(granted.left) - sum(left.left)) * each
