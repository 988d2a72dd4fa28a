"""Public rules on released tokens: nothing is said twice, and what was cut off ends with a sentence."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.backends import Scripted
from dpfewshot.backends.text import ending_tokens
from dpfewshot.baselines import instruction_only_demonstrations
from dpfewshot.errors import InvalidTask
from dpfewshot.generation.token_loop import TokenLoop
from dpfewshot.mechanisms import InvisibleInk, Mechanism, PublicCentred
from dpfewshot.tasks import Task
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.writing.draft import Draft, repeating, whole_sentences
from tests.support.factory import synthesizer
from tests.support.fields import TASK as MAILS
from tests.support.fields import Bytes
from tests.support.scripts import TASK

ROUND = (" she", " is", " a", " smoker")
OTHERS = tuple(f" word{number}" for number in range(40))
WORDS = (*ROUND, *OTHERS, "\n")
ENDS = ending_tokens(Bytes())


def says(wanted: Callable[[int], int], rest: float) -> Scripted:
    """A model that mostly says the word that is wanted after the last, and never ends a text."""
    others = rest / (len(WORDS) - 2)

    def answer(prompt: list[int]) -> list[float]:
        probabilities = [others] * (len(WORDS) - 1)
        probabilities[wanted(prompt[-1])] = 1 - rest
        return [*probabilities, 0.0]

    return Scripted(WORDS, answer)


def goes_round() -> Scripted:
    """Says the same four words again and again."""
    return says(lambda last: (last + 1) % len(ROUND) if last < len(ROUND) else 0, 0.02)


def text_of(mechanism: Mechanism, tokens: int, every: int, **task: Any) -> str:
    """A text of the model that goes round."""
    settings = {"max_tokens": tokens, "tokens_per_draw": every, "prompts_per_draw": 100}
    made = synthesizer(goes_round(), task=dataclasses.replace(TASK, **task), mechanism=mechanism, **settings)
    return made.generate("refund").text


def layout(size: int, **task: Any) -> TextLayout:
    return dataclasses.replace(TASK, **({"text_field": "Text", "no_repeat_ngram_size": size} | task)).layout


def ngrams(tokens: Sequence[object], size: int) -> Counter[tuple[object, ...]]:
    return Counter(tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))


@given(tokens=st.lists(st.integers(0, 4), max_size=30), size=st.integers(2, 6))
def test_a_token_is_repeating_if_it_makes_an_ngram_come_twice(tokens: list[int], size: int) -> None:
    before = ngrams(tokens, size)
    made_again = {
        token for token in range(5) if (ngrams([*tokens, token], size) - before).keys() & before.keys()
    }
    assert repeating(tokens, size) == made_again


@given(
    released=st.lists(st.sampled_from([ord("a"), ord("b"), ord(" "), 10]), max_size=30),
    size=st.integers(2, 4),
)
def test_an_end_of_a_field_may_always_come(released: list[int], size: int) -> None:
    task = dataclasses.replace(MAILS, multiline=True, no_repeat_ngram_size=size)
    draft = Draft(Bytes(), task.layout)
    for token in released:
        draft.add(token)
        if draft.finished:
            break
        assert draft.excluded >= ENDS or not draft.excluded & ENDS  # all of them where a field is blank


def test_no_ngram_of_the_example_is_repeated() -> None:
    draft = Draft(Bytes(), layout(3, example="abcab"))
    for letter, excluded in zip(b"xaba", (set(), set(), {ord("c")}, set()), strict=True):
        draft.add(letter)
        assert draft.excluded == excluded  # the example's end and the text's beginning are no n-gram


def test_each_field_counts_alone() -> None:
    fields = dataclasses.replace(MAILS, no_repeat_ngram_size=3).layout
    for written, excluded in ((b"abcab", {ord("c")}), (b"abcab\nab", set())):
        assert Draft(Bytes(), fields, released=written).excluded == excluded


@pytest.mark.parametrize("mechanism", [PublicCentred(8), InvisibleInk(top_k=8)], ids=lambda each: each.name)
@pytest.mark.parametrize("every", [1, 24])
def test_a_model_that_goes_round_is_stopped_by_the_rule_alone(mechanism: Mechanism, every: int) -> None:
    def text(size: int) -> list[str]:
        return text_of(mechanism, 24, every, no_repeat_ngram_size=size).split()

    for size in (2, 3):
        assert max(ngrams(text(size), size).values()) == 1
    assert max(ngrams(text(0), 3).values()) > 1  # the control


def test_no_two_texts_of_a_label_begin_with_the_same_tokens() -> None:
    def openings(size: int) -> list[tuple[str, ...]]:
        sentence = range(len(ROUND), len(ROUND) + 6)  # in every text, with other words now and then
        backend = says(lambda last: last + 1 if last in sentence else len(ROUND), 0.1)
        task = dataclasses.replace(TASK, no_repeat_ngram_size=size)
        settings = {"max_tokens": 6, "tokens_per_draw": 6, "prompts_per_draw": 150, "shots_per_label": 4}
        made = synthesizer(backend, task=task, mechanism=PublicCentred(8, contrast=0), **settings)
        texts = [one.text for one in made.generate_all() if one.label == "refund"]
        return [tuple(text.split()[:3]) for text in texts]

    assert len(set(openings(3))) == 4
    assert len(set(openings(0))) < 4  # the control


@pytest.mark.parametrize(("further", "excluded"), [(19, True), (20, False)])
def test_a_text_opens_with_other_tokens_than_the_20_before_it(further: int, excluded: bool) -> None:
    earlier = ["My card is lost.", *[f"{number:02} days ago" for number in range(further)]]
    loop = TokenLoop(Bytes(), layout(4))
    assert (ord("M") in loop.draft(b" ", earlier=earlier).excluded) is excluded
    assert ord("M") not in loop.draft(b"a", earlier=earlier).excluded
    assert ord(" ") in loop.draft(b" My", earlier=earlier).excluded  # the first four: of all texts
    assert ord("O") in loop.draft(b" ", earlier=["OK"]).excluded  # shorter than four


@pytest.mark.parametrize(("size", "read"), [(3, 48), (0, 0)])
def test_of_an_earlier_text_no_more_is_read_than_its_beginning(size: int, read: int) -> None:
    """A run may have thousands of them, and each further text reads them all."""
    seen: list[int] = []

    class Noting(Bytes):
        def tokenize(self, text: str) -> list[int]:
            seen.append(len(text))
            return super().tokenize(text)

    def excluded(released: bytes) -> frozenset[int]:
        loop = TokenLoop(Noting(), layout(size))
        return loop.draft(released, earlier=["My card is lost. " * 1000]).excluded

    assert ord(" ") not in excluded(b"My")
    assert max(seen, default=0) == read
    assert (ord("y") in excluded(b" M")) is bool(size)


@given(st.text(st.sampled_from('aB .!?。)"\n'), max_size=40))
def test_a_cut_text_begins_the_whole_and_ends_with_a_sentence_if_it_has_one(text: str) -> None:
    kept = whole_sentences(text)
    assert text.startswith(kept)
    assert whole_sentences(kept) == kept
    assert kept == text or kept[-1] in '.!?。)"'


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("I lost my card. Please send a n", "I lost my card."),
        ("What is it ? Where", "What is it ?"),
        ('He said "no." Then', 'He said "no."'),
        ("It costs 3.50 euros and", "It costs 3.50 euros and"),
        ("I saw Dr. Smith and Mrs. J. Smith", "I saw Dr. Smith and Mrs. J. Smith"),
        ("It was Rome v. Paris vs. Bonn at 5 p.m. and", "It was Rome v. Paris vs. Bonn at 5 p.m. and"),
        ("今日は。また", "今日は。"),
        ("how do i reset my", "how do i reset my"),
    ],
)
def test_where_a_sentence_ends(text: str, kept: str) -> None:
    assert whole_sentences(text) == kept


def test_a_text_that_ended_by_itself_is_left_alone_and_says_so() -> None:
    draft = Draft(Bytes(), layout(0), released=b"One. Two")
    assert (draft.text(), draft.finished) == ("One.", False)
    draft.add(10)
    assert (draft.text(), draft.finished) == ("One. Two", True)


@pytest.mark.parametrize(("example", "copied"), [("", True), ("she is a smoker", False)])
def test_a_text_does_not_copy_the_example(example: str, copied: bool) -> None:
    text = text_of(PublicCentred(8), 4, 4, no_repeat_ngram_size=3, example=example)
    assert ("she is a" in f" {text}") is copied


@pytest.mark.parametrize("probabilities", [(1.0, 0.0), (0.5, 0.5)])
def test_where_every_token_would_repeat_the_rule_gives_way(probabilities: Sequence[float]) -> None:
    """With records and without; after two words every bigram has been said."""
    task = dataclasses.replace(TASK, no_repeat_ngram_size=2)
    backend = Scripted([" a", " b"], lambda _prompt: list(probabilities))
    made = synthesizer(backend, task=task, mechanism=PublicCentred(2), max_tokens=9)
    [one, _] = instruction_only_demonstrations(task, backend, max_tokens=9)
    for written in (made.generate("refund"), one):
        assert len(written.text.split()) == 9


@pytest.mark.parametrize("size", [1, -2, 2.0, True, "3"])
def test_a_size_that_makes_no_sense_is_refused(size: object) -> None:
    with pytest.raises(InvalidTask, match="no_repeat_ngram_size must be a whole number"):
        dataclasses.replace(TASK, no_repeat_ngram_size=size)


def test_a_task_tells_the_rule() -> None:
    ruled = dataclasses.replace(TASK, no_repeat_ngram_size=4)
    assert ruled.identity() == TASK.identity() | {"no_repeat_ngram_size": 4}
    assert Task(**ruled.identity()) == ruled  # type: ignore[arg-type]


ASSISTANT = (" I", "'m", " sorry", ", but", " fine", " Sorry", ".", "\n")


@pytest.mark.parametrize(("size", "says"), [(4, "I'm fine"), (0, "I'm sorry")])
def test_no_text_says_an_assistants_refusal(size: int, says: str) -> None:
    def answer(prompt: list[int]) -> list[float]:
        """ "I'm sorry." or, where it may not say so, "I'm fine." """
        said = backend.detokenize(prompt).rpartition("\ufffd")[2]  # the prompt's words are none of its own
        likely = {"": " I", " I": "'m", " I'm": " sorry"}.get(said, ".")
        return [0.9 if word == likely else 0.05 if word == " fine" else 0.001 for word in ASSISTANT]

    backend = Scripted(ASSISTANT, answer)
    task = dataclasses.replace(TASK, no_repeat_ngram_size=size)
    written = instruction_only_demonstrations(task, backend, max_tokens=3)
    assert all(one.text.startswith(says) for one in written)
    loop = TokenLoop(backend, layout(size))
    for begun in ([], [0, 1], [4, 3, 0, 1]):
        assert (ASSISTANT.index(" sorry") in loop.draft(begun).excluded) is bool(size)


@pytest.mark.parametrize(("size", "begins"), [(4, "refund"), (0, "12")])
def test_a_text_begins_with_a_word(size: int, begins: str) -> None:
    words = ("12", " ", "!", "refund", "\ufffd", "\n")
    backend = Scripted(words, lambda _: [0.5, 0.1, 0.1, 0.2, 0.05, 0.05])
    task = dataclasses.replace(TASK, no_repeat_ngram_size=size)
    written = instruction_only_demonstrations(task, backend, max_tokens=3)
    assert all(one.text.startswith(begins) for one in written)
    loop = TokenLoop(backend, layout(size))
    figures = {words.index(word) for word in ("12", "!")}
    for blank in ([], [1]):
        assert (figures <= loop.draft(blank).excluded) is bool(size)
        assert 1 not in loop.draft(blank).excluded
    assert not figures & loop.draft([3]).excluded  # anywhere else
    fields = layout(size, text_field="", text_fields=("Text", "Amount"))
    assert not figures & TokenLoop(backend, fields).draft().excluded  # one of them may be a number


@pytest.mark.parametrize(
    ("begun", "excluded"), [(b"we can't", b""), (b"we can't hel", b"p"), (b"sorr", b"y")]
)
def test_a_phrase_is_left_out_at_its_last_token(begun: bytes, excluded: bytes) -> None:
    assert TokenLoop(Bytes(), layout(4)).draft(begun).excluded == set(excluded)
