"""`dpfewshot audit membership` and `influence`, with a model that knows the notes in its prompt."""

import json

import pytest

from dpfewshot.cli.application import run
from tests.support.notes import note


@pytest.fixture
def written(tmp_path):
    """The path of a file with such notes."""
    task = tmp_path / "task.toml"
    task.write_text(
        'name="notes"\ninstruction="Moods."\nlabel_field="Mood"\ntext_field="Note"\nlabels=["Glad","Sad"]\n'
    )

    def write(name, numbers, **further):
        path = tmp_path / f"{name}.jsonl"
        lines = [{"text": note(i).text, "label": "Glad", **further} for i in numbers]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    return write


def document(capfd, tmp_path, name, *arguments):
    where = ["--task", str(tmp_path / "task.toml"), "--backend", "tests.support.set_ups:Knowing", "--json"]
    assert run(["audit", name, *where, *arguments]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["confidential"] is True
    (finding,) = told["findings"]
    return {figure["name"]: figure["value"] for figure in finding["figures"]}


def test_members_in_the_prompt_are_told_apart(written, tmp_path, capfd):
    files = ["--members", written("in", range(4)), "--non-members", written("out", range(10, 20))]
    assert document(capfd, tmp_path, "membership", *files)["AUC"] == 1


def test_the_influence_of_demonstrations_is_measured(written, tmp_path, capfd):
    line = {"epsilon": 1.0, "delta": 1e-5, "relation": "zero-out", "certified": True}
    shown = written("shown", range(2), **line, mechanism="gaussian", tokens=1)
    files = ["--demonstrations", shown, "--texts", written("asked", [0])]
    figures = document(capfd, tmp_path, "influence", *files)
    assert figures["largest influence"] == pytest.approx(1.386, abs=1e-3)  # log of 0.4 / 0.1


def test_what_an_attack_refuses_is_one_line(written, tmp_path, capfd):
    files = ["--members", written("in", range(4)), "--non-members", written("out", [10])]
    where = ["--task", str(tmp_path / "task.toml"), "--backend", "tests.support.set_ups:Knowing"]
    assert run(["audit", "membership", *where, *files]) == 2
    assert "non-members" in capfd.readouterr().err
