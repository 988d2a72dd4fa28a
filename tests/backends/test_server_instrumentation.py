"""Traces of a caller hold nothing of private requests: not how many prompts were drawn, nor that any was."""

from __future__ import annotations

import contextvars

import pytest

from dpfewshot.backends.servers.replicas import PrivateLoop
from tests.support.scripted_servers import LlamaServer

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")
instrumentation = pytest.importorskip(
    "opentelemetry.instrumentation.httpx", reason="opentelemetry-instrumentation-httpx is not installed"
)

from opentelemetry import trace  # noqa: E402
from opentelemetry.instrumentation.utils import is_http_instrumentation_enabled  # noqa: E402
from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

NEIGHBOURS = ([[1, 2]], [[1, 2], [3] * 9, [4]])

variable = contextvars.ContextVar("variable", default=None)


@pytest.fixture
def telemetry():
    """Real instrumentation of httpx, with a tracer, the spans that were made, and the metrics."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracing, metering = TracerProvider(), MeterProvider([reader])
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = instrumentation.HTTPXClientInstrumentor()
    instrumentor.instrument(tracer_provider=tracing, meter_provider=metering)
    yield tracing.get_tracer("tests"), exporter, reader
    instrumentor.uninstrument()
    tracing.shutdown()
    metering.shutdown()


def test_spans_and_metrics_are_the_same_whatever_was_drawn(telemetry, connect):
    tracer, exporter, reader = telemetry
    told = []
    backend = connect(LlamaServer(), verify=False)
    (server,) = backend.servers
    sent = len(server.headers)
    with tracer.start_as_current_span("control"):
        httpx.get(f"{server.base_url}/models", trust_env=False)
    assert [span.name for span in exporter.get_finished_spans()] == ["GET", "control"]
    assert reader.get_metrics_data() is not None
    for drawn in NEIGHBOURS:
        exporter.clear()
        with tracer.start_as_current_span("generation"):
            backend.next_token_logprobs(drawn, [5])
        spans = exporter.get_finished_spans()
        told.append([(span.name, len(span.events), dict(span.attributes)) for span in spans])
    assert ["traceparent" in headers for _, headers in server.headers[sent:]].count(
        True
    ) == 1  # the control's
    assert not any("traceparent" in headers for _, headers in server.headers[sent + 1 :])
    assert told == [[("generation", 0, {})]] * 2
    found = reader.get_metrics_data()  # points are sums: the control's request is all there is
    counts = [
        point.count
        for resource in found.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    assert set(counts) == {1}


def test_private_work_has_no_context_of_its_caller_and_tells_instrumentations_to_be_silent(telemetry):
    """Instrumentations of other libraries than httpx that honour these keys, or the context, see nothing."""
    tracer, _, _ = telemetry
    worker = PrivateLoop()

    async def found():
        span = trace.get_current_span().get_span_context()
        return variable.get(), span.is_valid, is_http_instrumentation_enabled()

    async def nothing():
        pass

    with tracer.start_as_current_span("generation"):
        variable.set("a request's id")
        assert worker.run(found()) == (None, False, False)
        assert variable.get() == "a request's id"
        assert trace.get_current_span().get_span_context().is_valid
        assert is_http_instrumentation_enabled()
    worker.close(nothing())
