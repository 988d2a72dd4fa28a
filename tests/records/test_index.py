"""Indexed records: what a list of them would be, read from an index of an unchanged file alone."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import os
import pickle
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfewshot.errors import DPFewShotError, InvalidRecords
from dpfewshot.records import as_records, index, index_records, read_records
from dpfewshot.records.units import units
from dpfewshot.values import StoredRecords, columns_of, unit_of
from tests.support.crash_reporter import collected
from tests.support.refusals import PRIVATE, refusal

pa = pytest.importorskip("pyarrow")

ROWS = [
    {"text": f"{PRIVATE} {n} é\x85", "label": f"label {n % 3} of {PRIVATE}", "who": f"{PRIVATE} {n % 40}"}
    for n in range(100)
]
TABLE = pa.Table.from_pylist(ROWS)

Make = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_BATCH", 7)


def jsonl(folder: Path) -> Path:
    path = folder / "r.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    path.write_bytes(b"\xef\xbb\xbf" + "\n\n \n".join(lines).encode())
    return path


def packed(folder: Path) -> Path:
    path = folder / "r.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(folder).read_bytes()))
    return path


def comma_separated(folder: Path) -> Path:
    path = folder / "r.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def parquet(folder: Path) -> Path:
    pytest.importorskip("pyarrow.parquet").write_table(TABLE, folder / "r.parquet", row_group_size=7)
    return folder / "r.parquet"


def feather(folder: Path) -> Path:
    pytest.importorskip("pyarrow.feather").write_feather(TABLE, folder / "r.feather", chunksize=7)
    return folder / "r.feather"


def data_set(folder: Path) -> Path:
    path, files = folder / "saved", ("data-0.arrow", "data-1.arrow")
    path.mkdir()
    for number, name in enumerate(files):  # what datasets.Dataset.save_to_disk(num_shards=2) writes
        with pa.ipc.new_stream(path / name, TABLE.schema) as stream:
            stream.write_table(TABLE.slice(50 * number, 50), max_chunksize=7)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files]}))
    return path


KINDS = (jsonl, packed, comma_separated, parquet, feather, data_set)
one_file_and_several = pytest.mark.parametrize("make", [jsonl, data_set])


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("characters", [2**24, 25])
def test_they_are_the_records_that_a_list_would_hold(
    make: Make, characters: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch ends by its records, and by its texts."""
    monkeypatch.setattr(index, "_CHARACTERS", characters)
    path = make(tmp_path)
    indexed, listed = index_records(path, unit="who"), read_records(path, unit="who")
    assert list(indexed) == listed
    assert (indexed[3], indexed[-1], indexed[90:4:-9]) == (listed[3], listed[-1], listed[90:4:-9])
    assert indexed.take([99, 0, 50, 0]) == [listed[99], listed[0], listed[50], listed[0]]
    assert indexed.labels == {row: ROWS[row]["label"] for row in range(3)}
    assert columns_of(indexed) == columns_of(listed)
    assert unit_of(indexed) == "who"
    assert as_records(indexed, unit="who") is indexed
    assert "which is not 'topic'" in refusal(lambda: as_records(indexed, label="topic"))
    assert repr(indexed) == "IndexedRecords(private)"


@pytest.mark.slow  # imports datasets
def test_a_data_set_of_the_library_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(ROWS).shuffle(seed=1).select(range(30))
    made.save_to_disk(tmp_path / "saved")
    expected = as_records(made, unit="who")
    assert read_records(tmp_path / "saved", unit="who") == expected
    assert list(index_records(tmp_path / "saved", unit="who")) == expected


def test_an_error_of_reading_holds_no_record(tmp_path: Path) -> None:
    path = jsonl(tmp_path)
    records = index_records(path, unit="who")
    texts = {record.text for record in records}
    with pytest.raises(IndexError) as beyond:
        records[len(records)]
    path.write_bytes(path.read_bytes() + b"\n")
    for read in (lambda: records[1], lambda: list(records), lambda: records.unit_names(np.array([1]))):
        with pytest.raises(InvalidRecords) as changed:
            read()
        for error in (beyond.value, changed.value):
            assert not [text for text in texts if text in collected(error)]


# ---- what is kept, and what is no index ------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    path = jsonl(tmp_path)
    monkeypatch.setattr(index, "TemporaryFile", read_only)
    with pytest.raises(DPFewShotError, match=r"cannot write .*: Read-only file system"):
        index_records(path)
    (tmp_path / "i").mkdir()
    assert list(index_records(path, index=tmp_path / "i" / "kept")) == read_records(path)


@one_file_and_several
def test_an_index_is_kept_for_its_owner(make: Make, tmp_path: Path) -> None:
    path, kept = make(tmp_path), tmp_path / "r.index"
    first = index_records(path, unit="who", index=kept)
    content = kept.read_bytes()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert b"as private as the records" in content
    again = index_records(path, unit="who", index=kept)
    assert list(again) == list(first)
    assert (again.label_rows == first.label_rows).all()
    assert again.unit_rows is not None
    assert (again.unit_rows == first.unit_rows).all()
    assert kept.read_bytes() == content


def test_an_index_of_something_else_is_refused(tmp_path: Path) -> None:
    path, kept = jsonl(tmp_path), tmp_path / "r.index"
    index_records(path, index=kept)
    assert "of other columns" in refusal(lambda: index_records(path, unit="who", index=kept))
    path.write_bytes(path.read_bytes().replace(b" 1 ", b" 2 ", 1))
    assert "the records have changed" in refusal(lambda: index_records(path, index=kept))


def test_no_file_is_taken_for_an_index_that_may_be_deleted(tmp_path: Path) -> None:
    path = jsonl(tmp_path)
    before = path.read_bytes()
    for other in (path, tmp_path / "thesis.txt", feather(tmp_path)):
        other.touch()
        said = refusal(lambda other=other: index_records(path, index=other))  # type: ignore[misc]
        assert said.endswith("is damaged, or not an index; name another file")
    assert "is not a regular file" in refusal(lambda: index_records(path, index=tmp_path))
    assert path.read_bytes() == before


def test_an_index_that_cannot_be_written_is_found_before_any_record_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(b"no JSON\n")
    with pytest.raises(DPFewShotError, match=r"cannot write .*i\.arrow: No such file or directory"):
        index_records(tmp_path / "r.jsonl", index=tmp_path / "none" / "i.arrow")


def test_a_file_that_appears_meanwhile_lends_the_index_no_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, read = tmp_path / "i.arrow", index.records_of

    def meanwhile(*arguments: Any) -> Any:
        kept.touch(mode=0o644)
        return read(*arguments)

    monkeypatch.setattr(index, "records_of", meanwhile)
    index_records(jsonl(tmp_path), index=kept)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def lying_offset(content: bytes) -> bytes:
    """Arrow would follow an offset beyond its buffer, and end the process."""
    length = len(ROWS[0]["text"].encode())
    sound = struct.pack("<2q", 0, length)
    assert content.count(sound)
    return content.replace(sound, struct.pack("<2q", 0, 2**40), 1)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: content[:-30],
        lambda content: content[:-100] + b"\xff" * 60 + content[-40:],
        lambda content: content.replace(PRIVATE.encode(), b"\xff" * len(PRIVATE)),
        lying_offset,
    ],
    ids=["cut off", "garbled", "no text", "offset"],
)
def test_a_damaged_index_is_refused(damaged: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path, kept = jsonl(tmp_path), tmp_path / "r.index"
    index_records(path, unit="who", index=kept)
    kept.write_bytes(damaged(kept.read_bytes()))
    assert "r.index: is damaged" in refusal(lambda: index_records(path, unit="who", index=kept))


@pytest.mark.parametrize("missing", ["all", "a text", "a digest"])
def test_an_index_without_values_is_refused(missing: str, tmp_path: Path) -> None:
    path, kept = jsonl(tmp_path), tmp_path / "r.index"
    index_records(path, index=kept)
    table = pa.ipc.open_file(kept).read_all()
    rows = table.to_pylist()
    rows[3]["text" if missing == "a text" else "label_digest"] = None
    with pa.ipc.new_file(kept, table.schema) as file:
        file.write_table(pa.Table.from_pylist([] if missing == "all" else rows, table.schema))
    assert "r.index: is damaged" in refusal(lambda: index_records(path, index=kept))


# ---- files that change -----------------------------------------------------------------------------------


@one_file_and_several
@pytest.mark.parametrize("change", ["longer", "truncated", "other bytes"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_changes_is_read_no_more(make: Make, change: str, kept: bool, tmp_path: Path) -> None:
    path = make(tmp_path)
    indexed = index_records(path, unit="who", index=tmp_path / "i" if kept else None)
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
    for read in (
        lambda: indexed.take([99]),
        lambda: indexed[99],
        lambda: list(indexed),
        lambda: indexed.unit_names(np.array([99])),
        indexed.check,
    ):
        assert "has changed since it was indexed: index it again" in refusal(read)


@pytest.mark.parametrize("size", [-3000, 1])
def test_an_index_that_changes_is_read_no_more(size: int, tmp_path: Path) -> None:
    indexed, kept = index_records(jsonl(tmp_path), index=tmp_path / "i"), tmp_path / "i"
    os.truncate(kept, kept.stat().st_size + size)  # a truncated map would end the process
    assert "i: has changed since it was indexed: index it again" in refusal(lambda: indexed.take([99]))


# ---- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'{{"text": "{PRIVATE}", "label": "x"}}\n{PRIVATE}\n', "line 2: is not JSON"),
        (f'\n\n{{"text": "{PRIVATE}", "label": " "}}\n', "line 3: the label is blank"),
        (f'{{"{PRIVATE}": "a", "label": "x"}}\n', "line 1: has no 'text'"),
        ("\n \n", "there are no records"),
        (f'{{"text": "{PRIVATE}", "label": "x"}}\n{{"text": "\udce9"}}', "line 2: is not UTF-8"),
    ],
)
def test_a_refusal_names_the_line_and_leaves_no_index(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(content, errors="surrogateescape")
    for kept in (None, tmp_path / "r.index"):
        said = refusal(lambda kept=kept: index_records(path, index=kept))  # type: ignore[misc]
        assert f"r.jsonl: {words}" in said
    assert words in refusal(lambda: read_records(path))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", ["jsonl", "arrow"])
def test_a_pipe_is_refused(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"r.{suffix}")
    assert "is not a regular file" in refusal(lambda: index_records(tmp_path / f"r.{suffix}"))


def test_a_record_that_exhausts_memory_is_missing_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer's MemoryError makes a null of its record alone, too."""
    indexed, made = index_records(jsonl(tmp_path)), index.Record

    def exhausted(text: str, *others: Any, **named: Any) -> Any:
        if text == ROWS[4]["text"]:
            raise MemoryError
        return made(text, *others, **named)

    monkeypatch.setattr(index, "Record", exhausted)
    found = indexed.take([3, 4, 5])
    assert found[1] is None
    assert [one.text for one in found if one] == [ROWS[3]["text"], ROWS[5]["text"]]


# ---- copies and threads ----------------------------------------------------------------------------------


@one_file_and_several
@pytest.mark.parametrize("kept", [False, True])
def test_a_copy_opens_the_same_file_again(
    make: Make, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    indexed = index_records(path.name, unit="who", index="i" if kept else None)
    monkeypatch.chdir("/")
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


def test_a_file_that_takes_the_name_is_not_read_and_a_copy_is_refused(tmp_path: Path) -> None:
    """Not when it is unpickled: that would end a worker's process."""
    path = jsonl(tmp_path)
    indexed, before = index_records(path), read_records(path)
    assert list(tmp_path.iterdir()) == [path]  # an index without a name leaves no copy
    sent = pickle.dumps(indexed)
    (tmp_path / "new").write_text('{"text": "other", "label": "x"}\n')
    (tmp_path / "new").replace(path)
    assert list(indexed) == before
    copied = pickle.loads(sent)  # noqa: S301 - its own
    for read in (copied.check, lambda: copied.take([0])):
        assert "or another took its name: index it again" in refusal(read)


def test_threads_read_at_once(tmp_path: Path) -> None:
    indexed = index_records(jsonl(tmp_path))
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
