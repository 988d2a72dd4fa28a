"""The pictures of docs/explanation.md and the README are what the script draws, from chances that keep ε."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from dpfewshot.mechanisms import Draws, RowChange, SoftmaxChoice
from tests.support.laws import release_law

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("draw", DOCS / "draw_explanation.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_pictures_are_what_the_script_draws(script: ModuleType) -> None:
    for name, picture in script.pictures().items():
        assert (DOCS / name).read_text(encoding="utf-8") == picture, "run: python docs/draw_explanation.py"


def test_each_picture_says_what_it_shows_and_is_shown(script: ModuleType) -> None:
    page = (DOCS / "explanation.md").read_text(encoding="utf-8")
    space = "{http://www.w3.org/2000/svg}"
    for name, picture in script.pictures().items():
        assert f"]({name})" in page
        assert ET.fromstring(picture).findtext(f"{space}desc")  # noqa: S314 - our own file


def test_the_chances_are_those_of_the_mechanism(script: ModuleType) -> None:
    for epsilon in script.EPSILONS:
        release = SoftmaxChoice().start(Draws(1.0, 1, 1, 20, RowChange.ADDED), 2 / epsilon)
        for record in (True, False):
            rows = script.predictions(record=record)
            law = release_law("softmax-choice", release, rows, rows[0])
            assert script.chances(epsilon, record=record) == pytest.approx([float(p) for p in law], rel=1e-9)


def test_one_record_changes_a_chance_by_at_most_the_allowed_factor(script: ModuleType) -> None:
    for epsilon in script.EPSILONS:
        ratio = script.chances(epsilon, record=True) / script.chances(epsilon, record=False)
        assert np.abs(np.log(ratio)).max() <= epsilon
    without, with_it = (script.votes(record=record)[-1] for record in (False, True))
    assert (without, with_it) == (0, 1)  # a control: without noise the record shows
