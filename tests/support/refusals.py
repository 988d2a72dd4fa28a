"""Records that are refused, and everything that the refusals say."""

from __future__ import annotations

import gzip
import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dpfewshot.errors import InvalidRecords
from dpfewshot.records import read_records

if TYPE_CHECKING:
    from collections.abc import Callable

# Stands in every value, key and header that a message could quote by mistake.
PRIVATE = "Zebulon"
GOOD = {"text": f"{PRIVATE} is ill", "label": f"{PRIVATE}-topic"}


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
