"""No output of a Python call depends on a record, but for what the noise covers: values, logs, spans."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan

import dpfewshot as dpf
from dpfewshot.generation.telemetry import OpenTelemetryObserver
from dpfewshot.icl import PromptFormat
from dpfewshot.releases.selection import Estimate
from dpfewshot.sampling import PoissonSampler
from dpfewshot.values import Relation
from tests.support import factory
from tests.support.factory import COUNTING, planned_once
from tests.support.neighbours import (
    EPSILON,
    NEIGHBOURS,
    PROMPTS,
    RELATIONS,
    TASK,
    UNITS,
    WORDS,
    Certain,
    Gone,
    Neighbouring,
    same_histogram,
)
from tests.support.outputs import Outputs, differences, outputs, quick_garbage, telemetry

FIXTURES = (quick_garbage,)
BUDGET = dpf.PrivacyBudget(EPSILON, 1e-5)
PREDICTING: dict[str, Any] = {"mechanism": dpf.mechanisms.Gaussian(top_k=None), "prompts_per_draw": PROMPTS}


@dataclass(frozen=True)
class Here:
    """Where a call is made: the records, and the relation that it is made for."""

    records: list[dpf.Record]
    relation: Neighbouring

    def synthesizer(
        self, backend: dpf.backends.LogprobBackend | None = None, settings: dict[str, Any] = PREDICTING
    ) -> dpf.Synthesizer:
        relation = {"relation": self.relation.name, "unit": self.relation.unit}
        return factory.synthesizer(
            backend or Certain(),
            self.records,
            task=TASK,
            budget=BUDGET,
            **settings,
            max_tokens=4,
            population=UNITS if self.relation.name == Relation.ADD_REMOVE else None,
            sampling="fixed-size" if self.relation.name == Relation.REPLACE_ONE else "poisson",
            account=dpf.open_account("sqlite:///budget.db", "tickets", create=BUDGET, **relation),
            observers=[OpenTelemetryObserver()],
        )


Call = Callable[[Here], object]


def _spent(synthesizer: dpf.Synthesizer) -> object:
    synthesizer.generate("refund")
    account = synthesizer.account
    assert account is not None
    return account, account.spent, account.remaining


def _counted(here: Here) -> object:
    synthesizer = here.synthesizer(settings=COUNTING)
    return synthesizer.generate_all(), synthesizer.spent, synthesizer.counted_words()


def _closed(synthesizer: dpf.Synthesizer) -> object:
    synthesizer.generate("refund", max_tokens=2)
    synthesizer.close()
    return synthesizer.spent


def _refused(synthesizer: dpf.Synthesizer) -> object:
    for _ in "ab":
        synthesizer.generate("refund")
    return None


FORMAT = PromptFormat("", "Ticket", "Kind", TASK.labels, tuple(word.strip() for word in WORDS[:2]))
"""With words of the scripted model for the two labels."""
PROMPT = dpf.Candidate(calibrated=False, format=FORMAT)
RELEASE: dict[str, Any] = {"budget": dpf.PrivacyBudget(50, 1e-5), "population": UNITS, "holdout": 0}


def _without_accuracies(choice: dpf.Choice) -> object:
    """Their noise differs."""
    unknown = Estimate(0.5, 0.0, 1.0)
    return replace(choice, accuracy=unknown, baseline=unknown)


METHODS: dict[str, Call] = {
    "plan": lambda here: here.synthesizer().plan,
    "account": lambda here: _spent(here.synthesizer()),
    "spent": lambda here: here.synthesizer().spent,
    "unfinished": lambda here: here.synthesizer().unfinished,
    "newest_run": lambda here: here.synthesizer().newest_run("night") is None,
    "probe": lambda here: here.synthesizer().probe(0.01),
    "describe": lambda here: here.synthesizer().describe(),
    "preview": lambda here: here.synthesizer().preview("delivery"),
    "generate": lambda here: here.synthesizer().generate("delivery"),
    "generate_all": lambda here: here.synthesizer().generate_all(resume=True),
    "agenerate": lambda here: asyncio.run(here.synthesizer().agenerate("refund")),
    "agenerate_all": lambda here: asyncio.run(here.synthesizer().agenerate_all()),
    "counted_words": _counted,
    "close": lambda here: _closed(here.synthesizer()),
    # Whoever audits a set-up is the operator: what is in it is private, its representation is not.
    "set_up": lambda here: repr(here.synthesizer().set_up),
}
"""Every public member of a synthesizer."""

FURTHER: dict[str, Call] = {
    "the synthesizer itself": lambda here: str(here.synthesizer()),
    "a second demonstration": lambda here: _refused(here.synthesizer()),
    "a server that is gone": lambda here: here.synthesizer(Gone()).generate("refund"),
    "a model that promises nothing": lambda here: here.synthesizer(_Humble()),
    "choose": lambda here: _without_accuracies(
        dpf.choose(TASK, here.records, Certain(), [PROMPT], **RELEASE)
    ),
    "search, two rounds": lambda here: _without_accuracies(
        dpf.search(TASK, here.records, Certain(), proposer=lambda won: [] if won else [PROMPT], **RELEASE)
    ),
    "release_calibration": lambda here: replace(  # the noise of its bias differs
        dpf.release_calibration(TASK, here.records, Certain(), prompt_format=FORMAT, **RELEASE),
        bias=(0.0, 0.0),
    ),
    "release_labels": lambda here: dpf.release_labels(here.records, count=2, epsilon=5, delta=1e-6),
}

OPERATOR_ALONE = {
    "as_records": "it gives back the records; a load error names a line",
    "index_records": "likewise",
    "mask_identifiers": "likewise: a record that cannot be masked is named by its number",
    "read_records": "likewise",
    "non_private_sample": "they are private records as they stand, and say certified=False",
}
"""The functions of the package that take private records and promise nothing."""


class _Humble(Certain):
    def __init__(self) -> None:
        super().__init__()
        self.batch_invariant = False


def told(relation: Neighbouring, neighbour: str | None, call: Call) -> Outputs:
    """What a call puts out, with its spans and metrics."""
    rows = relation.base if neighbour is None else NEIGHBOURS[neighbour]
    here = Here(dpf.as_records(rows, unit=relation.unit), relation)
    with telemetry() as (spans, numbers), TemporaryDirectory() as folder:
        found = outputs(Path(folder), lambda: call(here))
        found["spans"] = "\n".join(map(_span, spans.get_finished_spans()))
        found["metrics"] = "\n".join(_metrics(numbers))
    return found


def _span(span: ReadableSpan) -> str:
    """All of it but its times and random numbers."""
    events = [(event.name, dict(event.attributes or {})) for event in span.events]
    status = span.status.status_code, span.status.description
    return repr((span.name, span.kind, dict(span.attributes or {}), events, span.links, status))


def _metrics(reader: InMemoryMetricReader) -> Iterator[str]:
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = [(dict(point.attributes), point.value) for point in metric.data.data_points]
                yield f"{metric.name}: {points}"


@pytest.fixture(autouse=True)
def _planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfewshot.planning.planner.plan_stratum", planned_once)
    same_histogram(monkeypatch)


@cache
def base(relation: str, call: str) -> Outputs:
    return told(RELATIONS[relation], None, {**METHODS, **FURTHER}[call])


PAIRS = [
    ("add-remove", "all that the model can read"),
    ("zero-out", "refused by the tokenizer"),
    ("replace-one", "more records"),
]


@pytest.mark.parametrize("call", [*METHODS, *FURTHER])
def test_neighbours_put_out_the_same(call: str) -> None:
    for relation, neighbour in PAIRS:
        other = told(RELATIONS[relation], neighbour, {**METHODS, **FURTHER}[call])
        assert differences({call: base(relation, call)}, {call: other}) == [], (relation, neighbour)


def test_spans_and_metrics_are_compared() -> None:
    heard = told(RELATIONS["add-remove"], "the same", METHODS["generate"])
    assert "dpfewshot.generate" in heard["spans"]
    assert "dpfewshot.tokens: [({" in heard["metrics"]
    assert "a demonstration was released" in heard["logs"]


def test_every_public_member_is_tried() -> None:
    public = {name for name in dir(dpf.Synthesizer) if not name.startswith("_")}
    assert public == set(METHODS)


def test_every_function_that_takes_records_is_tried_or_named() -> None:
    takes = {
        name
        for name in dpf.__all__
        if inspect.isfunction(function := getattr(dpf, name))
        and {"records", "source", "path"} & set(inspect.signature(function).parameters)
    }
    public = {"instruction_only_demonstrations", "load"}  # records of its own, and the path of a project file
    assert takes - public == {
        "choose",
        "search",
        "release_calibration",
        "release_labels",
        *OPERATOR_ALONE,
    }


def test_control_a_span_with_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = PoissonSampler.draw

    def draw(sampler: PoissonSampler, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        drawn = sound(sampler, sizes)
        trace.get_current_span().set_attribute("prompts", str(drawn))
        return drawn

    monkeypatch.setattr(PoissonSampler, "draw", draw)
    ours, theirs = (told(RELATIONS["zero-out"], each, METHODS["generate_all"]) for each in (None, "the same"))
    assert [each.split(": ")[1] for each in differences({"": ours}, {"": theirs})] == ["spans"]
