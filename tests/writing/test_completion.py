"""A text that its tokens leave within a sentence is completed by the prompt without records."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.backends.protocol import Logprobs, ReplayedBlock, Tokens
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.writing.draft import whole_sentences
from dpfewshot.writing.public_loop import COMPLETION, PublicLoop
from tests.support.factory import synthesizer
from tests.support.scripts import TASK

WORDS = (" my", " card", " is", " lost", ".", "\n", " and", " or")


class Says(Scripted):
    """After every word the next one, and the first one after what is no word; notes what public blocks hold.

    `follows` is what comes after the last word but two: 4 is the full stop, 5 the line's end, 0 goes round.
    """

    def __init__(self, follows: int = 4) -> None:
        self.public: list[tuple[list[int], list[list[int]]]] = []
        self.dead = False
        self.follows = follows
        super().__init__(WORDS, self.answer)

    def answer(self, prompt: list[int]) -> list[float]:
        if self.dead:
            raise dpf.BackendError("the model is gone", retryable=True)
        last = prompt[-1] if prompt else len(WORDS)
        following = self.follows if last == 3 else (last + 1) % len(WORDS) if last < 3 else 0
        return [0.95 if token == following else 0.01 for token in range(len(WORDS))]

    def open_block(self, prefix: Any, suffixes: Any, tokens: int, *, public: bool = False) -> ReplayedBlock:
        if public and tokens == COMPLETION:
            self.public.append((list(prefix), [list(each) for each in suffixes]))
        return ReplayedBlock(self, prefix, suffixes, public=public)


def completed(backend: Says, released: list[int], **task: Any) -> str:
    """The text of these tokens."""
    layout = dataclasses.replace(TASK, **task)
    writer = PromptWriter(layout, backend, 20)
    return PublicLoop(backend, layout.layout).text(writer.for_label("refund"), released)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.sampled_from([4, 5, 0]))
def test_a_completed_text_begins_with_what_was_released_and_ends(released: list[int], follows: int) -> None:
    task = {"no_repeat_ngram_size": 0}
    backend, plain = Says(follows), Says(follows)
    text = completed(backend, released, **task)
    draft = PublicLoop(plain, dataclasses.replace(TASK, **task).layout).draft(released)
    if draft.finished or whole_sentences(draft.text()) != draft.text() or draft.text().endswith("."):
        assert text == draft.text()  # it has an end
        assert not backend.public
    elif follows == 0:
        assert text == draft.text()  # no end comes
    else:
        assert text.startswith(draft.text())
        assert text.endswith("." if follows == 4 else "lost") or draft.text() == ""


def test_it_reads_the_public_prompt_and_the_released_tokens_alone() -> None:
    """Whatever the records hold, one block is asked, of one prompt, which holds none of their words."""
    asked = []
    for text in ("swordfish of the customer", "halibut"):
        backend = Says()
        records = [dpf.Record(text, label) for label in ("refund", "delivery")] * 40
        made = synthesizer(backend, records=records, budget=dpf.NO_PRIVACY, max_tokens=2, tokens_per_draw=2)
        one = made.generate("refund")
        assert (one.text, one.token_count, one.finished) == ("my card is lost.", 2, False)
        prompts = made.set_up.writer.for_label("refund")
        [(prefix, [suffix])] = backend.public
        assert (prefix, suffix) == (prompts.prefix, [*prompts.public_suffix, 0, 1])
        asked.append(backend.detokenize([*prefix, *suffix]))
    assert asked[0] == asked[1]


def test_a_model_that_fails_meanwhile_leaves_the_text_as_it_was_released() -> None:
    """It is paid for. What a sparse vector ended must not be drawn on, either."""

    class Dies(Says):
        def open_block(self, prefix: Any, suffixes: Any, tokens: int, *, public: bool = False) -> Any:
            block = super().open_block(prefix, suffixes, tokens, public=public)
            self.dead = public and tokens == COMPLETION
            return block

    made = synthesizer(Dies(), budget=dpf.NO_PRIVACY, max_tokens=2, tokens_per_draw=2)
    one = made.generate("refund")
    assert (one.text, one.token_count, one.finished) == ("my card", 2, False)


@pytest.mark.parametrize(("room", "text"), [(0, "my card"), (1, "my card"), (3, "my card is lost.")])
def test_a_context_without_room_leaves_the_text_as_it_was(room: int, text: str) -> None:
    class Small(Says):
        def open_block(self, prefix: Any, suffixes: Any, tokens: int, *, public: bool = False) -> Any:
            asked = [len(prefix) + len(suffix) + tokens for suffix in suffixes]
            assert self.context_tokens is not None
            if max(asked) >= self.context_tokens:
                raise dpf.BackendError("no room")
            return super().open_block(prefix, suffixes, tokens, public=public)

    backend = Small()
    prompts = PromptWriter(TASK, backend, 20).for_label("refund")
    backend.context_tokens = len(prompts.prefix) + len(prompts.public_suffix) + 2 + 1 + room
    assert completed(backend, [0, 1]) == text


def test_a_prompt_that_outgrows_the_context_leaves_the_text_as_it_was() -> None:
    class Full(Says):
        def next_token_logprobs(self, prompts: Any, support: Tokens | None = None) -> Logprobs:
            rows = super().next_token_logprobs(prompts, support)
            rows[[prompt[-2:] == [1, 2] for prompt in prompts]] = -math.inf
            return rows

    assert completed(Full(), [0, 1]) == "my card"
    assert completed(Says(), [0, 1]) == "my card is lost."


def test_no_text_with_a_schema_is_completed() -> None:
    assert completed(Says(), [0, 1], schema="( my| card)+") == " my card"
