"""A real PostgreSQL server: a cluster of its own in a temporary folder, reached through a Unix socket alone.

Its default settings are the ones that a ledger must not rely upon.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = (
    "PostgreSQL's server programs are not installed, so nothing runs on it: "
    "apt-get install --no-install-recommends postgresql"
)

# Writers decide on an old snapshot, and commits return before they are on disk.
UNKIND = ("default_transaction_isolation=repeatable\\ read", "synchronous_commit=off")

_PATIENCE = 30.0


def server_programs() -> Path | None:
    """The folder of the newest initdb and pg_ctl; None if PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None


class Server:
    """One cluster. `fsync` is on: committed transactions survive `crash`."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._numbers = itertools.count(1)
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if _is_root() else None
        if self._user:
            shutil.chown(folder, "postgres", "postgres")
        self._call(
            "initdb",
            "--pgdata",
            self._data,
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
        )

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def start(self) -> None:
        """Starts the server, also after a crash: recovery is done when this returns."""
        settings = ["listen_addresses=''", f"unix_socket_directories={self._folder}", *UNKIND]
        options = " ".join(f"-c {setting}" for setting in settings)
        deadline = time.monotonic() + _PATIENCE
        log = str(self._folder / "log")
        command = ("pg_ctl", "start", "--wait", "--pgdata", self._data, "--log", log, "--options", options)
        while True:
            try:
                self._call(*command)
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:  # backends of a crashed server take a moment to exit
                    raise
                time.sleep(0.2)
            else:
                return

    def stop(self) -> None:
        """Stops the server at once."""
        self._call("pg_ctl", "stop", "--wait", "--mode=immediate", "--pgdata", self._data)

    def crash(self) -> None:
        """Kills the server with SIGKILL: it writes nothing more, and every connection breaks."""
        process = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(process, signal.SIGKILL)
        while Path(f"/proc/{process}").exists() and not _is_zombie(process):
            time.sleep(0.01)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"ledger_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Runs a statement as an administrator."""
        import psycopg

        address = f"host={self._folder} user=postgres dbname={database}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement)

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(  # noqa: S603 - our own words
            [str(self._programs / program), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            timeout=2 * _PATIENCE,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
        )


@contextmanager
def running_server() -> Iterator[Server]:
    """A started server, stopped and removed afterwards.

    Raises:
        RuntimeError: PostgreSQL's server programs are not installed.
    """
    programs = server_programs()
    if programs is None:
        raise RuntimeError(MISSING)
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        server = Server(programs, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _is_root() -> bool:
    return os.geteuid() == 0


def _is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
