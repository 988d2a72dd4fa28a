"""The leak check: do released texts repeat private records more than chance explains?

Overlap alone says little: everybody writes "thank you for your help". So the check compares runs of words
with those of texts generated without records, and with those of held-out records. A demonstration that
repeats a long run of one unit alone is always a leak. Personal data are found by their pattern, and by their
checksum where they have one; patterns find neither names nor facts.

The result is confidential: it says which demonstration is close to a record. It quotes neither.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

from dpfewshot.audit.findings import AuditFinding, Figure
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.records import as_records
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.values import Demonstration, Record

LONG_RUN = 10
"""A run of this many words hardly repeats by chance."""

Words = tuple[str, ...]


@redacts_errors(BackendError, "the leak check")
def leak_check(
    demonstrations: Iterable[Demonstration],
    records: Iterable[Record] | object,
    *,
    baseline: Iterable[Demonstration] = (),
    held_out: Iterable[Record] | object | None = None,
    long_run: int = LONG_RUN,
) -> AuditFinding:
    """Search released texts for private text and personal data.

    Args:
        demonstrations: the released texts.
        records: the private records behind them.
        baseline: texts of the same model by `instruction_only_demonstrations`.
        held_out: records of the same kind that were not used.
        long_run: the number of words of one unit alone that make a leak, at least 2.

    Returns:
        A confidential finding of kind "leak". It fails if a demonstration repeats a long run, or personal
        data, of one unit alone.

    Raises:
        InvalidPlan: there is no demonstration, or `long_run` is below 2.
        InvalidRecords: the records cannot be used.
    """
    released = list(demonstrations)
    if not released or long_run < 2:  # noqa: PLR2004 - one word is no run
        raise InvalidPlan("a leak check needs demonstrations and long_run >= 2")
    layout = TextLayout(tuple(released[0].fields) or ("text",))

    def cut(text: str) -> Words:
        """Without the names of fields, which are public."""
        return _words(" ".join(layout.values(text)))

    texts, plain = [one.text for one in released], [one.text for one in baseline]
    private, others = as_records(records), [] if held_out is None else as_records(held_out)
    overlaps = _overlaps(texts, private, cut)
    leaks = [number for number, each in enumerate(overlaps) if each.is_leak(long_run)]
    figures = [*_runs("", overlaps)]
    if plain:
        figures += _runs(", without the records", _overlaps(plain, private, cut))
    if others:
        figures += _runs(" held out", _overlaps(texts, others, cut))
    who = f"{len(leaks) or 'None'} of {len(released)} demonstrations {'repeat' if leaks else 'repeats'}"
    return AuditFinding(
        kind="leak",
        title="Leak check",
        statement=f"{who} {long_run} words in a row or more, or personal data, of one unit alone."
        + _duplicates(overlaps),
        verdict="failed" if leaks else "passed",
        figures=(*figures, *_totals(overlaps)),
        details={
            "demonstrations": [asdict(each) for each in overlaps],
            "leaks": leaks,
            "long_run": long_run,
        },
    )


def copies(text: str, records: Sequence[Record]) -> bool:
    """Whether a record has a long run of a text's words, or all of them in a row."""
    (found,) = _overlaps([text], records, _words)
    return found.exact_duplicate or found.longest_run >= min(LONG_RUN, max(1, len(_words(text))))


def _words(text: str) -> Words:
    return tuple(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


@dataclass(frozen=True)
class Overlap:
    """What one text has in common with the records, in numbers alone. Runs are of words."""

    longest_run: int
    longest_run_of_one_unit: int
    exact_duplicate: bool
    exact_duplicate_of_one_unit: bool
    personal_data: Mapping[str, int]
    personal_data_of_one_unit: Mapping[str, int]

    def is_leak(self, long_run: int) -> bool:
        """Whether the text repeats something of one unit alone."""
        return self.longest_run_of_one_unit >= long_run or bool(self.personal_data_of_one_unit)


def _overlaps(texts: Sequence[str], records: Sequence[Record], cut: Callable[[str], Words]) -> list[Overlap]:
    written = [cut(text) for text in texts]
    runs_of = [_all_runs(words) for words in written]
    runs = set[Words]().union(*runs_of)
    holders: defaultdict[Words, set[Hashable]] = defaultdict(set)
    personal: defaultdict[tuple[str, str], set[Hashable]] = defaultdict(set)
    whole: set[Words] = set()
    for number, record in enumerate(records):
        holder = number if record.unit is None else record.unit
        words = cut(record.text)
        whole.add(words)
        for run in _known_runs(words, runs):
            holders[run].add(holder)
        for found in found_in(record.text):
            personal[found].add(holder)
    overlaps = []
    for text, words, mine in zip(texts, written, runs_of, strict=True):
        shared = [run for run in mine if run in holders]
        data = list(found_in(text))
        of_one_unit = (run for run in shared if len(holders[run]) == 1)
        alone = (one for one in data if len(personal.get(one, ())) == 1)
        overlaps.append(
            Overlap(
                longest_run=max(map(len, shared), default=0),
                longest_run_of_one_unit=max(map(len, of_one_unit), default=0),
                exact_duplicate=words in whole,
                exact_duplicate_of_one_unit=words in whole and len(holders[words]) == 1,
                personal_data=dict(Counter(kind for kind, _ in data)),
                personal_data_of_one_unit=dict(Counter(kind for kind, _ in alone)),
            )
        )
    return overlaps


def _duplicates(overlaps: Sequence[Overlap]) -> str:
    """Why whole records among the texts are no failure: a long one of one unit alone is a leak already."""
    same = sum(each.exact_duplicate for each in overlaps)
    alone = sum(each.exact_duplicate_of_one_unit for each in overlaps)
    if not same:
        return ""
    has = "has" if same == 1 else "have"
    return (
        f" {same} {has} the words of a whole short record, {alone or 'none'} of one unit alone: short texts "
        "coincide by chance, and the guarantee bounds what one unit adds to it."
    )


def _all_runs(words: Words) -> set[Words]:
    return {words[start:end] for start, end in combinations(range(len(words) + 1), 2)}


def _known_runs(words: Words, runs: set[Words]) -> Iterator[Words]:
    """The runs of a record that occur in a text. A run that occurs in none is not extended."""
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            if words[start:end] not in runs:
                break
            yield words[start:end]


def _runs(which: str, overlaps: Sequence[Overlap]) -> Iterator[Figure]:
    lengths = [each.longest_run for each in overlaps]
    yield Figure(f"longest run of words of a record{which}", float(max(lengths)))
    yield Figure(f"longest run of words of a record{which}, mean", sum(lengths) / len(lengths))


def _totals(overlaps: Sequence[Overlap]) -> Iterator[Figure]:
    yield Figure("exact duplicates of a record", float(sum(each.exact_duplicate for each in overlaps)))
    total = sum(sum(each.personal_data.values()) for each in overlaps)
    of_one = sum(sum(each.personal_data_of_one_unit.values()) for each in overlaps)
    yield Figure("personal data by its shape", float(total))
    yield Figure("personal data of one unit alone", float(of_one), reference=0.0)


# ---- personal data by its shape ----------------------------------------------------------------------------

_IBAN_LENGTHS = range(15, 35)
_IBAN_MODULUS = 97
_DIGITS_WITH_AREA_CODE = 10


def found_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each match and its text, normalised so that spacing does not matter.

    A match counts once, as the first that fits of "e-mail", "IBAN", "card", "IP address", "phone" and
    "long number" (at least seven digits).
    """
    for kind, (pattern, normal) in _KINDS.items():
        kept: list[str] = []
        position = 0
        for match in pattern.finditer(text):
            value = normal(match.group())
            if value is not None:
                yield kind, value
                kept += [text[position : match.start()], " "]  # later kinds must not match it again
                position = match.end()
        text = "".join([*kept, text[position:]])


def _iban(text: str) -> str | None:
    """ISO 13616: with its check digits, the number is 1 modulo 97."""
    compact = re.sub(r"[\s-]", "", text).upper()
    if len(compact) not in _IBAN_LENGTHS:
        return None
    digits = "".join(str(int(letter, 36)) for letter in compact[4:] + compact[:4])
    return compact if int(digits) % _IBAN_MODULUS == 1 else None


def _card(text: str) -> str | None:
    """ISO/IEC 7812: Luhn's checksum."""
    digits = _digits(text)
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    valid = sum(sum(divmod(each, 10)) for each in doubled) % 10 == 0
    return digits if valid and len(set(digits)) > 1 else None


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _phone(text: str) -> str | None:
    """Of 8 to 15 digits: E.164 with a plus, national with a zero, or long enough for an area code."""
    digits = _digits(text)
    marked = text.lstrip("(").startswith(("+", "0"))
    return digits if marked or len(digits) >= _DIGITS_WITH_AREA_CODE else None


def _long_number(text: str) -> str | None:
    """Ranges of years do not count."""
    return None if re.fullmatch(r"(?:19|20)\d\d[ -](?:19|20)\d\d", text) else _digits(text)


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


_KINDS: Mapping[str, tuple[re.Pattern[str], Callable[[str], str | None]]] = {
    "e-mail": (re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"), str.casefold),
    "IBAN": (re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?\b"), _iban),
    "card": (re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]\d|\d)"), _card),
    "IP address": (re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]\d|\d)"), _address),
    "phone": (re.compile(r"(?<!\w)\+?\(?\d(?:[ ()./-]{0,2}\d){7,14}(?![ -]?\d)"), _phone),
    "long number": (re.compile(r"\d(?:[ -]?\d){6,}"), _long_number),
}
"""In search order: kinds with a checksum come first."""
