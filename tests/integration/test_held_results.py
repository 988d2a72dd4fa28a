"""What docs/results/raw holds still loads, and the pages still say what it says."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from bench import long_page, poisoned, scale_page, utility_choice
from bench.choosing import DRAWS
from bench.jargon import LINES
from dpfewshot.audit import AuditFinding
from dpfewshot.evaluation import Experiment, Results, Trial, ZeroShot, read_cells

ROOT = Path(__file__).parents[2]
RAW = ROOT / "docs" / "results" / "raw"


def test_every_file_has_a_test() -> None:
    assert {path.name for path in RAW.iterdir()} == {
        "calibration.json",
        "chat.jsonl",
        "choice.jsonl",
        "influence.json",
        "jargon.json",
        "long.jsonl",
        "membership.json",
        "overhead.json",
        "peers-accuracy.jsonl",
        "peers.jsonl",
        "poisoned.json",
        "radius.json",
        "released-calibration.json",
        "scale.json",
        "utility.jsonl",
    }


def test_every_cell_loads_and_is_written_as_it_was() -> None:
    path = RAW / "utility.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    cells = Results(path).cells
    assert len(cells) == len(lines) > 400
    assert [cell.as_dict() for cell in cells] == lines
    assert read_cells(path) == cells


def test_every_choice_loads_and_is_written_as_it_was() -> None:
    lines = (RAW / "choice.jsonl").read_text(encoding="utf-8").splitlines()
    choices = utility_choice.read()
    assert [json.dumps(asdict(one)) for one in choices] == lines
    for one in choices:
        assert {len(row) for kinds in one.outcomes.values() for row in kinds.values()} == {one.items}
        assert all(sum(chosen.picked.values()) == DRAWS for chosen in one.chosen.values())


def test_a_choice_that_was_stored_with_fewer_fields_loads() -> None:
    document = asdict(utility_choice.read()[-1])
    for added in ("released_by_score", "shift"):
        del document[added]
    for chosen in document["chosen"].values():
        for added in ("noiseless", "by_all", "width", "covers", "covers_test", "by_score"):
            del chosen[added]
    assert utility_choice.Line.from_dict(document).chosen.keys() == document["chosen"].keys()


def test_the_invented_companys_demonstrations_have_its_lines() -> None:
    sets = json.loads((RAW / "jargon.json").read_text(encoding="utf-8"))
    assert {label for each in sets.values() for one in each for label, _ in one} <= set(LINES)


def test_a_stored_cell_is_not_measured_again() -> None:
    results = Results(RAW / "utility.jsonl")
    stored = next(cell for cell in results.cells if cell.condition == "zero-shot" and cell.task == "trec")
    experiment = Experiment(
        task=dpf.tasks.TREC,
        records=[],
        test=[dpf.Record("Where ?", "Location")] * stored.items,
        writer=dpf.backends.Scripted(["a"], lambda _prompt: [1.0]),
        writer_name=stored.writer,
        delta=1e-5,
        user_name=stored.model,
    )
    assert experiment.key(Trial(ZeroShot(), 0.0, shots=0)) in results
    assert experiment.key(Trial(ZeroShot("other"), 0.0, shots=0)) not in results


def findings_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "verdict" in value:
            yield value
        else:
            for each in value.values():
                yield from findings_in(each)


@pytest.mark.parametrize(("name", "count"), [("influence.json", 38), ("membership.json", 30)])
def test_every_finding_loads_and_is_written_as_it_was(name: str, count: int) -> None:
    found = list(findings_in(json.loads((RAW / name).read_text(encoding="utf-8"))))
    assert len(found) == count
    for document in found:
        assert AuditFinding.from_dict(document).as_dict() == document


def test_the_page_on_size_and_its_picture_are_those_of_the_held_figures() -> None:
    results = RAW.parent
    assert (results / "scale.md").read_text(encoding="utf-8") == scale_page.page() + "\n"
    assert scale_page.PICTURE.read_text(encoding="utf-8") == scale_page.picture(scale_page.measured())


def test_the_page_on_long_texts_is_that_of_the_held_figures() -> None:
    assert (RAW.parent / "long.md").read_text(encoding="utf-8") == long_page.page() + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "page"),
    [("utility_page.py", "utility.md"), ("membership.py", "membership.md"), ("influence.py", "influence.md")],
)
def test_the_pages_tables_are_those_of_the_held_results(script: str, page: str) -> None:
    made = subprocess.run(
        [sys.executable, script],
        cwd=ROOT / "bench",
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        check=True,
        encoding="utf-8",
    ).stdout
    kept = (ROOT / "docs" / "results" / page).read_text(encoding="utf-8")
    tables = [[line for line in text.splitlines() if line.startswith("|")] for text in (made, kept)]
    assert tables[0] == tables[1]


def test_the_page_on_poisoned_records_has_the_tables_of_the_held_figures() -> None:
    held = json.loads((RAW / "poisoned.json").read_text(encoding="utf-8"))
    setting = (poisoned.PLAYS, poisoned.UNITS, poisoned.PROMPTS, poisoned.TOKENS, poisoned.DELTA)
    assert tuple(held[name] for name in ("plays", "units", "prompts", "tokens", "delta")) == setting
    for cell in held["cells"]:
        assert cell["allowed"] == pytest.approx(poisoned.allowed(cell["epsilon"], cell["seen"]["0"]))
    page = (ROOT / "docs/how-to/poisoned-records.md").read_text(encoding="utf-8").splitlines()
    made = [*poisoned.table(), *poisoned.table_of_agreement()]
    assert [line for line in page if line.startswith("|")] == made


def test_accuracies_of_chats_are_those_of_their_page() -> None:
    page = (ROOT / "docs/decisions/chat.md").read_text(encoding="utf-8")
    for line in map(json.loads, (RAW / "chat.jsonl").read_text(encoding="utf-8").splitlines()):
        kept = line["calibrated"] if line["task"] == "trec" else line["outcomes"]
        assert f" {int(100 * kept.count('1') / len(kept) + 0.5)} (" in page
