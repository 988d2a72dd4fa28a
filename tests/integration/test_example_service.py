"""The example service in processes of its own, on real sockets: killed, restarted, attacked, side by side."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from examples.service.health import is_well
from tests.support.processes import environment

httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install '.[examples]'")
pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[examples]'")

ROOT = Path(__file__).parents[2]
ONE_PLAN = dpf.PrivacyBudget(epsilon=2, delta=1e-6)
PATIENCE = 60
BAD_REQUESTS = {
    "a body that is not asked for": b"GET /demonstrations HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n{",
    "an unknown label": b"GET /demonstrations?label=praise HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown parameter": b"GET /demonstrations?lable=refund HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long query": b"GET /demonstrations?label=" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a label that is not UTF-8": b"GET /demonstrations?label=%ff%fe HTTP/1.1\r\nHost: a\r\n\r\n",
    "control characters": b"GET /demonstrations?label=%00%0a%0dX:x%1b[31m HTTP/1.1\r\nHost: a\r\n\r\n",
    "no HTTP": b"\x00\xff\r\n\r\n",
    "a request line without end": b"GET /" + b"a" * 100_000,
    "another method": b"POST /demonstrations HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n",
}


@dataclass
class Service:
    process: subprocess.Popen[bytes]
    port: int

    def get(self, path: str) -> Any:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE)

    def lines(self) -> list[dict[str, object]]:
        answer = self.get("/demonstrations")
        return answer.json() if answer.status_code == 200 else []

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if until():
                    return
            except httpx.TransportError:
                assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def service(ledger: str, log: Path, *, seconds: float = 0) -> Iterator[Service]:
    """One process, on a socket that is bound here: no port is guessed."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening, log.open("ab") as output:
        app = ["--fd", str(listening.fileno()), "tests.support.scripted_service:app"]
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", *app],
            cwd=ROOT,
            pass_fds=[listening.fileno()],
            env=environment(LEDGER=ledger, SERVICE_SECONDS=str(seconds)),
            stdout=output,
            stderr=output,
        )
        port = listening.getsockname()[1]
    try:
        yield Service(process, port)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "service.log"


def created(url: str, budget: dpf.PrivacyBudget = ONE_PLAN) -> dpf.Account:
    return dpf.open_account(url, "tickets", create=budget)


def raw(port: int, request: bytes) -> int:
    """The status of the answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        if not request.endswith(b"\r\n\r\n") and b"\r\n\r\n" not in request:
            connection.shutdown(socket.SHUT_WR)
        found = re.match(rb"HTTP/1\.1 (\d+)", connection.recv(100))
    assert found
    return int(found[1])


def test_a_kill_neither_charges_twice_nor_loses_a_finished_text(url: str, log: Path) -> None:
    account = created(url)
    with service(url, log, seconds=0.15) as killed, ThreadPoolExecutor(4) as callers:
        killed.wait(lambda: len(killed.lines()) == 1)  # the second is in progress
        before, spent = killed.lines(), account.spent
        asking = [callers.submit(killed.lines) for _ in range(20)]
        killed.process.kill()
        assert killed.process.wait() == -signal.SIGKILL
        failures = [failure for each in asking if (failure := each.exception()) is not None]
        assert all(isinstance(failure, httpx.TransportError) for failure in failures)
    with service(url, log) as restarted:
        restarted.wait(lambda: len(restarted.lines()) == 2)
        after = restarted.lines()
    assert before[0] in after
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    reserved = next(one for one in logged if one["message"].startswith("a plan was reserved"))
    assert reserved.keys() >= {"time", "level", "scope", "draws", "epsilon", "delta", "relation"}
    assert account.entries == 2  # one reservation a label
    assert account.spent.epsilon <= 2.0
    assert account.spent.epsilon >= spent.epsilon


def test_two_replicas_share_one_plan(postgresql_url: str, log: Path) -> None:
    account = created(postgresql_url, dpf.PrivacyBudget(epsilon=9, delta=1e-5))  # a second plan would fit
    with service(postgresql_url, log, seconds=0.15) as first:
        first.wait(lambda: bool(first.lines()))
        with service(postgresql_url, log) as second:  # takes over in the middle
            second.wait(lambda: len(second.lines()) == 2)
            first.wait(lambda: len(first.lines()) == 2)
            assert first.lines() == second.lines()
    assert account.entries == 2
    assert 1.9 < account.spent.epsilon <= 2.0


def test_replicas_that_start_at_once_never_overspend(url: str, log: Path) -> None:
    account = created(url)
    with service(url, log) as one, service(url, log) as other:
        one.wait(lambda: one.get("/demonstrations").status_code in {200, 403})
        other.wait(lambda: other.get("/demonstrations").status_code in {200, 403})
        assert 0 < account.spent.epsilon <= 2.0
    assert account.entries <= 2


def test_callers_get_a_clear_refusal_whatever_they_send(url: str, log: Path) -> None:
    created(url, dpf.PrivacyBudget(epsilon=1, delta=1e-6))  # no room for the plan
    with service(url, log) as running:
        running.wait(lambda: running.get("/demonstrations").status_code == 403)
        assert is_well(running.port)
        assert running.get("/ready").status_code == 503
        with socket.create_connection(("127.0.0.1", running.port)) as slow:
            slow.sendall(b"GET /demonstrations HTTP/1.1\r\n")  # and waits
            statuses = {name: raw(running.port, sent) for name, sent in BAD_REQUESTS.items()}
        assert is_well(running.port)
        assert all(400 <= status < 500 for status in statuses.values()), statuses
        assert set(running.get("/openapi.json").json()["paths"]) == {"/demonstrations", "/health", "/ready"}
    assert not is_well(running.port)  # it has ended
    assert running.process.returncode in {0, -signal.SIGTERM}
    printed = log.read_text()
    assert len(printed) < 10_000  # whatever callers send
    assert "Traceback" not in printed
    assert "ticket number" not in printed
    assert "\x1b" not in printed
