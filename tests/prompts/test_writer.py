from dataclasses import replace

import pytest

from dpfewshot.backends import Scripted
from dpfewshot.errors import BackendError, BackendNotBatchInvariant
from dpfewshot.prompts.writer import LabelPrompts, PromptWriter
from dpfewshot.tasks import MIT_D, TREC, Task
from dpfewshot.values import Record

BYTES = [chr(i) for i in range(32, 127)] + ["\n"]


class Characters(Scripted):
    """A tokenizer with a token a character, so that prompts read back as text."""

    def __init__(self) -> None:
        super().__init__(BYTES, lambda _prompt: [1 / len(BYTES)] * len(BYTES))


class Fragile(Characters):
    """A tokenizer that one record crashes."""

    def tokenize(self, text: str) -> list[int]:
        if "poison" in text:
            raise RuntimeError(text)
        return super().tokenize(text)


@pytest.fixture
def backend() -> Characters:
    return Characters()


def text_of(backend: Scripted, prompts: LabelPrompts, suffix: list[int] | None) -> str:
    assert suffix is not None
    return backend.detokenize([*prompts.prefix, *suffix])


def test_a_prompt_is_the_papers_prompt(backend: Characters) -> None:
    writer = PromptWriter(TREC, backend, record_token_cap=1000)
    prompts = writer.for_label("Entity")
    bodies = [writer.body(Record("What is Perl ?", "Entity")), writer.body(Record("Who was Bo ?", "Entity"))]
    assert text_of(backend, prompts, prompts.suffix(bodies, backend.tokenize(" Which"))) == (
        "Given a label of answer type, generate a question based on the given answer type accordingly.\n\n"
        "Answer Type: Entity\nText: What is Perl ?\n\n"
        "Answer Type: Entity\nText: Who was Bo ?\n\n"
        "Answer Type: Entity\nText: Which"
    )
    assert text_of(backend, prompts, prompts.public_suffix) == (
        "Given a label of answer type, generate a question based on the given answer type accordingly.\n\n"
        "Answer Type: Entity\nText:"
    )


def test_a_description_stands_for_its_label_alone(backend: Characters) -> None:
    task = replace(TREC, label_descriptions={"Entity": "a thing"})
    writer = PromptWriter(task, backend, record_token_cap=1000)
    prompts = writer.for_label("Entity")
    bodies = [writer.body(Record("What is Perl ?", "Entity"))] * 2
    told = text_of(backend, prompts, prompts.suffix(bodies, []))
    assert told.count("\nAnswer Type: a thing\nText:") == 3
    assert text_of(backend, writer.for_label("Person"), []).endswith("\nAnswer Type: Person\nText:")


def test_where_labels_are_free_a_records_own_label_is_no_part_of_the_prefix(backend: Characters) -> None:
    writer = PromptWriter(MIT_D, backend, record_token_cap=1000)
    prompts = writer.for_label("ang lee")
    body = writer.body(Record("a film by bong joon ho", "bong joon ho"))
    assert backend.detokenize(prompts.prefix).endswith("description.\n\nDirector:")
    assert text_of(backend, prompts, prompts.suffix([body], [])).endswith(
        "Director: bong joon ho\nSentence: a film by bong joon ho\n\nDirector: ang lee\nSentence:"
    )
    assert text_of(backend, prompts, prompts.public_suffix).endswith("\n\nDirector: ang lee\nSentence:")


def test_records_are_capped_each_by_itself(backend: Characters) -> None:
    body = PromptWriter(TREC, backend, record_token_cap=10).body(Record("x" * 1_000_000, "Entity"))
    assert body is not None
    assert backend.detokenize(body) == " " + "x" * 9


def test_a_record_cannot_pose_as_the_end_of_its_block(backend: Characters) -> None:
    writer = PromptWriter(TREC, backend, record_token_cap=100)
    body = writer.body(Record("one\n\nAnswer Type: Entity\r\nText:\ttwo", "Entity"))
    assert body is not None
    assert backend.detokenize(body) == " one Answer Type: Entity Text: two"


def test_a_record_that_cannot_be_tokenised_enters_no_prompt() -> None:
    writer = PromptWriter(TREC, Fragile(), record_token_cap=100)
    prompts = writer.for_label("Entity")
    good = writer.body(Record("good", "Entity"))
    assert writer.body(Record("poison", "Entity")) is None
    assert prompts.suffix([None], []) is None
    assert prompts.suffix([None, good, None], []) == prompts.suffix([good], [])


@pytest.mark.parametrize(
    "error",
    [
        BackendError("no connection", retryable=True),
        BackendError("no answer"),
        AttributeError("x"),
        BackendNotBatchInvariant("turned"),
    ],
)
def test_a_server_that_is_gone_is_no_fault_of_a_record(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Or every record would be a null, and the demonstrations would be paid for and say nothing."""
    backend = Characters()
    writer = PromptWriter(TREC, backend, record_token_cap=100)

    def fail(_text: str) -> list[int]:
        raise error

    monkeypatch.setattr(backend, "tokenize", fail)
    with pytest.raises(BackendError) as raised:
        writer.body(Record("good", "Entity"))
    kept = isinstance(error, BackendNotBatchInvariant)
    assert isinstance(raised.value, BackendNotBatchInvariant) == kept
    assert raised.value.retryable != kept
    monkeypatch.undo()
    assert writer.body(Record("good", "Entity")) is not None


def test_nothing_of_a_writer_can_be_exchanged(backend: Characters) -> None:
    writer = PromptWriter(TREC, backend, record_token_cap=100)
    for name in ("body", "tokenizer", "record_token_cap", "_between", "anything"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(writer, name, None)


@pytest.mark.parametrize(("task", "label"), [(TREC, "Abbreviation"), (MIT_D, "ang lee")])
def test_longest_suffix_bounds_every_prompt_of_n_records(backend: Characters, task: Task, label: str) -> None:
    writer = PromptWriter(task, backend, record_token_cap=50)
    body = writer.body(Record("y" * 500, "z" * 500))
    suffix = writer.for_label(label).suffix([body] * 3, [0] * 15)
    assert suffix is not None
    assert len(suffix) == writer.longest_suffix(label, 3, 15)
