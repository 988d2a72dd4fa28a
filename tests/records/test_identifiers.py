"""Direct identifiers become placeholders, each record by itself; nothing of them is said anywhere."""

from __future__ import annotations

import json
import logging
import pickle
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.records import identifiers
from dpfewshot.records.identifiers import _apart, _Found, _recognizers
from dpfewshot.values import columns_of
from tests.support.crash_reporter import collected
from tests.support.presidio import needs_presidio

pytestmark = needs_presidio

CARD = "4111 1111 1111 1111"
BROKEN_IBAN = "DE89 3704 0044 0532 0130 ₀₀"


def masked(text: str, language: str = "en") -> str:
    return dpf.mask_identifiers([{"text": text, "label": "a"}], language=language)[0].text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to ann.lee@example.com, please.", "Write to <EMAIL_ADDRESS>, please."),
        ("ann@intranet.local has it", "<EMAIL_ADDRESS> has it"),  # no public domain
        ("Call +44 20 7946 0018 now", "Call <PHONE_NUMBER> now"),
        ("My card is 4111 1111 1111 1111.", "My card is <CREDIT_CARD>."),
        ("Pay DE89 3704 0044 0532 0130 00 today", "Pay <IBAN_CODE> today"),
        ("from 192.168.17.4 again", "from <IP_ADDRESS> again"),
        ("printer 00:1A:2B:3C:4D:5E", "printer <MAC_ADDRESS>"),
        ("my SSN: 536-90-4399.", "my SSN: <US_SSN>."),
        ("two: a@b.example and c@d.example", "two: <EMAIL_ADDRESS> and <EMAIL_ADDRESS>"),
        ("Nothing of that sort, 3 parcels in 2 days.", "Nothing of that sort, 3 parcels in 2 days."),
        ("a card of 4111 1111 1111 1112", "a card of 4111 1111 1111 1112"),  # a wrong checksum
    ],
)
def test_an_identifier_becomes_the_name_of_its_kind(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_a_language_selects_national_numbers() -> None:
    nif = "Mi NIF es 12345678Z."
    assert masked(nif, "es") == "Mi NIF es <ES_NIF>."
    assert masked(nif, "en") == nif
    assert masked("Escribe a ana@ejemplo.es", "es") == "Escribe a <EMAIL_ADDRESS>"


@pytest.mark.parametrize(
    "text", ["Ann Lee lives in 12 Elm Street.", "born on 1990-02-03", "see https://example.com/ann"]
)
def test_what_the_documentation_says_is_missed_is_missed(text: str) -> None:
    assert masked(text) == text


def test_of_overlapping_identifiers_all_is_masked_and_the_surest_names_it() -> None:
    found = [_Found(4, 12, 0.4, "PHONE"), _Found(0, 6, 1.0, "CARD"), _Found(12, 14, 0.5, "MAIL")]
    assert [tuple(one) for one in _apart(found)] == [(0, 12, 1.0, "CARD"), (12, 14, 0.5, "MAIL")]


def test_fields_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank line separates the fields of a text, and no identifier crosses it."""

    class Greedy:
        supported_entities = ("X",)

        def analyze(self, text: str, *_: object) -> list[object]:
            return [SimpleNamespace(start=0, end=len(text), score=1.0, entity_type="X")]

    assert masked("4111 1111\n\n1111 1111") == "4111 1111\n\n1111 1111"
    assert masked("Subject: a@b.example\n\nBody: c@d.example") == (
        "Subject: <EMAIL_ADDRESS>\n\nBody: <EMAIL_ADDRESS>"
    )
    monkeypatch.setattr(identifiers, "_recognizers", lambda _language: (Greedy(),))
    assert masked("one\n\ntwo") == "<X>\n\n<X>"


def test_labels_units_and_columns_stay() -> None:
    mail = "a@b.example"
    rows = [{"body": mail, "topic": mail, "who": mail}]
    records = dpf.as_records(rows, text="body", label="topic", unit="who")
    hidden = dpf.mask_identifiers(records)
    assert records[0].text == mail
    assert (hidden[0].text, hidden[0].label, hidden[0].unit) == ("<EMAIL_ADDRESS>", mail, mail)
    named = columns_of(hidden)
    assert (named.text, named.label, named.unit) == ("body", "topic", "who")
    assert dpf.as_records(hidden)[0] == hidden[0]
    with pytest.raises(dpf.InvalidRecords, match="masked"):
        columns_of([*records, *hidden])


def test_columns_tell_by_what_they_were_masked() -> None:
    once = dpf.mask_identifiers([{"text": "a", "label": "b"}])
    twice = dpf.mask_identifiers(once, language="de")
    first, second = columns_of(twice).masked.split(", ")
    assert first == columns_of(once).masked
    assert (first.split()[0], first[-3:], second[-3:]) == ("presidio-analyzer", " en", " de")
    assert columns_of(dpf.as_records([{"text": "a", "label": "b"}])).identity() == {"label_column": "label"}


@pytest.mark.parametrize("language", ["", "english", "EN", "e1"])
def test_a_language_is_two_letters(language: str) -> None:
    with pytest.raises(dpf.InvalidRecords, match="two lower-case letters"):
        masked("a", language)


# ---- records in their file -------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    path = tmp_path / "tickets.jsonl"
    texts = ["Write to a@b.example", "late again", f"card {CARD}"]
    path.write_text("".join(json.dumps({"text": text, "label": "a"}) + "\n" for text in texts))
    return dpf.index_records(path)


def test_records_in_their_file_are_masked_when_they_are_read(stored: Any) -> None:
    hidden = dpf.mask_identifiers(stored)
    expected = ["Write to <EMAIL_ADDRESS>", "late again", "card <CREDIT_CARD>"]
    assert [record.text for record in hidden] == expected
    assert [record.text for record in hidden[1:]] == expected[1:]
    assert hidden[2].text == expected[2]
    assert [record and record.text for record in hidden.take([2, 0])] == [expected[2], expected[0]]
    assert [record.text for record in pickle.loads(pickle.dumps(hidden))] == expected  # noqa: S301 - our own
    assert len(hidden) == 3
    assert columns_of(hidden).masked
    assert stored[0].text == "Write to a@b.example"
    hidden.check()
    assert repr(hidden) == "MaskedRecords(private)"


def fails_on(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a recogniser fail on texts with the secret, which it quotes."""

    class Failing:
        supported_entities = ("X",)

        def analyze(self, text: str, *_: object) -> list[object]:
            if secret in text:
                raise RuntimeError(f"cannot read {text}")
            return []

    monkeypatch.setattr(identifiers, "_recognizers", lambda _language: (Failing(),))


def test_a_record_that_cannot_be_masked_is_a_null_by_itself(
    stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = dpf.mask_identifiers(stored)
    fails_on(CARD, monkeypatch)
    assert [record and record.text for record in hidden.take([0, 2, 1])] == [
        "Write to a@b.example",
        None,
        "late again",
    ]


@pytest.mark.parametrize("kept", [False, True])
def test_no_error_says_what_could_not_be_masked(
    kept: bool, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, rows = dpf.mask_identifiers(stored), [{"text": f"card {CARD}", "label": "a"}]
    fails_on(CARD, monkeypatch)
    with pytest.raises(dpf.InvalidRecords, match=r"cannot be masked|record 1") as caught:
        _ = list(hidden) if kept else dpf.mask_identifiers(rows)
    assert CARD not in collected(caught.value)


# ---- the network and logs ---------------------------------------------------------------------------------


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Presidio's own recogniser of e-mail addresses fetches a list of domains: `tldextract`."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network is used")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    _recognizers.cache_clear()
    assert masked("ann@example.com, 192.168.17.4, DE89 3704 0044 0532 0130 00").count("<") == 3
    assert list(tmp_path.iterdir()) == []
    tldextract = pytest.importorskip("tldextract")
    fetches = tldextract.TLDExtract(cache_dir=None, fallback_to_snapshot=False)
    with pytest.raises(AssertionError, match="the network is used"):  # the control
        fetches("ann@example.com")


def test_no_log_quotes_a_record(caplog: pytest.LogCaptureFixture) -> None:
    text = f"Pay {BROKEN_IBAN} and {CARD}"
    _recognizers("en")
    with caplog.at_level(logging.DEBUG):
        assert "<CREDIT_CARD>" in masked(text)
        assert caplog.text == ""
        for recognizer in _recognizers("en"):  # the control: Presidio says something
            recognizer.analyze(text, recognizer.supported_entities, None)
        assert caplog.text


def test_no_limit_of_time_decides_what_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Presidio skips a pattern that takes too long, which on a busy machine may be any."""
    from presidio_analyzer import pattern_recognizer
    from presidio_analyzer.predefined_recognizers.generic import iban_recognizer

    text = "words " * 2_000 + "ann@example.com"
    for module in (pattern_recognizer, iban_recognizer):
        monkeypatch.setattr(module, "REGEX_TIMEOUT_SECONDS", 1e-6)
    assert masked(text) == text  # the control: with such a limit, nothing is found
    _recognizers.cache_clear()
    assert "ann@example.com" not in masked(text)


# ---- a function of the record alone, so every bound on prompts stays -------------------------------------

PIECES = st.sampled_from(
    ["ann@example.com", "4111 1111 1111 1111", "+44 20 7946 0018", "DE89370400440532013000", "192.168.17.4",
     "\n\n", "\n", " ", ", ", "<EMAIL_ADDRESS>", "late", "Subject: ", "536-90-4399", "५५", "ß", "\u200f"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=12)), min_size=1, max_size=6).map("".join)
RECORDS = st.lists(TEXTS.map(lambda text: dpf.Record(f"{text}.", "a")), min_size=1, max_size=5)


def texts(records: object) -> list[str]:
    return [record.text for record in dpf.mask_identifiers(records)]


@settings(max_examples=60)
@given(records=RECORDS, other=RECORDS)
def test_neighbours_change_nothing(records: list[dpf.Record], other: list[dpf.Record]) -> None:
    alone = [text for record in records for text in texts([record])]
    assert texts(records) == alone
    assert texts([*other, *records])[len(other) :] == alone
    assert texts(records[::-1]) == alone[::-1]


@settings(max_examples=20)
@given(records=RECORDS, data=st.data())
def test_drawn_records_are_masked_as_all_are(records: list[dpf.Record], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        path.write_text("".join(json.dumps({"text": one.text, "label": "a"}) + "\n" for one in records))
        rows = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=6))
        drawn = dpf.mask_identifiers(dpf.index_records(path)).take(rows)
        assert [record.text for record in drawn] == [texts(records)[row] for row in rows]


@settings(max_examples=60)
@given(before=st.text("ab ,", max_size=9), after=st.text("ab ,", max_size=9))
def test_an_address_goes_wherever_it_stands(before: str, after: str) -> None:
    (text,) = texts([dpf.Record(f"{before} ann@example.com {after}", "a")])
    assert text == f"{before} <EMAIL_ADDRESS> {after}"
