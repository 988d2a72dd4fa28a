"""What ends a field is public: no record contains it, or moves the end of another."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.backends.text import ending_tokens
from dpfewshot.generation.units import Bodies
from dpfewshot.prompts.few_shot import prompt_format
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.records.units import each_a_unit
from dpfewshot.tasks.layout import BLANK_LINE, TextLayout, on_lines
from dpfewshot.values import Record
from dpfewshot.writing.draft import Draft
from tests.support.fields import TASK, Bytes

BACKEND = Bytes()
ENDS = ending_tokens(BACKEND)
SINGLE = dataclasses.replace(TASK, text_fields=(), text_field="Body")
MULTILINE = dataclasses.replace(TASK, multiline=True)
FREE = dataclasses.replace(MULTILINE, labels=None)
ANY_TASK = st.sampled_from([SINGLE, dataclasses.replace(SINGLE, multiline=True), TASK, MULTILINE, FREE])
PIECES = st.sampled_from([*"\n\r \t\u2028\x85\x0baü\0", "\n\n", "Body:", "\nBody: ", "Kind: refund"])
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=14).map("".join)
VALUES = st.fixed_dictionaries({"Subject": TEXTS, "Body": TEXTS})


def text_for(task: dpf.Task, values: dict[str, str]) -> str:
    return task.layout.text(values) if task.text_fields else values["Body"]


def ends_in(task: dpf.Task, text: str) -> int:
    """How many fields end in a text."""
    return len(re.findall("\n\n" if task.multiline else "\n", text))


@given(values=VALUES)
def test_fields_come_apart_as_they_were_put_together_and_for_no_other_layout(values: dict[str, str]) -> None:
    text = TASK.layout.text(values)
    assert TASK.layout.divided(text) == (on_lines(values["Subject"]), on_lines(values["Body"]))
    assert list(TASK.layout.fields_of(text)) == ["Subject", "Body"]
    for others in (("Title", "Body"), ("Subject", "Body", "Note")):
        assert TextLayout(others).divided(text) is None


@given(task=ANY_TASK, values=VALUES, cap=st.integers(1, 60))
def test_no_record_holds_what_ends_a_field(task: dpf.Task, values: dict[str, str], cap: int) -> None:
    writer = PromptWriter(task, BACKEND, cap)
    body = writer.body(Record(text_for(task, values), "delivery\n\nBody: x"))
    assert body is not None
    written = BACKEND.detokenize(body)
    names = [f"\n{task.layout.fields[0]}:"] if task.labels is None else []
    names += [f"{task.layout.separator}{name}:" for name in task.layout.fields[1:]]
    rest = written
    for name in names:
        before, found, rest = rest.partition(name)
        assert found == name
        assert ends_in(task, before) == 0
    assert ends_in(task, rest) == 0
    assert not BLANK_LINE.search(rest)
    if not task.multiline:
        assert not ENDS.intersection(BACKEND.tokenize(rest)) - {0}
    limit = cap * (2 if task.labels is None else 1)
    assert len(body) <= limit + len(BACKEND.tokenize("".join(names)))


@given(task=ANY_TASK, values=VALUES, other=VALUES)
def test_no_record_moves_the_end_of_another(
    task: dpf.Task, values: dict[str, str], other: dict[str, str]
) -> None:
    """Neighbours: one record's text differs. Only the prompt that holds it does, and only within its body."""
    writer = PromptWriter(task, BACKEND, 40)
    prompts = writer.for_label("refund")
    found = []
    for text in (values, other):
        records = [Record(each, "refund") for each in ("one", text_for(task, text), "three")]
        bodies = Bodies(each_a_unit(records), writer.body).of([[(0, 0)], [(1, 0), (2, 0)]])
        found.append([prompts.suffix(subset, []) for subset in bodies])
    (alone, shared), (same, changed) = found
    assert alone == same
    assert shared is not None
    assert changed is not None
    after = [*prompts.between, *prompts.opener, *(writer.body(records[2]) or []), *prompts.between]
    end = [*after, *prompts.opening]
    assert shared[-len(end) :] == changed[-len(end) :] == end


@given(task=ANY_TASK, values=VALUES)
def test_a_labelled_text_holds_no_field_but_its_own(task: dpf.Task, values: dict[str, str]) -> None:
    words = prompt_format(task)
    question = words.question(text_for(task, values))
    assert ends_in(task, question) == len(task.layout.fields)
    assert question.endswith(f"{task.layout.separator}Kind:")


@given(task=ANY_TASK, data=st.data())
def test_released_tokens_come_apart_by_themselves(task: dpf.Task, data: st.DataObject) -> None:
    """Wherever a run is interrupted, the tokens are cut in the same way, and the text is well-formed."""
    further = PromptWriter(task, BACKEND, 9).for_label("refund").further
    tokens = data.draw(st.lists(st.sampled_from(b"ab :\n\n\n\0") | st.integers(1, 255), max_size=40))
    whole = Draft(BACKEND, task.layout, further=further)
    released: list[int] = []
    for token in tokens:
        if whole.finished:
            break
        if token not in whole.excluded:
            whole.add(token)
            released.append(token)
    cut = data.draw(st.integers(0, len(released)))
    resumed = Draft(BACKEND, task.layout, further=further, released=released[:cut])
    for token in released[cut:]:
        assert not resumed.finished
        resumed.add(token)
    text = whole.text()
    assert (resumed.text(), resumed.context, resumed.finished) == (text, whole.context, whole.finished)
    if task.text_fields:
        assert task.layout.divided(text) is not None
        assert task.layout.text(task.layout.fields_of(text)) == text
    else:
        assert ends_in(task, text) == 0


def test_a_field_ends_at_a_blank_line_if_texts_have_several_lines() -> None:
    draft = Draft(BACKEND, MULTILINE.layout, released=b" Late\n \nHello,\nwhere?\n\n")
    assert draft.finished
    assert MULTILINE.layout.fields_of(draft.text()) == {"Subject": "Late", "Body": "Hello,\nwhere?"}
    assert draft.text() == "Subject: Late\n\nBody: Hello,\nwhere?"


def test_nothing_after_a_blank_line_is_text() -> None:
    """One token may hold the end of a field and what follows it."""
    backend = Scripted((" ", "\n\nfoo"), lambda _: [0.5] * 2)
    draft = Draft(backend, TextLayout(("A",), True), released=[0, 1])
    assert draft.finished
    assert draft.text() == ""


def test_the_models_end_token_ends_a_field_and_not_the_demonstration() -> None:
    draft = Draft(BACKEND, TASK.layout, further=[b"#"], released=b" Late\0 Hello")
    assert bytes(draft.context) == b" Late# Hello"
    assert not draft.finished
    assert TASK.layout.fields_of(draft.text()) == {"Subject": "Late", "Body": "Hello"}
    draft.add(0)
    assert draft.finished


@pytest.mark.parametrize("multiline", [False, True])
def test_a_token_that_ends_a_text_may_begin_with_its_last_character(multiline: bool) -> None:
    """To Qwen's and Llama's tokenizers, a question mark and the line break behind it are one token."""
    backend = Scripted((" where", " is", " it", "?\n\n", "</s>"), lambda _: [0.2] * 5, end_token_ids=[4])
    layout = dataclasses.replace(SINGLE, multiline=multiline).layout
    for last, text in ((3, "where is it?"), (4, "where is it")):
        asked = Draft(backend, layout, released=[0, 1, 2, last])
        assert asked.finished
        assert asked.text() == text


def test_a_blank_field_does_not_end() -> None:
    """A text that was paid for says something."""
    for blank in ([], [32], [32, 9], [13]):
        assert Draft(BACKEND, SINGLE.layout, released=blank).excluded >= ENDS
    assert not Draft(BACKEND, SINGLE.layout, released=b" a").excluded & ENDS


def test_a_text_of_one_line_is_one_line_to_every_reader() -> None:
    said = " Is\x85it \u2028lost\tnow?\r\n".encode()
    assert Draft(BACKEND, SINGLE.layout, released=said).text() == "Is it lost now?"


def test_a_token_outside_of_the_vocabulary_excludes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer may have ids that the model never predicts."""
    backend = Scripted((" a", "\n"), lambda _: [0.5] * 2, end_token_ids=[9])
    monkeypatch.setattr(backend, "tokenize", lambda _: [5, 5, 6])
    task = dataclasses.replace(SINGLE, example="any", no_repeat_ngram_size=2)
    draft = Draft(backend, task.layout, earlier=["any"])
    row = np.zeros(2, dtype=np.float32)
    assert draft.support(lambda _, excluded: sorted(excluded), row, 3) == [1]
