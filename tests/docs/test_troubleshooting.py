"""docs/troubleshooting.md quotes messages as the package's source words them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dpfewshot as dpf

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
POSTGRESQL = "connection failed: …"
"""The words of psycopg, the only ones on the page that are not this package's."""

QUOTED = re.compile(r"^\*\*`(.+)`\*\*$", re.MULTILINE)


def quoted() -> list[str]:
    return QUOTED.findall(PAGE.read_text(encoding="utf-8"))


def texts_of(source: str) -> Iterator[str]:
    """Every text of a program, with … for what is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield re.sub("…+", "…", "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def package() -> tuple[str, ...]:
    files = (ROOT / "dpfewshot").rglob("*.py")
    return tuple(text for file in files for text in texts_of(file.read_text(encoding="utf-8")))


def missing(messages: list[str]) -> list[str]:
    """Quotations that no text of the package contains; a … at their end stands for the rest of it."""
    return [each for each in messages if not any(each.removesuffix("…") in text for text in package())]


def test_every_message_stands_in_the_source() -> None:
    assert len(quoted()) > 30
    assert missing(quoted()) == [POSTGRESQL]


def test_the_message_of_postgresql_stands_in_its_errors() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(dpf.LedgerError, match=f": {POSTGRESQL.removesuffix('…')}"):
        dpf.BudgetLedger.open("postgresql+psycopg://127.0.0.1:1/budget")


def test_a_message_that_nobody_raises_is_found() -> None:
    assert missing(["the … is blank; write something"]) == ["the … is blank; write something"]
