"""Presidio is optional: imported when it is used, and named where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.cli.application import run
from tests.support import inside


@pytest.fixture(autouse=True)
def _without_presidio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    inside.recognizers.cache_clear()


def test_without_presidio_it_says_what_to_install() -> None:
    with pytest.raises(dpf.MissingExtra, match=r"pip install '\.\[presidio\]'"):
        dpf.mask_identifiers([{"text": "a", "label": "b"}])


def test_the_command_says_so_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text('{"text": "a", "label": "Location"}\n')
    arguments = ["--task", "trec", "--records", str(records), "--epsilon", "1", "--model", "none.gguf"]
    assert run(["plan", *arguments]) == 2
    assert "presidio" not in capsys.readouterr().err  # the control: without the option, the model is missing
    assert run(["plan", *arguments, "--set", "mask_identifiers=en"]) == 2
    assert "pip install '.[presidio]'" in capsys.readouterr().err
