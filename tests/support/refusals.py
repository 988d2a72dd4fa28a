"""Records that are refused, and everything that the refusals say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dpfewshot.errors import InvalidRecords
from dpfewshot.records import read_records
from tests.support.crash_reporter import collected

if TYPE_CHECKING:
    from collections.abc import Callable

# Stands in every value, key and header that a message could quote by mistake.
PRIVATE = "Zebulon"
GOOD = {"text": f"{PRIVATE} is ill", "label": f"{PRIVATE}-topic"}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidRecords) as caught:
        call()
    message = str(caught.value)
    assert PRIVATE not in collected(caught.value, depth=0)
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
