"""How many threads a backend takes: a container's share counts, not the machine's processors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfewshot.backends import processors
from dpfewshot.cli import workers
from dpfewshot.cli.backends import LLAMA_CPP


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


@pytest.mark.parametrize(("usable", "threads"), [(5, 2), (2, 1), (1, 1)])
def test_worker_processes_share_what_is_usable(
    usable: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "usable_processors", lambda: usable)
    options = {"backend": LLAMA_CPP, "threads": None, "prompts_per_draw": 5}
    with workers.workers_of(options, ray=None, workers=2, ledger="sqlite:///budget.db") as found:
        assert found["worker_backend"].args[0]["threads"] == threads


@pytest.mark.parametrize("own", [None, "7"])
def test_threads_of_llama_cpp_sleep_early_unless_the_user_says_otherwise(own: str | None) -> None:
    """libgomp itself says what it has read; the variable is gone afterwards."""
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    program = (
        "from dpfewshot.backends.llama_cpp.model import load_library; load_library(); import os; "
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    environment = {name: value for name, value in os.environ.items() if name[:5] not in ("GOMP_", "OMP_W")}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | ({"GOMP_SPINCOUNT": own} if own else {})
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    if "GOMP_SPINCOUNT" not in ran.stderr:
        pytest.skip("this build has no libgomp")
    assert f"GOMP_SPINCOUNT = '{own or processors.SPINS}'" in ran.stderr
    assert ran.stdout.strip() == str(own)
