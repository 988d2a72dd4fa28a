"""What a language model must offer: next-token log-probabilities, each a function of its own prompt alone.

`LogprobBackend` is all that a backend of your own needs. A backend that can keep the attention cache
of prompts which grow by the same released tokens also offers `open_block`; `open_block` below gives
every other backend the same by asking again with the longer prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import BackendError, DPFewShotError
from dpfewshot.runtime.redaction import is_failure

Tokens = Sequence[int]
"""Token ids of one prompt."""

Logprobs = NDArray[np.float32]
"""Natural-log probabilities, shape (prompts, tokens of the support), normalised over the whole vocabulary."""


@runtime_checkable
class LogprobBackend(Protocol):
    """A language model that answers with next-token log-probabilities.

    Token ids are 0 to V-1. Plain attributes serve as well as properties. `batch_invariant` states that
    a prompt's answer is a function of that prompt and of public state alone. The privacy proof needs it
    (docs/guarantee.md): where answers change with the rest of the batch, one record moves every vector.
    """

    @property
    def vocabulary_size(self) -> int:
        """V, at least 1."""
        ...

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    @property
    def batch_invariant(self) -> bool:
        """Whether each prompt's answer is independent of its neighbours."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`. Special tokens in the text are never parsed as special."""
        ...

    def detokenize(self, tokens: Tokens) -> str:
        """The text of `tokens`."""
        ...

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Log-probabilities of the next token of each prompt.

        Args:
            prompts: token ids, one sequence a prompt.
            support: the token ids asked for, in this order; None for the whole vocabulary.

        Returns:
            float32 of shape (len(prompts), len(support) or V), in nats, normalised over the whole
            vocabulary before it is cut to the support. -inf where the backend cannot tell. A prompt
            that cannot be evaluated (too long, say) is a row of NaN, by a rule of that prompt alone.

        Raises:
            BackendError: the model or its server failed, for a cause that is not one prompt's text. Its
                message is shown: it quotes no prompt.
        """
        ...


class PromptBlock(Protocol):
    """Prompts that share one draw of records; each is continued by the same released tokens."""

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """As `LogprobBackend.next_token_logprobs`, of the prompts as they now stand."""
        ...

    def append(self, token: int) -> None:
        """Continue every prompt with a released token."""
        ...

    def append_each(self, tokens: Tokens) -> None:
        """Continue each prompt with a token of its own: of public prompts, as where labels are extracted."""
        ...

    def close(self) -> None:
        """Give back what the block holds."""
        ...


@runtime_checkable
class BlockBackend(LogprobBackend, Protocol):
    """A backend that keeps the attention cache of a block, so that a further token costs one decode step."""

    def open_block(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> PromptBlock:
        """Open a block of the prompts `prefix + suffix`.

        Args:
            prefix: public token ids that all prompts begin with, evaluated once.
            suffixes: what follows, one a prompt; private unless `public`.
            tokens: how many next tokens will be asked for at most (the block's length R), at least 1.
            public: whether the suffixes are public, so that the schedule of the computation may
                depend on how many there are, and one that begins with another may go on from it.
        """
        ...


class BlockOpener(Protocol):
    """The type of `BlockBackend.open_block`."""

    def __call__(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> PromptBlock:
        """See `BlockBackend.open_block`."""
        ...


class ReplayedBlock:
    """The block of a backend that keeps no cache: every token asks again with the longer prompts."""

    def __init__(
        self, backend: LogprobBackend, prefix: Tokens, suffixes: Sequence[Tokens], *, public: bool
    ) -> None:
        self._backend = backend
        self._prompts = [[*prefix, *suffix] for suffix in suffixes]
        self._public = public

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Ask the backend with the prompts as they now stand.

        A private prompt that makes the backend raise is a row of NaN, by itself: an error would tell
        that it was drawn. A `BackendError` is the server's own failure and ends the demonstration.
        """
        if not self._prompts:  # what a backend makes of nothing at all must not tell that a draw was empty
            return self._no_answers(support)
        try:
            return self._backend.next_token_logprobs(self._prompts, support)
        except BaseException as error:
            if self._public or isinstance(error, BackendError) or not is_failure(error):
                raise
            return self._one_by_one(support)

    def append(self, token: int) -> None:
        """Continue every prompt with a released token."""
        self.append_each([token] * len(self._prompts))

    def append_each(self, tokens: Tokens) -> None:
        """Continue each prompt with a token of its own."""
        for prompt, token in zip(self._prompts, tokens, strict=True):
            prompt.append(token)

    def close(self) -> None:
        """Forget the prompts."""
        self._prompts = []

    def _no_answers(self, support: Tokens | None) -> Logprobs:
        width = self._backend.vocabulary_size if support is None else len(support)
        return np.full((len(self._prompts), width), np.nan, dtype=np.float32)

    def _one_by_one(self, support: Tokens | None) -> Logprobs:
        rows = self._no_answers(support)
        for row, prompt in zip(rows, self._prompts, strict=True):
            try:
                answer = self._backend.next_token_logprobs([prompt], support)[0]
                with np.errstate(all="ignore"):
                    row[:] = answer
            except BaseException as error:  # whatever it says may quote the prompt
                if isinstance(error, BackendError) or not is_failure(error):
                    raise
        return rows


def open_block(
    backend: LogprobBackend, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
) -> PromptBlock:
    """`backend.open_block` where the backend has it, else a block that asks again for every token."""
    # Not isinstance: checking a protocol's members one by one costs more than a scripted model.
    opener: BlockOpener | None = getattr(backend, "open_block", None)
    if opener is None:
        return ReplayedBlock(backend, prefix, suffixes, public=public)
    return opener(prefix, suffixes, tokens, public=public)


@contextmanager
def closing_block(
    backend: LogprobBackend, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
) -> Iterator[PromptBlock]:
    """`open_block`, closed in the end, whose failures say nothing of what was in it.

    Raises:
        BackendError: the backend raised what is no error of this package.
    """
    with failing_as_backend(), closing(open_block(backend, prefix, suffixes, tokens, public=public)) as block:
        yield block


@contextmanager
def failing_as_backend() -> Iterator[None]:
    """Let no error but those of this package out of a backend's work.

    Raises:
        BackendError: it raised another.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, DPFewShotError) or not is_failure(error):
            raise
        # its text may quote a prompt
        raise BackendError(f"the backend failed with {type(error).__name__}") from None
