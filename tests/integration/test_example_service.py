"""The example service under load: real servers of two workers, real sockets, one budget."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import dpfewshot as dpf
from examples.service.health import is_well
from tests.support.processes import environment

httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install '.[examples]'")
pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[examples]'")

ROOT = Path(__file__).parents[2]
AT_ONCE = 16
SENTENCE = "my parcel is late"
SERVERS = {
    "uvicorn": ["uvicorn", "--workers", "2", "--log-level", "warning", "--fd", "{fd}"],
    "gunicorn": [
        "gunicorn", "--preload", "--workers", "2", "--worker-class", "uvicorn_worker.UvicornWorker",
        "--log-level", "warning", "--bind", "fd://{fd}",
    ],
}  # fmt: skip


@contextmanager
def service(server: str, ledger: str, opens: str) -> Iterator[str]:
    """The address of a server of two workers, on a socket that is bound here: no port is guessed."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        words = [word.format(fd=listening.fileno()) for word in SERVERS[server]]
        process = subprocess.Popen(
            [sys.executable, "-m", *words, "tests.support.scripted_service:app"],
            cwd=ROOT,
            pass_fds=[listening.fileno()],
            env=environment(LEDGER=ledger, SERVICE_OPENS=opens),
        )
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_for(address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            assert httpx.get(f"{address}/budget", timeout=5).status_code == 200
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


@pytest.mark.parametrize(
    ("server", "opens", "database"), [("uvicorn", "after", "postgresql"), ("gunicorn", "before", "sqlite")]
)
def test_two_workers_never_overspend_one_budget(
    server: str, opens: str, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Room for one plan a label, which one of the workers has; the other one refuses."""
    ledger = f"sqlite:///{tmp_path / 'budget.db'}"
    if database == "postgresql":
        ledger = str(request.getfixturevalue("postgresql_url"))
    budget = dpf.PrivacyBudget(epsilon=3, delta=1e-5)
    with dpf.BudgetLedger.open(ledger) as opened:
        account = opened.create("tickets", budget)
        with service(server, ledger, opens) as address:
            wait_for(address)
            assert is_well(int(address.rpartition(":")[2]))

            def ask(number: int) -> tuple[int, str]:
                label = ("refund", "delivery")[number % 2]
                answer = httpx.post(f"{address}/demonstrations/{label}", timeout=60)
                body = answer.json()
                return answer.status_code, body.get("text", body.get("error"))

            answers: Counter[tuple[int, str]] = Counter()
            asked: Counter[tuple[int, str]] = Counter()
            deadline = time.monotonic() + 90
            with ThreadPoolExecutor(AT_ONCE) as pool:
                while answers[200, SENTENCE] < 2 or set(asked) != {(403, "budget")}:
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                    asked = Counter(pool.map(ask, range(AT_ONCE)))
                    answers += asked
            told = httpx.get(f"{address}/budget", timeout=30).json()
            assert httpx.post(f"{address}/demonstrations/praise", timeout=30).status_code == 404
        assert not is_well(int(address.rpartition(":")[2]))  # it has ended
        # a plan of eight draws a label serves one demonstration of five
        assert set(answers) <= {(200, SENTENCE), (403, "budget"), (503, "pool")}
        assert answers[200, SENTENCE] == 2
        assert account.entries == 2
        assert 1.9 < account.spent.epsilon <= 2.0
        assert told["spent"]["epsilon"] == account.spent.epsilon
