"""What services see of a run: log records and OpenTelemetry, of public settings and released facts alone.

No duration, size of a draw, or text of an error is in a field or an attribute. When something happened is in
every log and trace by nature, and times are for the operator alone (docs/guarantee.md): logs and traces go to
the trusted side, and OpenTelemetry is off unless it is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread, current_thread
from typing import TYPE_CHECKING

from dpfewshot.errors import MissingExtra
from dpfewshot.values import Demonstration, PrivacySpend

if TYPE_CHECKING:
    from opentelemetry.trace import Span

LOGGER = logging.getLogger("dpfewshot")
LOGGER.addHandler(logging.NullHandler())  # a library is silent until its program says otherwise

Facts = Mapping[str, str | int | float | bool]


class Observer:
    """Tells the logger of everything that a run makes public.

    Args:
        public: the run's mechanism and relation, which are in every record.
    """

    def __init__(self, public: Facts) -> None:
        self._public = dict(public)

    def reserved(self, scope: str | None, spend: PrivacySpend | None, blocks: int) -> None:
        """A part of the plan was reserved, before anything of it was drawn."""
        facts = self._public | {"scope": scope or "the whole data set", "blocks": blocks} | _amounts(spend)
        _log(logging.INFO, "a plan was reserved", facts)

    @contextmanager
    def generating(self, label: str) -> Iterator[Callable[[Demonstration], None]]:
        """Around the making of a demonstration; call what it yields with what was released."""
        try:
            yield self._released
        except Exception as error:
            facts = self._public | {"label": label, "error": type(error).__name__}
            _log_apart(logging.WARNING, "a demonstration failed", facts)
            raise

    def _released(self, demonstration: Demonstration) -> None:
        _log(logging.INFO, "a demonstration was released", _facts(demonstration))


class Silence(Observer):
    """Tells nobody: nothing is released."""

    def __init__(self) -> None:
        super().__init__({})

    def reserved(self, scope: str | None, spend: PrivacySpend | None, blocks: int) -> None:
        """See `Observer.reserved`."""

    @contextmanager
    def generating(self, label: str) -> Iterator[Callable[[Demonstration], None]]:  # noqa: ARG002
        """See `Observer.generating`."""
        yield lambda _demonstration: None


class Telemetry(Observer):
    """Tells OpenTelemetry too: a span a demonstration, and counters of what was released and reserved.

    Raises:
        MissingExtra: opentelemetry-api is not installed.
    """

    def __init__(self, public: Facts) -> None:
        super().__init__(public)
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            raise MissingExtra("opentelemetry=True", "opentelemetry") from None
        self._trace = trace
        self._tracer = trace.get_tracer("dpfewshot")
        meter = metrics.get_meter("dpfewshot")
        self._demonstrations = meter.create_counter(
            "dpfewshot.demonstrations", "{demonstration}", "Demonstrations released."
        )
        self._tokens = meter.create_counter("dpfewshot.tokens", "{token}", "Tokens released.")
        self._epsilon = meter.create_counter(
            "dpfewshot.epsilon.reserved", "1", "Epsilon of the plans reserved, scope by scope."
        )

    def reserved(self, scope: str | None, spend: PrivacySpend | None, blocks: int) -> None:
        """See `Observer.reserved`."""
        super().reserved(scope, spend, blocks)
        if spend is None:
            return
        with suppress(Exception):
            self._epsilon.add(spend.epsilon, _named(self._public | {"scope": scope or "the whole data set"}))

    @contextmanager
    def generating(self, label: str) -> Iterator[Callable[[Demonstration], None]]:
        """See `Observer.generating`."""
        span = self._tracer.start_span(
            "dpfewshot.generate", attributes=_named(self._public | {"label": label})
        )
        # not the exception itself, whose stack is nobody's business here: its type alone
        with (
            _ending(span),
            self._trace.use_span(span, record_exception=False, set_status_on_exception=False),
        ):
            try:
                with super().generating(label) as released:
                    yield lambda demonstration: self._count(released, demonstration, span)
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._trace.StatusCode.ERROR)
                raise

    def _count(
        self, released: Callable[[Demonstration], None], demonstration: Demonstration, span: Span
    ) -> None:
        released(demonstration)
        counted = _named(self._public | {"label": demonstration.label})
        with suppress(Exception):
            span.set_attributes(_named(_facts(demonstration)))
            self._demonstrations.add(1, counted)
            self._tokens.add(demonstration.token_count, counted)


def _log(level: int, message: str, facts: Facts) -> None:
    """Log what happened. It has happened, and is paid for: a logger that fails loses its record alone."""
    with suppress(Exception):
        LOGGER.log(level, message, extra=facts)


def _log_apart(level: int, message: str, facts: Facts) -> None:
    """Log in a thread that handles no error: a handler that fails prints the one at hand, texts and all."""
    with suppress(Exception):
        thread = Thread(
            target=copy_context().run, args=(_log, level, message, facts), name=current_thread().name
        )
        thread.start()
        thread.join()


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    """End the span in the end; a processor that fails loses the span alone."""
    try:
        yield
    finally:
        with suppress(Exception):
            span.end()


def _facts(demonstration: Demonstration) -> dict[str, str | int | float | bool]:
    return {
        "label": demonstration.label,
        "tokens": demonstration.token_count,
        "private": demonstration.private,
        "relation": demonstration.relation,
        "mechanism": demonstration.mechanism,
        **_amounts(demonstration.spent),
    }


def _amounts(spend: PrivacySpend | None) -> dict[str, float]:
    return {} if spend is None else {"epsilon": spend.epsilon, "delta": spend.delta}


def _named(facts: Facts) -> dict[str, str | int | float | bool]:
    return {f"dpfewshot.{name}": value for name, value in facts.items()}
