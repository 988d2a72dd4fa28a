"""The leak check finds what one unit alone wrote, and ignores what many wrote."""

import json

import pytest

from dpfewshot.audit import leak_check
from dpfewshot.audit.leak import found_in
from dpfewshot.errors import InvalidPlan
from dpfewshot.values import Record
from tests.support.factory import demonstration

COMMON = "thank you very much for the quick help that you gave me today"
OWN = "on the ninth of may our blue canoe sank under the old bridge near the mill"


def released(*texts):
    return [demonstration(text, "a") for text in texts]


def records(*texts, unit=None):
    return [Record(text, "a", unit) for text in texts]


def test_a_long_run_of_one_record_is_a_leak_however_it_is_written():
    finding = leak_check(released("Hello", f"Well, {OWN.upper()}!"), records(OWN, COMMON))
    assert finding.verdict == "failed"
    assert finding.confidential
    assert finding.details["leaks"] == [1]
    assert finding.figure("longest run of words of a record").value == len(OWN.split())


def test_what_many_write_is_no_leak():
    finding = leak_check(released(COMMON), records(COMMON, f"{COMMON} again"))
    assert finding.verdict == "passed"
    assert finding.figure("longest run of words of a record").value == len(COMMON.split())


def test_many_records_of_one_unit_are_still_one_unit():
    finding = leak_check(released(COMMON), records(COMMON, f"{COMMON} again", unit="customer 7"))
    assert finding.verdict == "failed"


def test_short_runs_and_short_duplicates_are_counted_and_are_no_leak():
    finding = leak_check(released("where is it"), records("Where is it?", "the canoe"))
    assert finding.verdict == "passed"
    assert finding.figure("exact duplicates of a record").value == 1
    assert "1 has the words of a whole short record, 1 of one unit alone" in finding.statement
    common = leak_check(released("where is it", "a boat"), records("Where is it?", "where is it")).statement
    assert "1 has the words of a whole short record, none of one unit alone" in common
    assert leak_check(released("where is it"), records("Where is it?"), long_run=3).verdict == "failed"


@pytest.mark.parametrize(
    ("written", "in_record"), [("call 0171 123 4567", "my phone: 0171-1234567"), ("to A@b.org", "a@b.org")]
)
def test_personal_data_of_one_unit_is_a_leak_and_is_not_quoted(written, in_record):
    finding = leak_check(released(written), records(in_record, "nothing"))
    assert finding.verdict == "failed"
    text = json.dumps(finding.as_dict())
    assert "4567" not in text
    assert "b.org" not in text
    assert leak_check(released(written), records("nothing")).verdict == "passed"


def test_a_baseline_and_records_held_out_are_set_beside():
    finding = leak_check(
        released(f"i say {COMMON}"),
        records(COMMON, COMMON),
        baseline=released("for the"),
        held_out=records("i say so"),
    )
    names = ("", ", without the records", " held out")
    runs = [finding.figure(f"longest run of words of a record{name}").value for name in names]
    assert runs == [len(COMMON.split()), 2, 2]


def test_line_breaks_of_a_record_hide_no_copy_of_it():
    finding = leak_check(released("my parcel is late"), records("my\nparcel\nis late"), long_run=3)
    assert finding.verdict == "failed"


def test_nothing_released_is_refused():
    with pytest.raises(InvalidPlan, match="demonstrations"):
        leak_check([], records(OWN))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("write to first.last+tag@mail.example.org.", ["e-mail"]),
        ("DE89 3704 0044 0532 0130 00 and no more", ["IBAN"]),
        ("DE88 3704 0044 0532 0130 00 fails its checksum", ["phone"]),
        ("4111 1111 1111 1111", ["card"]),
        ("from 192.168.0.1 and not from 999.1.1.1", ["IP address"]),
        ("+49 (0)30 1234-5678 or 555-123-4567", ["phone", "phone"]),
        ("reference 1234567, not 123456", ["long number"]),
        ("in 1999, 2020-2021, for 10.000,00 and 12 34 56", []),
    ],
)
def test_shapes(text, kinds):
    assert [kind for kind, _ in found_in(text)] == kinds
