"""What services see of a generation: observers, of which one logs and one tells OpenTelemetry.

Observers are told public settings and released facts alone: no duration, size of a draw, or text of an error.
Every log and every trace shows when something happened, and times are for the operator alone
(docs/guarantee.md). So logs and traces go to the trusted side, and OpenTelemetry is off by default.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from dpfewshot.errors import InvalidPlan, RunTakenOver, needs_extra
from dpfewshot.runtime.redaction import is_failure
from dpfewshot.values import Demonstration, PrivacySpend

LOGGER = logging.getLogger("dpfewshot")
LOGGER.addHandler(logging.NullHandler())  # a library is silent until its program configures logging

Facts = Mapping[str, str | int | float | bool]
"""Public, by name. Every event has `mechanism` and `relation`."""


class Observer:
    """Is told what a generation makes public. Subclass it and override what you need.

    Methods are called on the generating thread while no exception is being handled. They must be thread-safe:
    labels generate side by side. What a method raises is dropped, since what it was told of has happened and
    is paid for.
    """

    def reserved(self, facts: Facts) -> None:
        """A stratum's plan was reserved: `scope`, `draws`, `epsilon`, `delta`.

        `epsilon` and `delta` are absent here and in `released` if nothing is certified.
        """

    def started(self, facts: Facts) -> None:
        """A generation starts: `label`. One of the methods below ends it, on the same thread."""

    def released(self, facts: Facts) -> None:
        """It released a demonstration: `label`, `tokens`, `certified`, `epsilon`, `delta`."""

    def failed(self, facts: Facts) -> None:
        """It failed: `label`, and `error`, the exception's type."""

    def stopped(self, facts: Facts) -> None:
        """It was cancelled or interrupted, or another process took the run over: `label`."""


class Observers:
    """Tells observers of everything that a generation makes public. `public` is in every event."""

    def __init__(self, public: Facts, observers: Iterable[Observer]) -> None:
        self._public = dict(public)
        self._observers = tuple(observers)
        for observer in self._observers:
            if not isinstance(observer, Observer):
                raise InvalidPlan("observers must be dpfewshot.generation.telemetry.Observer objects")

    def reserved(self, scope: str | None, spend: PrivacySpend | None, draws: int) -> None:
        """Tell that a stratum's plan was reserved, before its first draw."""
        self._tell("reserved", {"scope": scope or "the whole data set", "draws": draws, **_amounts(spend)})

    def generation(self, label: str, generate: Callable[[], Demonstration]) -> Demonstration:
        """Generate a demonstration; tell when it starts and how it ends."""
        self._tell("started", {"label": label})
        try:
            demonstration = generate()
        except BaseException as raised:  # noqa: BLE001 - raised again below
            error = raised
        else:
            tokens, certified = demonstration.token_count, demonstration.certified
            spent = _amounts(demonstration.spent)
            self._tell("released", {"label": label, "tokens": tokens, "certified": certified, **spent})
            return demonstration
        # Outside of the handler: an observer that prints the exception at hand finds none.
        try:
            if is_failure(error) and not isinstance(error, RunTakenOver):  # which another process continues
                self._tell("failed", {"label": label, "error": type(error).__name__})
            else:
                self._tell("stopped", {"label": label})
            raise error
        finally:
            del error  # it holds this frame

    def _tell(self, event: str, facts: Facts) -> None:
        for observer in self._observers:
            with suppress(Exception):
                getattr(observer, event)({**self._public, **facts})


class LogObserver(Observer):
    """Logs to the logger "dpfewshot", with the facts as fields. Every synthesizer has one."""

    def reserved(self, facts: Facts) -> None:
        """See `Observer.reserved`."""
        LOGGER.info("a plan was reserved: %s", facts["scope"], extra=facts)

    def released(self, facts: Facts) -> None:
        """See `Observer.released`."""
        LOGGER.info("a demonstration was released: %s", facts["label"], extra=facts)

    def failed(self, facts: Facts) -> None:
        """See `Observer.failed`."""
        LOGGER.warning("a demonstration failed: %s (%s)", facts["label"], facts["error"], extra=facts)


class OpenTelemetryObserver(Observer):
    """Makes a span for each demonstration, and counts what was released and reserved.

    Raises:
        MissingExtra: opentelemetry-api is not installed.
    """

    def __init__(self) -> None:
        with needs_extra("OpenTelemetryObserver", "opentelemetry"):
            from opentelemetry import context, metrics, trace
        self._context = context
        self._trace = trace
        self._tracer = trace.get_tracer("dpfewshot")
        self._running = threading.local()
        meter = metrics.get_meter("dpfewshot")
        self._demonstrations = meter.create_counter(
            "dpfewshot.demonstrations", "{demonstration}", "Demonstrations released."
        )
        self._tokens = meter.create_counter("dpfewshot.tokens", "{token}", "Tokens released.")
        self._epsilon = meter.create_counter(
            "dpfewshot.epsilon.reserved", "1", "Epsilon of the plans reserved, scope by scope."
        )

    def reserved(self, facts: Facts) -> None:
        """See `Observer.reserved`."""
        if "epsilon" in facts:
            self._epsilon.add(float(facts["epsilon"]), _named(facts, "mechanism", "relation", "scope"))

    def started(self, facts: Facts) -> None:
        """See `Observer.started`."""
        span = self._tracer.start_span("dpfewshot.generate", attributes=_named(facts))
        token = self._context.attach(self._trace.set_span_in_context(span))
        self._running.span = span, token

    def released(self, facts: Facts) -> None:
        """See `Observer.released`."""
        counted = _named(facts, "mechanism", "relation", "label")
        try:
            self._demonstrations.add(1, counted)
            self._tokens.add(int(facts["tokens"]), counted)
        finally:
            self._end(_named(facts))

    def failed(self, facts: Facts) -> None:
        """See `Observer.failed`."""
        self._end({"error.type": facts["error"]}, failed=True)

    def stopped(self, facts: Facts) -> None:  # noqa: ARG002 - the span knows the label
        """See `Observer.stopped`."""
        self._end({})

    def _end(self, attributes: dict[str, Any], *, failed: bool = False) -> None:
        span, token = vars(self._running).pop("span", (None, None))
        if span is None:  # `started` failed
            return
        try:
            span.set_attributes(attributes)
            if failed:
                span.set_status(self._trace.StatusCode.ERROR)
            span.end()
        finally:
            self._context.detach(token)


def _amounts(spend: PrivacySpend | None) -> dict[str, float]:
    return {} if spend is None else {"epsilon": spend.epsilon, "delta": spend.delta}


def _named(facts: Facts, *names: str) -> dict[str, str | int | float | bool]:
    return {f"dpfewshot.{name}": facts[name] for name in names or facts}


NO_OBSERVERS = Observers({}, ())
"""For generations that release nothing."""
