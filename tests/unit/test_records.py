"""Records: bit for bit in, and errors that say where and nothing of what."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import pickle
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.errors import BackendError, DPFewShotError, InvalidRecords, MissingExtra
from dpfewshot.records import as_records, read_records
from dpfewshot.values import Record

if TYPE_CHECKING:
    from collections.abc import Callable

# Stands in every value, key and header that a message could quote by mistake.
PRIVATE = "Zebulon"
GOOD = {"text": f"{PRIVATE} is ill", "label": f"{PRIVATE}-topic"}
GOOD_RECORD = Record(GOOD["text"], GOOD["label"])

# Every text that UTF-8 can hold and that is not blank: control characters, separators and NUL too.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def everything_said(error: BaseException) -> str:
    """All that a log, a traceback or a crash reporter could take from an error raised by the package."""
    said = [str(error), repr(error), "".join(traceback.format_exception(error)), repr(error.args)]
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is None:
            continue
        said += [
            repr(vars(link)),
            repr(link),
            str(getattr(link, "doc", "")),
            str(getattr(link, "object", "")),
        ]
        chain += [link.__cause__, link.__context__]
        for frame, _ in traceback.walk_tb(link.__traceback__):
            if frame.f_globals["__name__"].startswith("dpfewshot"):
                said += [repr(value) for value in frame.f_locals.values()]
    return "\n".join(said)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidRecords) as caught:
        call()
    message = str(caught.value)
    assert PRIVATE not in everything_said(caught.value)
    assert caught.value.__context__ is None
    assert len(message.splitlines()) == 1
    return message


def refused_file(path: Path, content: bytes, **columns: str) -> str:
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    message = refusal(lambda: read_records(path, **columns))
    assert path.name in message
    return message


def jsonl(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_the_check_for_private_text_finds_it() -> None:
    # A control: an ordinary chained error says it in each of these ways, and the check must see that.
    def loud() -> None:
        try:
            json.loads(f"{PRIVATE} {{")
        except json.JSONDecodeError:
            raise InvalidRecords("quiet message") from None

    with pytest.raises(InvalidRecords) as caught:
        loud()
    assert PRIVATE in everything_said(caught.value)


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.JSONL", "r.csv", "r.csv.gz"])
@given(rows=st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_file_gives_back_every_bit(name: str, rows: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if ".csv" in name:
            buffer = io.StringIO(newline="")
            csv.writer(buffer, quoting=csv.QUOTE_ALL).writerows([("text", "label", "who"), *rows])
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


def test_two_gzip_members_are_one_file(tmp_path: Path) -> None:
    one = gzip.compress(jsonl({"text": "a", "label": "x"}))
    (tmp_path / "r.jsonl.gz").write_bytes(one + one)
    assert read_records(tmp_path / "r.jsonl.gz") == [Record("a", "x")] * 2


def test_record_objects_are_checked_and_passed_through() -> None:
    record = Record("a", "x", "u")
    assert as_records([record])[0] is record
    by_hand: Any = 5
    assert as_records([Record("a", "x", by_hand)]) == [Record("a", "x", "5")]
    message = refusal(lambda: as_records([record, Record(" ", PRIVATE)]))
    assert message.startswith("record 2: the text is blank")


# --- what is refused: files -----------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "no such file" in refusal(lambda: read_records(tmp_path / "r.jsonl"))


def test_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal(lambda: read_records(tmp_path))


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "r.jsonl").touch()
    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read: Permission denied" in refusal(lambda: read_records(tmp_path / "r.jsonl"))


@pytest.mark.parametrize("name", ["r.txt", "r", "r.gz", "r.json", "jsonl"])
def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path, name: str) -> None:
    message = refused_file(tmp_path / name, jsonl(GOOD))
    assert "unknown suffix; known are .jsonl, .jsonl.gz, .csv, .csv.gz, .parquet" in message


def test_a_file_name_with_a_line_end_stays_on_one_line(tmp_path: Path) -> None:
    assert "two\\nlines.jsonl" in refusal(lambda: read_records(tmp_path / "two\nlines.jsonl"))


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.csv"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    message = refused_file(tmp_path / name, b"")
    assert "is empty" in message if name == "r.csv" else "there are no records" in message


@pytest.mark.parametrize(("name", "content"), [("r.jsonl", b"\n \n"), ("r.csv", b"text,label\n\n")])
def test_a_file_without_records(tmp_path: Path, name: str, content: bytes) -> None:
    assert "there are no records" in refused_file(tmp_path / name, content)


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


@pytest.mark.parametrize("line", [f'["{PRIVATE}"]', f'"{PRIVATE}"', "null", "3"])
def test_json_that_is_no_object(tmp_path: Path, line: str) -> None:
    assert ": line 2: is not a JSON object" in refused_file(tmp_path / "r.jsonl", jsonl(GOOD) + line.encode())


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.csv"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_line_that_is_not_utf8(tmp_path: Path, name: str, encoding: str) -> None:
    good = jsonl(GOOD) if "jsonl" in name else b"text,label\n"
    content = good + f"{PRIVATE} caf\xe9,x\n".encode(encoding)
    assert ": line 2: is not UTF-8" in refused_file(tmp_path / name, content)


def test_a_missing_key_names_its_line_and_no_other_key(tmp_path: Path) -> None:
    message = refused_file(tmp_path / "r.jsonl", jsonl(GOOD, {"text": PRIVATE, PRIVATE: "x"}))
    assert ": line 2: has no 'label'" in message
    assert "label=" in message


def test_a_csv_file_without_a_header_keeps_its_first_record_to_itself(tmp_path: Path) -> None:
    message = refused_file(tmp_path / "r.csv", f"{PRIVATE} is ill,{PRIVATE}\nb,y\n".encode())
    assert "there is no column 'text'" in message


def test_a_csv_column_that_is_there_twice(tmp_path: Path) -> None:
    message = refused_file(tmp_path / "r.csv", b"text,label,text\na,x,b\n")
    assert "there are several columns 'text'" in message


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


def test_a_blank_csv_field(tmp_path: Path) -> None:
    content = f"text,label\n{PRIVATE},x\n{PRIVATE},\n".encode()
    assert ": line 3: the label is blank" in refused_file(tmp_path / "r.csv", content)


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


def test_a_refusal_is_one_exception_of_the_tree() -> None:
    with pytest.raises(DPFewShotError):
        as_records([])
    with pytest.raises(ValueError, match="no records"):
        as_records([])


# --- Parquet, pandas, datasets --------------------------------------------------------------------


def test_nothing_heavy_is_imported() -> None:
    script = "import sys, dpfewshot.records; print({'pandas', 'pyarrow', 'datasets'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "set()"


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dpfewshot\[parquet\]'"):
        read_records(tmp_path / "r.parquet")


def write_parquet(path: Path, **columns: list[Any]) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table(columns), path)


def test_parquet_gives_back_every_bit(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "r.parquet", text=["a\x00\r\n", " é "], label=["x", "y"], who=[17, 18], n=[1.0, 2.0]
    )
    records = read_records(tmp_path / "r.parquet", unit="who")
    assert records == [Record("a\x00\r\n", "x", "17"), Record(" é ", "y", "18")]


def test_parquet_refusals_name_the_record(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    write_parquet(path, text=[PRIVATE, None], label=["x", "y"])
    assert ": record 2: the text is missing" in refusal(lambda: read_records(path))
    assert "there is no column 'topic'" in refusal(lambda: read_records(path, label="topic"))
    write_parquet(path, text=[PRIVATE], label=[3])
    assert ": record 1: the label is not a string" in refusal(lambda: read_records(path))
    write_parquet(path, text=[], label=[])
    assert "there are no records" in refusal(lambda: read_records(path))


@pytest.mark.parametrize("damage", ["not parquet", "empty", "cut off", "garbled"])
def test_a_broken_parquet_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "r.parquet"
    write_parquet(path, text=[f"{PRIVATE} {n}" for n in range(500)], label=["x"] * 500)
    whole = path.read_bytes()
    content = {
        "not parquet": f"{PRIVATE},x\n".encode() * 50,
        "empty": b"",
        "cut off": whole[:-20],
        "garbled": whole[:4] + b"\xff" * 200 + whole[204:],
    }[damage]
    assert "is damaged, or not a Parquet file" in refused_file(path, content)


def test_a_data_frame() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"], "who": [5, 6]}, index=[70, 70])
    assert as_records(frame, unit="who") == [Record("a", "x", "5"), Record("b", "y", "6")]
    frame["label"] = frame["label"].astype("category")
    assert as_records(frame) == [Record("a", "x"), Record("b", "y")]


@pytest.mark.parametrize("dtype", ["object", "string"])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_value_of_a_data_frame(dtype: str, missing: float | None) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", "b"], "label": pd.Series(["x", missing], dtype=dtype)})
    assert refusal(lambda: as_records(frame)).startswith("record 2: the label is missing")


def test_a_data_frame_with_the_wrong_columns() -> None:
    pd = pytest.importorskip("pandas")
    headless = pd.DataFrame([["a", "x"]], columns=[f"{PRIVATE} is ill", PRIVATE])
    with pytest.raises(InvalidRecords, match="there is no column 'text'") as caught:
        as_records(headless)
    assert PRIVATE not in str(caught.value)
    twice = pd.DataFrame([["a", "x", "b"]], columns=["text", "label", "text"])
    assert "there are several columns 'text'" in refusal(lambda: as_records(twice))
    assert "there are no records" in refusal(lambda: as_records(pd.DataFrame({"text": [], "label": []})))


def test_numpy_values_become_plain_ones() -> None:
    np = pytest.importorskip("numpy")
    (record,) = as_records([{"text": np.str_("a"), "label": np.str_("x"), "who": np.int64(5)}], unit="who")
    assert record == Record("a", "x", "5")
    assert {type(record.text), type(record.label), type(record.unit)} == {str}


@pytest.mark.slow
def test_a_dataset() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"text": ["a", "b"], "label": ["x", "y"], "who": [5, 6]}
    dataset = datasets.Dataset.from_dict(rows)
    expected = [Record("a", "x", "5"), Record("b", "y", "6")]
    assert as_records(dataset, unit="who") == expected
    assert as_records(dataset.to_iterable_dataset(), unit="who") == expected
    assert "pass one split" in refusal(lambda: as_records(datasets.DatasetDict(train=dataset)))
    classes = dataset.cast_column("who", datasets.Value("int64")).rename_columns(
        {"label": "l", "who": "label"}
    )
    assert "record 1: the label is not a string" in refusal(lambda: as_records(classes))


# ---- numbers beyond Python's, and errors that travel ------------------------------------------------------


def test_a_unit_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InvalidRecords, match="record 1: the unit is an integer with too many digits"):
        as_records([{**GOOD, "unit": 10**5000}], unit="unit")


@pytest.mark.parametrize("kind", ["timestamp", "duration"])
def test_a_parquet_time_beyond_pythons_is_refused(kind: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    times = pa.array([2**62], getattr(pa, kind)("ms"))
    parquet.write_table(pa.table({"text": times, "label": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(InvalidRecords, match=r"x\.parquet: has a number or time beyond Python's range"):
        read_records(tmp_path / "x.parquet")


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
