"""Until a release, nothing says to install the name from a public index: somebody else may own it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT

FOLDERS = ("dpfewshot", "docs", "examples", "bench", "tests")
BY_NAME = re.compile(r"\b(?:pipx?|uv) (?:install|wheel|download|add)\b(?: +[^\s#`;&|]+)*? +['\"]?dpfewshot\b")
"""A command that takes the package by its name."""


def by_name(text: str) -> list[str]:
    """The commands that ask an index; `--no-index` asks none."""
    return [found for found in BY_NAME.findall(text) if "--no-index" not in found]


def pages() -> list[Path]:
    written = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    return [
        *ROOT.glob("*.md"),
        *(path for path in written if path.suffix in {".ipynb", ".md", ".py", ".toml", ".yml"}),
    ]


def test_no_page_and_no_message_installs_from_an_index() -> None:
    guilty = {
        str(path.relative_to(ROOT)): found
        for path in pages()
        if path != Path(__file__) and (found := by_name(path.read_text(encoding="utf-8")))
    }
    assert guilty == {}


@pytest.mark.parametrize(
    "command", ["pip install 'dpfewshot[ledger]'", "uv add dpfewshot", "pip wheel -w w dpfewshot==0.1"]
)
def test_such_a_command_is_found(command: str) -> None:
    assert by_name(f"run {command} now")
    assert not by_name("pip install '.[ledger]'")
    assert not by_name("pip install --no-index --find-links wheels 'dpfewshot[demo]'")
