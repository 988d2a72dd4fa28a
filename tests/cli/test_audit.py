"""`dpfewshot audit`: exit status, JSON, and a line that says it is confidential."""

import json

import pytest

from tests.support.notes import note
from tests.support.set_ups import SECRET

INDIFFERENT = "tests.support.set_ups:Indifferent"


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
def test_a_sound_set_up_passes_and_says_that_it_is_private(records, tmp_path, command):
    output = tmp_path / "findings.json"
    status, out, err = command(*game(records, INDIFFERENT), "--output", output)
    assert (status, out.startswith("CONFIDENTIAL")) == (0, True)
    assert "Canary game: passed" in out
    assert SECRET not in out + err
    document = json.loads(output.read_text())
    assert document["confidential"] is True
    assert [finding["kind"] for finding in document["findings"]] == ["canary"]


@pytest.mark.slow
def test_a_broken_one_exits_with_1(records, command):
    status, out, _ = command(*game(records, "tests.support.set_ups:Mixing", "canary"), "--json")
    (finding,) = json.loads(out)["findings"]
    assert (status, finding["verdict"]) == (1, "failed")


def test_the_game_on_texts_alone_says_nothing_of_a_record(records, command):
    played = game(records, INDIFFERENT, "canary")
    status, out, err = command(*played, "--set", "texts_only=true", "--json")
    (finding,) = json.loads(out)["findings"]
    assert (status, finding["confidential"]) == (0, True)
    assert list(finding["details"]["games"]) == ["released texts"]
    assert SECRET not in out + err


def test_leaks_are_found_and_not_quoted(records, tmp_path, command):
    demonstrations = tmp_path / "demos.jsonl"
    line = {"text": f"The {SECRET} of town number 7 lies in the valley", "label": "Location", "epsilon": 1.0}
    line |= {"delta": 1e-5, "relation": "zero-out", "certified": True, "mechanism": "gaussian", "tokens": 9}
    line["finished"] = True
    demonstrations.write_text(json.dumps(line) + "\n")
    leak = ["audit", "leak", "--demonstrations", demonstrations, "--records", records]
    status, out, err = command(*leak)
    assert (status, out.startswith("CONFIDENTIAL")) == (1, True)
    assert SECRET not in out + err
    status, out, err = command(*leak, "--held-out", records, "--json")
    assert (status, SECRET in out + err) == (1, False)
    task = tmp_path / "task.toml"
    for example, warned in (("We met at noon by the lakes.", False), (line["text"], True)):
        fields = {"name": "towns", "instruction": "Write.", "label_field": "Label", "text_field": "Text"}
        told = fields | {"example": example}
        task.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items()))
        status, out, err = command(*leak, "--task", task)
        assert (status, "has the words of a record" in err) == (1, warned)
        assert SECRET not in out + err


def test_bad_input_is_one_line(records, written, tmp_path, command):
    files = ["--records", written("in", range(4)), "--held-out", written("out", [10])]
    where = ["--task", tmp_path / "task.toml", "--backend", "tests.support.set_ups:Knowing"]
    influence = ["audit", "influence", *where, "--demonstrations", "none.jsonl", "--test", files[1]]
    for words, says in (
        (["audit"], ""),
        ([*game(records, INDIFFERENT), "--epsilon", "inf"], ""),
        (["audit", "leak", "--demonstrations", "none.jsonl", "--records", records], "none.jsonl"),
        (["audit", "membership", *where, *files], "non-members"),
        ([*influence, "--set", "items=0"], "items must be a whole number of at least 1"),
        ([*influence, "--set", "items=-1"], "items must be a whole number of at least 1"),
    ):
        status, _, err = command(*words)
        [error] = [line for line in err.splitlines() if line.startswith("dpfewshot: ")]
        assert (status, says in error) == (2, True)


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


@pytest.fixture
def figures(tmp_path, command):
    """The figures of an audit."""

    def call(name, *arguments):
        where = ["--task", tmp_path / "task.toml", "--backend", "tests.support.set_ups:Knowing", "--json"]
        status, out, _ = command("audit", name, *where, *arguments)
        told = json.loads(out)
        assert (status, told["confidential"]) == (0, True)
        (finding,) = told["findings"]
        return {figure["name"]: figure["value"] for figure in finding["figures"]}

    return call


def test_members_in_the_prompt_are_told_apart(written, figures):
    files = ["--records", written("in", range(4)), "--held-out", written("out", range(10, 20))]
    assert figures("membership", *files)["AUC"] == 1


def test_the_influence_of_demonstrations_is_measured(written, figures):
    line = {"epsilon": 1.0, "delta": 1e-5, "relation": "zero-out", "certified": True, "finished": True}
    shown = written("shown", range(2), **line, mechanism="gaussian", tokens=1)
    files = ["--demonstrations", shown, "--test", written("asked", [0])]
    assert figures("influence", *files)["largest influence"] == pytest.approx(
        1.386, abs=1e-3
    )  # log of 0.4 / 0.1
