"""δ of a command line that names none: min(1e-5, 1/(100 n)), n all units, from public numbers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfewshot.cli.application import run
from dpfewshot.cli.doctor import demo_synthesizer
from dpfewshot.planning.population import default_delta
from dpfewshot.values import Record
from tests.support.neighbours import LABELS, Certain, Row, write

UNITS = 750
"""Of each label: 1,500 in all, for which the default is below 1e-5."""

Plan = Callable[..., dict[str, object]]


def rows(refunds: int = UNITS) -> list[Row]:
    sizes = zip(LABELS, (refunds, UNITS), strict=True)
    return [
        {"text": "late", "label": label, "customer": f"{label} {i}"} for label, n in sizes for i in range(n)
    ]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Plan:
    """The plan of a data set, without what the clock says."""
    monkeypatch.chdir(tmp_path)

    def planned(records: list[Row], *options: str) -> dict[str, object]:
        write(tmp_path, records)
        arguments = "--task task.toml --records records.jsonl --epsilon 4 --max-tokens 2 --set top_k=all"
        backend = "--backend tests.support.neighbours:Certain --set probe_seconds=0.01 --json"
        assert run(["plan", *arguments.split(), *backend.split(), *options]) == 0
        found: dict[str, object] = json.loads(capfd.readouterr().out)
        return found | {"estimated_seconds": None}

    return planned


def test_with_a_population_it_is_the_populations(plan: Plan) -> None:
    public = [f"--set=population.{label}=1000" for label in LABELS]
    one, other = plan(rows(), *public), plan(rows(UNITS + 1), *public)
    assert one == other
    assert one["delta"] == pytest.approx(1 / 200_000)


@pytest.mark.parametrize("sampling", [(), ("--set", "sampling=fixed-size", "--label", LABELS[1])])
def test_without_one_it_is_the_number_of_units(plan: Plan, sampling: tuple[str, ...]) -> None:
    """Units of labels that are not asked for count too."""
    more = [*rows(), *[{"text": "still late", "label": LABELS[0], "customer": "refund 7"}] * 40]
    one, other = (plan(given, "--unit", "customer", *sampling) for given in (rows(), more))
    assert one == other
    assert one["delta"] == pytest.approx(1 / 150_000)


def test_the_demo_has_it_too() -> None:
    assert demo_synthesizer(Certain()).plan.delta == pytest.approx(1 / 150_000)


def test_the_rule() -> None:
    records = [Record("late", "refund", unit) for unit in ("a", "b", "a")] * 1000
    assert default_delta(None, [Record("late", "refund")] * 2000) == 1 / 200_000
    assert default_delta(None, records) == 1e-5
    assert default_delta(5000, records) == 1 / 500_000
    assert default_delta({"refund": 3000, "delivery": 2000}, []) == 1 / 500_000
    assert default_delta({"refund": 0}, records) == 1e-5, "which the plan refuses"
