"""Presidio is optional: imported when it is used, and named where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.records.identifiers import _recognizers
from tests.support.commands import Run


@pytest.fixture(autouse=True)
def _without_presidio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    _recognizers.cache_clear()


def test_without_presidio_it_says_what_to_install() -> None:
    with pytest.raises(dpf.MissingExtra, match=r"pip install '\.\[presidio\]'"):
        dpf.mask_identifiers([{"text": "a", "label": "b"}])


def test_the_command_says_so_before_a_model_is_loaded(tmp_path: Path, command: Run) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text('{"text": "a", "label": "Location"}\n')
    plan = ("plan", "--task", "trec", "--records", records, "--epsilon", "1", "--model", "none.gguf")
    status, _, told = command(*plan)  # the control: without the option, the model is missing
    assert (status, "presidio" in told) == (2, False)
    status, _, told = command(*plan, "--set", "mask_identifiers=en")
    assert (status, "pip install '.[presidio]'" in told) == (2, True)
