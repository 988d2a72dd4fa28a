"""How many draws an entry has left, which run may make them, and what it released (docs/proofs/resuming.md).

A ledger stores an entry's draws, its lease, its run and its progress, and a hash over all of them. The
history has the draws where they are granted ("reserve", "resume") and where they end ("settle"). A draw
changes the entry alone: a row for each draw would store the order in which plans drew, which depends on how
many records they drew (docs/decisions/ledger.md).
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dpfewshot.account.amounts import Cost
from dpfewshot.account.history import LEASE, POPULATION, VERIFY, Details, hash_if_readable, hash_of
from dpfewshot.certificates import line_hash
from dpfewshot.errors import BudgetExceeded, LedgerError, RunTakenOver

BEGUN = "another process has begun this plan meanwhile: resume=True now continues its run"
THERE = "resume=True continues the run of this plan that the account has paid for. A second one does not fit"
LOST = (
    "the label's words were counted and not recorded: if the process that counted them has ended, they are "
    "lost, and a further plan needs further budget"
)
UNCOUNTED = (
    "another process took the label's words over to count them, and has not: if it has ended, "
    "generate_all(resume=True) goes on"
)
OTHERS = "other processes recorded texts all the time, so not all are replaced that should be: try again"
ANY_TOKENS: Final = "any"
"""In place of the tokens that a draw serves, where all texts of a stratum come from one draw."""

NO_PROGRESS: Final = '{"released": [], "unfinished": {}}'

USED_UP = "all draws of the plan are used: a further plan needs further budget"


@dataclass(frozen=True)
class RunKey:
    """Which run an entry belongs to, so that another process finds it and continues.

    Attributes:
        plan: a hash of everything that a run must have in common with the one that it continues.
        run: random; all entries of a run have it.
        stratum: the stratum's number in the plan.
        first: whether the plan had no run when this one began, which then reserves nothing beside another.
    """

    plan: str
    run: str
    stratum: int
    first: bool = False


@dataclass(frozen=True)
class Terms:
    """What is reserved. A run that resumes states the same.

    Attributes:
        cost: the plan's certified (ε, δ); None without an account.
        scope: the stratum of the account's partition that the plan draws from; None for the whole data set.
        draws: how many draws the cost was computed for.
        tokens_per_draw: R ≥ 1, how many tokens share one draw.
        noise_multiplier: the σ that the cost was computed for.
        details: public facts for the account's history.
        key: of the run, for whoever continues it; None for a release that nobody continues.
        population: how many units there are, which is public; None if that is not said.
    """

    cost: Cost | None
    scope: str | None
    draws: int
    tokens_per_draw: int
    noise_multiplier: float
    details: Details
    key: RunKey | None = None
    population: int | None = None


@dataclass(frozen=True)
class DrawCounts:
    """The draws that an entry has left, and the run that may make them.

    Attributes:
        left: how many, at least 0.
        lease: a random public value that names the one holder that may draw. Every resume replaces it.
        progress: what the run has released, as `Reservation` writes it. Public.
        key: of the run; None for a release that nobody continues.
        population: how many units there were as they were granted; for the history alone.
    """

    left: int
    lease: str
    progress: str = ""
    key: RunKey | None = None
    population: int | None = field(default=None, compare=False)

    def check(self) -> None:
        """Refuse what an account could not read back."""
        if type(self.left) is not int or self.left < 0 or not isinstance(self.lease, str):
            raise LedgerError("draws are counted by whole numbers of at least 0")

    def held(self, entry: int, lease: str) -> DrawCounts:
        """These draws, if the lease is theirs; else `RunTakenOver`."""
        if lease != self.lease:
            raise _taken_over(entry)
        return self

    def with_progress(self, entry: int, lease: str, progress: str, before: str | None) -> DrawCounts:
        """These draws with other progress; `RunTakenOver` if it lacks what others recorded.

        Several have the lease of an entry that is settled, or whose words are counted.

        Args:
            before: the progress that the writer knows; None: released lines alone are compared.
        """
        last = self.held(entry, lease).progress
        known, after = released_in(last), released_in(progress)
        if known and (after is None or not known <= after):
            raise _taken_over(entry)
        if before is not None and last not in (before, progress) and _writer(last) != _writer(progress):
            raise _taken_over(entry)
        return replace(self, progress=progress)

    def with_count(self, progress: str) -> DrawCounts:
        """These draws with the histogram of a draw that was made before their lease was replaced."""
        own = json.loads(self.progress or NO_PROGRESS)
        if self.left or "histogram" in own:
            return self
        found = json.loads(progress)
        kept = {"writer": found["writer"], "histogram": found["histogram"]}
        return replace(self, progress=json.dumps({**own, **kept}))

    def after(self, progress: str) -> DrawCounts:
        """What is left after a draw."""
        if self.left < 1:
            raise BudgetExceeded(USED_UP)
        return replace(self, left=self.left - 1, progress=progress)


def _taken_over(entry: int) -> RunTakenOver:
    return RunTakenOver(
        f"entry {entry} was resumed by another run, which continues from what the ledger has: this run draws "
        "no more. Wait until that one is done: resume=True would take the run back"
    )


def new_lease() -> str:
    """A lease, or the name of a run, that no other has."""
    return secrets.token_hex(16)


COLUMNS: Final = ("draws_left", "lease", "progress", "plan", "run", "stratum")
HASH: Final = "draws_hash"


def columns(draws: DrawCounts) -> dict[str, Any]:
    """The entry's columns for its draws."""
    key = (None, None, None) if draws.key is None else (draws.key.plan, draws.key.run, draws.key.stratum)
    row = dict(zip(COLUMNS, (draws.left, draws.lease, draws.progress, *key), strict=True))
    return {**row, HASH: hash_of(row)}


def draws_of(row: Mapping[str, Any]) -> DrawCounts:
    """The draws in an entry's columns, which must match their hash."""
    told = hash_if_readable({name: row[name] for name in COLUMNS})
    if told is None or told != row[HASH]:
        raise LedgerError(f"the draws of entry {row['id']} were changed behind the ledger's back: {VERIFY}")
    key = None if row["run"] is None else RunKey(row["plan"], row["run"], row["stratum"])
    return DrawCounts(row["draws_left"], row["lease"], row["progress"], key)


def released_in(progress: str) -> Counter[str] | None:
    """The hashes of the lines in a run's progress, and how often each is there; None if it is no progress."""
    try:
        lines = json.loads(progress)["released"] if progress else []
        return Counter(line_hash(line) for line in lines)
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


def _writer(progress: str) -> object:
    """Which process wrote the progress of a run last."""
    return json.loads(progress or NO_PROGRESS).get("writer")


def granted(draws: DrawCounts) -> dict[str, object]:
    """The details of an event that grants draws, or ends them."""
    population = {} if draws.population is None else {POPULATION: draws.population}
    return {LEASE: {"id": draws.lease, "draws": draws.left, **population}}


def draws_in(details: Mapping[str, Any]) -> DrawCounts:
    """The draws in the details of an event that grants or ends draws; `ValueError` if there are none."""
    match details.get(LEASE):
        case {"id": str(lease), "draws": int(left)}:
            return DrawCounts(left, lease)
        case _:
            raise ValueError("an event grants no draws")
