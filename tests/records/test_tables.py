"""Records from Parquet files, data frames and data sets."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpfewshot import PrivacyBudget, Synthesizer
from dpfewshot.errors import InvalidRecords
from dpfewshot.records import as_records, read_records
from dpfewshot.sample_data import SUPPORT_TICKETS
from dpfewshot.values import Record
from tests.support.refusals import PRIVATE, refusal, refused_file
from tests.support.scripts import Desk

pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def test_nothing_heavy_is_imported() -> None:
    heavy = {"pandas", "pyarrow", "datasets", "presidio_analyzer", "llama_cpp", "torch"}
    imports = "import sys, dpfewshot.records, dpfewshot.cli, dpfewshot.backends.hugging_face"
    script = f"{imports}; print({heavy} & set(sys.modules))"
    shown = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert shown.strip() == "set()"


def write_parquet(path: Path, **columns: Any) -> None:
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


def test_a_data_frame_and_values_of_numpy() -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    (record,) = as_records([{"text": np.str_("a"), "label": np.str_("x"), "who": np.int64(5)}], unit="who")
    assert {type(record.text), type(record.label), type(record.unit)} == {str}
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
    others = pd.DataFrame([["a", "x", 5]], columns=["message", "topic", "guest_id"])
    with pytest.raises(InvalidRecords) as caught:
        Synthesizer(SUPPORT_TICKETS, others, Desk(), budget=PrivacyBudget(2, 1e-5))
    assert str(caught.value) == refusal(lambda: as_records(others))
    assert str(caught.value) == (
        "there is no column 'text'; name the columns with text=, label= and unit=, as in "
        'dpf.as_records(frame, text="body", label="topic")'
    )
    twice = pd.DataFrame([["a", "x", "b"]], columns=["text", "label", "text"])
    assert "there are several columns 'text'" in refusal(lambda: as_records(twice))
    assert "there are no records" in refusal(lambda: as_records(pd.DataFrame({"text": [], "label": []})))


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
    assert "record 1, record 2: the label is not a string" in refusal(lambda: as_records(classes))


@pytest.mark.parametrize("kind", ["timestamp", "duration"])
def test_a_parquet_time_beyond_pythons_is_refused(kind: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", text=pa.array([2**62], getattr(pa, kind)("ms")), label=["a"])
    with pytest.raises(InvalidRecords, match=r"x\.parquet: has a number or time beyond Python's range"):
        read_records(tmp_path / "x.parquet")


@pytest.fixture
def arrow_file(tmp_path: Path) -> Path:
    """Two batches of texts of eight bytes."""
    table = pa.table({"text": [f"secret {n}" for n in range(10)], "label": ["x"] * 10})
    with pa.ipc.new_file(tmp_path / "r.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=5)
    return tmp_path / "r.arrow"


def test_an_arrow_file_without_its_end_is_refused(arrow_file: Path) -> None:
    whole = arrow_file.read_bytes()
    second = whole.rindex(b"\xff\xff\xff\xff", 0, whole.rindex(b"secret 9"))  # where the second batch begins
    for end in (second, len(whole) - 1):
        arrow_file.write_bytes(whole[:end])
        assert "is damaged, or not an Arrow file" in refusal(lambda: read_records(arrow_file))


@pytest.mark.parametrize("offset", [2**30, -5, 4])
def test_an_arrow_file_whose_offsets_lie_is_refused(offset: int, arrow_file: Path) -> None:
    """Arrow would follow an offset beyond its buffer, and end the process."""
    whole = arrow_file.read_bytes()
    offsets, forged = struct.pack("<3i", 0, 8, 16), struct.pack("<3i", 0, 8, offset)
    assert whole.count(offsets) == 2
    arrow_file.write_bytes(whole.replace(offsets, forged, 1))
    assert "is damaged" in refusal(lambda: read_records(arrow_file))


def forms_of(texts: list[str]) -> dict[str, Any]:
    """The forms that Arrow gives a column of strings."""
    ends = pa.array(range(1, len(texts) + 1), pa.int32())
    return {
        "large": pa.array(texts, pa.large_string()),
        "view": pa.array(texts, pa.string_view()),
        "runs": pa.RunEndEncodedArray.from_arrays(ends, pa.array(texts)),
        "JSON": pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts)),
        "dictionary": pa.array(texts).dictionary_encode(),
    }


@pytest.mark.parametrize(
    ("suffix", "form"),
    [
        *(("arrow", form) for form in ("large", "view", "runs", "JSON", "dictionary")),
        *(("parquet", form) for form in ("large", "view", "JSON", "dictionary")),  # which has no runs
    ],
)
def test_every_form_of_strings_is_read(suffix: str, form: str, tmp_path: Path) -> None:
    texts = [f"text {n % 20}" for n in range(30)]
    table, path = pa.table({"text": forms_of(texts)[form], "label": ["x"] * 30}), tmp_path / f"r.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, path, row_group_size=7)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=7)
    assert [record.text for record in read_records(path)] == texts
