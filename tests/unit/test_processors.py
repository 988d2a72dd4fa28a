"""How many threads a backend takes: a container's share counts, not the machine's processors."""

import os
from pathlib import Path

import pytest

from dpfewshot.backends import processors


@pytest.mark.parametrize(
    ("content", "usable"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 3),
        ("50000 100000\n", 1),
        ("6400000 100000\n", 8),
        ("strange\n", 8),
        (None, 8),
    ],
)
def test_the_smaller_of_both_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, usable: int
) -> None:
    quota = tmp_path / "cpu.max"
    if content is not None:
        quota.write_text(content)
    monkeypatch.setattr(processors, "QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processors.usable_processors() == usable
