"""The leak check: do released texts repeat private records more than chance explains?

Overlap alone says little: everybody writes "thank you for your help". So the check compares runs of words
with those of texts generated without records, and with those of held-out records. A demonstration that
repeats a long run of one unit alone is always a leak.

The result is confidential: it says which demonstration is close to a record. It quotes neither.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dpfewshot.audit.findings import Figure, Finding
from dpfewshot.audit.patterns import found_in
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.records import as_records
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.values import Demonstration, Record

LONG_RUN = 10
"""A run of this many words (or tokens) hardly repeats by chance."""

Pieces = tuple[Hashable, ...]
Cut = Callable[[str], Pieces]


@redacts_errors(BackendError, "the leak check")
def leak_check(
    demonstrations: Iterable[Demonstration],
    records: Iterable[Record] | object,
    backend: LogprobBackend | None = None,
    *,
    baseline: Iterable[Demonstration] = (),
    held_out: Iterable[Record] | object | None = None,
    long_run: int = LONG_RUN,
) -> Finding:
    """Search released texts for private text and personal data.

    Args:
        demonstrations: the released texts.
        records: the private records behind them.
        backend: its tokens are the unit of runs; without it, words are.
        baseline: texts of the same model by `instruction_only_demonstrations`.
        held_out: records of the same kind that were not used.
        long_run: the number of words (tokens) of one unit alone that make a leak, at least 2.

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

    def cut(text: str) -> Pieces:
        """Without the names of fields, which are public."""
        said = " ".join(layout.values(text))
        return _words(said) if backend is None else tuple(backend.tokenize(f" {said}"))

    private, others = as_records(records), [] if held_out is None else as_records(held_out)
    texts, plain = [one.text for one in released], [one.text for one in baseline]
    overlaps = _overlaps(texts, private, cut)
    pieces = "words" if backend is None else "tokens"
    leaks = [number for number, each in enumerate(overlaps) if each.is_leak(long_run)]
    figures = list(_runs(f"{pieces} of a record", overlaps))
    if plain:
        figures += _runs(f"{pieces} of a record, without the records", _overlaps(plain, private, cut))
    if others:
        figures += _runs(f"{pieces} of a record held out", _overlaps(texts, others, cut))
    return Finding(
        kind="leak",
        title="Leak check",
        statement=_statement(len(leaks), len(released), f"{long_run} {pieces} in a row"),
        verdict="failed" if leaks else "passed",
        confidential=True,
        figures=(*figures, *_totals(overlaps)),
        details={
            "demonstrations": [each.as_dict() for each in overlaps],
            "leaks": leaks,
            "long_run": long_run,
            "counted_in": pieces,
        },
    )


@dataclass(frozen=True)
class Overlap:
    """What one text has in common with the records.

    Attributes:
        longest_run: the most consecutive pieces that occur in a record.
        longest_of_one: the same, counting only runs of one unit alone.
        duplicate: whether the text equals a record, word for word.
        found: personal data by kind.
        of_one_unit: the part of it that one unit alone has.
    """

    longest_run: int
    longest_of_one: int
    duplicate: bool
    found: Counter[str] = field(default_factory=Counter)
    of_one_unit: Counter[str] = field(default_factory=Counter)

    def is_leak(self, long_run: int) -> bool:
        """Whether the text repeats something of one unit alone."""
        return self.longest_of_one >= long_run or self.of_one_unit.total() > 0

    def as_dict(self) -> dict[str, object]:
        """Return JSON values: counts only."""
        return {
            "longest_run": self.longest_run,
            "longest_run_of_one_unit": self.longest_of_one,
            "exact_duplicate": self.duplicate,
            "personal_data": dict(self.found),
            "personal_data_of_one_unit": dict(self.of_one_unit),
        }


def _words(text: str) -> Pieces:
    return tuple(re.findall(r"\w+", text.casefold()))


def _overlaps(texts: Sequence[str], records: Sequence[Record], cut: Cut) -> list[Overlap]:
    """Compare each text with all records."""
    written = [cut(text) for text in texts]
    runs = {run for pieces in written for run in _all_runs(pieces)}
    holders: defaultdict[Pieces, set[Hashable]] = defaultdict(set)
    whole: set[Pieces] = set()
    personal: defaultdict[tuple[str, str], set[Hashable]] = defaultdict(set)
    for number, record in enumerate(records):
        holder = number if record.unit is None else record.unit
        pieces = cut(record.text)
        whole.add(pieces)
        for run in _known_runs(pieces, runs):
            holders[run].add(holder)
        for found in found_in(record.text):
            personal[found].add(holder)
    return [
        _overlap(pieces, list(found_in(text)), holders, personal, pieces in whole)
        for text, pieces in zip(texts, written, strict=True)
    ]


def _overlap(
    pieces: Pieces,
    found: Sequence[tuple[str, str]],
    holders: Mapping[Pieces, set[Hashable]],
    personal: Mapping[tuple[str, str], set[Hashable]],
    duplicate: bool,
) -> Overlap:
    shared = {run: len(holders[run]) for run in _all_runs(pieces) if run in holders}
    return Overlap(
        longest_run=max(map(len, shared), default=0),
        longest_of_one=max((len(run) for run, units in shared.items() if units == 1), default=0),
        duplicate=duplicate,
        found=Counter(kind for kind, _ in found),
        of_one_unit=Counter(each[0] for each in found if len(personal.get(each, ())) == 1),
    )


def _all_runs(pieces: Pieces) -> Iterable[Pieces]:
    ends = range(1, len(pieces) + 1)
    return {pieces[start:end] for end in ends for start in range(end)}


def _known_runs(pieces: Pieces, runs: set[Pieces]) -> Iterable[Pieces]:
    """The runs of a record that occur in a text. A run that occurs in none is not extended."""
    for start in range(len(pieces)):
        for end in range(start + 1, len(pieces) + 1):
            if pieces[start:end] not in runs:
                break
            yield pieces[start:end]


def _runs(what: str, overlaps: Sequence[Overlap]) -> Iterator[Figure]:
    lengths = [each.longest_run for each in overlaps]
    yield Figure(f"longest run of {what}", float(max(lengths)))
    yield Figure(f"longest run of {what}, mean", sum(lengths) / len(lengths))


def _totals(overlaps: Sequence[Overlap]) -> Iterator[Figure]:
    yield Figure("exact duplicates of a record", float(sum(each.duplicate for each in overlaps)))
    yield Figure("personal data by its shape", float(sum(each.found.total() for each in overlaps)))
    of_one = sum(each.of_one_unit.total() for each in overlaps)
    yield Figure("personal data of one unit alone", float(of_one), reference=0.0)


def _statement(leaks: int, released: int, run: str) -> str:
    found = f"{leaks} of {released} demonstrations repeat"
    none = f"None of {released} demonstrations repeats"
    return f"{found if leaks else none} {run} or more, or personal data, of one unit alone."
