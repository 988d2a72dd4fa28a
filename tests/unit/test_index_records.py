"""Indexed records: what a list of them would be, read from an unchanged file alone."""

from __future__ import annotations

import copy
import json
import os
import pickle
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpfewshot.errors import InvalidRecords
from dpfewshot.records import as_records, index_records, read_records
from dpfewshot.records.units import units
from dpfewshot.values import StoredRecords, columns_of, unit_of
from tests.support.refusals import PRIVATE, refusal

ROWS = [
    {"text": f"{PRIVATE} {n} é\x85", "label": f"label {n % 3} of {PRIVATE}", "who": f"{PRIVATE} {n % 40}"}
    for n in range(100)
]


def jsonl(folder: Path) -> Path:
    path = folder / "r.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    path.write_bytes(b"\xef\xbb\xbf" + "\n\n \n".join(lines).encode())
    return path


def parquet(folder: Path) -> Path:
    pa, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(pa.Table.from_pylist(ROWS), folder / "r.parquet", row_group_size=7)
    return folder / "r.parquet"


def feather(folder: Path) -> Path:
    pa, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    writer.write_feather(pa.Table.from_pylist(ROWS), folder / "r.feather", chunksize=7)
    return folder / "r.feather"


def data_set(folder: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    table, path = pa.Table.from_pylist(ROWS), folder / "saved"
    path.mkdir()
    for number in range(2):  # what datasets.Dataset.save_to_disk(num_shards=2) writes
        half = table.slice(50 * number, 50)
        with pa.ipc.new_stream(path / f"data-{number}.arrow", table.schema) as stream:
            stream.write_table(half, max_chunksize=7)
    (path / "state.json").write_text(
        '{"_data_files": [{"filename": "data-0.arrow"}, {"filename": "data-1.arrow"}]}'
    )
    return path


MAKE = {"jsonl": jsonl, "parquet": parquet, "feather": feather, "data set": data_set}
kinds = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


@kinds
def test_they_are_the_records_that_a_list_would_hold(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    indexed, listed = index_records(path, unit="who"), read_records(path, unit="who")
    assert list(indexed) == listed
    assert (indexed[3], indexed[-1], indexed[90:4:-9]) == (listed[3], listed[-1], listed[90:4:-9])
    assert indexed.take([99, 0, 50, 0]) == [listed[99], listed[0], listed[50], listed[0]]
    assert columns_of(indexed) == columns_of(listed)
    assert unit_of(indexed) == "who"
    assert as_records(indexed, unit="who") is indexed
    assert "which is not 'topic'" in refusal(lambda: as_records(indexed, label="topic"))
    with pytest.raises(IndexError):
        indexed[100]
    assert repr(indexed) == "IndexedRecords()"


def test_a_data_set_of_the_library_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(ROWS).shuffle(seed=1).select(range(30))
    made.save_to_disk(tmp_path / "saved")
    expected = as_records(made, unit="who")
    assert read_records(tmp_path / "saved", unit="who") == expected
    assert list(index_records(tmp_path / "saved", unit="who")) == expected


def forms_of(texts: list[str]) -> dict[str, Any]:
    """The forms that Arrow gives a column of strings."""
    pa = pytest.importorskip("pyarrow")
    ends = pa.array(range(1, len(texts) + 1), pa.int32())
    return {
        "large": pa.array(texts, pa.large_string()),
        "view": pa.array(texts, pa.string_view()),
        "runs": pa.RunEndEncodedArray.from_arrays(ends, pa.array(texts)),
        "JSON": pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts)),
    }


@pytest.mark.parametrize(
    ("suffix", "form"),
    [
        *(("arrow", form) for form in ("large", "view", "runs", "JSON")),
        *(("parquet", form) for form in ("large", "view", "JSON")),  # which has no runs
    ],
)
def test_a_draw_reads_every_form_of_strings_that_indexing_reads(
    suffix: str, form: str, tmp_path: Path
) -> None:
    pa, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = forms_of([row["text"] for row in ROWS])[form]
    table, path = pa.table({"text": column, "label": ["x"] * len(ROWS)}), tmp_path / f"r.{suffix}"
    if suffix == "parquet":
        writer.write_table(table, path, row_group_size=7)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=7)
    indexed = index_records(path)
    assert list(indexed) == read_records(path)
    assert indexed.take([99, 0, 50]) == [read_records(path)[row] for row in (99, 0, 50)]


@kinds
def test_an_index_is_kept_for_its_owner_and_says_nothing(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path, index = make(tmp_path), tmp_path / "r.index"
    first = index_records(path, unit="who", index=index)
    content = index.read_bytes()
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    assert b"as private as the records" in content
    assert PRIVATE.encode() not in content
    again = index_records(path, unit="who", index=index)
    assert list(again) == list(first)
    assert (again.label_rows == first.label_rows).all()
    assert again.unit_rows is not None
    assert (again.unit_rows == first.unit_rows).all()
    assert index.read_bytes() == content


def test_an_index_of_something_else_is_refused(tmp_path: Path) -> None:
    path, index = jsonl(tmp_path), tmp_path / "r.index"
    index_records(path, index=index)
    assert "of other columns" in refusal(lambda: index_records(path, unit="who", index=index))
    path.write_bytes(path.read_bytes().replace(b" 1 ", b" 2 ", 1))
    assert "the records have changed" in refusal(lambda: index_records(path, index=index))
    for damage in (b"", index.read_bytes()[:-30], PRIVATE.encode()):
        index.write_bytes(damage)
        assert "r.index: is damaged" in refusal(lambda: index_records(path, index=index))


@kinds
@pytest.mark.parametrize("change", ["longer", "truncated", "other bytes"])
def test_a_file_that_changes_is_read_no_more(
    make: Callable[[Path], Path], change: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    indexed = index_records(path)
    file = path / "data-1.arrow" if path.is_dir() else path
    content = file.read_bytes()
    with file.open("r+b") as opened:
        if change == "other bytes":
            opened.write(content[:40] + b"?" + content[41:])
        elif change == "longer":
            opened.seek(0, os.SEEK_END)
            opened.write(b"\n")
        else:
            opened.truncate(len(content) // 2)
    if change == "other bytes":  # of the same size: the time of the change tells
        os.utime(file, ns=(0, 0))
    for read in (lambda: indexed.take([99]), lambda: indexed[99], lambda: list(indexed), indexed.check):
        assert "has changed since it was indexed: index it again" in refusal(read)


def test_a_file_that_takes_the_name_is_not_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path)
    indexed, before = index_records(path), read_records(path)
    (tmp_path / "new").write_text('{"text": "other", "label": "x"}\n')
    (tmp_path / "new").replace(path)
    assert list(indexed) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r.jsonl.gz", "unpack the file"),
        ("r.csv", "only .jsonl, .parquet, .arrow and .feather files can be indexed"),
        ("none.jsonl", "no such file"),
    ],
)
def test_what_has_no_index_is_refused(name: str, words: str, tmp_path: Path) -> None:
    if name.startswith("r"):
        (tmp_path / name).write_text(PRIVATE)
    assert words in refusal(lambda: index_records(tmp_path / name))


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    assert "none that datasets.Dataset.save_to_disk wrote" in refusal(lambda: index_records(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'{{"text": "{PRIVATE}", "label": "x"}}\n{PRIVATE}\n', "line 2: is not JSON"),
        (f'\n\n{{"text": "{PRIVATE}", "label": " "}}\n', "line 3: the label is blank"),
        (f'{{"{PRIVATE}": "a", "label": "x"}}\n', "line 1: has no 'text'"),
        ("\n \n", "there are no records"),
        (f'{{"text": "{PRIVATE}", "label": "x"}}\n{{"text": "\udce9"}}', "line 2: is not UTF-8"),
        (f'{{"text": "{PRIVATE}", "label": "x", "z": {"[" * 60}{"]" * 60}}}', "line 1: is nested more than"),
    ],
)
def test_a_refusal_names_the_line_and_quotes_nothing(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(content, errors="surrogateescape")
    assert words in refusal(lambda: index_records(tmp_path / "r.jsonl", index=tmp_path / "r.index"))
    assert words in refusal(lambda: read_records(tmp_path / "r.jsonl"))
    assert not (tmp_path / "r.index").exists()


@pytest.mark.parametrize("suffix", ["jsonl", "arrow"])
def test_a_pipe_is_refused(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"r.{suffix}")
    assert "is not a regular file" in refusal(lambda: index_records(tmp_path / f"r.{suffix}"))


def test_a_record_that_exhausts_memory_is_missing_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer's MemoryError makes a null of its record alone, too."""
    indexed = index_records(jsonl(tmp_path))
    parsed = json.loads

    def loads(text: str) -> object:
        if f'"{ROWS[4]["text"]}"' in text:
            raise MemoryError
        return parsed(text)

    monkeypatch.setattr("dpfewshot.records.files.json.loads", loads)
    found = indexed.take([3, 4, 5])
    assert found[1] is None
    assert [one.text for one in found if one] == [ROWS[3]["text"], ROWS[5]["text"]]


def test_a_group_that_memory_does_not_hold_makes_no_nulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would depend on the other records of the group."""
    indexed = index_records(parquet(tmp_path))

    def exhausted(*_: object, **__: object) -> None:
        import pyarrow as pa

        raise pa.ArrowMemoryError

    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read_row_group", exhausted)
    with pytest.raises(MemoryError):
        indexed.take([3])


def test_dictionary_encoded_columns_are_refused(tmp_path: Path) -> None:
    pa, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    table = pa.table({"text": ["a", "b"], "label": pa.array(["x", "x"]).dictionary_encode()})
    writer.write_feather(table, tmp_path / "r.feather")
    assert "save them as plain strings" in refusal(lambda: read_records(tmp_path / "r.feather"))


@kinds
def test_a_copy_opens_the_same_file_again(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    indexed = index_records(path, unit="who")
    assert PRIVATE.encode() not in pickle.dumps(indexed)
    copied = copy.copy(indexed)  # by the same way as a pickled copy
    sent = units(indexed)  # to a worker
    assert PRIVATE.encode() not in pickle.dumps(sent)
    assert list(copy.copy(sent)) == list(sent)
    assert isinstance(copied, StoredRecords)
    assert list(copied) == list(indexed)
    file = path / "data-0.arrow" if path.is_dir() else path
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(InvalidRecords, match="has changed since it was indexed"):
        list(copy.copy(indexed))


def test_a_copy_finds_the_file_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonl(tmp_path)
    monkeypatch.chdir(tmp_path)
    indexed = index_records("r.jsonl")
    monkeypatch.chdir("/")
    assert list(copy.copy(indexed)) == list(indexed)


def test_a_copy_follows_a_file_whose_content_came_back(tmp_path: Path) -> None:
    """A worker remembers the file that it opened, and opens it again when it was written to."""
    path = jsonl(tmp_path)
    content, before = path.read_bytes(), copy.copy(index_records(path))
    assert before.take([0])
    path.write_bytes(content + b"\n")
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))
    assert "has changed" in refusal(before.check)
    for _ in range(2):
        again = copy.copy(index_records(path))
        assert again.take([0]) == read_records(path)[:1]


def test_a_copy_of_a_file_that_changed_can_be_made_and_is_refused(tmp_path: Path) -> None:
    """Not when it is unpickled: that would end a worker's process."""
    path = jsonl(tmp_path)
    sent = pickle.dumps(index_records(path))
    (tmp_path / "new").write_text('{"text": "other", "label": "x"}\n')
    (tmp_path / "new").replace(path)
    copied = pickle.loads(sent)  # noqa: S301 - its own
    for read in (copied.check, lambda: copied.take([0])):
        assert "or another took its name: index it again" in refusal(read)


@kinds
def test_threads_read_at_once(make: Callable[[Path], Path], tmp_path: Path) -> None:
    indexed = index_records(make(tmp_path))
    expected = list(indexed)
    wrong: list[int] = []

    def read(start: int) -> None:
        rows = [(start + 37 * step) % 100 for step in range(60)]
        wrong.extend(row for row in rows if indexed[row] != expected[row])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
