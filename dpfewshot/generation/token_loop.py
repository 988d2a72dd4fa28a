"""Tang et al., Algorithm 1: token by token, each from a charged draw, until one ends the demonstration."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Final

import numpy as np

from dpfewshot.account.reservation import Reservation
from dpfewshot.backends.protocol import (
    LogprobBackend,
    Logprobs,
    PromptBlock,
    Tokens,
    closing_block,
    states_invariance,
)
from dpfewshot.backends.text import ending_tokens
from dpfewshot.backends.token_automaton import TokenAutomaton, token_automaton
from dpfewshot.errors import BackendError, BackendNotBatchInvariant
from dpfewshot.generation.draft import Draft, ShapedDraft
from dpfewshot.generation.stopping import StopSignal
from dpfewshot.generation.units import Bodies
from dpfewshot.mechanisms import Release
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.prompts.writer import LabelPrompts
from dpfewshot.sampling import Sampler
from dpfewshot.tasks.layout import TextLayout

COMPLETION: Final = 24
"""The most tokens that complete a text, in which nearly every sentence ends (docs/decisions/prompts.md)."""

NO_PROBABILITY: Final = (
    "the model answers the prompt without records with no probability at all: check it with "
    "`dpfewshot doctor`"
)

PublicChoice = Callable[[Draft | ShapedDraft, Logprobs, int], int | None]
"""Chooses a text's next token from the public prompt's row, shape (V,), and the number of tokens left.

None ends the text.
"""


@dataclass(frozen=True, kw_only=True)
class PublicRequest:
    """One text to write, as far as it is public: no record is among it.

    Attributes:
        prompts: of the label, with all its subjects.
        topic: what the text is about, in words, for a text writer.
        earlier: texts of the label that were released before, from which this one differs.
        subject: prompts of the one subject of this text, if no record is in them; None: `prompts`.
        fits: whether the model itself gives a text its label; asked where texts are written without records.
        stop: checked before each draw and after each token.
    """

    prompts: LabelPrompts
    max_tokens: int
    topic: str = ""
    earlier: Sequence[str] = ()
    subject: LabelPrompts | None = None
    fits: Callable[[str], bool] = lambda _text: True
    stop: StopSignal = field(default_factory=StopSignal)


@dataclass(frozen=True, kw_only=True)
class TextRequest(PublicRequest):
    """One text to write from private records.

    Attributes:
        release: the started mechanism; nothing else turns private numbers into something released.
        reservation: charges each draw, and gives its permit.
        released: the tokens of an interrupted text, which none of them ends; else empty. Takes each new one.
    """

    units: Bodies
    sampler: Sampler
    release: Release
    reservation: Reservation
    released: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class TokenLoop:
    """Generates with one backend. The permit of a draw says how many tokens share it.

    Attributes:
        certified: whether each draw needs a backend that states batch invariance.
    """

    backend: LogprobBackend
    layout: TextLayout
    certified: bool = False

    def tokens(self, request: TextRequest) -> Generator[int]:
        """Release the tokens of one demonstration, with the one that ends it if there is one.

        Each token is appended to `released` and then yielded; nothing more is drawn until it is asked for.
        """
        units, sampler, release = request.units, request.sampler, request.release
        prompts, max_tokens, released = request.prompts, request.max_tokens, request.released
        draft = self.draft(released, prompts.further, request.earlier)
        suffix = [*prompts.public_suffix, *draft.context]
        left = max_tokens - len(released)
        left += draft.written_left(left)  # names are appended and never drawn, and so is what a schema forces
        with closing_block(self.backend, prompts.prefix, [suffix], left, public=True) as public:
            while len(released) < max_tokens:
                public_row = answer_without_records(public)  # finds a dead server before anything is charged
                units.check()  # finds a changed file, likewise
                self._check_invariance()
                request.stop.check()
                permit = request.reservation.draw()  # before it draws
                subsets = units.of(sampler.draw(units.sizes))
                suffixes = [each for subset in subsets if (each := prompts.suffix(subset, draft.context))]
                length = min(permit.tokens, max_tokens - len(released))
                kept = length + draft.written_left(length) if length > 1 else 1
                with closing_block(self.backend, prompts.prefix, suffixes, kept) as private:
                    for step in range(length):
                        if step > 0:
                            public_row = answer_without_records(public)
                        support = draft.support(release.support, public_row, max_tokens - len(released))
                        logprobs = answered(private, len(suffixes), support)
                        winner = release.token(logprobs, public_row[support], permit)
                        if winner is None:
                            return
                        released.append(support[winner])
                        following = draft.add(support[winner])
                        yield support[winner]
                        request.stop.check()
                        if draft.finished:
                            return
                        continued = [public, private] if step + 1 < length else [public]
                        for block, token in product(continued, following):
                            block.append(token)

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

    def _check_invariance(self) -> None:
        if self.certified and not states_invariance(self.backend):
            raise BackendNotBatchInvariant(
                "the backend no longer states that a prompt's answer is independent of its neighbours: "
                "nothing is drawn"
            )

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

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a demonstration."""
        return ending_tokens(self.backend)

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
        return Draft(
            self.backend, self.layout, self.ends, further=further, earlier=earlier, released=released
        )


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


def answered(block: PromptBlock, rows: int, support: Tokens | None) -> Logprobs:
    """Log-probabilities of the block's prompts: float32, contiguous, of the right shape."""
    answer = block.next_token_logprobs(support)
    with np.errstate(all="ignore"):  # a warning would reveal that a record's value exceeds float32
        logprobs = np.ascontiguousarray(answer, dtype=np.float32)
    columns = logprobs.shape[-1] if support is None else len(support)
    if logprobs.shape != (rows, columns):
        raise BackendError("the backend returned an array of the wrong shape")
    return logprobs
