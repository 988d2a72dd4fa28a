"""Compares demonstrations and their certificates with the ledger that they name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfewshot.account.amounts import NOTHING, Amount
from dpfewshot.account.draws import draws_in, draws_of
from dpfewshot.account.history import PAID, RESERVATION, RESERVE, plan_facts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.scopes import total_over_scopes
from dpfewshot.account.verification import Snapshot, Verification, check
from dpfewshot.certificates import Provenance, line_hash, plan_hash
from dpfewshot.values import Demonstration, PrivacySpend, counted

Row = Mapping[str, Any]
_Key = tuple[str, str]
"""Dataset and reservation."""

_Lines = Sequence[tuple[int, Demonstration]]
"""Demonstrations with the number of their line."""


@dataclass(frozen=True)
class _Ledgered:
    """An account and what its history says of it, replayed once for all lines that name it.

    Attributes:
        snapshot: of the account.
        verification: whether it agrees with itself.
        entries: their rows, by number.
        reserved: the "reserve" event of each reservation.
        released: the hashes of the lines that each entry released.
    """

    snapshot: Snapshot
    verification: Verification
    entries: Mapping[int, Row]
    reserved: Mapping[str, Row]
    released: Mapping[int, Counter[str]]


@dataclass(frozen=True)
class CheckedEntry:
    """What a ledger says of the demonstrations that name one of its entries.

    Attributes:
        dataset: the account that they name.
        reservation: the identifier of the entry that they name.
        demonstrations: how many name it.
        entry: the ledger's number for it; None if the ledger has no such entry, as are the next two.
        state: "reserved", "charged", "settled" or "cancelled".
        cost: the entry's (ε, δ), as the ledger has it.
        provenance: the model, the tokenizer and the public prompt, as the ledger has them.
        problems: a sentence for each disagreement; empty if the ledger agrees.
    """

    dataset: str
    reservation: str
    demonstrations: int
    entry: int | None
    state: str | None
    cost: PrivacySpend | None
    provenance: Provenance
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
    demonstrations: Iterable[Demonstration], ledger: BudgetLedger, numbers: Iterable[int] | None = None
) -> CheckedDemonstrations:
    """Compare demonstrations with the entries of a ledger that their certificates name.

    Args:
        demonstrations: as a run returned them, or as a file has them.
        ledger: that paid for them.
        numbers: of their lines, for messages; None: 1, 2, ...

    Raises:
        LedgerError: the ledger does not exist or cannot be read.
    """
    lines = list(demonstrations)
    named = [one.certificate for one in lines if one.certificate is not None]
    groups: dict[_Key, list[tuple[int, Demonstration]]] = {}
    for number, one in zip(numbers or range(1, len(lines) + 1), lines, strict=True):
        made = one.certificate
        if made is not None and made.dataset is not None and made.reservation is not None:
            groups.setdefault((made.dataset, made.reservation), []).append((number, one))
    there = _ledgered(ledger, {dataset for dataset, _ in groups})
    entries = tuple(_checked(key, groups[key], there.get(key[0])) for key in groups)
    return CheckedDemonstrations(
        len(lines),
        without_certificate=len(lines) - len(named),
        without_ledger=sum(each.reservation is None for each in named),
        accounts=tuple(_account(account, entries) for account in there.values()),
        entries=tuple(sorted(entries, key=lambda each: (each.dataset, each.entry or 0, each.reservation))),
    )


def _ledgered(ledger: BudgetLedger, datasets: Iterable[str]) -> dict[str, _Ledgered]:
    there = ledger.datasets()
    return {
        name: _replayed(ledger.account(name).snapshot())
        for name in sorted(datasets)
        if name in there or not there  # without any account the ledger's own refusal says why
    }


def _replayed(snapshot: Snapshot) -> _Ledgered:
    verification = check(snapshot)
    reserved: dict[str, Row] = {}
    if verification.ok:
        for event in snapshot.history:
            if event["act"] == RESERVE:
                reserved[json.loads(event["details"])[RESERVATION]] = event
    return _Ledgered(
        snapshot,
        verification,
        {row["id"]: row for row in snapshot.entries},
        reserved,
        snapshot.released if verification.ok else {},
    )


def _account(account: _Ledgered, entries: Iterable[CheckedEntry]) -> CheckedAccount:
    found = account.verification
    there = {each.entry for each in entries if each.dataset == found.dataset and each.entry is not None}
    costs: dict[str | None, Amount] = {}
    for row in map(account.entries.__getitem__, sorted(there)):
        amount = Amount(row["epsilon"], row["delta"])
        costs[row["scope"]] = costs.get(row["scope"], NOTHING).plus(amount)
    return CheckedAccount(found.dataset, found.chain_tip, total_over_scopes(costs).as_spend(), found.problems)


def _checked(key: _Key, lines: _Lines, account: _Ledgered | None) -> CheckedEntry:
    reserved = None if account is None else account.reserved.get(key[1])
    if account is None or reserved is None:
        return CheckedEntry(*key, len(lines), None, None, None, Provenance(), (_missing(key, account),))
    row, details = account.entries[reserved["entry"]], json.loads(reserved["details"])
    problems = dict.fromkeys(_disagreements(lines, account, row, details))
    cost, provenance = Amount(row["epsilon"], row["delta"]).as_spend(), Provenance.of(details)
    return CheckedEntry(*key, len(lines), row["id"], row["state"], cost, provenance, tuple(problems))


def _missing(key: _Key, account: _Ledgered | None) -> str:
    """Why an account has no entry that lines name."""
    dataset, reservation = key
    if account is None:
        return f"the ledger has no account {dataset!r}"
    if not account.verification.ok:
        return "the account does not agree with its own history"
    return f"the account has no reservation {reservation}: another ledger paid, or this one is an older copy"


def _disagreements(lines: _Lines, ledgered: _Ledgered, row: Row, details: Row) -> Iterator[str]:
    """What the lines of one entry state otherwise than the ledger."""
    if row["state"] not in PAID:
        yield f"the entry is {row['state']}: no draw of it was paid for"
    account, cost = ledgered.snapshot.account, Amount(row["epsilon"], row["delta"])
    plan = plan_hash(*cost, plan_facts(details))
    for _, one in lines:
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
    yield from _others(lines, ledgered.released.get(row["id"], Counter()))
    if any(one.text and not one.token_count for _, one in lines):
        yield "a line has a text and states no tokens"
    tokens = sum(one.token_count for _, one in lines)
    paid = _tokens_paid(row, details)
    if paid is None and row["state"] in PAID:
        yield "the entry is no generation's: it paid for no demonstration"
    if paid is not None and tokens > paid:
        yield f"the lines have {counted(tokens, 'token')}, but the entry paid for {paid} at most"


def _others(lines: _Lines, released: Counter[str]) -> Iterator[str]:
    """Which lines are not what the entry released, and which stand more often than it released them."""
    seen: Counter[str] = Counter()
    for number, one in lines:
        digest = line_hash(one.as_line())
        seen[digest] += 1
        if not released[digest]:
            yield (
                f"line {number} is not what the entry released: its text, label, tokens or another member "
                "was changed, or the line was invented"
            )
        elif seen[digest] > released[digest]:
            yield f"line {number} repeats a demonstration more often than the entry released it"


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
