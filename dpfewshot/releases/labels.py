"""Releases the labels to generate under DP, for tasks whose labels are free text (extraction tasks).

Every unit votes for one label. With a public list of candidates, report noisy max releases the labels with
most votes one after another (peeling). Without one, a stability histogram (Korolova, Kenthapadi, Mishra,
Ntoulas 2009; Bun, Nissim, Stemmer 2016) releases labels whose noisy number of votes reaches a threshold. A
label of a single unit reaches it with probability at most δ. Proofs: docs/proofs/labels.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpfewshot import _core
from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Amount, pure_cost
from dpfewshot.account.draws import Terms
from dpfewshot.account.history import Details
from dpfewshot.account.permit import Permit
from dpfewshot.account.reservation import Reservation
from dpfewshot.errors import DPFewShotError, InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.exact.choice import discrete_laplace
from dpfewshot.exact.normal import exponential_of_minus
from dpfewshot.records import as_records
from dpfewshot.records.units import units_by_label
from dpfewshot.releases.selection import scale_of
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.values import PrivacySpend, Record, Relation, as_float, check_whole, unit_of

MOST_CANDIDATES = 2**18  # the widest choice of the compiled core
SMALLEST_EPSILON = 1e-12  # the smallest amount in an account

RELATIONS = frozenset({Relation.ADD_REMOVE, Relation.ZERO_OUT})
"""The relations for which a release's (ε, δ) holds, of which it states the account's.

Not replace-one: a unit that becomes another changes two counts, one up and one down.
"""

Votes = Mapping[str, int]
"""The votes of every label that has any. Private."""


@dataclass(frozen=True, slots=True)
class LabelRelease:
    """Released labels. They are public: pass them as `labels=`.

    Attributes:
        labels: in the order of their release; without candidates there may be fewer than requested.
        spent: the release's (ε, δ); None if not certified.
        relation: the neighbouring relation, "add-remove" or "zero-out".
        unit: the column of whom a record belongs to; None: each record is a unit; "": nobody said.
        certified: whether (ε, δ) holds. False for seeded runs.
    """

    labels: tuple[str, ...]
    spent: PrivacySpend | None
    relation: str
    unit: str | None
    certified: bool

    def as_dict(self) -> dict[str, object]:
        """The object that `dpfewshot labels --json` prints."""
        return {
            "labels": list(self.labels),
            "epsilon": self.spent.epsilon if self.spent else None,
            "delta": self.spent.delta if self.spent else None,
            "relation": self.relation,
            "unit": self.unit,
            "certified": self.certified,
        }


@redacts_errors(DPFewShotError, "the release of labels")
def release_labels(
    records: Iterable[Record] | object,
    *,
    count: int,
    epsilon: float,
    delta: float = 0.0,
    candidates: Sequence[str] | None = None,
    account: Account | None = None,
    unit: str | None = None,
    random_source: RandomSource | None = None,
) -> LabelRelease:
    """Release the labels that most units have, under (ε, δ).

    A unit votes for one of its records' labels, each as likely: the hash of its name and the label decides.

    Args:
        records: the private records: `Record` objects, mappings, a DataFrame or a Dataset.
        count: how many labels, at least 1.
        epsilon: ε > 0 of the whole release.
        delta: δ of the whole release, 1e-18 ≤ δ < 1. With candidates it is neither required nor spent.
        candidates: the labels to choose from, public input, at least `count` of them. None also releases
            labels that were unknown before.
        account: is charged, for the whole data set, before anything is drawn.
        unit: the column that says whom a record belongs to, as in `as_records`. Records that `read_records`
            read with one remember it.
        random_source: n to n uniform bytes, for tests alone: the release says `certified=False`.

    Raises:
        InvalidPlan: an argument is outside its range.
        InvalidRecords: a record cannot be used.
        BudgetExceeded: the account does not allow it; nothing is drawn.
        LedgerError: the charge could not be recorded, or the account is for another relation or unit; nothing
            is drawn.
    """
    mechanism = _mechanism(count, as_float("epsilon", epsilon), as_float("delta", delta), candidates)
    if random_source is not None and account is not None:
        raise InvalidPlan("a release without a guarantee (certified=False) cannot be charged to an account")
    checked = as_records(records, unit=unit)
    relation: str = Relation.ADD_REMOVE
    if account is not None:
        relation = account.bind(RELATIONS, unit_of(checked)) or relation
    votes = votes_of(checked)
    cost, scale = pure_cost(mechanism.cost, mechanism.rounds), scale_of(mechanism.rate)
    paid = mechanism.cost.as_spend()
    details: Details = {"mechanism": mechanism.name, "count": count, "epsilon": paid.epsilon}
    with closing(
        Reservation.make(account, Terms(cost, None, 1, mechanism.rounds, scale, details))
    ) as reserved:
        permit = reserved.draw()
    return LabelRelease(
        labels=tuple(mechanism.choose(votes, permit, random_source)),
        spent=paid if random_source is None else None,
        relation=relation,
        unit=unit_of(checked),
        certified=random_source is None,
    )


def votes_of(records: Iterable[Record]) -> Votes:
    """Count one vote for each unit, by a rule that depends on that unit alone."""
    return {label: len(voters) for label, voters in units_by_label(records).items()}


def smallest_threshold(epsilon: Fraction, delta: Fraction) -> int:
    """The least integer h > 1 with P[1 + X ≥ h] ≤ δ, X discrete Laplace at rate ε.

    P[X ≥ m] = p^m/(1 + p) for m ≥ 1, p = exp(-ε), computed in integers and rounded up.
    """
    digits = 64 + delta.denominator.bit_length()
    least_total = (1 << digits) + exponential_of_minus(*epsilon.as_integer_ratio(), digits)[0]

    def rare(noise: int) -> bool:
        most = exponential_of_minus(noise * epsilon.numerator, epsilon.denominator, digits)[1]
        return most <= delta * least_total

    high = 1
    while not rare(high):
        high *= 2
    return 1 + bisect_left(range(high), True, lo=1, key=rare)


class _Rounds:
    """Rounds of a release whose ε they share.

    `cost` is (ε, δ) of the whole release, which an account of that budget can pay; `rate` is 1 over the scale
    of a round's noise, in votes.
    """

    rounds: int
    epsilon: float
    delta: float

    @property
    def cost(self) -> Amount:
        return Amount.of_budget(PrivacySpend(self.epsilon, self.delta))

    @property
    def rate(self) -> Fraction:
        return Fraction(self.cost.as_target().epsilon) / self.rounds


@dataclass(frozen=True)
class _NoisyMax(_Rounds):
    """Peeling: rounds of report noisy max among the remaining candidates."""

    candidates: tuple[str, ...]
    rounds: int
    epsilon: float
    delta = 0.0
    name = "label-noisy-max"

    def choose(self, votes: Votes, permit: Permit, random_source: RandomSource | None) -> list[str]:
        left = list(self.candidates)
        scores = np.array([votes.get(label, 0) for label in left], dtype=np.int64)
        released: list[str] = []
        rate = self.rate
        for _ in range(self.rounds):
            permit.use(scale_of(rate))
            winner = _core.permute_and_flip(scores, *rate.as_integer_ratio(), random_source)
            released.append(left.pop(winner))
            scores = np.delete(scores, winner)
        return released


@dataclass(frozen=True)
class _StabilityHistogram(_Rounds):
    """Releases the labels with the most noisy votes among those that reach the threshold."""

    count: int
    epsilon: float
    delta: float
    name = "label-histogram"
    rounds = 1

    def choose(self, votes: Votes, permit: Permit, random_source: RandomSource | None) -> list[str]:
        permit.use(scale_of(self.rate))
        threshold = smallest_threshold(self.rate, Fraction(self.cost.as_target().delta))
        noisy = {
            label: votes[label] + discrete_laplace(*self.rate.as_integer_ratio(), random_source)
            for label in sorted(votes)
        }
        kept = [label for label, number in noisy.items() if number >= threshold]
        return sorted(kept, key=lambda label: (-noisy[label], label))[: self.count]


_Mechanism = _NoisyMax | _StabilityHistogram


def _mechanism(count: int, epsilon: float, delta: float, candidates: Iterable[object] | None) -> _Mechanism:
    check_whole("count", count)
    if not SMALLEST_EPSILON <= epsilon < math.inf:
        raise InvalidPlan(f"epsilon must be a number of at least {SMALLEST_EPSILON}, not {epsilon}")
    if not 0 <= delta < 1:
        raise InvalidPlan(f"delta must be at least 0 and below 1, not {delta}")
    if candidates is not None:
        return _NoisyMax(_checked(candidates, count), count, epsilon)
    histogram = _StabilityHistogram(count, epsilon, delta)
    if not histogram.cost.delta:
        raise InvalidPlan(f"a release of labels needs candidates, or a delta of at least 1e-18, not {delta}")
    return histogram


def _checked(candidates: Iterable[object], count: int) -> tuple[str, ...]:
    if isinstance(candidates, str):
        raise InvalidPlan("candidates must be a list of labels, not one string")
    listed = list(candidates)
    labels = tuple(label for label in listed if isinstance(label, str) and label.strip())
    if len(labels) < len(listed):
        raise InvalidPlan("candidates must be strings that are not blank")
    if len(set(labels)) < len(labels):
        raise InvalidPlan("candidates must be distinct")
    if not count <= len(labels) <= MOST_CANDIDATES:
        raise InvalidPlan(
            f"there are {len(labels)} candidates: there must be at least count={count} and "
            f"at most {MOST_CANDIDATES}"
        )
    return labels
