"""Shared fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from dpfewshot.cli.application import run

if TYPE_CHECKING:
    from bench.postgresql import Server
    from tests.support.commands import Run

settings.register_profile("no deadline", deadline=None)  # how busy the machine is says nothing of a property
settings.load_profile("no deadline")

SLOW = {
    "statistical",
    "faults",
    "test_balls.py",
    "test_example_service.py",
    "test_examples.py",
    "test_executors.py",
    "test_independent.py",
    "test_interruptions.py",
    "test_ledger_file_lock.py",
    "test_ledger_history.py",
    "test_ledger_tampering.py",
    "test_other_accountants.py",
    "test_outputs.py",
    "test_outputs_python.py",
    "test_progress_bar.py",
    "test_published.py",
    "test_pytest_plugin.py",
    "test_report_page.py",
    "test_resuming.py",
    "test_server_dialects.py",
    "test_server_forks.py",
    "test_server_load.py",
    "test_service.py",
    "test_telemetry.py",
}
"""Folders and files whose tests are all marked slow."""


TOGETHER = "test_site.py"
"""Files whose tests share what the first of them builds, which takes long."""


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several test processes processors of its own.

    A model starts as many threads as its process may use. Those of two models would wait for each other.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    processors = sorted(os.sched_getaffinity(0))
    own = processors[int(worker["workerid"][2:]) :: worker["workercount"]]
    if own:
        os.sched_setaffinity(0, own)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each test to whoever is free, but tests of one file that builds something for all to one process.

    Only with `--dist loadgroup`, whose own scheduler finds no groups with pytest 9.2.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.endswith(TOGETHER) else nodeid

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow files and folders, and tests of PostgreSQL, which takes seconds to start."""
    for item in items:
        if SLOW.intersection(item.path.parts[-2:]) or needs_postgresql(item):
            item.add_marker(pytest.mark.slow)


def needs_postgresql(item: pytest.Item) -> bool:
    """Whether a fixture or a parameter of the test asks for the server."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "postgresql_server" in getattr(item, "fixturenames", ()) or any(
        isinstance(value, str) and value.startswith("postgresql") for value in parameters
    )


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command; its status, output and errors. A terminal is wide enough for any line."""
    monkeypatch.setenv("COLUMNS", "2000")

    def call(*arguments: object) -> tuple[int, str, str]:
        status = run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def threads() -> Iterator[Executor]:
    """Two threads as an executor."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def cuda():
    """`torch.cuda`; skips, aloud, where there is no GPU."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: GPU tests skipped")
    return torch.cuda


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL of our own; a test that crashes it starts it again. Skips, aloud, without PostgreSQL."""
    from bench.postgresql import MISSING, running_server, server_programs

    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install '.[postgresql]'")
    if server_programs() is None:
        pytest.skip(MISSING)
    with running_server() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql_server: Server) -> str:
    """An empty database."""
    return postgresql_server.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty ledger of each kind."""
    return new_ledger(request, tmp_path)


def new_ledger(request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty ledger of the kind that the parameter names."""
    if request.param == "sqlite":
        return f"sqlite:///{folder}/budget.db"
    url: str = request.getfixturevalue("postgresql_url")
    return url
