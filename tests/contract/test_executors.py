"""Every engine gives what a local run gives: demonstrations, spends, and a ledger that verifies."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.audit.certified import check_certificates
from dpfewshot.cli.application import run
from dpfewshot.cli.models import Model, workers_of
from tests.support import factory, fleet
from tests.support.scripted_servers import LlamaServer
from tests.support.scripts import tickets
from tests.support.servers import scripted

TOKENS, SHOTS = 5, 2
PLANNED = 8 * SHOTS
OPTIONS: dict[str, Any] = {"prompts_per_draw": 100, "shots_per_label": SHOTS}


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with fleet.processes() as pool:
        yield pool


@pytest.fixture(scope="module")
def ray() -> Iterator[Executor]:
    """Two workers of Ray."""
    pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    executor = fleet.ray_executor()
    yield executor
    import ray

    executor.shutdown()
    ray.shutdown()


def generated(url: str, **options: Any) -> tuple[dpf.Demonstrations, dict[str, Any]]:
    """A whole run on an empty ledger, and what the ledger says afterwards."""
    with factory.synthesizer(fleet.sure(), ledger=url, **OPTIONS) as made:
        demonstrations = made.generate_all(**options)
    with dpf.BudgetLedger.open(url) as ledger:
        account = ledger.account("tickets")
        assert account.verify().problems == ()
        assert check_certificates(demonstrations, ledger).verified
        return demonstrations, account.summary() | {"draws": draws_left(account), "acts": acts(account)}


def without_entries(demonstrations: dpf.Demonstrations) -> list[dpf.Demonstration]:
    """Without what names the ledger's entries: each run has a ledger of its own."""
    return [
        replace(one, certificate=one.certificate and replace(one.certificate, reservation=None))
        for one in demonstrations
    ]


def draws_left(account: Any) -> list[int]:
    return [sum(json.loads(row["blocks"])) for row in account.export()["entries"]]


def acts(account: Any) -> Counter[str]:
    return Counter(row["act"] for row in account.history())


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[dpf.Demonstrations, dict[str, Any]]:
    return generated(f"sqlite:///{tmp_path_factory.mktemp('local') / 'budget.db'}")


@pytest.mark.parametrize(
    ("engine", "ledger_url"),
    [("threads", "sqlite"), ("processes", "sqlite"), ("ray", "sqlite"), ("ray", "postgresql")],
    indirect=["ledger_url"],
)
def test_every_engine_gives_what_a_local_run_gives(
    engine: str, ledger_url: str, local: tuple[dpf.Demonstrations, Any], request: pytest.FixtureRequest
) -> None:
    told: list[dpf.Demonstration] = []
    demonstrations, ledger = generated(
        ledger_url,
        executor=request.getfixturevalue(engine),
        worker_backend=None if engine == "threads" else fleet.sure,
        on_demonstration=told.append,
    )
    assert without_entries(demonstrations) == without_entries(local[0])
    assert ledger == local[1]
    assert ledger["draws"] == [PLANNED - SHOTS * TOKENS] * 2
    assert sorted(told, key=str) == sorted(demonstrations, key=str)


@pytest.mark.parametrize("ledger_url", ["sqlite", "postgresql"], indirect=True)
def test_a_ray_worker_killed_while_it_draws_costs_that_draw_and_another_takes_its_stratum(
    ray: Executor,
    ledger_url: str,
    local: tuple[dpf.Demonstrations, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    demonstrations, ledger = generated(
        ledger_url,
        executor=ray,
        worker_backend=fleet.killed(tmp_path),
        checkpoint=tmp_path / "run.jsonl",
    )
    assert (tmp_path / "killed").exists()
    assert without_entries(demonstrations) == without_entries(local[0])
    assert ledger["spent"] == local[1]["spent"]
    assert sorted(ledger["draws"]) == [PLANNED - SHOTS * TOKENS - 1, PLANNED - SHOTS * TOKENS]
    assert ledger["acts"] == local[1]["acts"] + Counter({"resume": 1})
    assert "ticket number" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_an_error_in_another_process_holds_nothing_private(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = factory.synthesizer(fleet.sure(), ledger=f"sqlite:///{tmp_path / 'budget.db'}", **OPTIONS)
    with made, pytest.raises(dpf.BackendError, match="RuntimeError") as raised:
        made.generate_all(executor=request.getfixturevalue(engine), worker_backend=fleet.Failing)
    told = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    for words in ("".join(told.format()), *capfd.readouterr()):
        assert fleet.SECRET not in words


def test_a_cancelled_run_drops_what_ray_has_not_begun(ray: Executor, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(_: dpf.Demonstration) -> None:
        raise Interrupted

    url = f"sqlite:///{tmp_path / 'budget.db'}"
    made = factory.synthesizer(fleet.sure(), ledger=url, **(OPTIONS | {"shots_per_label": 20}))
    with made, pytest.raises(Interrupted):
        made.generate_all(executor=ray, worker_backend=fleet.slow(tmp_path, 0.02), on_demonstration=interrupt)
    assert fleet.notes(tmp_path / "begun") == fleet.notes(tmp_path / "ended") <= 2 * TOKENS + 2
    with dpf.BudgetLedger.open(url) as ledger:
        assert acts(ledger.account("tickets"))["settle"] == 2


def test_ray_refuses_what_it_cannot_pickle_without_printing_it(
    ray: Executor, capfd: pytest.CaptureFixture[str]
) -> None:
    made = factory.synthesizer(fleet.sure(), prompts_per_draw=100)
    with pytest.raises(dpf.LedgerError, match="open_account"):
        made.generate_all(executor=ray, worker_backend=fleet.sure)
    assert made.spent.epsilon == 0
    assert capfd.readouterr() == ("", "")


def test_a_ray_executor_that_was_shut_down_takes_no_tasks_and_leaves_the_cluster_of_others(
    ray: Executor,
) -> None:
    other = dpf.RayExecutor()
    other.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        other.submit(sum, [1, 2])
    assert ray.submit(sum, [1, 2]).result() == 3


def test_a_ray_executor_never_starts_ray_by_a_task(ray: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray as library

    started: list[Any] = []
    monkeypatch.setattr(library, "init", lambda *arguments, **_: started.append(arguments))
    running = ray.submit(sum, [1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(library, "is_initialized", lambda: False)
        with pytest.raises(RuntimeError, match="left its cluster"):
            ray.submit(sum, [1, 2])
        running.cancel()
    context = SimpleNamespace(gcs_address="10.99.99.99:6379")
    with monkeypatch.context() as patch:
        patch.setattr(library, "get_runtime_context", lambda: context)
        with pytest.raises(RuntimeError, match="left its cluster"):
            ray.submit(sum, [1, 2])
    assert started == []


@pytest.mark.usefixtures("ray")
def test_a_ray_executor_refuses_the_address_of_another_cluster() -> None:
    import ray as library

    with pytest.raises(dpf.BackendError, match=r"not to 10\.99\.99\.99"):
        dpf.RayExecutor("10.99.99.99:6379")
    here = library.get_runtime_context().gcs_address
    assert dpf.RayExecutor(here).submit(sum, [1, 2]).result() == 3


@pytest.mark.parametrize("workers", [["--workers", "1"], ["--ray"]], ids=["processes", "ray"])
def test_the_command_line_generates_with_workers(
    workers: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if workers == ["--ray"]:
        request.getfixturevalue("ray")
    arguments = generate_arguments(tmp_path, "--backend", "tests.support.fleet:sure", "--resume")
    assert run([*arguments, *workers]) == 0
    lines = dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl")
    assert sorted((one.label, one.text) for one in lines) == [
        ("delivery", "my parcel is late"),
        ("refund", "my parcel is late"),
    ]


@pytest.mark.parametrize(
    "options", [["--workers", "2", "--ray"], ["--workers", "2"]], ids=["both", "no ledger"]
)
def test_the_command_line_refuses_workers_without_a_ledger(
    options: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = generate_arguments(tmp_path, "--backend", "tests.support.fleet:sure")
    at = arguments.index("--ledger")
    assert run([*arguments[:at], *arguments[at + 5 :], *options]) == 2
    assert ("exclude" if "--ray" in options else "--ledger") in capfd.readouterr().err
    assert not (tmp_path / "demos.jsonl").exists()


def test_ctrl_c_leaves_the_workers_of_the_command_line_alive() -> None:
    model = Model(backend="tests.support.fleet:sure")
    with workers_of(model, prompts=1, ray=None, workers=1, ledger="sqlite://") as work:
        pool = work["executor"]
        os.kill(pool.submit(os.getpid).result(), signal.SIGINT)
        assert pool.submit(sum, [1, 2]).result() == 3


def server_arguments(folder: Path, url: str) -> list[str]:
    arguments = generate_arguments(folder, "--backend", "openai", "--base-url", url, "--model", "served")
    for option, value in (("--max-tokens", "1"), ("--prompts-per-draw", "10")):
        arguments[arguments.index(option) + 1] = value
    return arguments


def test_the_command_line_sends_all_requests_to_a_server_through_one_client(tmp_path: Path) -> None:
    server = LlamaServer(slots=1)  # type: ignore[no-untyped-call]
    server.seconds = lambda _: 0.001
    with scripted(server) as served:
        assert run([*server_arguments(tmp_path, served.base_url), "--workers", "2"]) == 0
    assert max(under_way for _, under_way in server.crowds) == 1
    assert len(dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl")) == 2


def test_the_workers_of_a_server_are_threads_that_share_its_client() -> None:
    with workers_of(Model(backend="openai"), prompts=1, ray=None, workers=2, ledger="sqlite://") as work:
        assert isinstance(work["executor"], ThreadPoolExecutor)
        assert "worker_backend" not in work


def test_the_command_line_refuses_ray_with_a_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*server_arguments(tmp_path, "http://127.0.0.1:1/v1"), "--ray"]) == 2
    assert "--workers" in capfd.readouterr().err
    assert not (tmp_path / "budget.db").exists()


def generate_arguments(folder: Path, *further: str) -> list[str]:
    records, task = folder / "records.jsonl", folder / "task.toml"
    records.write_text(
        "".join(json.dumps({"text": one.text, "label": one.label}) + "\n" for one in tickets())
    )
    task.write_text(
        'name = "tickets"\ninstruction = "Write a ticket."\nlabel_field = "Kind"\ntext_field = "Ticket"\n'
        'labels = ["refund", "delivery"]\n'
    )
    return [
        "generate", "--task", str(task), "--records", str(records), "--epsilon", "4", "--delta", "1e-5",
        "--mechanism", "gaussian", "--prompts-per-draw", "100", "--tokens-per-draw", "1", "--max-tokens", "8",
        "--top-k", "all", "--output", str(folder / "demos.jsonl"),
        "--ledger", f"sqlite:///{folder / 'budget.db'}", "--dataset", "tickets", "--create", *further,
    ]  # fmt: skip
