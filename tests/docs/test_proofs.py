"""docs/proofs/index.md lists every proof, and names code and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "docs/proofs"
INDEX = (PROOFS / "index.md").read_text(encoding="utf-8")
FOLDERS = ("dpfewshot", "csrc", "tests")


def named() -> set[str]:
    """The files that the tables name, without their folders."""
    return set(re.findall(r"`(\w+\.(?:py|pxd|pxi))`", INDEX))


def test_every_proof_is_listed_once() -> None:
    pages = sorted(page.name for page in PROOFS.glob("*.md") if page.name != "index.md")
    assert sorted(re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", INDEX, re.MULTILINE)) == pages


def test_every_file_exists() -> None:
    there = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.p*") if path.is_file()}
    assert len(named()) > 50
    assert named() - there == set()
