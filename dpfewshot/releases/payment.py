"""Who pays for a release, and whose units it reads: the units that a holdout keeps for choosing.

A release costs nothing beside generation if its account counts the greater of both: if the account's recorded
partition is the one of the same holdout. Otherwise its cost adds, which is always sound.
Proof: docs/proofs/composition.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from dpfewshot.account.account import Account, account_of_run
from dpfewshot.account.amounts import Cost
from dpfewshot.account.draws import Terms
from dpfewshot.account.history import Details
from dpfewshot.account.reservation import Reservation
from dpfewshot.account.scopes import partition_of
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.generation.units import check_records
from dpfewshot.planning.population import Population, check_population, public_units, relation_of
from dpfewshot.planning.settings import POISSON
from dpfewshot.records.units import UnitSequence, units, units_by_label
from dpfewshot.sampling import Holdout, partition_of_units
from dpfewshot.tasks import Task
from dpfewshot.values import (
    PrivacyBudget,
    PrivacySpend,
    Records,
    Relation,
    StoredRecords,
    check_whole,
    unit_of,
)

_ADDS: Final = (
    "; it adds to what the texts cost, since no records are kept for choosing: holdout is 0, or not the one "
    "that texts were generated with, by which choosing costs nothing further. If theirs is 0, judge the "
    "texts by reading them, or raise the budget (dpfewshot ledger change-budget)"
)


@dataclass(frozen=True, eq=False)
class Payment:
    """An open account for one release.

    Attributes:
        units: that the release reads, each with all of its records. Private.
        population: the expected number of those units, a public constant.
        counts: the public number of all units of each label; empty if only their sum is public. Without a
            population, a label that no unit belongs to is not among them.
        scope: the stratum that is charged; None for the whole data set.
        account: is charged; None: nothing is charged or guaranteed.
    """

    units: UnitSequence = field(repr=False)
    population: Fraction
    counts: Mapping[str, int]
    relation: Relation
    unit: str | None
    scope: str | None
    account: Account | None

    @property
    def parallel(self) -> bool:
        """Whether the account counts the greater of this release and generation, not their sum."""
        return self.scope is not None

    @property
    def total(self) -> PrivacySpend | None:
        """What the account has spent; None if it cannot be read, which must lose no release that is paid."""
        with suppress(LedgerError):
            return self.account.spent if self.account is not None else None
        return None

    @contextmanager
    def reserved(
        self, cost: Cost, *, uses: int, noise_multiplier: float, details: Details
    ) -> Iterator[Reservation]:
        """Reserve a release, before anything is computed from the records. Unless it draws, all goes back.

        `cost` is certified; without an account it is not charged. The arguments are those of `Terms`.
        """
        try:
            terms = Terms(cost, self.scope, 1, uses, noise_multiplier, details)
            reservation = Reservation.make(self.account, terms)
        except BudgetExceeded as refusal:
            raise explained(refusal, self.scope) from None
        with closing(reservation):
            yield reservation


def explained(refusal: BudgetExceeded, scope: str | None) -> BudgetExceeded:
    """The refusal of a release, which says why it adds to generation if it has no stratum of its own."""
    return refusal if scope is not None else refusal.saying(f"{refusal}{_ADDS}")


def open_payment(
    task: Task,
    records: Records | StoredRecords,
    *,
    budget: PrivacyBudget | None,
    account: Account | None = None,
    population: Population = None,
    holdout: float = 0.0,
) -> Payment:
    """Open the account that pays for a release, and find the units that the release reads.

    Args:
        budget: (ε, δ) of the release; None for a release without a guarantee, which has no account.
        population: as in `Synthesizer`; a mapping counts the units of every label of the task.
        holdout: f, as it was given to `Synthesizer`: only the units kept for choosing are read; 0: all.
    """
    check_population(population, task.labels)
    check_records(task, records)
    division, relation = Holdout(holdout), relation_of(POISSON, population)
    unit = unit_of(records)
    paying = account_of_run(account, budget, relation=relation, unit=unit)
    members, public = units(records), public_units(population, records)
    check_whole("the population of all labels", public)
    choosing = partition_of_units(task, records, division).choosing
    # Only then are the account's plans known to spare the units that choose.
    spared = paying is not None and choosing is not None and paying.partition == partition_of(choosing)
    return Payment(
        units=division.choosing(members) if division.fraction else members,
        population=(division.fraction or Fraction(1)) * public,
        counts=_public_counts(task, population, records),
        relation=relation,
        unit=unit,
        scope=choosing if spared else None,
        account=paying,
    )


def _public_counts(task: Task, population: Population, records: Records | StoredRecords) -> dict[str, int]:
    """See `Payment.counts`. Without a population, zero-out makes the number of each label's units public."""
    if task.labels is None or isinstance(population, int):
        return {}
    if population is None:
        return {label: len(members) for label, members in units_by_label(records).items()}
    return dict(population)
