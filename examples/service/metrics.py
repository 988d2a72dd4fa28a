"""Metrics for the operator alone: they show when something happened, which depends on the records."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from dpfewshot.errors import LedgerError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

    from examples.service.pool import Pool


def serve_metrics(port: int, pool: Pool) -> None:
    """Serves what OpenTelemetry counts to Prometheus, on a port that callers cannot reach."""
    from opentelemetry import metrics
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import start_http_server

    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    meter = metrics.get_meter("examples.service")

    def published(_: CallbackOptions) -> Iterable[Observation]:
        yield metrics.Observation(len(pool.ready))

    def problem(_: CallbackOptions) -> Iterable[Observation]:
        yield metrics.Observation(int(pool.problem is not None), {"cause": pool.problem or "none"})

    def spent(_: CallbackOptions) -> Iterable[Observation]:
        with suppress(LedgerError):  # the pool says so
            if pool.account is not None:
                yield metrics.Observation(pool.account.spent.epsilon)

    meter.create_observable_gauge("service.published", [published], "1", "Demonstrations published.")
    meter.create_observable_gauge("service.problem", [problem], "1", "1 while nothing more is published.")
    meter.create_observable_gauge("service.epsilon.spent", [spent], "1", "Epsilon of the account.")
    start_http_server(port)
