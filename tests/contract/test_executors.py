"""Every engine gives what a local run gives: demonstrations, spends, and a ledger that verifies."""

import asyncio
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.audit.certified import check_certificates
from dpfewshot.cli import models
from dpfewshot.cli.application import run
from dpfewshot.cli.models import Model, workers_of
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from tests.support import factory, fleet
from tests.support.scripted_servers import LlamaServer
from tests.support.scripts import written
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
    yield fleet.ray_executor()
    import ray

    ray.shutdown()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'budget.db'}"


def synthesizer(url: str | None, **options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(fleet.sure(), ledger=url, **(OPTIONS | options))


def generated(url: str, **options: Any) -> tuple[dpf.Demonstrations, dict[str, Any]]:
    """A whole run on an empty ledger, and what the ledger says afterwards."""
    with synthesizer(url) as made:
        demonstrations = made.generate_all(**options)
    with dpf.BudgetLedger.open(url) as ledger:
        assert check_certificates(demonstrations, ledger).verified
        return demonstrations, standing(ledger.account("tickets"))


def standing(account: dpf.Account) -> dict[str, Any]:
    """What an account says, the draws that its entries have left, and the acts of its history."""
    assert account.verify().problems == ()
    draws = sorted(row["draws_left"] for row in account.export()["entries"])  # type: ignore[attr-defined]
    return account.summary() | {"draws": draws, "acts": Counter(row["act"] for row in account.history())}


def without_entries(demonstrations: dpf.Demonstrations) -> list[dpf.Demonstration]:
    """Without what names the ledger's entries: each run has a ledger of its own."""
    named = {"reservation": None, "run": None}
    return [replace(one, certificate=replace(one.certificate, **named)) for one in demonstrations]  # type: ignore[type-var]


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
        ledger_url, executor=ray, worker_backend=partial(fleet.killed, tmp_path)
    )
    assert (tmp_path / "killed").exists()
    assert without_entries(demonstrations) == without_entries(local[0])
    assert ledger["spent"] == local[1]["spent"]
    assert ledger["draws"] == [PLANNED - SHOTS * TOKENS - 1, PLANNED - SHOTS * TOKENS]
    assert ledger["acts"] == local[1]["acts"] + Counter({"resume": 2})  # the caller, and the next worker
    assert "ticket number" not in "".join(capfd.readouterr())


def test_a_killed_process_is_one_retryable_error_and_the_run_resumes_at_the_cost_of_a_draw(
    local: tuple[dpf.Demonstrations, Any], url: str, tmp_path: Path
) -> None:
    made, died = synthesizer(url), pytest.raises(dpf.BackendError, match="new pool")
    with made, fleet.processes(1) as pool, died as raised:
        made.generate_all(executor=pool, worker_backend=partial(fleet.killed, tmp_path))
    assert raised.value.retryable
    with fleet.processes(1) as pool:
        demonstrations, ledger = generated(url, resume=True, executor=pool, worker_backend=fleet.sure)
    assert without_entries(demonstrations) == without_entries(local[0])
    assert ledger["draws"] == [PLANNED - SHOTS * TOKENS - 1, PLANNED - SHOTS * TOKENS]


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_an_error_in_another_process_holds_nothing_private(
    engine: str, request: pytest.FixtureRequest, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with synthesizer(url) as made, pytest.raises(dpf.BackendError, match="RuntimeError") as raised:
        made.generate_all(executor=request.getfixturevalue(engine), worker_backend=fleet.Failing)
    told = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    for words in ("".join(told.format()), *capfd.readouterr()):
        assert fleet.SECRET not in words


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_cancelled_run_takes_its_strata_from_the_workers(
    engine: str, request: pytest.FixtureRequest, url: str, tmp_path: Path
) -> None:
    executor, shots = request.getfixturevalue(engine), 20
    backend = partial(fleet.Slow, tmp_path, 0.05)

    async def cancelled() -> None:
        running = asyncio.create_task(made.agenerate_all(executor=executor, worker_backend=backend))
        while not fleet.notes(tmp_path / "begun"):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with synthesizer(url, shots_per_label=shots) as made:
        asyncio.run(cancelled())
        begun = fleet.notes(tmp_path / "begun")
        assert begun == fleet.notes(tmp_path / "ended") < shots * TOKENS
        time.sleep(0.2)
        assert fleet.notes(tmp_path / "begun") == begun
    with synthesizer(url, shots_per_label=shots) as made:
        assert len(made.generate_all(resume=True)) == 2 * shots
    assert standing(dpf.open_account(url, "tickets"))["draws"][0] >= shots * (8 - TOKENS) - 2


def test_ray_refuses_what_it_cannot_pickle_without_printing_it(
    ray: Executor, capfd: pytest.CaptureFixture[str]
) -> None:
    made = synthesizer(None)
    with pytest.raises(dpf.LedgerError, match="open_account"):
        made.generate_all(executor=ray, worker_backend=fleet.sure)
    assert made.spent.epsilon == 0
    assert capfd.readouterr() == ("", "")


def test_a_ray_executor_never_starts_ray_by_a_task(ray: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray as library

    monkeypatch.setattr(library, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="was shut down"):
        ray.submit(sum, [1, 2])


class KilledModel(dpf.backends.LlamaCpp):
    """Kills its process with -9 after the charge of its first draw, once for all workers."""

    def __init__(self, folder: str, **options: Any) -> None:
        self._folder: Path | None = None
        super().__init__(dpf.backends.packaged_model_path(), **options)
        self._folder = Path(folder)

    def open_block(self, *arguments: Any, public: bool = False, **named: Any) -> Any:
        if self._folder is not None and not public:
            fleet.die_once(self._folder)
        return super().open_block(*arguments, public=public, **named)


@pytest.mark.model
@pytest.mark.soak
def test_two_ray_workers_with_the_packaged_model_survive_the_death_of_one(
    ray: Executor, url: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"context_tokens": 256, "threads": 1}
    budget = dpf.PrivacyBudget(epsilon=4, delta=1e-5)
    whole = dpf.Synthesizer(
        SUPPORT_TICKETS,
        support_tickets(),
        dpf.backends.LlamaCpp(dpf.backends.packaged_model_path(), **options),
        budget=budget,
        labels=["Refund", "Delivery"],
        max_tokens=6,
        account=dpf.open_account(url, "tickets", create=budget),
        settings=dpf.Settings(prompts_per_draw=10, tokens_per_draw=3),
    )
    worker_backend = partial(KilledModel, str(tmp_path), **options)
    with whole as made:
        released = made.generate_all(executor=ray, worker_backend=worker_backend)
    assert (tmp_path / "killed").exists()
    assert [one.label for one in released] == ["Refund", "Delivery"]
    assert sorted(one.token_count for one in released) in ([3, 6], [6, 6])
    assert made.account is not None
    assert standing(made.account)["acts"]["resume"] == 2


@pytest.mark.parametrize(
    "workers", [["--set", "workers=1"], ["--set", "ray=local"]], ids=["processes", "ray"]
)
def test_the_command_line_generates_with_workers(
    workers: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if workers == ["--set", "ray=local"]:
        request.getfixturevalue("ray")
    arguments = generate_arguments(tmp_path, "--backend", "tests.support.fleet:sure", "--resume")
    assert run([*arguments, *workers]) == 0
    lines = dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl")
    assert sorted(f"{one.label}: {one.text}" for one in lines) == [
        f"{label}: my parcel is late" for label in ("delivery", "refund")
    ]


@pytest.mark.parametrize(
    "options",
    [["--set", "workers=2", "--set", "ray=local"], ["--set", "workers=2"]],
    ids=["both", "no ledger"],
)
def test_the_command_line_refuses_workers_without_a_ledger(
    options: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = generate_arguments(tmp_path, "--backend", "tests.support.fleet:sure")
    at = arguments.index("--ledger")
    assert run([*arguments[:at], *arguments[at + 6 :], *options]) == 2
    assert ("exclude" if "ray=local" in options else "--ledger") in capfd.readouterr().err
    assert not (tmp_path / "demos.jsonl").exists()


def test_ctrl_c_leaves_the_workers_of_the_command_line_alive() -> None:
    model = Model(backend="tests.support.fleet:sure")
    with workers_of(model, workers=1, prompts=1, ledger="sqlite://") as work:
        pool = work["executor"]
        os.kill(pool.submit(os.getpid).result(), signal.SIGINT)
        assert pool.submit(sum, [1, 2]).result() == 3


@pytest.mark.parametrize(("usable", "threads"), [(5, 2), (2, 1), (1, 1)])
def test_worker_processes_share_what_is_usable(
    usable: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "usable_processors", lambda: usable)
    with workers_of(Model(), workers=2, prompts=5, ledger="sqlite:///budget.db") as found:
        assert found["worker_backend"].args[0].threads == threads


def server_arguments(folder: Path, url: str) -> list[str]:
    backend = ("--backend", "openai", "--set", f"base_url={url}", "--model", "served")
    return generate_arguments(folder, *backend, tokens=1, prompts=10)


def test_the_command_line_sends_all_requests_to_a_server_through_one_client(tmp_path: Path) -> None:
    server = LlamaServer(slots=1)  # type: ignore[no-untyped-call]
    server.seconds = lambda _: 0.001
    with scripted(server) as served:
        assert run([*server_arguments(tmp_path, served.base_url), "--set", "workers=2"]) == 0
    assert max(under_way for _, under_way in server.crowds) == 1
    assert len(dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl")) == 2


def test_the_workers_of_a_server_are_threads_that_share_its_client() -> None:
    with workers_of(Model(backend="openai"), workers=2, prompts=1, ledger="sqlite://") as work:
        assert isinstance(work["executor"], ThreadPoolExecutor)
        assert "worker_backend" not in work


def test_the_command_line_refuses_ray_with_a_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*server_arguments(tmp_path, "http://127.0.0.1:1/v1"), "--set", "ray=local"]) == 2
    assert "workers" in capfd.readouterr().err
    assert not (tmp_path / "budget.db").exists()


def generate_arguments(folder: Path, *further: str, tokens: int = 8, prompts: int = 100) -> list[str]:
    return [
        "generate", *written(folder), "--epsilon", "4", "--delta", "1e-5", "--mechanism", "gaussian",
        "--prompts-per-draw", str(prompts), "--max-tokens", str(tokens),
        "--set", "tokens_per_draw=1", "--set", "top_k=all", "--output", str(folder / "demos.jsonl"),
        "--ledger", f"sqlite:///{folder / 'budget.db'}", "--account", "tickets", "--set", "create=true",
        *further,
    ]  # fmt: skip
