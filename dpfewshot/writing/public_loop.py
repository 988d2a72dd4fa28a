"""Texts token by token from the prompt without records; a released text that is cut off is completed so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from dpfewshot.backends.protocol import (
    NO_PROBABILITY,
    LogprobBackend,
    Logprobs,
    PromptBlock,
    answered,
    closing_block,
)
from dpfewshot.backends.token_automaton import TokenAutomaton, token_automaton
from dpfewshot.errors import BackendError
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.prompts.writer import LabelPrompts
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.values import Demonstration, PrivacySpend, Relation
from dpfewshot.writing.draft import Draft, ShapedDraft
from dpfewshot.writing.request import PublicRequest

COMPLETION: Final = 24
"""The most tokens that complete a text, in which nearly every sentence ends (docs/decisions/prompts.md)."""

PublicChoice = Callable[[Draft | ShapedDraft, Logprobs, int], int | None]
"""Chooses a text's next token from the public prompt's row, shape (V,), and the number of tokens left.

None ends the text.
"""


@dataclass(frozen=True)
class PublicLoop:
    """Writes with one backend."""

    backend: LogprobBackend
    layout: TextLayout

    def without_records(self, request: PublicRequest) -> list[int]:
        """The tokens of a text that no record has a part in: the likeliest ones."""
        return self.continued(request.prompts, [], request.max_tokens, _likeliest_token)[1]

    def continued(
        self,
        prompts: LabelPrompts,
        beginning: Sequence[int],
        max_tokens: int,
        choose: PublicChoice,
        *,
        sentence: bool = False,
    ) -> tuple[Draft | ShapedDraft, list[int]]:
        """Continue a beginning from the public prompt alone, to its end or `max_tokens`: no record is read.

        With `sentence`, the first end of a sentence or a field is the end. Returns the text, and its tokens
        with those of the beginning.
        """
        draft, tokens = self.draft(beginning, prompts.further), list(beginning)
        left = max_tokens - len(tokens)
        suffix, kept = [*prompts.public_suffix, *draft.context], left + draft.written_left(left)
        with closing_block(self.backend, prompts.prefix, [suffix], kept, public=True) as block:
            while len(tokens) < max_tokens and not (draft.finished or (sentence and not draft.cut_off)):
                token = choose(draft, answered(block, 1, None)[0], max_tokens - len(tokens))
                if token is None:
                    break
                tokens.append(token)
                for each in draft.add(token):
                    block.append(each)
        return draft, tokens

    def ended(self, released: Sequence[int]) -> bool:
        """Whether these tokens end a demonstration."""
        return self.draft(released).finished

    def text(self, prompts: LabelPrompts, released: Sequence[int]) -> str:
        """The text of a demonstration's tokens. One that they leave without a sentence end is completed.

        The likeliest tokens of the prompt without records complete it, up to the first end: no record is
        read. Where no end comes in time, or the model fails, the text stays as it was released: it is paid
        for.
        """
        draft = self.draft(released, prompts.further)
        begun = len(prompts.prefix) + len(prompts.public_suffix) + len(draft.context) + draft.written_left(0)
        context = self.backend.context_tokens
        room = COMPLETION if context is None else min(COMPLETION, context - begun - 1)  # 1 begins a prompt
        if not draft.cut_off or room < 1:
            return draft.text()
        longest = len(released) + room
        try:
            completed, _ = self.continued(prompts, released, longest, _likeliest_token, sentence=True)
        except BackendError:
            return draft.text()
        return (draft if completed.cut_off else completed).text()

    def at_no_cost(
        self, label: str, prompts: LabelPrompts, tokens: Sequence[int], relation: Relation
    ) -> Demonstration:
        """The demonstration of tokens that no record has a part in: ε = 0."""
        text = self.text(prompts, tokens)
        return Demonstration(
            text=text,
            label=label,
            token_count=len(tokens),
            certified=True,
            spent=PrivacySpend(0.0, 0.0),
            relation=relation,
            mechanism="instruction-only",
            fields=self.layout.fields_of(text),
            finished=self.ended(tokens),
        )

    @property
    def automaton(self) -> TokenAutomaton | None:
        """Of the schema that texts match, if there is one."""
        return token_automaton(self.backend, self.layout.schema)

    def draft(
        self,
        released: Sequence[int] = (),
        further: Sequence[Sequence[int]] = (),
        earlier: Sequence[str] = (),
    ) -> Draft | ShapedDraft:
        """A demonstration that consists of these tokens so far; see `Draft`."""
        if self.automaton is not None:
            return ShapedDraft(self.automaton, released)
        return Draft(self.backend, self.layout, further=further, earlier=earlier, released=released)


def _likeliest_token(draft: Draft | ShapedDraft, row: Logprobs, left: int) -> int | None:
    """The likeliest token that may come next; None where the prompt has outgrown the model's context."""
    [token] = draft.support(partial(likeliest, top_k=1), row, left)
    return token if np.isfinite(row[token]) else None


def answer_without_records(block: PromptBlock) -> Logprobs:
    """The answer to the prompt without records, shape (V,), in which some token has a probability."""
    row: Logprobs = answered(block, 1, None)[0]
    if not np.isfinite(row).any():
        raise BackendError(NO_PROBABILITY)
    return row
