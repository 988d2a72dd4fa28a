"""docs/proofs/index.md lists every proof, and names code and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from dpfewshot.mechanisms.word_histogram import END, FIRST, LENGTH, NAME, UNEXPECTED, WORDS

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "docs/proofs"
INDEX = (PROOFS / "index.md").read_text(encoding="utf-8")
FOLDERS = ("dpfewshot", "csrc", "tests")


def named() -> set[str]:
    """The files that the tables name, with as much of their path as tells them apart."""
    return set(re.findall(r"`([\w/]+\.(?:py|pxd|pxi))`", INDEX))


def test_every_proof_is_listed_once() -> None:
    pages = sorted(page.name for page in PROOFS.glob("*.md") if page.name != "index.md")
    assert sorted(re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", INDEX, re.MULTILINE)) == pages


def test_every_file_exists() -> None:
    there = [path.as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.p*")]
    assert len(named()) > 50
    assert {name for name in named() if not any(path.endswith(f"/{name}") for path in there)} == set()


def test_the_proof_of_the_word_histogram_has_the_codes_weights() -> None:
    page = (PROOFS / "word-histogram.md").read_text(encoding="utf-8")
    parts = [WORDS, FIRST, LENGTH, END, NAME]
    assert sum(parts) == 1
    assert f"at most ({' + '.join(f'{float(each):.2f}' for each in parts)})·G² = G²" in page
    for each in (WORDS - UNEXPECTED, UNEXPECTED):
        assert f"⌊√({float(each):.2f}·G²/" in page
    assert f"has {float(WORDS):.2f}. So" in page
