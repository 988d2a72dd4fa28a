"""Direct identifiers in records: each becomes a public placeholder, such as `<EMAIL_ADDRESS>`.

Presidio's recognisers that work by pattern and checksum find them; no model is loaded, and nothing is read
from the network. Each text is masked by itself, so a record's masked text is a function of that record and of
public settings, and a record that cannot be masked is a null in every release (docs/proofs/sampling.md).
Masking is no part of the guarantee and changes no ε.

What is found is private: it is in no log, no message and no representation.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from dpfewshot.errors import InvalidRecords, needs_extra
from dpfewshot.records.reading import as_records
from dpfewshot.records.units import Integers
from dpfewshot.runtime.redaction import none_if_it_fails, redacts_errors
from dpfewshot.values import Columns, Record, Records, StoredRecords, columns_of

LEAST_SCORE: Final = 0.4
"""Presidio's score of a pattern that counts without context words around it. A valid checksum scores 1."""

_NOT_MASKED: Final = frozenset({"DateRecognizer", "UrlRecognizer"})
"""They find what rarely identifies a person by itself, and much else."""


class _Found(NamedTuple):
    """An identifier in a text."""

    start: int
    end: int
    score: float
    kind: str


@redacts_errors(None)
def mask_identifiers(records: Any, *, language: str = "en") -> Records | StoredRecords:
    """Replace the direct identifiers in the texts of records by public placeholders.

    It finds e-mail addresses, telephone numbers, payment cards, IBANs, IP and MAC addresses, UUIDs,
    cryptocurrency wallets, and the national numbers of countries where the language is spoken. It misses
    names, postal addresses, dates, links, and whatever describes a person in words. Use it beside a budget,
    never in place of one. Labels and units stay as they are.

    Args:
        records: what `read_records`, `as_records` or `index_records` returned, or what `as_records` takes.
        language: two lower-case letters (ISO 639-1), which select the national numbers.

    Returns:
        The records with masked texts. Those of `index_records` stay in their file, and are masked when they
        are read. There, a record that cannot be masked is a null in everything that is released, as one that
        cannot be read: it contributes nothing, and nothing says so.

    Raises:
        InvalidRecords: a record in memory cannot be masked: the message has its number, from 1. Or the
            language is not two letters.
        MissingExtra: Presidio is not installed.

    Example:
        >>> rows = [{"text": "Write to ann@example.com", "label": "Contact"}]
        >>> mask_identifiers(rows)[0].text  # doctest: +SKIP
        'Write to <EMAIL_ADDRESS>'
    """
    if not re.fullmatch("[a-z]{2}", language):
        raise InvalidRecords("language= must be two lower-case letters, such as 'en'")
    _recognizers(language)
    held = as_records(records)
    if isinstance(held, StoredRecords):
        return MaskedRecords(held, language)
    columns, masked = _masked_columns(columns_of(held), language), Records()
    for number, record in enumerate(held, start=1):
        found = _masked(record, columns, language)
        if found is None:
            raise InvalidRecords(f"record {number}: its text cannot be masked; drop the record")
        masked.append(found)
    return masked


class MaskedRecords(StoredRecords):
    """Records in their file, masked when they are read. Nothing of them is in the repr."""

    refusal = "a record cannot be read, or cannot be masked"

    def __init__(self, records: StoredRecords, language: str) -> None:
        self.columns = _masked_columns(records.columns, language)
        self.label_rows, self.unit_rows = records.label_rows, records.unit_rows
        self._records, self._language = records, language

    def __reduce__(self) -> tuple[Any, ...]:
        return MaskedRecords, (self._records, self._language)

    @property
    def labels(self) -> Mapping[int, str]:
        """See `StoredRecords.labels`. Labels are not masked."""
        return self._records.labels

    def unit_names(self, rows: Integers) -> list[str]:
        """See `StoredRecords.unit_names`. They are not masked."""
        return self._records.unit_names(rows)

    @redacts_errors(InvalidRecords, "masking")
    def take(self, rows: Sequence[int]) -> list[Record | None]:
        """See `StoredRecords.take`. A record that cannot be masked is None, by a rule of it alone."""
        found = self._records.take(rows)
        return [None if one is None else _masked(one, self.columns, self._language) for one in found]

    def check(self) -> None:
        """See `StoredRecords.check`. Presidio must be installed here too."""
        _recognizers(self._language)
        self._records.check()


def _masked_columns(columns: Columns, language: str) -> Columns:
    """The columns of masked records, which say by what they were masked."""
    masked = f"presidio-analyzer {version('presidio-analyzer')} {language}"
    return replace(columns, masked=", ".join(filter(None, (columns.masked, masked))))


def _masked(record: Record, columns: Columns, language: str) -> Record | None:
    """A record with its text masked; None if that fails, whatever the cause."""

    def masked() -> Record:
        text = "\n\n".join(_replaced(part, language) for part in record.text.split("\n\n"))
        return replace(record, text=text, columns=columns)

    silence = _SILENT.set(True)
    try:
        return none_if_it_fails(masked)
    finally:
        _SILENT.reset(silence)


def _replaced(text: str, language: str) -> str:
    """A text with placeholders. What is on both sides of a blank line never forms one identifier."""
    pieces, done = [], 0
    for found in _apart(_identifiers(text, language)):
        pieces += [text[done : found.start], f"<{found.kind}>"]
        done = found.end
    return "".join([*pieces, text[done:]])


def _identifiers(text: str, language: str) -> Iterator[_Found]:
    for recognizer in _recognizers(language):
        for one in recognizer.analyze(text, recognizer.supported_entities, None):
            if one.score >= LEAST_SCORE:
                yield _Found(one.start, one.end, one.score, one.entity_type)


def _apart(identifiers: Iterable[_Found]) -> list[_Found]:
    """Identifiers that do not overlap. Of overlapping ones all is masked, and the surest names it."""
    joined: list[_Found] = []
    for one in sorted(identifiers):
        if joined and one.start < joined[-1].end:
            last = joined.pop()
            named = max(last, one, key=lambda found: (found.score, found.end - found.start, found.kind))
            joined.append(named._replace(start=last.start, end=max(last.end, one.end)))
        else:
            joined.append(one)
    return joined


_SILENT: ContextVar[bool] = ContextVar("_SILENT", default=False)
"""Whether Presidio works on a private text: some of its log lines quote it."""


def _is_public(_record: logging.LogRecord) -> bool:
    return not _SILENT.get()


@functools.lru_cache(maxsize=8)
def _recognizers(language: str) -> tuple[Any, ...]:
    """Presidio's recognisers by pattern and checksum: those for everybody, and those of a language.

    Presidio's own recogniser of e-mail addresses fetches a list of domains from the network. Its pattern does
    without, and finds addresses of domains that the list lacks.

    Presidio leaves a pattern out when its search takes longer than a limit, so a busy machine could mask less
    of a record. Within this process there is no such limit any more, for other users of Presidio either.
    """
    with needs_extra("masking identifiers", "presidio"):
        from presidio_analyzer import PatternRecognizer, pattern_recognizer, predefined_recognizers
        from presidio_analyzer.predefined_recognizers.generic import iban_recognizer
    pattern_recognizer.REGEX_TIMEOUT_SECONDS = iban_recognizer.REGEX_TIMEOUT_SECONDS = None
    logging.getLogger("presidio-analyzer").addFilter(_is_public)
    known = [getattr(predefined_recognizers, name) for name in sorted(predefined_recognizers.__all__)]
    email, telephone = predefined_recognizers.EmailRecognizer, predefined_recognizers.PhoneRecognizer
    by_pattern = [
        one()
        for one in known
        if isinstance(one, type)
        and issubclass(one, PatternRecognizer)
        and one is not email
        and one.__name__ not in _NOT_MASKED
    ]
    return (
        PatternRecognizer("EMAIL_ADDRESS", patterns=email.PATTERNS),
        telephone(),
        *(one for one in by_pattern if one.country_code() is None or one.supported_language == language),
    )
