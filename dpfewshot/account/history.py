"""The history of an account: one row for each event, chained to the row before it by a hash.

The hash of a row is the SHA-256, in hexadecimal, of the row as a JSON object without its hash: amounts named
with their units, keys sorted, no spaces, non-ASCII escaped. `previous` is the hash of the row before, so
nobody can change, drop or insert a row without changing every later hash (docs/decisions/ledger.md says what
that is worth).
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from dpfewshot import __version__
from dpfewshot.account.amounts import Amount
from dpfewshot.errors import LedgerError
from dpfewshot.values import on_one_line

NOTHING_BEFORE: Final = "0" * 64
"""`previous` of an account's first row."""

ACTOR_VARIABLE: Final = "DPFEWSHOT_LEDGER_ACTOR"
"""Environment variable: the actor to record in place of the user, the host and the process."""

LONGEST_ACTOR: Final = 200

_UNITS: Final = {"epsilon": "epsilon_in_1e-12", "delta": "delta_in_1e-18", "renyi": "renyi_in_1e-12"}

Details = Mapping[str, str | int | float]
"""Public facts about a plan, for the history: mechanism, σ, q, steps."""

LEASE: Final = "lease"
"""The member of an event's details that holds its draws."""

RESERVATION: Final = "reservation"
"""The member of a "reserve" event's details that identifies the entry outside of the ledger."""

POPULATION: Final = "population"
"""The member of a "reserve" event's lease that says how many units there were. Public."""

RELEASED: Final = "line_sha256"
"""The member of a "release" event's details: `certificates.line_hash` of what was released."""

VERIFY: Final = "run dpfewshot ledger verify, which says what was changed"

CREATE: Final = "create"
CHANGE_BUDGET: Final = "change-budget"
RESERVE: Final = "reserve"
CHARGE: Final = "charge"
RESUME: Final = "resume"
RELEASE: Final = "release"
SETTLE: Final = "settle"
CANCEL: Final = "cancel"

RESERVED: Final = "reserved"
CHARGED: Final = "charged"
SETTLED: Final = "settled"
CANCELLED: Final = "cancelled"

OPEN: Final = (RESERVED, CHARGED)
"""The states in which an entry may draw."""

PAID: Final = (CHARGED, SETTLED)
"""The states of an entry that may have drawn."""

MOVES: Final = {CHARGE: (RESERVED, CHARGED), SETTLE: (CHARGED, SETTLED), CANCEL: (RESERVED, CANCELLED)}
"""Events that change an entry's state: the state before and the state after."""


def _actor() -> str:
    named = os.environ.get(ACTOR_VARIABLE)
    if not named:
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):  # in containers the user often has no name
            user = str(os.getuid())
        return on_one_line(f"{user}@{socket.gethostname()}:{os.getpid()}")[:LONGEST_ACTOR]
    if len(named) > LONGEST_ACTOR or not named.strip() or on_one_line(named) != named:
        raise LedgerError(
            f"{ACTOR_VARIABLE} must be at most {LONGEST_ACTOR} printable characters, without line breaks, "
            "control characters, or two spaces in a row"
        )
    return named


@dataclass(frozen=True, kw_only=True)
class HistoryEvent:
    """One event in an account's history. It holds public facts only.

    Attributes:
        act: "create", "change-budget", "reserve", "charge", "resume", "release", "settle" or "cancel".
        entry: the plan's number; None for events of the account.
        scope: the entry's scope.
        epsilon: ε of a budget or a reserved cost, in 10⁻¹²; None for other events.
        delta: its δ, in 10⁻¹⁸.
        renyi: the bound of a reserved plan's Rényi divergence at the account's order, in 10⁻¹²; None for
            other events and for plans without one.
        details: JSON: the plan and its draws, or the account's relation and unit.
        at: the time by the actor's clock, ISO 8601 in UTC.
        actor: who caused it, as in "user@host:process".
        package_version: of dpfewshot.
    """

    act: str
    entry: int | None = None
    scope: str | None = None
    epsilon: int | None = None
    delta: int | None = None
    renyi: int | None = None
    details: str = "{}"
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    actor: str = field(default_factory=_actor)
    package_version: str = __version__


def chained(event: HistoryEvent, number: int, previous: str) -> dict[str, Any]:
    """The row of an event: its fields, its number from 1 up, the previous hash and its own."""
    row = {**asdict(event), "number": number, "previous": previous}
    return {**row, "hash": hash_of(row)}


def with_units(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the units of its amounts in their names, as it is hashed and exported."""
    return {_UNITS.get(name, name): value for name, value in row.items()}


def hash_of(row: Mapping[str, Any]) -> str:
    """The hash of a row; a hash that it carries is ignored."""
    fields = {name: value for name, value in row.items() if name != "hash"}
    text = json.dumps(with_units(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def hash_if_readable(row: Mapping[str, Any]) -> str | None:
    """The hash of a row; None if a value has none, such as binary data."""
    try:
        return hash_of(row)
    except TypeError:
        return None


def as_shown(row: Mapping[str, Any]) -> dict[str, object]:
    """A row for display: amounts as numbers, details as an object."""
    shown = dict(row)
    if row["epsilon"] is not None:
        amount = Amount(row["epsilon"], row["delta"])
        budget = row["act"] in (CREATE, CHANGE_BUDGET)
        shown |= asdict(amount.as_remainder() if budget else amount.as_spend())
    if shown["renyi"] is None:
        del shown["renyi"]
    else:
        shown["renyi"] = Amount(row["renyi"], 0).as_spend().epsilon
    return shown | {"details": json.loads(row["details"])}


def as_json(details: Mapping[str, object]) -> str:
    """Details as the history keeps them."""
    try:
        return json.dumps(dict(details), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        raise LedgerError("an entry's details must be strings and finite numbers") from None


def plan_facts(details: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's public facts in a "reserve" event's details: without what the account added."""
    return {name: value for name, value in details.items() if name not in (LEASE, RESERVATION)}
