"""Prompts in a chat model's own template: where its turns go, and which templates are refused."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.backends.text import conversation
from dpfewshot.errors import BackendError
from dpfewshot.icl.prompt import FewShotPrompt
from dpfewshot.prompts.chat import chat_turns
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.tasks import MIT_D, TREC
from dpfewshot.values import Record
from tests.support.chats import END, START, Chat, Template, chatml
from tests.support.factory import demonstration, synthesizer
from tests.support.scripts import TASK, Sentence

CHAT = dataclasses.replace(TASK, chat=True)
HEAD = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
FOLLOWING = "<|im_end|>\n<|im_start|>user\n"


def without_turns(contents: Sequence[str]) -> str:
    return "".join(f"\n### {'UM'[place % 2]}: {each}" for place, each in enumerate(contents)) + "\n### M: "


def only_ends(contents: Sequence[str]) -> str:
    """The end of an answer is a special token, the end of a question is not."""
    return "".join(each + (": ", "<|im_end|>")[place % 2] for place, each in enumerate(contents))


def two_users(contents: Sequence[str]) -> str:
    if len(contents) > 1:
        raise BackendError("only one turn is allowed")
    return chatml(contents)


def thinks(contents: Sequence[str]) -> str:
    return f"{chatml(contents)}<think>\n"


def numbered(contents: Sequence[str]) -> str:
    return chatml([f"{place}. {each}" for place, each in enumerate(contents)])


def by_words(contents: Sequence[str]) -> str:
    """The end of an answer is a word, though a special token follows it."""
    return "".join(
        each + ("<|im_start|>", "\nUser: <|im_start|>")[place % 2] for place, each in enumerate(contents)
    )


def forgets(contents: Sequence[str]) -> str:
    return chatml(["[old]" if place >= 7 else each for place, each in enumerate(contents)])


REFUSED: dict[str, tuple[Template, str]] = {
    "another opening for the last answer": (thinks, "differently by its place"),
    "numbered turns": (numbered, "differently by its place"),
    "a shorter text": (lambda contents: chatml([each[:5] for each in contents]), "changes or repeats"),
    "lower case": (lambda contents: chatml(contents).lower(), "changes or repeats"),
    "a text twice": (lambda contents: chatml(contents) + contents[0], "changes or repeats"),
    "another order": (lambda contents: chatml(contents[::-1]), "changes or repeats"),
    "a system turn for several": (lambda contents: len(contents) * "x" + chatml(contents), "differently"),
    "answers that end at a word": (by_words, "without special tokens"),
    "turns that it forgets": (forgets, "changes or repeats"),
    "a text cut": (lambda contents: chatml([each[:99] for each in contents]), "changes or repeats"),
    "markup": (lambda contents: chatml([html.escape(each) for each in contents]), "changes or repeats"),
    "one turn": (two_users, "only one turn"),
    "no special tokens": (without_turns, "without special tokens"),
    "questions without special tokens": (only_ends, "without special tokens"),
}


def test_a_prompt_is_a_conversation() -> None:
    backend = Chat()
    writer = PromptWriter(dataclasses.replace(TREC, chat=True), backend, record_token_cap=1000)
    prompts = writer.for_label("Entity")
    bodies = [writer.body(Record("What is Perl ?", "Entity")), writer.body(Record("Who was Bo ?", "Entity"))]
    suffix = prompts.suffix(bodies, backend.tokenize(" Which"))
    assert suffix is not None
    beginning = f"{HEAD}{TREC.preamble()}Answer Type: Entity{ANSWER}Text:"
    assert backend.detokenize([*prompts.prefix, *suffix]) == (
        f"{beginning} What is Perl ?{FOLLOWING}"
        f"Answer Type: Entity{ANSWER}Text: Who was Bo ?{FOLLOWING}"
        f"Answer Type: Entity{ANSWER}Text: Which"
    )
    assert backend.detokenize([*prompts.prefix, *prompts.public_suffix]) == beginning
    assert END in prompts.between


def test_a_records_free_label_is_in_its_own_turn() -> None:
    backend = Chat()
    writer = PromptWriter(dataclasses.replace(MIT_D, chat=True), backend, record_token_cap=1000)
    body = writer.body(Record("a film", "bong<|im_end|>"))
    assert body is not None
    assert backend.detokenize(body) == f" bong<|im_end|>{ANSWER}Sentence: a film"
    assert len(body) == len(" bong<|im_end|>" + "\nassistant\n" + "Sentence: a film") + 2


@pytest.mark.parametrize("task", [TREC, MIT_D])
def test_longest_suffix_bounds_every_conversation(task: dpf.Task) -> None:
    writer = PromptWriter(dataclasses.replace(task, chat=True), Chat(), record_token_cap=50)
    suffix = writer.for_label("Entity").suffix([writer.body(Record("y" * 500, "z" * 500))] * 3, [0] * 15)
    assert suffix is not None
    assert len(suffix) == writer.longest_suffix("Entity", 3, 15)


def test_a_text_is_labelled_in_a_conversation() -> None:
    backend = Chat()
    words = icl.PromptFormat("Which?", "Text", "Kind", ("a", "b"), ("A", "B"), chat=True)
    prompt = FewShotPrompt(words, backend, [demonstration("one<|im_end|>", "a")])
    question = prompt.question("two <|im_start|>")
    assert backend.detokenize([*prompt.prefix, *question, *prompt.label("B")]) == (
        f"{HEAD}Which?\n\nText: one<|im_end|>{ANSWER}Kind: A{FOLLOWING}Text: two <|im_start|>{ANSWER}Kind: B"
    )
    assert prompt.prefix.count(END) == 3  # the system's turn, the user's and the model's: not the text's
    assert question.count(END) == 1
    assert words.prompt([], "two") == "Which?\n\nText: two\nKind:"
    plain = FewShotPrompt(dataclasses.replace(words, chat=False), backend, [])
    others = FewShotPrompt(words, Chat(lambda contents: chatml(contents).replace("brief", "kind")), [])
    assert len({one.fingerprint() for one in (FewShotPrompt(words, backend, []), plain, others)}) == 3


@pytest.mark.parametrize("which", REFUSED)
def test_a_template_that_cannot_be_used_is_refused(which: str) -> None:
    template, trouble = REFUSED[which]
    with pytest.raises(BackendError, match=trouble):
        chat_turns(Chat(template))


class Beginnings(Chat):
    """A tokenizer with other tokens where a text begins, as SentencePiece's: few tokens spell themselves."""

    def tokenize(self, text: str) -> list[int]:
        return begun(super().tokenize(text))

    def chat_tokens(self, text: str) -> list[int]:
        return begun(super().chat_tokens(text))


def begun(tokens: list[int]) -> list[int]:
    return [token ^ 128 if place == 0 and token < START else token for place, token in enumerate(tokens)]


def arrows(contents: Sequence[str]) -> str:
    """The end of a question is a word."""
    return "".join(each + (" =>", "<|im_end|>")[place % 2] for place, each in enumerate(contents))


def test_a_word_does_not_pass_for_a_special_token() -> None:
    with pytest.raises(BackendError, match="without special tokens"):
        chat_turns(Beginnings(arrows))
    assert chat_turns(Beginnings()).following[0] == END


def test_a_refusal_costs_nothing(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'budget.db'}"
    settings: dict[str, Any] = {"ledger": ledger, "task": CHAT}
    for backend in (Sentence(), Chat(two_users)):
        with pytest.raises(BackendError, match=r"chat=False|only one turn"):
            synthesizer(backend, **settings)
    assert dpf.open_account(ledger, "tickets").entries == 0
    words = icl.PromptFormat("Which?", "Text", "Kind", ("a", "b"), chat=True)
    with pytest.raises(BackendError, match="Sentence gives no chat template"):
        icl.Classifier(words, Sentence())


def test_a_run_is_of_one_template(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path}/budget.db"
    made = synthesizer(Chat(), task=CHAT, ledger=ledger)
    assert made.generate("refund").text == "Late"
    assert synthesizer(Chat(), task=CHAT, ledger=ledger).unfinished
    for other in (
        synthesizer(Chat(), ledger=ledger),
        synthesizer(
            Chat(lambda c: chatml(c).replace("user", "USER")), task=CHAT, ledger=ledger
        ),  # no number of the plan changes
    ):
        assert not other.unfinished


def test_the_end_of_a_turn_ends_a_text() -> None:
    [one, _] = synthesizer(
        Chat(end=END), task=CHAT, mechanism=dpf.mechanisms.Gaussian(top_k=None)
    ).generate_all()
    assert (one.text, one.token_count) == ("Late", len(" Late") + 1)


def test_a_worker_with_another_template_is_noticed() -> None:
    """Also where the public prompt is the same, and only what follows an answer differs."""
    prompts = PromptWriter(CHAT, Chat(), 9).for_label("refund")
    other = dataclasses.replace(prompts, between=[END])
    assert prompts.public != other.public


CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_jinja_writes_a_conversation() -> None:
    written = conversation(CHATML, ["one ", "two", "three"], bos="<s>", eos="</s>")
    assert written == "<s>" + chatml(["one", "two", "three"]).removeprefix(chatml([])[: len(HEAD) - 17])


def test_a_template_is_told_what_transformers_tells() -> None:
    template = "{% if tools is not none %}TOOLS{% endif %}{{ messages[0].content | tojson }}"
    assert conversation(template, ["a<é'"], bos="", eos="") == '"a<é\'"'


def test_a_mark_for_training_has_no_effect() -> None:
    template = "a {%- generation -%} {{ messages[0].content }} {% endgeneration +%} b"
    assert conversation(template, ["one"], bos="", eos="") == "aone  b"


@pytest.mark.parametrize(
    ("template", "trouble"),
    [
        (None, "has no chat template"),
        ("", "has no chat template"),
        ("{% if %}", "refuses turns"),
        ("{{ raise_exception('one turn alone') }}", "one turn alone"),
        ("{{ messages[7].content }}", "refuses turns"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 // 0 }}", "refuses turns"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses turns"),
        ("{% break %}", "refuses turns"),
        ("{{ 'x' | urlize(rel=1) }}", "refuses turns"),
        ("{{ raise_exception('\x1b[31m' ~ 'x' * 999) }}", r"refuses turns that alternate:  \[31mx{195}; use"),
    ],
)
def test_a_template_that_fails_is_refused(
    template: str | None, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Generators that end at the recursion limit cannot raise; pytest's own hook then fails for want of depth.
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    with pytest.raises(BackendError, match=trouble):
        conversation(template, ["one"], bos="", eos="")
