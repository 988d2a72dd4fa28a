"""Whoever may only read a ledger can look at all of it, and reading changes nothing."""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dpfewshot as dpf
from tests.support.accounts import DRAWS
from tests.support.factory import synthesizer

if TYPE_CHECKING:
    from bench.postgresql import Server
    from tests.support.commands import Run

_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2
_VERSION = 0x20080522


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take all rights to write from a folder and its files; root loses its power to ignore that."""
    before = {path: path.stat().st_mode for path in (folder, *folder.iterdir())}
    for path, mode in before.items():
        path.chmod(mode & 0o555)
    try:
        with _without_override():
            yield
    finally:
        for path, mode in before.items():
            path.chmod(mode)


@contextmanager
def _without_override() -> Iterator[None]:
    """Drop two capabilities of this thread for a while."""
    if os.geteuid() != 0:
        yield
        return
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    library = ctypes.CDLL(None, use_errno=True)
    assert library.capget(header, sets) == 0
    before = sets[0]
    sets[0] = before & ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    assert library.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert library.capset(header, sets) == 0


LOOKS: dict[str, tuple[str, ...]] = {
    "show": ("ledger", "show", "--dataset", "tickets", "--json"),
    "history": ("ledger", "history", "--dataset", "tickets"),
    "ledger verify": ("ledger", "verify", "--dataset", "tickets"),
    "export": ("ledger", "export", "--dataset", "tickets"),
    "verify": ("verify", "{folder}/demos.jsonl"),
    "report": ("report", "--demonstrations", "{folder}/demos.jsonl", "--dataset", "tickets", "--json"),
}


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger and the demonstrations that it paid for."""
    folder = tmp_path_factory.mktemp("lived")
    paid(f"sqlite:///{folder}/budget.db", folder)
    return folder


def paid(url: str, folder: Path) -> None:
    with synthesizer(labels=["refund"], ledger=url) as one:
        one.generate_all().to_jsonl(folder / "demos.jsonl")


def looked(command: Run, look: str, url: str, folder: Path) -> tuple[int, str, str]:
    words = [word.format(folder=folder) for word in LOOKS[look]]
    output = ["--output", os.devnull] if look == "report" else []
    return command(*words, "--ledger", url, *output)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("look", LOOKS)
def test_a_read_only_copy_tells_everything_and_stays_as_it_is(
    lived: Path, tmp_path: Path, command: Run, look: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(lived, folder)
    url, before = f"sqlite:///{folder}/budget.db", contents(folder)
    expected = looked(command, look, url, folder)
    with read_only(folder):
        with pytest.raises(PermissionError):
            (folder / "control").touch()
        assert looked(command, look, url, folder) == expected
    assert expected[0] == 0
    assert contents(folder) == before


@pytest.fixture
def in_use(lived: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Copies the ledger with a log beside it that holds a second account; takes the files to leave out."""
    work = tmp_path / "work"
    shutil.copytree(lived, work)
    with closing(sqlite3.connect(work / "budget.db")) as held:
        held.execute("SELECT * FROM dpfewshot_account").fetchall()  # so that no one folds the log in
        with dpf.BudgetLedger.open(f"sqlite:///{work}/budget.db") as ledger:
            ledger.create("notes", dpf.PrivacyBudget(1.0, 1e-5))

        def copied(*without: str) -> str:
            folder = tmp_path / "copy"
            folder.mkdir()
            for name in {path.name for path in work.iterdir()} - {*without}:
                shutil.copy(work / name, folder)
            return f"sqlite:///{folder}/budget.db"

        yield copied


def test_a_read_only_copy_with_a_log_is_read_with_it_or_refused(
    in_use: Callable[..., str], tmp_path: Path, command: Run
) -> None:
    look = ("ledger", "show", "--dataset", "notes", "--ledger")
    url = in_use()
    with read_only(tmp_path / "copy"):
        assert command(*look, url)[0] == 0
    shutil.rmtree(tmp_path / "copy")
    url = in_use("budget.db-shm")
    with read_only(tmp_path / "copy"):
        status, _, errors = command(*look, url)
    assert (status, errors.count("\n"), "a log lies beside the file" in errors) == (2, 1, True)


def test_who_may_only_read_spends_nothing_and_is_told_so(lived: Path, tmp_path: Path) -> None:
    """In a ledger that was opened before it was made read-only, too."""
    folder = tmp_path / "copy"
    shutil.copytree(lived, folder)
    url = f"sqlite:///{folder}/budget.db"
    with dpf.BudgetLedger.open(url) as opened_before:
        before = opened_before.account("tickets")
        spent = before.spent
        with read_only(folder), dpf.BudgetLedger.open(url) as opened_after:
            for account in (before, opened_after.account("tickets")):
                with pytest.raises(dpf.LedgerError, match="cannot be written"):
                    account.reserve(None, dpf.PrivacySpend(0.0, 0.0), {}, DRAWS)
                assert account.verify().ok
                assert account.spent == spent


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_a_role_with_select_alone_can_look(
    postgresql_server: Server, postgresql_url: str, tmp_path: Path, command: Run, look: str
) -> None:
    paid(postgresql_url, tmp_path)
    expected = looked(command, look, postgresql_url, tmp_path)
    database = postgresql_url.partition("@/")[2].partition("?")[0]
    auditor = f"auditor_{database}"
    for statement in (
        f"CREATE ROLE {auditor} LOGIN",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {auditor}",
    ):
        postgresql_server.execute(statement, database)
    url = postgresql_url.replace("postgres@", f"{auditor}@")
    assert looked(command, look, url, tmp_path) == expected
    assert expected[0] == 0
    with dpf.BudgetLedger.open(url) as ledger, pytest.raises(dpf.LedgerError, match="lacks the privileges"):
        ledger.account("tickets").reserve(None, dpf.PrivacySpend(0.0, 0.0), {}, DRAWS)


def test_a_ledger_that_cannot_be_looked_at_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    budget = dpf.PrivacyBudget(1.0, 1e-6)
    dpf.open_account(f"sqlite:///{shut}/budget.db", "tickets", create=budget)
    shut.chmod(0)
    names = ("shut/budget.db", "shut/folder/budget.db", "a" * 300, f"{'a' * 300}/budget.db", "nul\0.db")
    try:
        with _without_override():
            for name in names:
                with pytest.raises(dpf.LedgerError, match="does its directory exist, and may it be written"):
                    dpf.open_account(f"sqlite:///{tmp_path}/{name}", "tickets", create=budget)
    finally:
        shut.chmod(0o700)
