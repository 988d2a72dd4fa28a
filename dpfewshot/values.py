"""The values that pass between the rooms: frozen, validated once, with nothing private in their repr."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from enum import StrEnum
from fractions import Fraction
from numbers import Real
from typing import Final, SupportsIndex, overload

from dpfewshot.errors import InvalidPlan


class Relation(StrEnum):
    """Neighbouring data sets: which change of one privacy unit a guarantee covers. Members are strings."""

    ADD_REMOVE = "add-remove"
    """One unit is added or removed. The population is a public constant."""

    ZERO_OUT = "zero-out"
    """One unit becomes a null, which keeps its place in the count and, where labels are the task's own, its
    label. (A free label is text: a null has none.) dp-accounting calls this relation REPLACE_SPECIAL."""

    REPLACE_ONE = "replace-one"
    """One unit becomes another of the same label. The population is public. Fixed-size draws only."""

    __repr__ = str.__repr__  # as the plain strings that stored values are


ADD_REMOVE: Final = Relation.ADD_REMOVE
ZERO_OUT: Final = Relation.ZERO_OUT
REPLACE_ONE: Final = Relation.REPLACE_ONE


UNNAMED_UNIT: Final = "unit"
"""What a unit column is called where records have units and nobody named the column.

Old ledgers recorded it for every column, so a durable account takes it for none: no account is made of it.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One private record. Its repr shows nothing of it.

    Args:
        text: the private text.
        label: its label, one of the task's or, for extraction tasks, free.
        unit: whom it belongs to (a customer id), or None where each record stands for itself.
    """

    text: str = field(repr=False)
    label: str = field(repr=False)
    unit: str | None = field(default=None, repr=False)


LABEL_COLUMN: Final = "label"
"""What the label column is called where nobody named it, as of records that were made by hand."""


class Records(list[Record]):
    """Private records, and the names of the columns that say whom they belong to and what their label is.

    A slice keeps the names. What is built anew from single records does not: `as_records` names them again.

    Attributes:
        unit: the unit column's name; None where nobody named one.
        label: the label column's name. Labels of another column put units into other parts.
    """

    def __init__(
        self, records: Iterable[Record] = (), *, unit: str | None = None, label: str = LABEL_COLUMN
    ) -> None:
        super().__init__(records)
        self.unit = unit
        self.label = label

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Records: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Record | Records:
        if isinstance(index, slice):
            return Records(super().__getitem__(index), unit=self.unit, label=self.label)
        return super().__getitem__(index)


def unit_of(records: Sequence[Record]) -> str | None:
    """The name of the records' unit column; None where each record stands for itself.

    Units that nobody named are of the column `UNNAMED_UNIT`.
    """
    named = getattr(records, "unit", None)
    if named is not None or all(record.unit is None for record in records):
        return named
    return UNNAMED_UNIT


@dataclass(frozen=True, slots=True)
class PrivacyBudget:
    """What may be spent on one data set.

    Args:
        epsilon: ε > 0, finite: any real number, NumPy's too, kept as a float.
        delta: 0 < δ < 1, likewise.

    Raises:
        InvalidPlan: a value outside its range, or no number: a string, a truth value.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, as_float(name, getattr(self, name)))
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InvalidPlan(f"epsilon must be a positive number, not {self.epsilon}")
        if not 0 < self.delta < 1:
            raise InvalidPlan(f"delta must lie between 0 and 1, not {self.delta}")


class NoPrivacy:
    """The type of `NO_PRIVACY`: no noise, no guarantee, for baselines on data that may be published."""

    def __repr__(self) -> str:
        return "NO_PRIVACY"


NO_PRIVACY: Final = NoPrivacy()
"""Pass as `budget=` for the σ=0 baseline. Every result says `private=False`."""


@dataclass(frozen=True, slots=True)
class PrivacySpend:
    """A certified upper bound on what was spent: (ε, δ), both at least 0."""

    epsilon: float
    delta: float


def as_float(name: str, number: object) -> float:
    """A real number as a plain float: the repr of NumPy's is no number, and amounts are made from reprs.

    Args:
        name: what the message calls it.
        number: any real number.

    Raises:
        InvalidPlan: it is no number, as a string or a truth value, or too large for a float.
    """
    if isinstance(number, bool) or not isinstance(number, Real):  # NumPy's truth values are not Real
        raise InvalidPlan(f"{name} must be a number, not {type(number).__name__}: write float(...)")
    try:
        return float(number)
    except OverflowError:
        raise InvalidPlan(f"{name} is too large a number") from None


def check_whole(name: str, number: object) -> None:
    """Refuse what is no whole number of at least 1: a fraction, a truth value.

    Args:
        name: what the message calls it.
        number: public.

    Raises:
        InvalidPlan: it is none.
    """
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidPlan(f"{name} must be a whole number of at least 1, not {number!r}")


def epsilon_text(epsilon: float) -> str:
    """ε to four decimals, rounded up: what is printed is an upper bound too."""
    whole, decimals = divmod(math.ceil(Fraction(repr(float(epsilon))) * 10**4), 10**4)
    return f"{whole}.{decimals:04d}"


def delta_text(delta: float) -> str:
    """δ to three digits, rounded up."""
    return f"{float(to_digits(Decimal(repr(float(delta))), 3, ROUND_CEILING)):.3g}"


def to_digits(number: Decimal, digits: int, rounding: str) -> Decimal:
    """A number to so many significant digits, in a context of its own: the caller's changes nothing.

    Args:
        number: exact.
        digits: at least 1.
        rounding: one of the decimal module's, as `ROUND_CEILING`.
    """
    return own_context(digits, rounding).plus(number)


def own_context(digits: int = 50, rounding: str = ROUND_HALF_EVEN) -> Context:
    """A decimal context that takes nothing from the caller's: for `decimal.localcontext`."""
    return Context(
        digits, rounding, MIN_EMIN, MAX_EMAX, capitals=1, clamp=0, flags=[], traps=[InvalidOperation]
    )


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One released demonstration. It is post-processing from here on: log it, store it, publish it.

    Attributes:
        text: the synthetic text.
        label: the label that it demonstrates.
        token_count: how many tokens were released for it.
        private: whether (ε, δ) holds. False for baselines, seeded runs and batch-variant backends.
        spent: what the whole plan reserved, or None where `private` is false.
        relation: the neighbouring relation of the guarantee, "add-remove", "zero-out" or "replace-one".
        mechanism: the name of the mechanism that released it.
    """

    text: str
    label: str
    token_count: int
    private: bool
    spent: PrivacySpend | None
    relation: str
    mechanism: str

    def as_line(self) -> dict[str, object]:
        """The object of one output line: `json.dumps` of it is what the command line writes."""
        return {
            "text": self.text,
            "label": self.label,
            "epsilon": self.spent.epsilon if self.spent else None,
            "delta": self.spent.delta if self.spent else None,
            "relation": self.relation,
            "private": self.private,
            "mechanism": self.mechanism,
            "tokens": self.token_count,
        }


def on_one_line(text: str) -> str:
    """The text with escapes for all that could pass for another line, column or direction of writing.

    Two spaces part the columns of `dpfewshot ledger history`.
    """
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return re.sub(r"(?<= ) |^ | $", r"\\x20", shown)
