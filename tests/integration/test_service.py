"""Inside a service: coroutines that are cancelled, threads, forks, and what logs and traces say."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import logging
import os
import pty
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.budget.memory import MemoryAccount
from dpfewshot.generation.telemetry import LOGGER, Facts, Observer, OpenTelemetryObserver
from tests.support import factory, inside
from tests.support.processes import environment
from tests.support.scripts import Sentence, tickets

# newer Pythons warn of what is tested here: a fork beside threads
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)
NOTHING = dpf.PrivacySpend(0.0, 0.0)
SECRET = "swordfish"


class Gated(Sentence):
    """Waits at its gate before each answer to private prompts."""

    def __init__(self) -> None:
        super().__init__(sure=0.999999)
        self.gate = threading.Semaphore(0)
        self.arrived = threading.Event()
        self.fails: Exception | None = None

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            if not self.gate.acquire(blocking=False):
                self.arrived.set()
                assert self.gate.acquire(timeout=30)
            if self.fails is not None:
                raise self.fails
        return super().next_token_logprobs(prompts, support)

    def open(self, answers: int = 10_000) -> None:
        self.gate.release(answers)


def synthesizer(backend: Any = None, **options: Any) -> dpf.Synthesizer:
    records = [dpf.Record(f"{SECRET} {i}", one.label) for i, one in enumerate(tickets())]
    settings = {"prompts_per_token": 100} | options
    return factory.synthesizer(backend or Sentence(sure=0.999999), records, **settings)


@pytest.fixture
def ledger(tmp_path: Path) -> dict[str, Any]:
    return {"ledger": f"sqlite:///{tmp_path / 'budget.db'}", "dataset": "tickets", "create": True}


async def arrival(backend: Gated) -> None:
    while not backend.arrived.is_set():  # noqa: ASYNC110 - a thread arrives, no task
        await asyncio.sleep(0.001)


async def cancelled(task: asyncio.Task[Any], backend: Gated) -> None:
    """Cancel it in the middle of a token, and let that token come to its end."""
    await arrival(backend)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()  # what runs is waited for
    backend.open(1)
    with pytest.raises(asyncio.CancelledError):
        await task


# ---- asyncio ---------------------------------------------------------------------------------------------


def test_a_cancelled_coroutine_stops_at_the_next_token_and_its_charge_stands(ledger: dict[str, str]) -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, shots_per_label=2, **ledger)
        await cancelled(asyncio.create_task(made.agenerate("refund")), backend)
        assert inside.draws_left(made) == [(15,)]
        assert made.accountant.spent.epsilon > 3.9
        backend.open()
        assert (await made.agenerate("refund")).text == "my parcel is late"
        assert made.generate("delivery").text == "my parcel is late"

    asyncio.run(scenario())
    gc.collect()


def test_cancelled_before_the_first_draw_gives_everything_back(ledger: dict[str, str]) -> None:
    async def scenario() -> None:
        made = synthesizer(**ledger)
        with inside.turn(made, "refund"):
            waiting = asyncio.create_task(made.agenerate("refund"))
            queued = asyncio.create_task(made.agenerate("refund"))
            await asyncio.sleep(0.05)
            for task in (queued, waiting):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert made.accountant.spent == NOTHING
        assert (await made.agenerate("refund")).text == "my parcel is late"

    asyncio.run(scenario())


def test_cancelled_between_reserving_and_drawing_gives_everything_back(ledger: dict[str, str]) -> None:
    class GatedInPublic(Gated):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if support is None and not self.gate.acquire(blocking=False):
                self.arrived.set()
                assert self.gate.acquire(timeout=30)
            return Sentence.next_token_logprobs(self, prompts, support)

    async def scenario() -> None:
        backend = GatedInPublic()
        made = synthesizer(backend, **ledger)
        task = asyncio.create_task(made.agenerate("refund"))
        await arrival(backend)
        assert made.accountant.spent.epsilon > 3.9  # reserved, and nothing drawn
        await cancelled(task, backend)
        assert made.accountant.spent == NOTHING

    asyncio.run(scenario())


def test_the_event_loop_stays_free_and_a_label_takes_turns() -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, shots_per_label=3)
        tasks = [asyncio.create_task(made.agenerate("refund")) for _ in range(3)]
        tasks.append(asyncio.create_task(made.agenerate("delivery")))
        ticks = 0
        await arrival(backend)
        for _ in range(20):
            await asyncio.sleep(0.001)
            ticks += 1
        assert ticks == 20
        backend.open()
        assert [one.text for one in await asyncio.gather(*tasks)] == ["my parcel is late"] * 4

    asyncio.run(scenario())


def test_a_timeout_is_a_cancellation() -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, shots_per_label=2)
        threading.Timer(0.3, backend.open).start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await made.agenerate("refund")
        assert (await made.agenerate("refund")).private

    asyncio.run(scenario())


def test_a_failure_after_the_cancellation_is_nobodys_noise(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        backend = Gated()
        backend.fails = dpf.BackendError("the server is gone")
        made = synthesizer(backend)
        await cancelled(asyncio.create_task(made.agenerate("refund")), backend)

    asyncio.run(scenario())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_cancelled_run_resumes_from_its_checkpoint(tmp_path: Path, ledger: dict[str, str]) -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, **ledger)
        path = tmp_path / "run.jsonl"
        backend.open(2)
        task = asyncio.create_task(made.agenerate_all(checkpoint=path))
        await cancelled(task, backend)
        backend.open()
        demonstrations = await made.agenerate_all(checkpoint=path)
        assert [one.text for one in demonstrations] == ["my parcel is late"] * 2
        assert made.accountant.spent.epsilon <= 4.0

    asyncio.run(scenario())


# ---- threads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_many_threads_share_one_synthesizer(durable: bool, ledger: dict[str, str]) -> None:
    account: dict[str, Any] = ledger if durable else {"ledger": MemoryAccount(BUDGET)}
    made = synthesizer(shots_per_label=4, **account)

    def work(number: int) -> str:
        try:
            return made.generate(("refund", "delivery")[number % 2]).text
        except dpf.BudgetExceeded:
            return "refused"

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(work, range(24)))
    assert set(texts) == {"my parcel is late", "refused"}
    # 32 draws a label; a demonstration takes five, and is begun while eight are left
    assert texts.count("my parcel is late") == 2 * 5
    assert 3.9 < made.accountant.spent.epsilon <= 4.0


# ---- fork ------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], str]) -> str:
    """What `work` returns, or how it fails, in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent wants to know
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def test_a_budget_in_memory_is_refused_in_a_child() -> None:
    made = synthesizer()
    for _ in "ab":  # before and after the parent reserved
        told = in_child(lambda: made.generate("refund").text)
        assert told.startswith("LedgerError: ")
        assert "ledger=" in told
        assert in_child(lambda: str(made.accountant.spent)).startswith("LedgerError")
        made.generate("refund" if made.accountant.spent == NOTHING else "delivery")


def test_a_child_of_its_parents_number_has_no_budget_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers give out the number 1 many times."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    account = dpf.MemoryAccount(BUDGET)
    assert account.spent.epsilon == 0.0
    assert "each forked child would spend it again" in in_child(lambda: str(account.spent))


def test_a_child_reserves_for_itself_whatever_its_parent_holds(ledger: dict[str, str]) -> None:
    dpf.BudgetLedger.open(ledger["ledger"]).create("tickets", dpf.PrivacyBudget(9.0, 1e-3))
    made = synthesizer(shots_per_label=2, **ledger)
    made.generate("refund")
    held = threading.Event()
    done = threading.Event()

    def hold() -> None:
        with inside.no_draws(made):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert in_child(lambda: made.generate("refund").text) == "my parcel is late"
    assert 7.9 < made.accountant.spent.epsilon <= 8.0
    assert in_child(lambda: made.generate("refund").text).startswith("BudgetExceeded")
    assert in_child(lambda: asyncio.run(made.agenerate("delivery")).text) == "my parcel is late"
    done.set()
    thread.join()
    assert made.generate("refund").text == "my parcel is late"  # the parent's own reservation stands


def test_a_fork_during_a_run_leaves_the_checkpoint_to_the_parent(
    tmp_path: Path, ledger: dict[str, str]
) -> None:
    dpf.BudgetLedger.open(ledger["ledger"]).create("tickets", dpf.PrivacyBudget(9.0, 1e-3))
    made = synthesizer(**ledger)
    path = tmp_path / "run.jsonl"
    told: list[str] = []

    def meanwhile(one: dpf.Demonstration) -> None:
        told.append(in_child(lambda: made.generate(one.label).text))
        told.append(in_child(lambda: str(made.generate_all(checkpoint=path))))

    assert len(made.generate_all(checkpoint=path, on_demonstration=meanwhile)) == 2
    assert told[::2] == ["my parcel is late"] * 2
    assert all("another run holds" in text for text in told[1::2])
    assert path.read_text().count('"draw"') == 10
    assert len(made.generate_all(checkpoint=path)) == 2  # children keep no lock


# ---- logs, traces, metrics and the bar -------------------------------------------------------------------

LABELS = {"refund", "delivery"}
PUBLIC = {"mechanism": {"gaussian"}, "relation": {"zero-out"}, "label": LABELS, "private": {True}}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    plain = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime"}
    return {name: value for name, value in record.__dict__.items() if name not in plain}


def test_a_library_is_silent_by_itself() -> None:
    script = "import logging, dpfewshot.generation.telemetry as o; o.LOGGER.error('heard')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert any(isinstance(handler, logging.NullHandler) for handler in LOGGER.handlers)


def test_log_records_are_released_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = synthesizer(shots_per_label=2)
    demonstrations = made.generate_all()
    told = [(record.getMessage(), fields_of(record)) for record in caplog.records]
    epsilons = {part.spend.epsilon for part in made.plan.strata if part.spend}
    assert [fields for message, fields in told if message == "a demonstration was released"] == [
        {
            "label": one.label, "tokens": one.token_count, "private": True, "relation": "zero-out",
            "mechanism": "gaussian", "epsilon": one.spent.epsilon, "delta": one.spent.delta,
        }
        for one in demonstrations if one.spent is not None
    ]  # fmt: skip
    reserved = [fields for message, fields in told if message == "a plan was reserved"]
    assert [fields["scope"] for fields in reserved] == ["refund", "delivery"]
    assert all(fields["epsilon"] in epsilons and fields["blocks"] == 16 for fields in reserved)
    assert len(told) == 6


def test_a_failure_tells_its_kind_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Quoting(Sentence):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if support is not None:
                raise dpf.BackendError(f"cannot evaluate {SECRET}")
            return super().next_token_logprobs(prompts, support)

    with pytest.raises(dpf.BackendError):
        synthesizer(Quoting()).generate("refund")
    record = caplog.records[-1]
    assert fields_of(record) == {
        "mechanism": "gaussian", "relation": "zero-out", "label": "refund", "error": "BackendError"
    }  # fmt: skip
    assert record.exc_info is None
    assert SECRET not in caplog.text


def _buggy(_record: logging.LogRecord) -> bool:
    raise LookupError(SECRET)


def _tagging(*arguments: Any, **named: Any) -> logging.LogRecord:
    record = logging.LogRecord(*arguments, **named)
    record.label = "eu-west"  # a field of ours, which logging then refuses
    return record


@pytest.mark.parametrize("fault", ["filter", "record factory", "handler"])
def test_a_logger_that_fails_loses_no_demonstration_and_no_error(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    if fault == "record factory":
        monkeypatch.setattr(logging, "_logRecordFactory", _tagging)
    elif fault == "filter":
        monkeypatch.setattr(LOGGER, "filters", [_buggy])
    else:
        handler = logging.NullHandler()
        handler.handle = _buggy  # type: ignore[method-assign]
        monkeypatch.setattr(LOGGER, "handlers", [handler])
    made = synthesizer()
    assert made.generate("refund").private
    with pytest.raises(dpf.BudgetExceeded):
        made.generate("refund")


def test_a_handler_that_fails_quotes_no_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python prints a handler's failure with the error that was at hand where the record was logged."""

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "disk full")

    class Quoting(Sentence):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if support is not None:
                raise dpf.BackendError(f"cannot evaluate {SECRET}")
            return super().next_token_logprobs(prompts, support)

    monkeypatch.setattr(LOGGER, "handlers", [logging.StreamHandler(Full())])
    with pytest.raises(dpf.BackendError):
        synthesizer(Quoting()).generate("refund")
    told = capsys.readouterr().err
    assert "disk full" in told
    assert SECRET not in told


@pytest.mark.parametrize("place", ["on_end", "add"])
def test_telemetry_that_fails_loses_no_demonstration(
    place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue("telemetry")
    from opentelemetry.sdk.metrics import Counter
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    def fails(*_: object) -> None:
        raise LookupError(SECRET)

    monkeypatch.setattr(SimpleSpanProcessor if place == "on_end" else Counter, place, fails)
    assert synthesizer(observers=[OpenTelemetryObserver()]).generate("refund").private


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """What one test's spans and metrics go to: the process has one global provider, which stays unset."""
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    spans, meters = TracerProvider(), MeterProvider([reader])
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", spans.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    yield exporter, reader
    spans.shutdown()
    meters.shutdown()


def test_spans_and_metrics_are_functions_of_released_facts(telemetry: tuple[Any, Any]) -> None:
    exporter, reader = telemetry
    made = synthesizer(observers=[OpenTelemetryObserver()])
    demonstrations = asyncio.run(made.agenerate_all())
    spans = exporter.get_finished_spans()
    assert [dict(span.attributes) for span in spans] == [
        {
            "dpfewshot.label": one.label, "dpfewshot.tokens": one.token_count, "dpfewshot.private": True,
            "dpfewshot.relation": "zero-out", "dpfewshot.mechanism": "gaussian",
            "dpfewshot.epsilon": one.spent.epsilon, "dpfewshot.delta": one.spent.delta,
        }
        for one in demonstrations if one.spent is not None
    ]  # fmt: skip
    assert all(span.name == "dpfewshot.generate" and not span.events for span in spans)
    points = {
        (metric.name, point.attributes.get("dpfewshot.label") or point.attributes["dpfewshot.scope"]): point
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert {name: point.value for name, point in points.items()} == {
        **{("dpfewshot.demonstrations", label): 1 for label in LABELS},
        **{("dpfewshot.tokens", label): 5 for label in LABELS},
        **{
            ("dpfewshot.epsilon.reserved", str(part.scope)): part.spend.epsilon
            for part in made.plan.strata if part.spend
        },
    }  # fmt: skip


def test_a_failed_span_quotes_nothing(telemetry: tuple[Any, Any]) -> None:
    exporter, _ = telemetry
    backend = Gated()
    backend.fails = dpf.BackendError(f"cannot evaluate {SECRET}")
    backend.open()
    with pytest.raises(dpf.BackendError):
        synthesizer(backend, observers=[OpenTelemetryObserver()]).generate("refund")
    [span] = exporter.get_finished_spans()
    assert span.attributes["error.type"] == "BackendError"
    assert SECRET not in span.to_json()
    assert not span.events


def test_telemetry_is_off_unless_it_is_asked_for(telemetry: tuple[Any, Any]) -> None:
    exporter, _ = telemetry
    synthesizer().generate("refund")
    assert not exporter.get_finished_spans()


def test_telemetry_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(dpf.MissingExtra, match=r"dpfewshot\[opentelemetry\]"):
        OpenTelemetryObserver()


def test_the_old_way_to_ask_for_telemetry_warns(telemetry: tuple[Any, Any]) -> None:
    exporter, _ = telemetry
    with pytest.warns(DeprecationWarning, match="OpenTelemetryObserver"):
        made = synthesizer(opentelemetry=True)
    made.generate("refund")
    assert exporter.get_finished_spans()


class Recording(Observer):
    """Keeps what it is told, and the exception that was being handled meanwhile."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.at_hand: list[object] = []

    def _keep(self, event: str, facts: Facts) -> None:
        self.told.append((event, dict(facts)))
        self.at_hand.append(sys.exc_info()[1])

    def reserved(self, facts: Facts) -> None:
        self._keep("reserved", facts)

    def started(self, facts: Facts) -> None:
        self._keep("started", facts)

    def released(self, facts: Facts) -> None:
        self._keep("released", facts)

    def failed(self, facts: Facts) -> None:
        self._keep("failed", facts)

    def stopped(self, facts: Facts) -> None:
        self._keep("stopped", facts)


RUN = {"mechanism": "gaussian", "relation": "zero-out"}


def test_an_observer_is_told_public_facts_alone() -> None:
    seen = Recording()
    made = synthesizer(observers=[seen])
    one = made.generate("refund")
    assert one.spent is not None
    spent = {"epsilon": one.spent.epsilon, "delta": one.spent.delta}
    assert seen.told == [
        ("started", {**RUN, "label": "refund"}),
        ("reserved", {**RUN, "scope": "refund", "blocks": 8, **spent}),
        ("released", {**RUN, "label": "refund", "tokens": 5, "private": True, **spent}),
    ]


@pytest.mark.parametrize(
    ("error", "event", "facts"),
    [
        (dpf.BackendError(f"cannot evaluate {SECRET}"), "failed", {"error": "BackendError"}),
        (KeyboardInterrupt(SECRET), "stopped", {}),
    ],
)
def test_an_observer_sees_no_error(error: Any, event: str, facts: dict[str, str]) -> None:
    backend, seen = Gated(), Recording()
    backend.fails = error
    backend.open()
    with pytest.raises(type(error)):
        synthesizer(backend, observers=[seen]).generate("refund")
    assert seen.told[-1] == (event, {**RUN, "label": "refund", **facts})
    assert not any(seen.at_hand)
    assert SECRET not in str(seen.told)


def test_an_observer_that_fails_loses_its_own_record_alone() -> None:
    class Failing(Recording):
        def _keep(self, event: str, facts: Facts) -> None:
            super()._keep(event, facts)
            facts.clear()  # type: ignore[attr-defined]
            raise LookupError(SECRET)

    failing, sound = Failing(), Recording()
    assert synthesizer(observers=[failing, sound]).generate("refund").private
    assert sound.told == failing.told
    assert len(sound.told) == 3


def test_what_is_not_an_observer_is_refused() -> None:
    for wrong in (print, Recording):
        with pytest.raises(dpf.InvalidPlan, match=r"telemetry\.Observer"):
            synthesizer(observers=[wrong])


BAR = """
from tests.support.factory import synthesizer
from tests.support.scripts import Sentence

synthesizer(Sentence(sure=0.999999), prompts_per_token=100).generate_all()
print("done")
"""


def shown(errors: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", BAR],
        stdout=subprocess.PIPE,
        stderr=errors,
        check=True,
        timeout=120,
        env=environment(COLUMNS="140", TQDM_MININTERVAL="0"),
    )


def until_closed(terminal: int) -> str:
    pieces = []
    with (
        os.fdopen(terminal, "rb", buffering=0) as opened,
        suppress(OSError),
    ):  # how a terminal says that it ended
        while piece := opened.read(4096):
            pieces.append(piece)
    return b"".join(pieces).decode()


def test_the_bar_shows_tokens_time_and_budget_on_a_terminal() -> None:
    terminal, its_end = pty.openpty()
    termios.tcsetwinsize(its_end, (24, 160))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(until_closed, terminal)
        done = shown(its_end)
        os.close(its_end)
        text = reading.result()
    assert done.stdout == b"done\n"
    assert "/16 [" in text
    assert "token/s" in text or "s/token" in text
    assert "1 of 2 demonstrations, epsilon 3.99" in text
    assert "of 4.0000 used" in text or "of 3.99" in text


def test_the_bar_is_silent_in_a_pipe() -> None:
    done = shown(subprocess.PIPE)
    assert done.stderr == b""
