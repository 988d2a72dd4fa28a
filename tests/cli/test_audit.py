"""`dpfewshot audit`: exit status, JSON, and a line that says it is confidential."""

import json

import pytest

from dpfewshot.cli.application import run
from tests.support.notes import note
from tests.support.set_ups import SECRET


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records.jsonl"
    texts = [f"The {SECRET} of town number {i} lies in the valley of the lakes" for i in range(20)]
    path.write_text("".join(json.dumps({"text": text, "label": "Location"}) + "\n" for text in texts))
    return path


def game(records, backend, *further):
    plan = ["--task", "trec", "--records", str(records), "--label", "Location", "--epsilon", "4"]
    size = ["--prompts-per-draw", "10", "--max-tokens", "2", "--set", "plays=100", "--backend", backend]
    return ["audit", *further, *plan, *size]


@pytest.mark.slow
def test_a_sound_set_up_passes_and_says_that_it_is_private(records, tmp_path, capfd):
    output = tmp_path / "findings.json"
    assert run([*game(records, "tests.support.set_ups:Indifferent"), "--output", str(output)]) == 0
    captured = capfd.readouterr()
    assert captured.out.startswith("CONFIDENTIAL")
    assert "Canary game: passed" in captured.out
    assert SECRET not in captured.out + captured.err
    document = json.loads(output.read_text())
    assert document["confidential"] is True
    assert [finding["kind"] for finding in document["findings"]] == ["canary"]


@pytest.mark.slow
def test_a_broken_one_exits_with_1(records, capfd):
    assert run([*game(records, "tests.support.set_ups:Mixing", "canary"), "--json"]) == 1
    (finding,) = json.loads(capfd.readouterr().out)["findings"]
    assert finding["verdict"] == "failed"


def test_the_game_on_texts_alone_says_nothing_of_a_record(records, capfd):
    played = game(records, "tests.support.set_ups:Indifferent", "canary")
    assert run([*played, "--set", "texts_only=true", "--json"]) == 0
    captured = capfd.readouterr()
    (finding,) = json.loads(captured.out)["findings"]
    assert finding["confidential"] is True
    assert list(finding["details"]["games"]) == ["released texts"]
    assert SECRET not in captured.out + captured.err


def test_leaks_are_found_and_not_quoted(records, tmp_path, capfd):
    demonstrations = tmp_path / "demos.jsonl"
    line = {"text": f"The {SECRET} of town number 7 lies in the valley", "label": "Location", "epsilon": 1.0}
    line |= {"delta": 1e-5, "relation": "zero-out", "certified": True, "mechanism": "gaussian", "tokens": 9}
    line["finished"] = True
    demonstrations.write_text(json.dumps(line) + "\n")
    leak = ["audit", "leak", "--demonstrations", str(demonstrations), "--records", str(records)]
    assert run(leak) == 1
    assert run([*leak, "--held-out", str(records), "--json"]) == 1
    captured = capfd.readouterr()
    assert captured.out.startswith("CONFIDENTIAL")
    assert SECRET not in captured.out + captured.err
    task = tmp_path / "task.toml"
    for example, warned in (("We met at noon by the lakes.", False), (line["text"], True)):
        fields = {"name": "towns", "instruction": "Write.", "label_field": "Label", "text_field": "Text"}
        told = fields | {"example": example}
        task.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items()))
        assert run([*leak, "--task", str(task)]) == 1
        captured = capfd.readouterr()
        assert ("has the words of a record" in captured.err) is warned
        assert SECRET not in captured.out + captured.err


def test_bad_input_is_one_line(records, written, tmp_path, capfd):
    assert run(["audit"]) == 2
    assert run([*game(records, "tests.support.set_ups:Indifferent"), "--epsilon", "inf"]) == 2
    assert run(["audit", "leak", "--demonstrations", "none.jsonl", "--records", str(records)]) == 2
    files = ["--records", written("in", range(4)), "--held-out", written("out", [10])]
    where = ["--task", str(tmp_path / "task.toml"), "--backend", "tests.support.set_ups:Knowing"]
    assert run(["audit", "membership", *where, *files]) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("dpfewshot: ")]
    assert len(errors) == 4
    assert "non-members" in errors[-1]


# ---- attacks on prompts ----------------------------------------------------------------------------------


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
    files = ["--records", written("in", range(4)), "--held-out", written("out", range(10, 20))]
    assert document(capfd, tmp_path, "membership", *files)["AUC"] == 1


def test_the_influence_of_demonstrations_is_measured(written, tmp_path, capfd):
    line = {"epsilon": 1.0, "delta": 1e-5, "relation": "zero-out", "certified": True, "finished": True}
    shown = written("shown", range(2), **line, mechanism="gaussian", tokens=1)
    files = ["--demonstrations", shown, "--test", written("asked", [0])]
    figures = document(capfd, tmp_path, "influence", *files)
    assert figures["largest influence"] == pytest.approx(1.386, abs=1e-3)  # log of 0.4 / 0.1
