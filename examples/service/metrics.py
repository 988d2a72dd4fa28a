"""Metrics for the operator alone: they show when something happened, which depends on the records."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from dpfewshot.errors import LedgerError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

    from examples.service.pool import Pool

LOGGER = logging.getLogger("examples.service")


def serve_metrics(host: str, port: int, pool: Pool) -> None:
    """Serves what OpenTelemetry counts to Prometheus, on an address that callers cannot reach.

    If it is taken, a line says so, and the service runs without metrics: callers do not need them.
    """
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
    try:
        start_http_server(port, host)
    except OSError as error:
        LOGGER.error("no metrics: %s:%d cannot be opened: %s", host, port, error)  # noqa: TRY400 - one line
