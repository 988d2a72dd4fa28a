"""The raw rows in bench/results still load, and the pages have the tables that follow from them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from bench import pages, poisoned, readme
from bench.pages import rows, written
from bench.peers import page as comparison
from dpfewshot.audit import AuditFinding
from dpfewshot.evaluation import Experiment, Results, Trial, ZeroShot, read_cells

ROOT = Path(__file__).parents[2]
RAW = ROOT / "bench" / "results"
TABLES = {
    "README.md": readme.TABLES,
    "docs/decisions/histogram.md": readme.ALL_TEXTS,
    "docs/comparison.md": comparison.TABLES,
    "docs/results/poisoned.md": poisoned.TABLES,
    **pages.PAGES,
}


@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_tables_of_the_raw_rows(page) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert written(text, TABLES[page]) == text, "run: python -m bench.pages; python -m bench.readme"


def test_a_figure_that_was_changed_is_found() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert "better in 3 of" in text
    assert written(text.replace("better in 3 of", "won 9 of"), readme.TABLES) == text


def test_the_plot_of_the_readme_is_drawn_from_the_raw_rows() -> None:
    assert readme.PICTURE.read_text(encoding="utf-8") == readme.picture(), "run: python -m bench.readme"
    assert "docs/accuracy.svg" in readme.README.read_text(encoding="utf-8")


def test_a_page_without_the_place_of_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        written("<!-- other -->\n<!-- end -->", readme.TABLES)


def test_the_plots_of_peers_are_drawn_from_the_raw_lines() -> None:
    page = comparison.PAGE.read_text(encoding="utf-8")
    for name, picture in comparison.plots().items():
        assert comparison.PAGE.with_name(name).read_text(encoding="utf-8") == picture
        assert name in page


@pytest.mark.parametrize("path", sorted(RAW.iterdir()), ids=lambda path: path.name)
def test_a_file_of_rows_loads(path) -> None:
    assert rows(path.name)


@pytest.mark.parametrize("name", ["utility.jsonl", "default.jsonl", "peers-accuracy.jsonl"])
def test_every_cell_loads_and_is_written_as_it_was(name) -> None:
    lines, cells = rows(name), Results(RAW / name).cells
    assert [cell.as_dict() for cell in cells] == lines
    assert read_cells(RAW / name) == cells


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
    found = list(findings_in(rows(name)))
    assert len(found) == count
    for document in found:
        assert AuditFinding.from_dict(document).as_dict() == document


def test_the_bounds_on_poisoned_records_follow_from_their_rows() -> None:
    held = rows("poisoned.json")
    setting = (poisoned.PLAYS, poisoned.UNITS, poisoned.PROMPTS, poisoned.TOKENS, poisoned.DELTA)
    assert tuple(held[name] for name in ("plays", "units", "prompts", "tokens", "delta")) == setting
    for cell in held["cells"]:
        assert cell["allowed"] == pytest.approx(poisoned.allowed(cell["epsilon"], cell["seen"]["0"]))


def test_accuracies_of_chats_are_those_of_their_page() -> None:
    page = (ROOT / "docs/decisions/prompts.md").read_text(encoding="utf-8")
    for line in rows("chat.jsonl"):
        kept = line["calibrated"] if line["task"] == "trec" else line["outcomes"]
        assert f" {int(100 * kept.count('1') / len(kept) + 0.5)} (" in page
