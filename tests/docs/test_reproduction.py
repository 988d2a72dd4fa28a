"""docs/results/accounting.md is what `make reproduce` writes, and says of the papers what it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import reproduce

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\d+\.\d{3,}")


def difference(first: str, second: str) -> str | None:
    """The first line that differs in a word, or in a computed figure by more than 2 in 10,000."""
    if first.count("\n") != second.count("\n"):
        return "the number of lines"
    for left, right in zip(first.splitlines(), second.splitlines(), strict=True):
        figures = zip(NUMBER.findall(left), NUMBER.findall(right), strict=False)
        close = all(float(a) == pytest.approx(float(b), rel=2e-4, abs=2e-4) for a, b in figures)
        if not close or NUMBER.sub("#", left) != NUMBER.sub("#", right):
            return left
    return None


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "results" / "accounting.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_is_what_the_script_writes(page: str) -> None:
    assert difference(page, reproduce.page()) is None


def test_the_comparison_can_fail(page: str) -> None:
    assert difference(page, page.replace("8.7138", "8.7238").replace("8.7137", "8.7238")) is not None
    assert difference(page, page.replace("not certified", "certified", 1)) is not None
    assert difference(page, page + "more\n") is not None


def test_the_verdicts(page: str) -> None:
    tang, exponential, adadpsyn, iclinf, shared = (
        [line for line in part.splitlines() if line.startswith("| ")][1:] for part in page.split("\n## ")[1:]
    )
    assert len(tang) == 20
    assert sum("| same |" in line for line in tang) == 17
    assert sum("| conservative |" in line for line in tang) == 3
    assert {line.split("|")[1].strip() for line in tang if "not certified" in line} == {
        "TREC",
        "MIT-G",
        "MIT-D",
    }
    assert [line.split("|")[-2].strip() for line in exponential] == ["0.2628", "0.4046", "0.6120", "0.9559"]
    assert len(adadpsyn) == 25
    (off,) = [line for line in adadpsyn if "| same |" not in line]
    assert off.startswith("| 15 | TREC | 2 | 1.95 |")
    assert "1.55 would do" in off
    assert len(iclinf) == 16
    assert sum("| same" in line for line in iclinf) == 16
    assert len(shared) == 24
    assert all(float(line.split("|")[-2]) > 1.1 for line in shared), "a product takes less noise"
