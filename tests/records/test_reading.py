"""Records of text files and of memory: bit for bit in, and errors that say where and nothing of what."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import pickle
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.errors import BackendError, DPFewShotError, InvalidRecords, MissingExtra
from dpfewshot.records import as_records, read_records
from dpfewshot.records.reading import SEPARATORS
from dpfewshot.values import Record
from tests.support.crash_reporter import collected
from tests.support.refusals import GOOD, PRIVATE, jsonl, refusal, refused_file

if TYPE_CHECKING:
    from collections.abc import Callable

# Every text that UTF-8 can hold and that is not blank: control characters, separators and NUL too.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def test_the_check_for_private_text_finds_it() -> None:
    # A control: an ordinary chained error says it in each of these ways, and the check must see that.
    def loud() -> None:
        try:
            json.loads(f"{PRIVATE} {{")
        except json.JSONDecodeError:
            raise InvalidRecords("quiet message") from None

    with pytest.raises(InvalidRecords) as caught:
        loud()
    assert PRIVATE in collected(caught.value, depth=0)


# --- what is read ---------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.JSONL", "r.csv", "r.csv.gz", "r.tsv"])
@given(rows=st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=5))
@settings(max_examples=60)
def test_a_file_gives_back_every_bit(name: str, rows: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if "sv" in name:
            buffer = io.StringIO(newline="")
            separator = "\t" if ".tsv" in name else ","
            csv.writer(buffer, quoting=csv.QUOTE_ALL, delimiter=separator).writerows(
                [("text", "label", "who"), *rows]
            )
            content = buffer.getvalue()
        else:
            lines = [dict(zip(("text", "label", "who"), row, strict=True)) for row in rows]
            content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        encoded = content.encode()
        path.write_bytes(gzip.compress(encoded) if name.endswith(".gz") else encoded)
        assert read_records(path, unit="who") == [Record(*row) for row in rows]


@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_mappings_give_back_every_bit(rows: list[tuple[str, str]]) -> None:
    mappings = ({"body": text, "topic": label, "more": object()} for text, label in rows)
    assert as_records(mappings, text="body", label="topic") == [Record(*row) for row in rows]


def test_columns_can_be_named_and_others_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(jsonl({"body": "b", "topic": "t", "who": 17, "text": None, "label": 3}))
    records = read_records(str(path), text="body", label="topic", unit="who")
    assert records == [Record("b", "t", "17")]
    assert read_records(path, text="body", label="topic") == [Record("b", "t", None)]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_byte_order_mark_line_ends_and_blank_lines_are_tolerated(tmp_path: Path, ending: str) -> None:
    lines = "\ufeff" + ending.join(['{"text": "a", "label": "x"}', "", "  ", '{"text": "b", "label": "y"}'])
    (tmp_path / "r.jsonl").write_bytes(lines.encode())
    (tmp_path / "r.csv").write_bytes(ending.join(["\ufefftext,label", "a,x", "", "b,y"]).encode())
    expected = [Record("a", "x"), Record("b", "y")]
    assert read_records(tmp_path / "r.jsonl") == expected
    assert read_records(tmp_path / "r.csv") == expected


def test_a_field_may_be_huge_and_the_csv_limit_only_grows(tmp_path: Path) -> None:
    text = "long " * 200_000
    (tmp_path / "r.csv").write_text(f"text,label\n{text},x\n", encoding="utf-8")
    (tmp_path / "r.jsonl").write_bytes(jsonl({"text": text, "label": "x"}))
    before = csv.field_size_limit(131_072)
    try:
        assert read_records(tmp_path / "r.csv") == [Record(text, "x")]
        assert csv.field_size_limit() >= 131_072
        csv.field_size_limit(sys.maxsize)
        read_records(tmp_path / "r.csv")
        assert csv.field_size_limit() == sys.maxsize
    finally:
        csv.field_size_limit(before)
    assert read_records(tmp_path / "r.jsonl") == [Record(text, "x")]


def test_record_objects_are_checked_and_passed_through() -> None:
    record = Record("a", "x", "u")
    assert as_records([record])[0] is record
    by_hand: Any = 5
    assert as_records([Record("a", "x", by_hand)]) == [Record("a", "x", "5")]
    message = refusal(lambda: as_records([record, Record(" ", PRIVATE)]))
    assert message.startswith("record 2: the text is blank")


# --- what is refused: files -----------------------------------------------------------------------
def test_a_file_that_is_none_or_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    assert "two\\nlines.jsonl': no such file" in refusal(lambda: read_records(tmp_path / "two\nlines.jsonl"))
    assert "is a directory" in refusal(lambda: read_records(tmp_path))
    (tmp_path / "r.jsonl").touch()
    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read: Permission denied" in refusal(lambda: read_records(tmp_path / "r.jsonl"))


SUFFIX = "unknown suffix; known are .jsonl, .jsonl.gz, .csv, .csv.gz, .tsv, .tsv.gz, .parquet"


@pytest.mark.parametrize(
    ("name", "content", "trouble"),
    [
        *((name, jsonl(GOOD), SUFFIX) for name in ("r.txt", "r", "r.gz", "r.json", "jsonl")),
        ("r.jsonl", b"", "there are no records"),
        ("r.jsonl.gz", b"", "there are no records"),
        ("r.csv", b"", "is empty"),
        ("r.jsonl", b"\n \n", "there are no records"),
        ("r.csv", b"text,label\n\n", "there are no records"),
        ("r.csv", f"text,label\n{PRIVATE},x\n{PRIVATE},\n".encode(), ": line 3: the label is blank"),
        ("r.csv", b"text,label,text\na,x,b\n", "there are several columns 'text'"),
        ("r.csv", f"{PRIVATE} is ill,{PRIVATE}\nb,y\n".encode(), "there is no column 'text'"),
        (
            "r.jsonl",
            jsonl(GOOD, {"text": PRIVATE, PRIVATE: "x"}),
            ": line 2: has no 'label'; name",
        ),
        *(
            ("r.jsonl", jsonl(GOOD) + line.encode(), ": line 2: is not a JSON object")
            for line in (f'["{PRIVATE}"]', f'"{PRIVATE}"', "null", "3")
        ),
    ],
)
def test_a_refused_file_is_told_why(name: str, content: bytes, trouble: str, tmp_path: Path) -> None:
    assert trouble in refused_file(tmp_path / name, content)


@pytest.mark.parametrize("shown", [(5, PRIVATE), (PRIVATE,)])
def test_a_librarys_os_error_is_not_quoted(
    shown: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quoting(*_: object) -> None:
        raise OSError(*shown)

    monkeypatch.setattr("dpfewshot.records.checks.record_of", quoting)
    message = refused_file(tmp_path / "r.jsonl", jsonl(GOOD))
    assert "cannot be read: " in message
    assert "None" not in message


@pytest.mark.parametrize("name", ["r.jsonl.gz", "r.csv.gz"])
@pytest.mark.parametrize("damage", ["cut off", "wrong checksum", "not deflate", "plain", "garbage behind"])
def test_a_broken_gzip_file(tmp_path: Path, name: str, damage: str) -> None:
    # Longer than gzip's read-ahead, so that whole records come out before the damage shows.
    plain = jsonl(*[GOOD] * 5000) if "json" in name else b"text,label\n" + b"a,b\n" * 50_000
    packed = gzip.compress(plain)
    content = {
        "cut off": packed[:-20],
        "wrong checksum": packed[:-8] + b"\0\0\0\0" + packed[-4:],
        "not deflate": packed[:10] + b"\xff" * 40,
        "plain": plain,
        "garbage behind": packed + PRIVATE.encode(),
    }[damage]
    (tmp_path / name).write_bytes(content)
    assert "not a complete gzip file" in refusal(lambda: read_records(tmp_path / name))


# --- what is refused: lines -----------------------------------------------------------------------
BAD_JSON = [
    f'{{"text": "{PRIVATE}", "label": ',
    f"{PRIVATE}",
    f'{{"text": "{PRIVATE}"}} {{"label": "x"}}',
    "[" * 200_000,
    f'{{"text": "{PRIVATE}", "label": "x", "n": {"9" * 5000}}}',
]


@pytest.mark.parametrize("line", BAD_JSON, ids=["cut", "bare", "two objects", "deep", "digits"])
def test_broken_json_names_its_line(tmp_path: Path, line: str) -> None:
    message = refused_file(tmp_path / "r.jsonl", jsonl(GOOD) + b"\n" + line.encode() + b"\n" + jsonl(GOOD))
    assert ": line 3: is not JSON" in message


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.csv"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_line_that_is_not_utf8(tmp_path: Path, name: str, encoding: str) -> None:
    good = jsonl(GOOD) if "jsonl" in name else b"text,label\n"
    content = good + f"{PRIVATE} caf\xe9,x\n".encode(encoding)
    told = refused_file(tmp_path / name, content)
    assert ": line 2: is not UTF-8; convert the file: iconv -f latin1 -t utf-8 old.csv > new.csv, or " in told


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz"])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_csv_file_may_separate_its_columns_by_other_characters(
    tmp_path: Path, separator: str, name: str
) -> None:
    """Its first line decides, by the columns that are asked for, whatever the other separators do in it."""
    others = SEPARATORS.replace(separator, "")
    buffer = io.StringIO()
    header = ("text", f"not{others}asked", "label", "who")
    csv.writer(buffer, delimiter=separator).writerows([header, (f"a{others}", "b", "x", "7")])
    data = buffer.getvalue().encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read_records(tmp_path / name, unit="who") == [Record(f"a{others}", "x", "7")]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_missing_column_is_named_with_the_separator_and_no_header(tmp_path: Path, separator: str) -> None:
    content = separator.join([f"{PRIVATE} is ill", PRIVATE, "x"])
    message = refused_file(tmp_path / "r.csv", f"{content}\nb\n".encode())
    assert "there is no column 'text'" in message
    assert message.endswith(f"the first line has 3 columns, separated by {separator!r}")


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        (f'"{PRIVATE}', "is not CSV"),
        (f'"{PRIVATE}" b,x', "is not CSV"),
        (f"{PRIVATE}\rb,x", "is not CSV"),
        (PRIVATE, "has fewer fields"),
        (f"{PRIVATE},b,c", "has more fields"),
    ],
    ids=["open quote", "early quote", "carriage return", "fewer", "more"],
)
def test_a_broken_csv_line_is_named_by_where_its_record_starts(
    tmp_path: Path, line: str, trouble: str
) -> None:
    content = f'text,label\n"two\nlines",x\n{line}\nc,y\n'.encode()
    assert f": line 4: {trouble}" in refused_file(tmp_path / "r.csv", content)


# --- what is refused: values ----------------------------------------------------------------------
BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "the text is blank"),
    ({"text": " \t\u2003\n"}, "the text is blank"),
    ({"text": None}, "the text is missing"),
    ({"text": 31}, "the text is not a string"),
    ({"text": [PRIVATE]}, "the text is not a string"),
    ({"text": f"{PRIVATE} \ud800"}, "the text contains half of a surrogate pair"),
    ({"label": ""}, "the label is blank"),
    ({"label": 2}, "the label is not a string"),
    ({"label": float("nan")}, "the label is missing"),
    ({"who": None}, "the unit is missing"),
    ({"who": ""}, "the unit is blank"),
    ({"who": True}, "the unit is neither a string nor an integer"),
    ({"who": 1.5}, "the unit is neither a string nor an integer"),
    ({"who": {PRIVATE: 1}}, "the unit is neither a string nor an integer"),
]


@pytest.mark.parametrize(("change", "trouble"), BAD_VALUES)
def test_a_bad_value_is_refused_wherever_it_comes_from(
    tmp_path: Path, change: dict[str, Any], trouble: str
) -> None:
    good = {**GOOD, "who": f"{PRIVATE}-17"}
    bad = {**good, **change}
    in_file = refused_file(tmp_path / "r.jsonl", jsonl(good, bad, good), unit="who")
    assert f": line 2: {trouble}" in in_file
    in_memory = refusal(lambda: as_records([good, bad, good], unit="who"))
    assert in_memory.startswith(f"record 2: {trouble}")


def test_all_rows_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    """In a file and in memory; ten of them, and how many more."""
    lines = [b"text,label", b"a,x", b" ,x", b"a,", f"{PRIVATE},x,y".encode(), b" ,x"]
    assert refused_file(tmp_path / "r.csv", b"\n".join(lines)).endswith(
        "r.csv: line 3, line 6: the text is blank; line 4: the label is blank; "
        "line 5: has more fields than the first line. "
        "What to do: fill it in or drop the record; quote a field that holds ',' or line ends"
    )
    rows = jsonl(GOOD, {"text": PRIVATE}) + f"{PRIVATE}\n".encode() + jsonl(GOOD, [PRIVATE])
    assert ": line 2: has no 'label'; line 3: is not JSON; line 5: is not a JSON object. What to do: " in (
        refused_file(tmp_path / "r.jsonl", rows)
    )
    told = refusal(lambda: as_records([{**GOOD, "label": 3}] * 14 + [{**GOOD, "text": ""}] * 3))
    assert told.startswith("record 1, record 2, record 3")
    assert told.endswith(
        "record 10: the label is not a string; and 7 more. "
        "What to do: convert it (class numbers to their names)"
    )
    nothing = [(PRIVATE,), (PRIVATE,)]
    assert refusal(lambda: as_records(nothing)) == "record 1, record 2: is neither a mapping nor a Record"


@pytest.mark.parametrize(
    ("source", "trouble"),
    [
        ("tickets.jsonl", "for a file, use read_records"),
        (Path("tickets.jsonl"), "for a file, use read_records"),
        ({"text": ["a"], "label": ["x"]}, "not a mapping"),
        (7, "not int"),
        ([], "there are no records"),
        (iter(()), "there are no records"),
        ([("a", "x")], "record 1: is neither a mapping nor a Record"),
        (["text"], "record 1: is neither a mapping nor a Record"),
        ([{"text": "a"}], "record 1: has no 'label'"),
        ([Record("a", "x", 10**5000)], "record 1: the unit is an integer with too many digits"),  # type: ignore[arg-type]
    ],
)
def test_a_source_that_does_not_hold_rows(source: object, trouble: str) -> None:
    assert trouble in refusal(lambda: as_records(source))


def test_an_error_of_the_callers_own_generator_is_left_alone() -> None:
    def rows() -> Any:
        yield GOOD
        raise KeyError("the caller's")

    with pytest.raises(KeyError, match="the caller's"):
        as_records(rows())


# ---- numbers beyond Python's, and errors that travel ------------------------------------------------------


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],  # noqa: S301 - its own bytes
)
@pytest.mark.parametrize(
    "error",
    [MissingExtra("Parquet", "parquet"), BackendError("gone", retryable=True), InvalidRecords("none")],
)
def test_an_error_is_the_same_in_another_process(
    error: DPFewShotError, copied: Callable[[DPFewShotError], DPFewShotError]
) -> None:
    again = copied(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
