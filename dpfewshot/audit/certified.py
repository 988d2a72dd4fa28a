"""Compares demonstrations and their certificates with the ledger that they name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpfewshot.account.amounts import NOTHING, Amount, in_words
from dpfewshot.account.draws import ANY_TOKENS, draws_in, draws_of
from dpfewshot.account.history import PAID, RESERVATION, RESERVE, plan_facts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.scopes import total_over_scopes
from dpfewshot.account.verification import Snapshot, Verification, amount_of, check
from dpfewshot.certificates import WRITER, Certificate, Provenance, line_hash, plan_hash
from dpfewshot.values import Demonstration, PrivacySpend, counted

_Row = Mapping[str, Any]
_Key = tuple[str, str]  # dataset and reservation
_Line = tuple[int, Demonstration, Certificate]  # with the line's number


@dataclass(frozen=True)
class CheckedEntry:
    """What a ledger says of the demonstrations that name one of its entries.

    Attributes:
        labels: of the demonstrations, sorted.
        entry: the ledger's number for it; None if the ledger has no such entry, as are the next two.
        state: "reserved", "charged", "settled" or "cancelled".
        cost: as the ledger has it, as is the provenance, but for prompts and text writers, which lines alone
            state.
        problems: a sentence for each disagreement; empty if the ledger agrees.
    """

    dataset: str
    reservation: str
    demonstrations: int
    labels: tuple[str, ...]
    entry: int | None
    state: str | None
    cost: PrivacySpend | None
    provenance: Provenance
    problems: tuple[str, ...]


@dataclass(frozen=True)
class CheckedAccount:
    """What an account says of all entries that demonstrations name.

    Attributes:
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
        without_certificate: how many have none, such as those of baselines.
        without_ledger: how many have a certificate that names no ledger.
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
        problems = [*(each.problems for each in self.accounts), *(each.problems for each in self.entries)]
        return bool(self.demonstrations) and not uncovered and not any(problems)


def check_certificates(
    demonstrations: Iterable[Demonstration], ledger: BudgetLedger, numbers: Iterable[int] | None = None
) -> CheckedDemonstrations:
    """Compare demonstrations with the entries of a ledger that their certificates name.

    Messages name lines by `numbers`; None is 1, 2, ...

    Raises:
        LedgerError: the ledger does not exist or cannot be read.
    """
    lines = list(demonstrations)
    named = [one.certificate for one in lines if one.certificate is not None]
    groups: dict[_Key, list[_Line]] = {}
    for number, one in zip(numbers or range(1, len(lines) + 1), lines, strict=True):
        made = one.certificate
        if made is not None and made.dataset is not None and made.reservation is not None:
            groups.setdefault((made.dataset, made.reservation), []).append((number, one, made))
    known = ledger.datasets()
    accounts = {
        name: _Account(ledger.account(name).snapshot())
        for name in sorted({dataset for dataset, _ in groups})
        if name in known or not known  # without any account the ledger's own refusal says why
    }
    entries = tuple(_checked(key, groups[key], accounts.get(key[0])) for key in groups)
    return CheckedDemonstrations(
        len(lines),
        without_certificate=len(lines) - len(named),
        without_ledger=sum(each.reservation is None for each in named),
        accounts=tuple(account.checked(entries) for account in accounts.values()),
        entries=tuple(sorted(entries, key=lambda each: (each.dataset, each.entry or 0, each.reservation))),
    )


class _Account:
    """An account and what its history says of it, replayed once for all lines that name it.

    Attributes:
        reserved: the "reserve" event of each reservation; none if the account contradicts its history.
        released: the hashes of the lines that each entry released; likewise.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.row = snapshot.account
        self.verification: Verification = check(snapshot)
        self.entries: Mapping[int, _Row] = {row["id"]: row for row in snapshot.entries}
        history = snapshot.history if self.verification.ok else []
        reserved = (event for event in history if event["act"] == RESERVE)
        self.reserved = {json.loads(event["details"])[RESERVATION]: event for event in reserved}
        self.released = snapshot.released if self.verification.ok else {}

    def checked(self, entries: Iterable[CheckedEntry]) -> CheckedAccount:
        """The account, with what these entries cost together."""
        found = self.verification
        there = {each.entry for each in entries if each.dataset == found.dataset and each.entry is not None}
        costs: dict[str | None, Amount] = {}
        for row in map(self.entries.__getitem__, there):
            costs[row["scope"]] = costs.get(row["scope"], NOTHING).plus(amount_of(row))
        together = total_over_scopes(costs).as_spend()
        return CheckedAccount(found.dataset, found.chain_tip, together, found.problems)


def _checked(key: _Key, lines: Sequence[_Line], account: _Account | None) -> CheckedEntry:
    reserved = None if account is None else account.reserved.get(key[1])
    labels = tuple(sorted({one.label for _, one, _ in lines}))
    if account is None or reserved is None:
        missing = (_missing(key, account),)
        return CheckedEntry(*key, len(lines), labels, None, None, None, Provenance(), missing)
    row, details = account.entries[reserved["entry"]], json.loads(reserved["details"])
    problems = tuple(dict.fromkeys(_disagreements(lines, account, row, details)))
    provenance = Provenance.of(details)
    if provenance.prompt is None:
        stated = {one.prompt for *_, one in lines if one.prompt is not None}
        provenance = replace(provenance, prompt=", ".join(sorted(stated)) or None)
    stated = {one.model for *_, one in lines if one.model is not None}
    if writers := sorted(one for one in stated if one.startswith(WRITER)):  # of which no plan knows
        provenance = replace(provenance, model=", ".join([*filter(None, [provenance.model]), *writers]))
    cost = amount_of(row).as_spend()
    return CheckedEntry(*key, len(lines), labels, row["id"], row["state"], cost, provenance, problems)


def _missing(key: _Key, account: _Account | None) -> str:
    """Why an account has no entry that lines name."""
    dataset, reservation = key
    if account is None:
        return f"the ledger has no account {dataset!r}"
    if not account.verification.ok:
        return "the account does not agree with its own history"
    return f"the account has no reservation {reservation}: another ledger paid, or this one is an older copy"


def _disagreements(lines: Sequence[_Line], account: _Account, row: _Row, details: _Row) -> Iterator[str]:
    """What the lines of one entry state otherwise than the ledger."""
    if row["state"] not in PAID:
        yield f"the entry is {row['state']}: no draw of it was paid for"
    cost = amount_of(row)
    plan = plan_hash(*cost, plan_facts(details))
    for _, one, stated in lines:
        yield from _claims(one, cost)
        if stated.plan != plan:
            yield f"a line has the plan {stated.plan[:12]}…, the entry {plan[:12]}…"
        if stated.unit != account.row["unit"]:
            yield f"a line has the unit {stated.unit!r}, the account {account.row['unit']!r}"
        if one.relation != account.row["relation"]:
            yield f"a line has the relation {one.relation!r}, the account {account.row['relation']!r}"
        if one.mechanism != details.get("mechanism"):
            yield f"a line has the mechanism {one.mechanism!r}, the plan {details.get('mechanism')!r}"
    yield from _others(lines, account.released.get(row["id"], Counter()))
    if any(one.text and not one.token_count for _, one, _ in lines):
        yield "a line has a text and states no tokens"
    yield from _unpaid(lines, row, details)


def _unpaid(lines: Sequence[_Line], row: _Row, details: _Row) -> Iterator[str]:
    """Which tokens the draws of an entry do not suffice for."""
    tokens = sum(one.token_count for _, one, _ in lines)
    each = details.get("tokens_per_step")  # a release without tokens, as of `choose`, has none
    served = tokens if each == ANY_TOKENS else each
    if not isinstance(served, int):
        if row["state"] in PAID:  # of another kind of release
            yield "the entry is no generation's: it paid for no demonstration"
        return
    paid = (draws_in(details).left - draws_of(row).left) * served
    if tokens > paid:
        yield f"the lines have {counted(tokens, 'token')}, but the entry paid for {paid} at most"


def _others(lines: Sequence[_Line], released: Counter[str]) -> Iterator[str]:
    """Which lines are not what the entry released, and which stand more often than it released them."""
    seen: Counter[str] = Counter()
    for number, one, _ in lines:
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
    """How a line's cost differs from the entry's."""
    if one.spent is None:
        yield "a line states no epsilon"
        return
    stated = Amount.of_cost(one.spent)
    if one.spent == cost.as_spend():  # rounded as a line is, which loses more than 10⁻¹² of a large amount
        return
    if stated != cost:
        differs = "less" if stated.fits(cost) else "more"
        told, paid = in_words(stated.as_spend()), in_words(cost.as_spend())
        yield f"a line states {told}, {differs} than the entry's {paid}"
