"""Draws from indexed records: as from a list, tokenised when drawn, refused once the file has changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.generation.units import Bodies
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.records.units import each_a_unit
from dpfewshot.sampling import PoissonSampler
from tests.support.factory import COUNTING, synthesizer
from tests.support.fleet import Pickling
from tests.support.scripts import TASK, Sentence, tickets, write_jsonl


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_jsonl(tickets(), tmp_path / "tickets.jsonl")
    return tmp_path / "tickets.jsonl"


class Noting(Sentence):
    """Notes every prompt, and what it tokenises."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.written: list[str] = []
        super().__init__(sure=0.999999)

    def answer(self, prompt: list[int]) -> list[float]:
        self.asked.append(tuple(prompt))
        return super().answer(prompt)

    def tokenize(self, text: str) -> list[int]:
        self.written.append(text)
        return super().tokenize(text)


@pytest.mark.parametrize(
    "settings", [{}, {"disjoint_parts": 4}, {"holdout": 0.25}, {"records_per_prompt": 3}]
)
def test_they_are_drawn_as_a_list_is(path: Path, settings: dict[str, Any]) -> None:
    told = []
    for records in (dpf.read_records(path), dpf.index_records(path)):
        backend = Noting()
        made = synthesizer(backend, records, random_source=random.Random(7).randbytes, **settings)
        made.generate("refund")
        told.append((made.plan, backend.asked))
    assert told[0] == told[1]
    assert len(told[0][1]) > 10


def test_only_drawn_records_are_tokenised(path: Path) -> None:
    backend = Noting()
    made = synthesizer(backend, dpf.index_records(path), prompts_per_draw=2, tokens_per_draw=8)
    before = len(backend.written)
    made.generate("refund")
    drawn = {text for text in backend.written[before:] if "ticket number" in text}
    assert len(drawn) < 30, "200 units, and one draw of 2 on average"


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize("settings", [{}, COUNTING])
def test_a_file_that_changed_before_a_draw_costs_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """It is refused even if no record is drawn."""
    monkeypatch.setattr(PoissonSampler, "draw", lambda *_: [])
    with synthesizer(records=dpf.index_records(path), **settings) as made:
        lengthen(path)
        with pytest.raises(dpf.InvalidRecords, match=r"tickets\.jsonl: has changed since it was indexed"):
            made.generate("refund")
        assert made.spent.epsilon == 0


def replace(path: Path) -> None:
    (path.parent / "new").write_text('{"text": "other", "label": "refund"}\n')
    (path.parent / "new").replace(path)


@pytest.mark.parametrize("change", [lengthen, replace])
def test_a_file_that_changed_before_a_worker_opened_it_costs_nothing(
    path: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    url, records = f"sqlite:///{tmp_path}/b.db", dpf.index_records(path)
    options: dict[str, Any] = {"ledger": url, "labels": ["refund"]}
    with (
        synthesizer(records=records, **options) as made,
        Pickling(lambda: change(path)) as executor,
        pytest.raises(dpf.InvalidRecords, match=r"tickets\.jsonl: has changed since it was indexed"),
    ):
        made.generate_all(executor=executor, worker_backend=Sentence)
    assert dpf.open_account(url, "tickets").spent.epsilon == 0


def test_a_file_that_changes_later_loses_nothing_that_was_paid(path: Path) -> None:
    made = synthesizer(records=dpf.index_records(path), shots_per_label=2)
    made.generate("refund")
    spent = made.spent
    lengthen(path)
    with pytest.raises(dpf.InvalidRecords, match="has changed"):
        made.generate("refund")
    assert made.spent == spent
    assert spent.epsilon > 0


def test_a_record_that_cannot_be_read_is_one_null(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of that record alone: no other body changes."""
    indexed, writer = dpf.index_records(path), PromptWriter(TASK, Sentence(), 100)
    draw = [[(3, 0)], [(4, 0), (5, 0)]]
    whole = Bodies(each_a_unit(indexed), writer.body).of(draw)
    sound = type(indexed).take
    monkeypatch.setattr(
        type(indexed),
        "take",
        lambda self, rows: [None if row == 4 else sound(self, [row])[0] for row in rows],
    )
    assert Bodies(each_a_unit(indexed), writer.body).of(draw) == [whole[0], [None, whole[1][1]]]


def test_tokens_are_kept_for_later_draws_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfewshot.generation.units._KEPT", 5)
    backend = Noting()
    bodies = Bodies(each_a_unit(tickets()), PromptWriter(TASK, backend, 100).body)

    def written(units: range) -> int:
        before = len(backend.written)
        bodies.of([[(unit, 0)] for unit in units])
        return len(backend.written) - before

    assert [written(range(5)), written(range(5)), written(range(2, 7)), written(range(5))] == [5, 0, 2, 2]
    assert written(range(20)) == 15
    assert written(range(15, 20)) == 0
