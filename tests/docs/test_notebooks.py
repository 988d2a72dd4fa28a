"""The notebooks of examples/ run from top to bottom, and are kept without outputs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_code_blocks import LINK
from tests.support.pages import ROOT, name_of
from tests.support.processes import environment

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def cells_of(notebook: Path, kind: str) -> list[dict[str, Any]]:
    told = json.loads(notebook.read_text(encoding="utf-8"))
    assert (told["nbformat"], told["nbformat_minor"]) == (4, 5)
    return [cell for cell in told["cells"] if cell["cell_type"] == kind]


def test_both_are_there() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["check_a_release", "first_set"]


@pytest.mark.model
@pytest.mark.parametrize(
    "notebook", [pytest.param(NOTEBOOKS[0], marks=pytest.mark.soak), NOTEBOOKS[1]], ids=name_of
)
@pytest.mark.slow
def test_a_notebook_runs_and_a_second_run_pays_nothing(notebook: Path, tmp_path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in cells_of(notebook, "code"))
    released = set()
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        released.add((tmp_path / "demos.jsonl").read_text(encoding="utf-8"))
    assert len(released) == 1


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_a_notebook_has_no_outputs_and_its_links_lead_somewhere(notebook: Path) -> None:
    assert all(
        (cell["outputs"], cell["execution_count"]) == ([], None) for cell in cells_of(notebook, "code")
    )
    prose = "\n".join("".join(cell["source"]) for cell in cells_of(notebook, "markdown"))
    assert [each for each in LINK.findall(prose) if not (notebook.parent / each).exists()] == []
