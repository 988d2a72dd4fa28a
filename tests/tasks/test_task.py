"""Tasks: well-formed or refused, the papers' wording, and the pieces of a prompt."""

from __future__ import annotations

import hashlib
import pickle
from collections import UserDict
from typing import TYPE_CHECKING, Any

import pytest

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks import AGNEWS, DBPEDIA, MIT_D, MIT_G, TREC, Task, by_name

if TYPE_CHECKING:
    from pathlib import Path

BUILT_IN = [AGNEWS, DBPEDIA, TREC, MIT_G, MIT_D]
MOOD: dict[str, Any] = {
    "name": "mood",
    "instruction": "Given a mood, write a note in it.",
    "label_field": "Mood",
    "text_field": "Note",
    "labels": ("Glad", "Sad"),
}


def test_the_built_in_tasks_have_the_papers_wording() -> None:
    """Results compare with the papers only while a prompt is the same to the letter."""
    words = "\n".join(
        repr((task.instruction, task.label_field, task.text_field, task.labels)) for task in BUILT_IN
    )
    assert hashlib.sha256(words.encode()).hexdigest()[:16] == "77920d469278c147"


def test_a_made_up_example_stands_before_the_records() -> None:
    task = Task(**MOOD, example="Slept well, saw the sea.")
    assert (
        task.preamble()
        == "Given a mood, write a note in it.\n\nMood: ...\nNote: Slept well, saw the sea.\n\n"
    )
    assert Task(**MOOD).preamble() == "Given a mood, write a note in it.\n\n"
    assert Task(**MOOD, example="a\nb", multiline=True).example == "a\nb"


def test_descriptions_are_the_tasks_own() -> None:
    given = UserDict({"Glad": "smiling"})
    task = Task(**MOOD, label_descriptions=given)
    given["Glad"] = "another"
    assert task.described("Glad") == task.described("Glad", 1) == "smiling"
    several = Task(**MOOD, label_descriptions={"Glad": "smiling; a laugh;"})
    turns = [several.described("Glad", number) for number in (None, 0, 1, 2)]
    assert turns == ["smiling; a laugh;", "smiling", "a laugh", "smiling"]
    assert Task(**MOOD, label_descriptions={}) == Task(**MOOD)
    assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301 - our own
    assert {task: 1}[Task(**MOOD, label_descriptions={"Glad": "smiling"})] == 1


@pytest.mark.parametrize("task", BUILT_IN, ids=lambda task: task.name)
def test_by_name_takes_any_case_and_underscores(task: Task) -> None:
    assert by_name(task.name) is task
    assert by_name(task.name.upper().replace("-", "_")) is task


@pytest.mark.parametrize("key", ["name", "instruction", "label_field", "text_field"])
@pytest.mark.parametrize(
    ("value", "trouble"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (" x", "whitespace"),
        ("x\n", "whitespace"),
        (3, "must be a string, not int"),
        (None, "must be a string, not NoneType"),
        ("x\ud800", "surrogate"),
        *((f"a{end}b", "must be one line") for end in "\n\r\u2028\x0b"),
        ("Mood:", "must not end with a colon"),
    ],
)
def test_a_bad_field_is_refused(key: str, value: object, trouble: str) -> None:
    allowed = {"name": ("colon",), "instruction": ("colon", "one line")}
    if any(each in trouble for each in allowed.get(key, ())):
        assert getattr(Task(**{**MOOD, key: value}), key) == value
        return
    with pytest.raises(InvalidTask, match=trouble) as caught:
        Task(**{**MOOD, key: value})
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "trouble"),
    [
        ({"example": " x"}, "example must not start or end with whitespace"),
        ({"example": "a\nb"}, "example must be one line"),
        ({"example": 3}, "example must be a string"),
        ({"example": "x", "text_field": "", "text_fields": ("Subject", "Body")}, "has one text field"),
        ({"label_descriptions": {"Angry": "shouting"}}, "has no label 'Angry'"),
        ({"label_descriptions": {"Glad": "a\nb"}}, "label_descriptions of 'Glad' must be one line"),
        ({"label_descriptions": {"Glad": ""}}, "label_descriptions of 'Glad' is empty"),
        ({"label_descriptions": "Glad"}, "must be a table"),
        ({"label_descriptions": False}, "must be a table"),
        ({"labels": "Glad"}, "must be a list of strings, not str"),
        ({"labels": {"Glad", "Sad"}}, "must be a list of strings, not set"),
        ({"labels": {"Glad": 1}}, "must be a list of strings, not dict"),
        ({"labels": ()}, "labels are empty"),
        ({"labels": ("Glad", "")}, "label 2 is empty"),
        ({"labels": ("Glad", "Sad", "Glad")}, "'Glad' is repeated"),
        ({"labels": ("Glad", 2)}, "label 2 must be a string, not int"),
        ({"labels": ("Gl\nad",)}, "label 1 must be one line"),
        ({"labels": ("Glad ",)}, "label 1 must not start or end with whitespace"),
    ],
)
def test_what_no_prompt_can_show_is_refused(settings: dict[str, Any], trouble: str) -> None:
    with pytest.raises(InvalidTask, match=trouble):
        Task(**MOOD | settings)


def test_check_label_names_the_tasks_labels_and_not_the_refused_one() -> None:
    labels = ["Glad", "Sad"]
    task = Task(**{**MOOD, "labels": labels})
    labels.append("Zebulon")
    task.check_label("Glad")
    for refused in ("Zebulon", "glad", "", "Glad "):
        with pytest.raises(InvalidTask) as caught:
            task.check_label(refused)
        assert str(caught.value) == "task 'mood' has no such label; its labels are Glad, Sad"
    MIT_D.check_label("Zebulon")  # labels are free
    for label, says in ((" ", "is empty"), ("a\nb", "one line"), ("\ud800", "surrogate"), (3, "not int")):
        with pytest.raises(InvalidTask, match=says):
            MIT_D.check_label(label)


# --- files ----------------------------------------------------------------------------------------

TOML = """
name = "mood"
instruction = "Given a mood, write a note in it."
label_field = "Mood"
text_field = "Note"
labels = ["Glad", "Sad"]
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_task_from_a_file(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "mood.toml"
    path.write_text(TOML, encoding=encoding)
    assert Task.from_file(path) == by_name(str(path)) == pickle.loads(pickle.dumps(Task(**MOOD)))  # noqa: S301
    path.write_text(TOML.replace('labels = ["Glad", "Sad"]', ""), encoding=encoding)
    assert Task.from_file(path).labels is None
    assert Task(**{**MOOD, "text_field": "", "text_fields": ("Note",)}) == Task(**MOOD)


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (TOML.replace('"mood"', "mood"), "is not TOML (at line 2, column 8)"),
        (TOML + 'x = "Zebulon', "is not TOML (at end of document)"),
        (TOML + "x = " + "[" * 100_000, "is not TOML"),
        (TOML + "colour = 1", "unknown key 'colour'"),
        (TOML.replace('text_field = "Note"', ""), "the key 'text_field' is missing"),
        (TOML.replace('"mood"', "7"), "name must be a string, not int"),
        (TOML.replace('["Glad", "Sad"]', '"Glad"'), "must be a list of strings, not str"),
        (TOML.replace('["Glad", "Sad"]', "[1, 2]"), "label 1 must be a string, not int"),
        ("", "the key 'name' is missing"),
        (f"[records]\n[account]\n[task]\n{TOML}", "is a project file: dpf.load(...) reads it"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: str, trouble: str) -> None:
    path = tmp_path / "mood.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidTask) as caught:
        Task.from_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert trouble in message
    assert "Zebulon" not in message
    assert len(message.splitlines()) == 1


def test_a_task_that_cannot_be_found_or_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="'trecc': choose agnews, dbpedia, trec, mit-g, mit-d, or"):
        by_name("trecc")
    with pytest.raises(InvalidTask, match="cannot be read: No such file"):
        by_name(str(tmp_path / "gone.toml"))
    with pytest.raises(InvalidTask, match="cannot be read: Is a directory"):
        Task.from_file(tmp_path)
    (tmp_path / "t.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(InvalidTask, match="is not UTF-8"):
        Task.from_file(tmp_path / "t.toml")
