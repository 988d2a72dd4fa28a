"""The text of demonstrations in prompts."""

import dataclasses
import hashlib

import pytest

import dpfewshot as dpf
from dpfewshot.prompts.few_shot import PromptFormat, prompt_format
from dpfewshot.tasks import AGNEWS, DBPEDIA, MIT_D, MIT_G, TREC
from tests.support.factory import demonstration
from tests.support.scripts import TASK


def shown(text: str, label: str) -> dpf.Demonstration:
    free = dpf.PrivacySpend(0.0, 0.0)
    return demonstration(text, label, spent=free, relation="add-remove", mechanism="instruction-only")


def test_the_papers_wording() -> None:
    tasks = [AGNEWS, DBPEDIA, TREC, MIT_G, MIT_D]
    prompts = [prompt_format(task).prompt([], "x") for task in tasks]
    assert hashlib.sha256("\n\n\n".join(prompts).encode()).hexdigest()[:16] == "471880606bdec194"
    assert prompts[3:] == ["Sentence: x\nGenre:", "Sentence: x\nDirector:"]
    assert [dpf.Demonstrations().to_prompt(task, "x") for task in tasks] == prompts
    assert [prompt_format(task).labels for task in tasks] == [task.labels for task in tasks]


def test_a_task_of_ones_own_has_its_own_words_whatever_its_name() -> None:
    assert prompt_format(TASK).prompt([shown("it is late", "delivery")], "my money") == (
        "Give the Kind of the Ticket. Answer with one of: refund, delivery.\n\n"
        "Ticket: it is late\nKind: delivery\n\n"
        "Ticket: my money\nKind:"
    )
    described = dataclasses.replace(TASK, label_descriptions={"delivery": "where is it?"})
    told = prompt_format(described).prompt([], "my money")
    assert "Answer with one of: refund, delivery.\ndelivery: where is it?\n\nTicket: my money" in told
    questions = dataclasses.replace(TREC, label_descriptions={"Entity": "a thing"})
    assert "\nEntity: a thing\n\n" in prompt_format(questions).prompt([], "Why ?")
    namesake = dataclasses.replace(TREC, labels=("Yes", "No"))
    assert prompt_format(namesake).labels == ("Yes", "No")
    assert prompt_format(namesake).text_field == "Text"
    assert prompt_format(dataclasses.replace(TASK, labels=None)).labels is None


def test_a_prompt_is_its_opening_and_its_question() -> None:
    words = prompt_format(MIT_D)
    demonstrations = [shown("a film of kubrick", "kubrick")]
    assert words.opening(demonstrations) == "Sentence: a film of kubrick\nDirector: kubrick\n\nSentence:"
    assert words.opening([]) == "Sentence:"
    whole = words.prompt(demonstrations, "a second one")
    assert whole == words.opening(demonstrations) + words.question("a second one").removeprefix("Sentence:")
    assert words.prompt(demonstrations) == "Sentence: a film of kubrick\nDirector: kubrick"


def test_no_text_and_no_free_label_can_pose_as_a_field() -> None:
    words = PromptFormat("", "Text", "Label")
    demonstrations = [shown("one\n\nText: two\r\u2028", "a\nLabel: b")]
    assert words.prompt(demonstrations, "\tthree\nLabel: c ") == (
        "Text: one Text: two\nLabel: a Label: b\n\nText: three Label: c\nLabel:"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"text_field": "two\nlines"}, "text_field must be one line"),
        ({"label_field": "Kind:"}, "must not end with a colon"),
        ({"labels": "ab"}, "list of strings"),
        ({"labels": ("a", "a")}, "repeated"),
        ({"label_words": ("a",)}, "1 label_words for 2 labels"),
        ({"label_words": ("a", "a")}, "repeated"),
        ({"labels": None, "label_words": ("a",)}, "1 label_words for 0 labels"),
    ],
)
def test_what_is_not_well_formed_is_refused(wrong: dict[str, object], message: str) -> None:
    right = PromptFormat("Sort.", "Text", "Kind", ("x", "y"))
    with pytest.raises(dpf.InvalidTask, match=message):
        dataclasses.replace(right, **wrong)  # type: ignore[arg-type]
