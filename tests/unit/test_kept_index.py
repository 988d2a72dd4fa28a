"""The file that keeps an index: where it may lie, and what is no index."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfewshot.errors import DPFewShotError
from dpfewshot.records import index_records
from dpfewshot.records.kept import save
from tests.support.refusals import PRIVATE, refusal

COUNT = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [{"text": f"{PRIVATE} {n}", "label": "ab"[n % 2], "who": n // 5} for n in range(COUNT)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "r.jsonl"


def test_no_file_is_taken_for_an_index_that_may_be_deleted(path: Path) -> None:
    before = path.read_bytes()
    for other in (path, path.parent / "thesis.txt"):
        other.touch()
        said = refusal(lambda other=other: index_records(path, index=other))  # type: ignore[misc]
        assert said.endswith("is damaged, or not an index; name another file")
    assert "is not a file; name another" in refusal(lambda: index_records(path, index=path.parent))
    assert path.read_bytes() == before


def test_an_index_that_cannot_be_written_is_found_before_any_record_is_read(path: Path) -> None:
    path.write_bytes(b"no JSON\n")
    with pytest.raises(DPFewShotError, match=r"cannot write .*i\.npz: No such file or directory"):
        index_records(path, index=path.parent / "none" / "i.npz")


def test_a_refused_file_leaves_no_index(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"no JSON\n")
    assert "r.jsonl: line 21: is not JSON" in refusal(
        lambda: index_records(path, index=path.parent / "i.npz")
    )
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_appears_meanwhile_lends_the_index_no_mode(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = path.parent / "i.npz"

    def meanwhile(*arguments: Any) -> None:
        kept.touch(mode=0o644)
        save(*arguments)

    monkeypatch.setattr("dpfewshot.records.index.save", meanwhile)
    index_records(path, index=kept)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def as_int(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


own = np.arange(COUNT, dtype=np.int32)
FORGED: dict[str, dict[str, Any]] = {
    "no labels": {"label_rows": None},
    "no lines": {"starts": None},
    "no units": {"unit_rows": None},
    "one more array": {"other": own},
    "empty": {"label_rows": own[:0], "unit_rows": own[:0], "starts": np.arange(0)},
    "fewer lines": {"starts": np.arange(5)},
    "fewer units": {"unit_rows": own[:3]},
    "more of each": {
        "label_rows": as_int(*range(COUNT + 1)),
        "unit_rows": as_int(*range(COUNT + 1)),
        "starts": np.arange(COUNT),
    },
    "not whole numbers": {"label_rows": own.astype(float)},
    "a table": {"label_rows": own.reshape(4, 5)},
    "a number": {"label_rows": np.int32(3)},
    "out of range": {"label_rows": own * 0 + 99},
    "negative": {"unit_rows": own * 0 - 1},
    "a later record is the first": {"label_rows": own[::-1].copy()},
    "a first record that is not its own first": {"unit_rows": np.maximum(own - 1, 0)},
    "lines backwards": {"starts": np.arange(COUNT)[::-1].copy()},
    "a line twice": {"starts": np.zeros(COUNT, dtype=np.int64)},
    "lines beyond the end": {"starts": np.arange(COUNT) + 10**6},
    "a line before the start": {"starts": np.arange(COUNT) - 1},
    "no header": {"header": None},
    "a header that is a list": {"header": np.frombuffer(b"[[]]", np.uint8)},
    "a header that is nothing": {"header": np.frombuffer(b"null", np.uint8)},
    "a header without end": {"header": np.frombuffer(b"[" * 10**5, np.uint8)},
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_arrays_that_no_index_has_are_refused(path: Path, forged: dict[str, Any]) -> None:
    kept = path.parent / "i.npz"
    index_records(path, unit="who", index=kept)
    with np.load(kept) as sound:
        arrays = {**sound, **forged}
    with kept.open("wb") as file:
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    assert "i.npz: is damaged" in refusal(lambda: index_records(path, unit="who", index=kept))


def plain_array(kept: Path) -> None:
    with kept.open("wb") as file:
        np.save(file, np.zeros((3, 2)))


def other_members(kept: Path) -> None:
    with zipfile.ZipFile(kept, "w") as archive:
        archive.writestr("header", b"{}")
        archive.writestr("label_rows", b"no array")


def larger_than_memory(kept: Path) -> None:
    told = b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(kept, "w") as archive:
        archive.writestr("header.npy", b"\x93NUMPY\x01\x00" + len(told).to_bytes(2, "little") + told)


@pytest.mark.parametrize("write", [plain_array, other_members, larger_than_memory])
def test_other_archives_are_no_index(path: Path, write: Callable[[Path], None]) -> None:
    kept = path.parent / "i.npz"
    write(kept)
    said = refusal(lambda: index_records(path, unit="who", index=kept))
    assert "damaged" in said or "of another version" in said
