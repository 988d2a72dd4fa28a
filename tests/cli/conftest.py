"""Folders to run commands in: each is the working folder of its test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.scripts import written

SECRET = "swordfish"


def write_rows(path: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a .jsonl file."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def towns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sixty questions of the TREC task in records.jsonl, none of them anybody's."""
    monkeypatch.chdir(tmp_path)
    labels = ("Location", "Number", "Person")
    rows = [{"text": f"Where is town number {i} of {SECRET} ?", "label": labels[i % 3]} for i in range(60)]
    write_rows("records.jsonl", rows)
    return tmp_path


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scripted tickets in records.jsonl and their task in task.toml."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    return tmp_path
