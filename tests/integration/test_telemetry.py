"""What logs, traces, metrics and observers say: released facts alone."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from functools import partialmethod
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Counter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import dpfewshot as dpf
from dpfewshot.generation.telemetry import LOGGER, Facts, Observer, Observers, OpenTelemetryObserver
from tests.integration.test_service import SECRET, synthesizer
from tests.support.outputs import extras_of, telemetry
from tests.support.resuming import Dying

LABELS = {"refund", "delivery"}
QUOTING = dpf.BackendError(f"cannot evaluate {SECRET}")


@pytest.fixture(name="telemetry")
def heard() -> Iterator[tuple[Any, Any]]:
    with telemetry() as both:
        yield both


def test_a_library_is_silent_by_itself() -> None:
    script = "import logging, dpfewshot.generation.telemetry as o; o.LOGGER.error('heard')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert any(isinstance(handler, logging.NullHandler) for handler in LOGGER.handlers)


def test_log_records_are_released_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = synthesizer(shots_per_label=2)
    demonstrations = made.generate_all()
    ours = [record for record in caplog.records if record.name.startswith("dpfewshot")]  # not a pool's
    told = [(record.getMessage(), extras_of(record)) for record in ours]
    epsilons = {part.spend.epsilon for part in made.plan.strata if part.spend}
    assert [fields for message, fields in told if "was released" in message] == [
        {
            "label": one.label, "tokens": one.token_count, "certified": True, "relation": "zero-out",
            "mechanism": "gaussian", "epsilon": one.spent.epsilon, "delta": one.spent.delta,
        }
        for one in demonstrations if one.spent is not None
    ]  # fmt: skip
    reserved = [fields for message, fields in told if "was reserved" in message]
    assert [fields["scope"] for fields in reserved] == ["refund", "delivery"]
    assert all(fields["epsilon"] in epsilons and fields["draws"] == 16 for fields in reserved)
    assert len(told) == 6
    assert all(message.endswith(f": {fields.get('label', fields.get('scope'))}") for message, fields in told)


def test_a_failure_tells_its_kind_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(0, QUOTING)).generate("refund")
    record = caplog.records[-1]
    assert extras_of(record) == {
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
    assert made.generate("refund").certified
    with pytest.raises(dpf.BudgetExceeded):
        made.generate("refund")


def test_a_handler_that_fails_quotes_no_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python prints a handler's failure with the error that was at hand where the record was logged."""

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(LOGGER, "handlers", [logging.StreamHandler(Full())])
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(0, QUOTING)).generate("refund")
    told = capsys.readouterr().err
    assert "disk full" in told
    assert SECRET not in told


@pytest.mark.usefixtures("telemetry")
@pytest.mark.parametrize(("owner", "place"), [(SimpleSpanProcessor, "on_end"), (Counter, "add")])
def test_telemetry_that_fails_loses_no_demonstration(
    owner: type, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise LookupError(SECRET)

    monkeypatch.setattr(owner, place, fails)
    assert synthesizer(observers=[OpenTelemetryObserver()]).generate("refund").certified


def test_spans_and_metrics_are_functions_of_released_facts(telemetry: tuple[Any, Any]) -> None:
    exporter, reader = telemetry
    made = synthesizer(observers=[OpenTelemetryObserver()])
    demonstrations = asyncio.run(made.agenerate_all())
    spans = exporter.get_finished_spans()
    assert [dict(span.attributes) for span in spans] == [
        {
            "dpfewshot.label": one.label, "dpfewshot.tokens": one.token_count, "dpfewshot.certified": True,
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
    with pytest.raises(dpf.BackendError):
        synthesizer(Dying(0, QUOTING), observers=[OpenTelemetryObserver()]).generate("refund")
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
    with pytest.raises(dpf.MissingExtra, match=r"pip install '\.\[opentelemetry\]'"):
        OpenTelemetryObserver()


class Recording(Observer):
    """Keeps what it is told, and the exception that was being handled meanwhile."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.at_hand: list[object] = []

    def _keep(self, event: str, facts: Facts) -> None:
        self.told.append((event, dict(facts)))
        self.at_hand.append(sys.exc_info()[1])

    def _tell(self, event: str, facts: Facts) -> None:
        self._keep(event, facts)

    reserved = partialmethod(_tell, "reserved")
    started = partialmethod(_tell, "started")
    released = partialmethod(_tell, "released")
    failed = partialmethod(_tell, "failed")
    stopped = partialmethod(_tell, "stopped")


RUN = {"mechanism": "gaussian", "relation": "zero-out"}


def test_an_observer_is_told_public_facts_alone() -> None:
    seen = Recording()
    made = synthesizer(observers=[seen])
    one = made.generate("refund")
    assert one.spent is not None
    spent = {"epsilon": one.spent.epsilon, "delta": one.spent.delta}
    assert seen.told == [
        ("started", {**RUN, "label": "refund"}),
        ("reserved", {**RUN, "scope": "refund", "draws": 8, **spent}),
        ("released", {**RUN, "label": "refund", "tokens": 5, "certified": True, **spent}),
    ]


@pytest.mark.parametrize(
    ("error", "event", "facts"),
    [
        (QUOTING, "failed", {"error": "BackendError"}),
        (KeyboardInterrupt(SECRET), "stopped", {}),
    ],
)
def test_an_observer_sees_no_error(error: Any, event: str, facts: dict[str, str]) -> None:
    seen = Recording()
    with pytest.raises(type(error)):
        synthesizer(Dying(0, error), observers=[seen]).generate("refund")
    assert seen.told[-1] == (event, {**RUN, "label": "refund", **facts})
    assert not any(seen.at_hand)
    assert SECRET not in str(seen.told)


def test_a_run_that_another_process_takes_over_is_stopped_and_did_not_fail() -> None:
    seen = Recording()

    def taken_over() -> dpf.Demonstration:
        raise dpf.RunTakenOver("another process goes on")

    with pytest.raises(dpf.RunTakenOver):
        Observers({}, [seen]).generation("refund", taken_over)
    assert seen.told == [("started", {"label": "refund"}), ("stopped", {"label": "refund"})]


def test_an_observer_that_fails_loses_its_own_record_alone() -> None:
    class Failing(Recording):
        def _keep(self, event: str, facts: Facts) -> None:
            super()._keep(event, facts)
            facts.clear()  # type: ignore[attr-defined]
            raise LookupError(SECRET)

    failing, sound = Failing(), Recording()
    assert synthesizer(observers=[failing, sound]).generate("refund").certified
    assert sound.told == failing.told
    assert len(sound.told) == 3


def test_what_is_not_an_observer_is_refused() -> None:
    for wrong in (print, Recording):
        with pytest.raises(dpf.InvalidPlan, match=r"telemetry\.Observer"):
            synthesizer(observers=[wrong])
