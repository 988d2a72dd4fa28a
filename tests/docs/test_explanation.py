"""The pictures of docs/explanation.md and the README are what the script draws, from chances that keep ε."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from dpfewshot.mechanisms import Draws, InvisibleInk, RowChange
from dpfewshot.planning.defaults import TEMPERATURE
from tests.support import pages
from tests.support.laws import release_law


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return pages.script("draw_explanation")


def test_the_pictures_are_what_the_script_draws(script: ModuleType) -> None:
    for name, picture in script.pictures().items():
        assert (pages.DOCS / name).read_text(encoding="utf-8") == picture, (
            "run: python docs/draw_explanation.py"
        )


def test_the_chances_are_those_of_the_mechanism(script: ModuleType) -> None:
    drawn = Draws(1.0, 1, 1, 20, RowChange.ADDED)
    for epsilon in script.EPSILONS:
        release = InvisibleInk(temperature=TEMPERATURE).start(drawn, 2 / epsilon)
        for record in (True, False):
            rows = script.predictions(record=record)
            law = release_law("invisible-ink", release, rows, script.PUBLIC)
            assert script.chances(epsilon, record=record) == pytest.approx([float(p) for p in law], rel=1e-9)


def test_one_record_changes_a_chance_by_at_most_the_allowed_factor(script: ModuleType) -> None:
    for epsilon in script.EPSILONS:
        ratio = script.chances(epsilon, record=True) / script.chances(epsilon, record=False)
        assert np.abs(np.log(ratio)).max() <= epsilon
    without, with_it = (script.predicted(record=record)[-1] for record in (False, True))
    assert with_it > 5 * without  # a control: without noise the record shows
