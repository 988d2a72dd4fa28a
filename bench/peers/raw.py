"""The lines of docs/results/raw/peers.jsonl: one measurement each, of a kind, with the settings that it was made at."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

RAW = Path(__file__).parents[2] / "docs/results/raw/peers.jsonl"

Line: TypeAlias = dict[str, Any]
"""A JSON object with the keys "kind" and "versions"."""

KINDS = ("speed", "accounting", "noise", "claim", "run")
OURS = ("llama-cpp-python", "numpy", "xllamacpp", "torch", "transformers")


def versions(*more: str) -> dict[str, str]:
    """Of Python and the packages that take part."""
    installed = {name: importlib.metadata.version(name) for name in (*OURS, *more)}
    return {"python": platform.python_version(), **installed}


def add(lines: Iterable[Line], path: Path = RAW) -> None:
    """Appends lines, each on disk before the next.

    Raises:
        ValueError: a line of an unknown kind.
    """
    with path.open("a", encoding="utf-8") as file:
        for line in lines:
            if line.get("kind") not in KINDS:
                raise ValueError(f"a line's kind must be one of {', '.join(KINDS)}")
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read(path: Path = RAW) -> list[Line]:
    """Every line; none if nothing was measured."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def of_kind(lines: Iterable[Line], kind: str) -> list[Line]:
    """The lines of a kind, in order."""
    return [line for line in lines if line["kind"] == kind]
