"""docs/proofs/index.md lists every proof, and names code and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

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
