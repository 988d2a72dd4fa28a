"""Everything that a call puts out, as text that neighbouring data sets must have in common."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import re
import sqlite3
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import sqlalchemy  # noqa: F401 - its loggers get a level of their own when it is imported
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

INPUTS = frozenset({"records.jsonl", "task.toml", "public.jsonl", "labels.txt"})

Outputs = dict[str, str]
"""By what it is: "result", "error", "stdout", "stderr", "logs", "warnings", "file NAME", "tables of NAME"."""

_OF_THE_CLOCK = "It was measured: times are for the operator alone."
_RANDOM = "The operating system's random bits."

NOT_COMPARED = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", _OF_THE_CLOCK),
    (r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2} [A-Z][a-z]+ \d{4}\b", "The day of a report: likewise."),
    (r"(?<=seconds\": )[\d.e-]+|(?<=seconds=)[\d.e-]+", _OF_THE_CLOCK),
    (r"(?<=about )\d+(?= s)|(?<=in )\d+(?= s)", _OF_THE_CLOCK),
    (r"\[(generated in|cached since|no key) [^\]]*\]", _OF_THE_CLOCK),
    # A ledger's hashes cover the acts' times. All else that they cover is compared in clear. The hash of a
    # run's plan covers no time: it is compared.
    (r"(?<!\"plan\": \")\b[0-9a-f]{64}\b", _OF_THE_CLOCK),
    (r"\b[0-9a-f]{32}\b", _RANDOM),
    # those that SQLAlchemy cuts in a long row
    (r"(?<=\"id\": \")[0-9a-f]{1,31}(?= \.\.\. \()|(?<= truncated\) \.\.\. )[0-9a-f]{1,31}(?=\")", _RANDOM),
    (r"\b0x[0-9a-f]+\b", "Where an object is in memory."),
)
"""What differs between two runs on the same data, and why it says nothing of a record."""


@pytest.fixture(scope="module", autouse=True)
def quick_garbage() -> Iterator[None]:
    """Lets `outputs` collect garbage in no time: what was there before is not looked at again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


NOT_HEARD: Mapping[str, str] = {
    "Pool recreating": "A ledger that nobody holds any more was closed, when the garbage collector found it.",
}
"""Log messages that come when it pleases them, and why they say nothing of a record."""


def normalised(text: str, folder: Path) -> str:
    """The text without what `NOT_COMPARED` names, and without the name of its folder."""
    text = text.replace(str(folder), "<folder>")
    for pattern, _ in NOT_COMPARED:
        text = re.sub(pattern, "<not compared>", text)
    return text


class _Logs(logging.Handler):
    """Keeps what every logger is told, with its extras."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() in NOT_HEARD:
            return
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()} {extras_of(record)}")
        if record.exc_info:
            self.lines += traceback.format_exception(*record.exc_info)


@contextlib.contextmanager
def _all_logs() -> Iterator[list[str]]:
    """What is logged at any level by any logger."""
    heard = _Logs()
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    loggers[0].addHandler(heard)
    try:
        yield heard.lines
    finally:
        loggers[0].removeHandler(heard)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def telemetry() -> Iterator[tuple[InMemorySpanExporter, InMemoryMetricReader]]:
    """Where spans and metrics go meanwhile: the process has one global provider, which stays unset."""
    spans, numbers = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([numbers])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer", tracers.get_tracer)
        patch.setattr(metrics, "get_meter", meters.get_meter)
        yield spans, numbers
    tracers.shutdown()
    meters.shutdown()


def extras_of(record: logging.LogRecord) -> dict[str, object]:
    """What a record has beside the fields of every record, of which formatters add two."""
    usual = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}
    return {name: value for name, value in record.__dict__.items() if name not in usual}


def outputs(folder: Path, call: Callable[[], object]) -> Outputs:
    """Call it in a folder, and tell everything that comes out.

    Args:
        folder: what was there before counts too, but for `INPUTS`.
        call: its result, or the type and text of its error, is an output.
    """
    gc.collect()  # connections that earlier tests left open log when they are closed
    out, err = io.StringIO(), io.StringIO()
    told: Outputs = {}
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(record=True) as warned,
        _all_logs() as logs,
    ):
        warnings.simplefilter("always")
        try:
            told["result"] = repr(call())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an output
            told["error"] = "\n".join(map(repr, _chain(error)))
    told |= {"stdout": out.getvalue(), "stderr": err.getvalue(), "logs": "\n".join(logs)}
    told["warnings"] = "\n".join(f"{one.category.__name__}: {one.message}" for one in warned)
    told |= _files(folder)
    return {name: normalised(text, folder) for name, text in told.items()}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name in INPUTS:
            continue
        if path.suffix == ".db":
            with contextlib.closing(sqlite3.connect(path)) as database:
                yield f"tables of {name}", "\n".join(database.iterdump())
        else:
            yield f"file {name}", path.read_text(encoding="utf-8")


def differences(one: Mapping[str, Outputs], other: Mapping[str, Outputs]) -> list[str]:
    """Where two runs of the same calls differ: the call, the output, and the first lines that do."""
    return [
        f"{call}: {name}: {_first(one[call].get(name), other[call].get(name))}"
        for call in one
        for name in sorted(one[call].keys() | other[call].keys())
        if one[call].get(name) != other[call].get(name)
    ]


def _first(ours: str | None, theirs: str | None) -> str:
    if ours is None or theirs is None:
        return f"{ours!r} and {theirs!r}"
    for one, other in zip([*ours.split("\n"), ""], [*theirs.split("\n"), ""], strict=False):
        if one != other:
            return f"{one!r} and {other!r}"
    return f"{len(ours)} and {len(theirs)} characters"
