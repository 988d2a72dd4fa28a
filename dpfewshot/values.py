"""Values that modules exchange: frozen, validated once, with nothing private in their repr."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from enum import StrEnum
from fractions import Fraction
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from dpfewshot.certificates import Certificate
from dpfewshot.errors import InvalidPlan, InvalidRecords
from dpfewshot.exact import own_context, to_digits
from dpfewshot.runtime.redaction import redacts_errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


LABEL_COLUMN: Final = "label"
"""The name of a label column that nobody named, as for hand-made records."""

TEXT_COLUMN: Final = "text"
"""The name of a text column that nobody named."""

READ_AT_ONCE: Final = 1024
"""Records that are read at once where all are read in turn."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns that records come from.

    Args:
        text: of the text; of several fields, their names and paths in JSON. A holdout divides records without
            units by their texts.
        label: of the label. Labels of another column partition the units differently.
        unit: of the unit; None if nobody named one.
        fields: the name and the path of each field, if a text has several.
        masked: what replaced identifiers in the texts (`dpfewshot.mask_identifiers`); empty if nothing did.
    """

    text: str = TEXT_COLUMN
    label: str = LABEL_COLUMN
    unit: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    masked: str = ""

    def identity(self) -> dict[str, str]:
        """What a run has in common with the one that it continues."""
        return {"label_column": self.label} | ({"masked": self.masked} if self.masked else {})


@dataclass(frozen=True, slots=True)
class Record:
    """One private record. Its repr shows none of it.

    Args:
        text: the private text; of several fields, what `tasks.layout.TextLayout.text` makes of them.
        label: its label, one of the task's or, for extraction tasks, free.
        unit: whom it belongs to (a customer id), or None if each record is a unit of its own.
        columns: the names of the columns that it was read from, shared by all records of one source; None
            for a record made by hand. Records that differ in them alone are equal.
    """

    text: str = field(repr=False)  # nor in the repr of a subclass
    label: str = field(repr=False)
    unit: str | None = field(default=None, repr=False)
    columns: Columns | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __repr__(self) -> str:
        return "Record(private)"


class Records(list[Record]):
    """Private records of one source. Each of them knows the names of its columns, so any list keeps them."""

    def __repr__(self) -> str:  # nor their number: a customer's is private
        return "Records(private)"


class StoredRecords(Sequence[Record]):
    """Private records that stay in their file: `dpfewshot.index_records`. Nothing of them is in the repr.

    Attributes:
        columns: the names of the file's columns.
        label_rows: for each record, the position of the first record with its label; shape (n,).
        unit_rows: the same for its unit; None if each record is a unit of its own.
        labels: the name of each label, by the position of the first record that has it.
    """

    columns: Columns
    label_rows: NDArray[np.integer]
    unit_rows: NDArray[np.integer] | None

    refusal: ClassVar[str] = "a record can no longer be read"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(private)"

    def __len__(self) -> int:
        return len(self.label_rows)

    def __getitem__(self, row: Any) -> Any:
        """One record, or a list of them for a slice; refused if one cannot be read."""
        rows = range(len(self))[row]
        return self._whole(rows) if isinstance(rows, range) else self._whole([rows])[0]

    def __iter__(self) -> Iterator[Record]:
        return self.in_turn(range(len(self)))

    def in_turn(self, rows: Sequence[int]) -> Iterator[Record]:
        """The records at these positions; refused if one cannot be read."""
        for start in range(0, len(rows), READ_AT_ONCE):
            yield from self._whole(rows[start : start + READ_AT_ONCE])

    @redacts_errors(InvalidRecords, "reading")
    def _whole(self, rows: Sequence[int]) -> list[Record]:
        found = [record for record in self.take(rows) if record is not None]
        if len(found) < len(rows):
            raise InvalidRecords(self.refusal)
        return found

    @property
    @abstractmethod
    def labels(self) -> Mapping[int, str]:
        """They are read with the index, so that no record that cannot be read later hides a label."""

    @abstractmethod
    def unit_names(self, rows: NDArray[np.integer]) -> list[str]:
        """The names of the units of the records at these positions, whose texts are not read.

        Raises:
            InvalidRecords: the file changed since it was indexed.
        """

    @abstractmethod
    def take(self, rows: Sequence[int]) -> list[Record | None]:
        """Read the records at these positions; None for one that cannot be read, by a rule of it alone.

        All that is released from private records is read through this method, and by nothing else.

        Raises:
            InvalidRecords: the file changed since it was indexed.
        """

    @abstractmethod
    def check(self) -> None:
        """Refuse with `InvalidRecords` a file that changed since it was indexed, whatever is drawn of it."""


def columns_of(records: Iterable[Record]) -> Columns:
    """The columns that all records come from. Records made by hand come from "text" and "label"."""
    if isinstance(records, StoredRecords):
        return records.columns
    shared = {id(record.columns): record.columns or Columns() for record in records}
    found = set(shared.values()) or {Columns()}
    if len(found) > 1:
        named = sorted(
            f"text={one.text!r}, label={one.label!r}, unit={one.unit!r}{', masked' if one.masked else ''}"
            for one in found
        )
        raise InvalidRecords(
            f"these records come from different columns: {'; '.join(named)}. Records made by hand come from "
            "'text' and 'label': dpf.as_records(records, text=, label=, unit=) names their columns"
        )
    return found.pop()


Labelled = TypeVar("Labelled", "Demonstration", Record)


def by_label(ones: Iterable[Labelled]) -> dict[str, list[Labelled]]:
    """Group records or demonstrations by their label, in order."""
    groups: dict[str, list[Labelled]] = {}
    for one in ones:
        groups.setdefault(one.label, []).append(one)
    return groups


def unit_of(records: Sequence[Record]) -> str | None:
    """The name of the records' unit column; None if each record is a unit of its own.

    It is "" for units of a column that nobody named, as in records made by hand.
    """
    named = columns_of(records).unit
    if isinstance(records, StoredRecords) or named is not None:
        return named
    return None if all(record.unit is None for record in records) else ""


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
"""Pass as `budget=` for the σ=0 baseline. Every result says `certified=False`."""


@dataclass(frozen=True, slots=True)
class PrivacySpend:
    """A certified upper bound on what was spent: (ε, δ), both at least 0."""

    epsilon: float
    delta: float


def as_float(name: str, number: object) -> float:
    """Convert a real number to a plain float, whose repr, unlike NumPy's, is a number; else `InvalidPlan`."""
    if isinstance(number, bool) or not isinstance(number, Real):  # NumPy's booleans are not Real
        raise InvalidPlan(f"{name} must be a number, not {type(number).__name__}: write float(...)")
    try:
        return float(number)
    except OverflowError:
        raise InvalidPlan(f"{name} is too large") from None


LARGEST_WHOLE: Final = 10**15
"""More than any setting needs; beyond it, numbers would leave the range of floats."""


def check_whole(name: str, number: object) -> None:
    """Refuse with `InvalidPlan` anything but a public whole number from 1 to 10¹⁵; a boolean is none."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        is_other = not isinstance(number, int) and isinstance(number, Integral)  # NumPy's
        remedy = ": write int(...)" if is_other else ""
        raise InvalidPlan(f"{name} must be a whole number of at least 1, not {number!r}{remedy}")
    if number > LARGEST_WHOLE:
        raise InvalidPlan(f"{name} must be at most {LARGEST_WHOLE}, not {on_one_line(str(number))}")


def unit_noun(unit: str | None) -> str:
    """What a unit is called: "customer" for the column customer_id, "record" without a column."""
    if unit is None:
        return "record"
    ending = r"(?<=[^\W_])[\W_]+(id|no|nr|number|name|ref|key|hash|account)$"
    return re.sub(ending, "", unit, flags=re.IGNORECASE)


def plural(noun: str) -> str:
    """Several of a noun: "customers", "policies", "branches"."""
    stem = re.sub(r"([^aeiou])y$", r"\1ie", noun)
    return re.sub(r"(s|x|z|ch|sh)$", r"\1e", stem) + "s"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 entry", "2 entries"."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def amount_text(number: float) -> str:
    """All digits of an amount's float, which `account.amounts` rounded to the side that protects."""
    return repr(number).removesuffix(".0")


_LARGEST_EXPONENT: Final = 700.0


def believed(prior: float, epsilon: float) -> float:
    """How sure a reader of the texts may become who was this sure before: odds grow e^ε times, δ aside."""
    odds = math.exp(min(epsilon, _LARGEST_EXPONENT)) * prior
    return odds / (1 - prior + odds)


def epsilon_text(epsilon: float) -> str:
    """ε to four decimals, rounded up: the printed number is an upper bound too."""
    whole, decimals = divmod(math.ceil(Fraction(repr(float(epsilon))) * 10**4), 10**4)
    return f"{whole}.{decimals:04d}"


def rounded_up_text(number: float, digits: int) -> str:
    """A number to so many digits, rounded up: a printed upper bound is still one."""
    return f"{float(to_digits(Decimal(repr(float(number))), digits, ROUND_CEILING)):.{digits}g}"


def delta_text(delta: float) -> str:
    """δ to three digits, rounded up."""
    return rounded_up_text(delta, 3)


def spend_text(spend: PrivacySpend) -> str:
    """Write an (ε, δ) for people."""
    return f"epsilon {epsilon_text(spend.epsilon)}, delta {delta_text(spend.delta)}"


def duration_text(seconds: float) -> str:
    """In seconds up to two minutes, at least one, in minutes up to two hours, else in hours."""
    for size, name in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{max(1.0, seconds):.0f} s"


def percent_text(share: float) -> str:
    """Write a share as a percentage, rounded up; near 100 % it keeps three digits of the difference."""
    share = min(max(share, 0.0), 1.0)
    with localcontext(own_context()):
        exact = Decimal(repr(share)) * 100
        if share <= 0.5:  # noqa: PLR2004 - half
            rounded = to_digits(exact, 3, ROUND_CEILING)
        else:
            rounded = 100 - to_digits(100 - exact, 3, ROUND_FLOOR)
        return f"{rounded.normalize():f} %"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One released demonstration. Every use of it is post-processing: log it, store it, publish it.

    Attributes:
        token_count: tokens released for it; those that complete it do not count.
        finished: whether the model ended it. Else `max_tokens` or a sparse vector did, and it is cut after
            its last whole sentence, or completed without records if it has none.
        certified: whether (ε, δ) holds. False for baselines, seeded runs and batch-variant backends.
        spent: what the whole plan reserved; None if `certified` is false.
        relation: the neighbouring relation of the guarantee, "add-remove", "zero-out" or "replace-one".
        certificate: what it was generated under; None for baselines and lines of older versions.
        fields: the value of each text field by its name, if the task has several; else empty. `text` holds
            all of them.
    """

    text: str
    label: str
    token_count: int
    certified: bool
    spent: PrivacySpend | None
    relation: str
    mechanism: str
    certificate: Certificate | None = None
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    finished: bool = True

    def __str__(self) -> str:
        return f"{on_one_line(self.label)}: {on_one_line(self.text)}"

    @property
    def unit(self) -> str | None:
        """The column of whom a record belongs to; None for each record alone, or without a certificate."""
        return None if self.certificate is None else self.certificate.unit

    def as_line(self) -> dict[str, object]:
        """The object of an output line, which the command line writes as JSON."""
        return {
            "text": self.text,
            "label": self.label,
            "epsilon": self.spent.epsilon if self.spent else None,
            "delta": self.spent.delta if self.spent else None,
            "relation": self.relation,
            "certified": self.certified,
            "mechanism": self.mechanism,
            "tokens": self.token_count,
            "finished": self.finished,
            **({} if self.certificate is None else {"certificate": self.certificate.as_dict()}),
            **({"fields": dict(self.fields)} if self.fields else {}),
        }


def on_one_line(text: str) -> str:
    """Escape every character that could imitate another line, column or writing direction.

    Two spaces separate the columns of `dpfewshot ledger history`.
    """
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return re.sub(r"(?<= ) |^ | $", r"\\x20", shown)
