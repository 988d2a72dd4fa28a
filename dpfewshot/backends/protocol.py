"""The backend protocol: next-token log-probabilities, each a function of its own prompt alone.

Derive a backend of your own from `LogprobBackend`: it needs three methods and three attributes. All other
members have defaults.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import BackendError, BackendNotBatchInvariant, DPFewShotError
from dpfewshot.runtime.redaction import is_failure

Known = TypeVar("Known")

Tokens = Sequence[int]
"""Token ids of one prompt."""

Logprobs = NDArray[np.float32]
"""Natural-log probabilities, shape (prompts, tokens of the support), normalised over the whole vocabulary."""


NO_PROBABILITY: Final = (
    "the model answers the prompt without records with no probability at all: check it with "
    "`dpfewshot doctor`"
)


class LogprobBackend(ABC):
    """A language model that answers with next-token log-probabilities.

    Token ids are 0 to V-1. Attributes may be properties. The first three must be set, the others have
    defaults. All but the answers is public.

    Attributes:
        vocabulary_size: V, at least 1.
        end_token_ids: the tokens that end a text.
        batch_invariant: whether a prompt's answer is a function of that prompt and of public state alone. The
            privacy proof needs it (docs/guarantee.md): if answers depended on the rest of the batch, one
            record would change every vector.
        context_tokens: the longest prompt, with the tokens that a block adds to it; None without a limit.
        kept_prompts: how many prompts of a block keep their state, so that a further token costs one step;
            None for any number. With 0 every token evaluates the whole prompt.
        weights: the form of the model's weights, on which answers depend; None if there is one form.
        model_identity: "sha256:..." of the file of weights, "commit:..." of a model hub, or "claimed:..." as
            a server calls its model; None if unknown. Printed with every demonstration.
        tokenizer_identity: "sha256:..."; None if unknown. Printed with every demonstration.
    """

    vocabulary_size: int
    end_token_ids: frozenset[int]
    batch_invariant: bool = False
    context_tokens: int | None = None
    kept_prompts: int | None = 0
    weights: str | None = None
    model_identity: str | None = None
    tokenizer_identity: str | None = None

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`. Special tokens in the text are never parsed as special.

        Raises:
            BackendError: its message is shown, so it must not quote the text, which may be a record.
        """

    @abstractmethod
    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`, with U+FFFD for bytes that are no character."""

    def token_texts(self) -> list[str]:
        """Return the text of each token alone, in order. Found once: it takes a second for 150,000."""
        return self.known("texts", lambda: [self.detokenize([each]) for each in range(self.vocabulary_size)])

    @abstractmethod
    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token.

        Args:
            prompts: the token ids of each prompt.
            support: the token ids to answer for, in this order; None for the whole vocabulary.

        Returns:
            float32 of shape (len(prompts), len(support) or V), in nats, normalised over the whole
            vocabulary before it is restricted to the support. -inf stands for a value the backend does not
            know. A prompt that cannot be evaluated, for example because it is too long, gives a row of NaN,
            by a rule of that prompt alone.

        Raises:
            BackendError: the model or its server failed, for a cause other than one prompt's text. The
                message is shown, so it must quote no prompt.
        """

    def open_block(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> PromptBlock:
        """Open a block of the prompts `prefix + suffix`; by default, one that keeps no state.

        Args:
            prefix: public token ids, evaluated once.
            suffixes: the rest of each prompt; private unless `public`.
            tokens: the most next tokens that will be asked for (the draw's length R), at least 1.
            public: whether the schedule of the computation may depend on the number of suffixes, and a
                prompt that begins with another may continue it.
        """
        del tokens
        return ReplayedBlock(self, prefix, suffixes, public=public)

    def prepare(self, tokens: int) -> None:  # noqa: B027 - most backends need nothing
        """Do what private blocks of so many tokens need and what may fail: nothing is charged yet.

        Raises:
            BackendError: there is no room for them.
        """

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return the text of a conversation in the model's own chat template, up to its next answer.

        Args:
            contents: of the turns: the user's first, then the model's and the user's by turns; public.

        Returns:
            Special tokens are spelled out. The token that the backend puts in front of every prompt is left
            out.

        Raises:
            BackendError: the model has no template, or the template refuses the conversation.
        """
        del contents
        raise BackendError(f"{type(self).__name__} gives no chat template: use chat=False")

    def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text: special tokens are parsed, and nothing is added."""
        del text
        raise BackendError(f"{type(self).__name__} gives no chat template: use chat=False")

    def known(self, fact: Hashable, find: Callable[[], Known]) -> Known:
        """Return what `find` returns: a public fact about the model, found once."""
        facts: dict[Hashable, Known] = vars(self).setdefault("_known", {})
        if fact not in facts:
            facts[fact] = find()
        return facts[fact]

    def describe(self) -> str:
        """Return what the backend is, in one line for the operator."""
        return type(self).__name__

    def close(self) -> None:  # noqa: B027 - most backends hold nothing
        """Free memory and connections. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def states_invariance(backend: LogprobBackend) -> bool:
    """Whether the backend states batch invariance: with a boolean, Python's or NumPy's, and nothing else."""
    stated: object = backend.batch_invariant
    return isinstance(stated, (bool, np.bool_)) and bool(stated)


def check_invariance(backend: LogprobBackend, *, allowed: bool) -> None:
    """Refuse what is no `LogprobBackend`, or does not state batch invariance, unless that is `allowed`."""
    if not isinstance(backend, LogprobBackend):
        raise not_a_backend("the backend", backend)
    if not states_invariance(backend) and not allowed:
        raise BackendNotBatchInvariant(
            "the backend does not state that a prompt's answer is independent of its neighbours, which the "
            "guarantee needs; allow_batch_variance=True accepts it without a guarantee (certified=False)"
        )


def not_a_backend(name: str, found: object) -> BackendError:
    """Return the error for what is not a `LogprobBackend`; its message calls it `name`."""
    return BackendError(
        f"{name} is of {type(found).__name__}, which is not a LogprobBackend: pass one, such as "
        'dpfewshot.backends.LlamaCpp("qwen-1.5b"), or derive yours from dpfewshot.backends.LogprobBackend'
    )


class PromptBlock(Protocol):
    """Prompts of one draw of records, all continued by the same released tokens."""

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Answer for the prompts in their current state; see `LogprobBackend.next_token_logprobs`."""

    def append(self, token: int) -> None:
        """Continue every prompt with a released token."""

    def append_each(self, tokens: Tokens) -> None:
        """Continue each prompt with its own token: for public prompts, as when labels are extracted."""

    def rewind(self) -> None:
        """Take back what continues the prompts, so that they are as they were opened."""

    def keep(self, places: Sequence[int]) -> None:
        """Go on with the prompts at these places, ascending, and drop the others: for public prompts."""

    def close(self) -> None:
        """Free the block's memory."""


class ReplayedBlock:
    """The block of a backend without a cache: it asks again with the longer prompts for every token."""

    def __init__(
        self, backend: LogprobBackend, prefix: Tokens, suffixes: Sequence[Tokens], *, public: bool
    ) -> None:
        self._backend = backend
        self._prompts = [[*prefix, *suffix] for suffix in suffixes]
        self._lengths = [*map(len, self._prompts)]
        self._public = public

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Ask the backend with the prompts in their current state.

        A private prompt that makes the backend raise gives a row of NaN for itself alone: an error would
        reveal that it was drawn. A `BackendError` is the server's own failure and ends the demonstration.
        """
        width = self._backend.vocabulary_size if support is None else len(support)
        rows = np.full((len(self._prompts), width), np.nan, dtype=np.float32)
        if not self._prompts:  # how a backend treats an empty call must not reveal an empty draw
            return rows
        try:
            return self._backend.next_token_logprobs(self._prompts, support)
        except BaseException as error:
            if self._public or isinstance(error, BackendError) or not is_failure(error):
                raise
        for row, prompt in zip(rows, self._prompts, strict=True):
            try:
                answer = self._backend.next_token_logprobs([prompt], support)[0]
                with np.errstate(all="ignore"):
                    row[:] = answer
            except BaseException as error:  # its message may quote the prompt
                if isinstance(error, BackendError) or not is_failure(error):
                    raise
        return rows

    def append(self, token: int) -> None:
        """Continue every prompt with a released token."""
        self.append_each([token] * len(self._prompts))

    def append_each(self, tokens: Tokens) -> None:
        """Continue each prompt with its own token."""
        for prompt, token in zip(self._prompts, tokens, strict=True):
            prompt.append(token)

    def rewind(self) -> None:
        """Go back to the prompts as they were opened."""
        self._prompts = [prompt[:length] for prompt, length in zip(self._prompts, self._lengths, strict=True)]

    def keep(self, places: Sequence[int]) -> None:
        """Go on with some of the prompts."""
        self._prompts = [self._prompts[place] for place in places]
        self._lengths = [self._lengths[place] for place in places]

    def close(self) -> None:
        """Drop the prompts."""
        self._prompts, self._lengths = [], []


@contextmanager
def closing_block(
    backend: LogprobBackend, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
) -> Iterator[PromptBlock]:
    """Open a block, and close it on exit. Errors reveal nothing of its prompts."""
    with failing_as_backend(), closing(backend.open_block(prefix, suffixes, tokens, public=public)) as block:
        yield block


@contextmanager
def failing_as_backend() -> Iterator[None]:
    """Let only this package's errors out of a backend's work: any other becomes a `BackendError`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, DPFewShotError) or not is_failure(error):
            raise
        # The message may quote a prompt.
        raise BackendError(f"the backend failed with {type(error).__name__}") from None


def answered(block: PromptBlock, rows: int, support: Tokens | None) -> Logprobs:
    """Log-probabilities of the block's prompts: float32, contiguous, of the right shape."""
    answer = block.next_token_logprobs(support)
    with np.errstate(all="ignore"):  # a warning would reveal that a record's value exceeds float32
        logprobs = np.ascontiguousarray(answer, dtype=np.float32)
    columns = logprobs.shape[-1] if support is None else len(support)
    if logprobs.shape != (rows, columns):
        raise BackendError("the backend returned an array of the wrong shape")
    return logprobs
