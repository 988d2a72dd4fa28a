"""Values that modules exchange: frozen, validated once, with nothing private in their repr."""

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
    """Which change of one privacy unit a guarantee covers. Members are strings."""

    ADD_REMOVE = "add-remove"
    """One unit is added or removed. The population is a public constant."""

    ZERO_OUT = "zero-out"
    """One unit becomes a null, which keeps its place in the count and, unless labels are free, its label.
    dp-accounting calls this relation REPLACE_SPECIAL."""

    REPLACE_ONE = "replace-one"
    """One unit becomes another of the same label. The population is public. Fixed-size draws only."""

    __repr__ = str.__repr__  # stored values are plain strings


ADD_REMOVE: Final = Relation.ADD_REMOVE
ZERO_OUT: Final = Relation.ZERO_OUT
REPLACE_ONE: Final = Relation.REPLACE_ONE


UNNAMED_UNIT: Final = "unit"
"""The name of a unit column that nobody named.

Old ledgers recorded this name for every column, so a durable account cannot be created with it.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One private record. Its repr shows none of it.

    Args:
        text: the private text.
        label: its label, one of the task's or, for extraction tasks, free.
        unit: whom it belongs to (a customer id), or None if each record is a unit of its own.
    """

    text: str = field(repr=False)
    label: str = field(repr=False)
    unit: str | None = field(default=None, repr=False)


LABEL_COLUMN: Final = "label"
"""The name of a label column that nobody named, as for hand-made records."""

TEXT_COLUMN: Final = "text"
"""The name of a text column that nobody named."""


class Records(list[Record]):
    """Private records with the names of their unit, label and text columns.

    A slice keeps the names. A new list of single records does not: `as_records` names the columns again.

    Attributes:
        unit: the unit column's name; None if nobody named one.
        label: the label column's name. Labels of another column partition the units differently.
        text: the text column's name. A holdout divides records without units by their texts.
    """

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        unit: str | None = None,
        label: str = LABEL_COLUMN,
        text: str = TEXT_COLUMN,
    ) -> None:
        super().__init__(records)
        self.unit = unit
        self.label = label
        self.text = text

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Records: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Record | Records:
        if isinstance(index, slice):
            return Records(super().__getitem__(index), unit=self.unit, label=self.label, text=self.text)
        return super().__getitem__(index)


def unit_of(records: Sequence[Record]) -> str | None:
    """The name of the records' unit column; None if each record is a unit of its own.

    A column that nobody named is called `UNNAMED_UNIT`.
    """
    named = getattr(records, "unit", None)
    if named is not None or all(record.unit is None for record in records):
        return named
    return UNNAMED_UNIT


@dataclass(frozen=True, slots=True)
class PrivacyBudget:
    """What may be spent on one data set.

    Args:
        epsilon: ε > 0, finite: any real number, including NumPy's, stored as a float.
        delta: 0 < δ < 1, also any real number.

    Raises:
        InvalidPlan: a value is outside its range, or not a number: a string or a boolean.
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
    """Convert a real number to a plain float, whose repr, unlike NumPy's, is a number.

    Args:
        name: of the argument, for the message.
        number: any real number.

    Raises:
        InvalidPlan: it is not a number (a string, a boolean), or too large for a float.
    """
    if isinstance(number, bool) or not isinstance(number, Real):  # NumPy's booleans are not Real
        raise InvalidPlan(f"{name} must be a number, not {type(number).__name__}: write float(...)")
    try:
        return float(number)
    except OverflowError:
        raise InvalidPlan(f"{name} is too large") from None


def check_whole(name: str, number: object) -> None:
    """Refuse anything but a whole number of at least 1; a boolean is not a number.

    Args:
        name: of the argument, for the message.
        number: public.

    Raises:
        InvalidPlan: it is anything else.
    """
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidPlan(f"{name} must be a whole number of at least 1, not {number!r}")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: "1 entry", "2 entries"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def amount_text(number: float) -> str:
    """All digits of an amount's float, which `budget.amounts` rounded to the side that protects."""
    return repr(number).removesuffix(".0")


def epsilon_text(epsilon: float) -> str:
    """ε to four decimals, rounded up: the printed number is an upper bound too."""
    whole, decimals = divmod(math.ceil(Fraction(repr(float(epsilon))) * 10**4), 10**4)
    return f"{whole}.{decimals:04d}"


def delta_text(delta: float) -> str:
    """δ to three digits, rounded up."""
    return f"{float(to_digits(Decimal(repr(float(delta))), 3, ROUND_CEILING)):.3g}"


def to_digits(number: Decimal, digits: int, rounding: str) -> Decimal:
    """Round a number to significant digits, whatever the caller's decimal context is.

    Args:
        number: exact.
        digits: at least 1.
        rounding: a mode of the decimal module, such as `ROUND_CEILING`.
    """
    return own_context(digits, rounding).plus(number)


def own_context(digits: int = 50, rounding: str = ROUND_HALF_EVEN) -> Context:
    """A decimal context for `decimal.localcontext` that inherits nothing from the caller's."""
    return Context(
        digits, rounding, MIN_EMIN, MAX_EMAX, capitals=1, clamp=0, flags=[], traps=[InvalidOperation]
    )


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One released demonstration. Every use of it is post-processing: log it, store it, publish it.

    Attributes:
        text: the synthetic text.
        label: the label that it demonstrates.
        token_count: tokens released for it.
        private: whether (ε, δ) holds. False for baselines, seeded runs and batch-variant backends.
        spent: what the whole plan reserved; None if `private` is false.
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
        """The object of an output line, which the command line writes as JSON."""
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
    """Escape every character that could imitate another line, column or writing direction.

    Two spaces separate the columns of `dpfewshot ledger history`.
    """
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return re.sub(r"(?<= ) |^ | $", r"\\x20", shown)
