"""The base of dialects: how to ask one kind of server for its vocabulary, tokens and log-probabilities."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.client import Client, Malformed
from dpfewshot.errors import BackendError

NEGLIGIBLE = -9000.0
"""Servers write minus infinity in JSON as a log-probability below this."""

WHOLE, CHOSEN = "log-probabilities of the server's choice", "log-probabilities of chosen ids"
"""The kinds of requests for log-probabilities. Requests in flight together are of one kind."""

EXCESS = 1e-3
"""How far rounding may put a log-probability above 0, in nats."""

MORE_THAN_ANY = 1 << 24
"""More tokens than any vocabulary has."""


class Dialect(ABC):
    """One kind of server.

    Attributes, set by `connect`:
        vocabulary_size: V.
        end_token_ids: the tokens that end a text.
        context_tokens: the longest prompt with the token that follows it; None if the server does not say.
        bos: the token that the model wants in front of every prompt; None without one.
        picks: whether supports are requested by token id: the dialect can, and the server does so correctly.
        slots: how many prompts the server computes at once; None if it does not say.
    """

    name: ClassVar[str]
    advice: ClassVar[str]
    """How to start the server so that answers are batch-invariant."""

    distorted: ClassVar[Mapping[str, Any]]
    """Sampling settings that must not change a log-probability."""

    prompts_per_request: ClassVar[int] = 1

    vocabulary_size: int
    end_token_ids: frozenset[int]
    context_tokens: int | None = None
    bos: int | None = None
    picks: bool = False
    slots: int | None = None

    def __init__(self, client: Client, model: str) -> None:
        self.client = client
        self.model = model

    @abstractmethod
    async def connect(self) -> None:
        """Request all public facts about the model; a `BackendError` says why the server is of no use."""

    def check_numbers(self) -> None:
        """Refuse sizes that are not positive integers."""
        sizes = {"vocabulary": self.vocabulary_size, "context": self.context_tokens, "slots": self.slots}
        for name, number in sizes.items():
            if number is not None and not (type(number) is int and number > 0):
                raise BackendError(f"{self.name} reports a size of its {name} that is not a positive integer")

    @abstractmethod
    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a private text; special tokens in it stay text."""

    @abstractmethod
    async def detokenize(self, tokens: Tokens) -> str:
        """Return the text of tokens."""

    @abstractmethod
    async def token_texts(self) -> list[str]:
        """Return the text of each token alone, in order."""

    async def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation in the model's template, if the server gives it; see `LogprobBackend`."""
        del contents
        raise BackendError(
            f"{self.name} gives no chat template here: use chat=False, llama-server, LlamaCpp or HuggingFace"
        )

    async def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text, with special tokens parsed; only where `chat_text` is."""
        raise NotImplementedError

    @abstractmethod
    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return the URL and body of a request for each prompt's next token, with these sampling settings."""

    @abstractmethod
    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """Return one row per prompt, over the support or the vocabulary, or raise `Malformed`."""

    def identity_of(self, answer: Any) -> tuple[Any, ...]:
        """Return the model's name and the fingerprint of settings in an answer; a change means another model.

        `row` checks the vocabulary, and the canary the weights.
        """
        return field(answer, "model"), answer.get("system_fingerprint")

    def kind_of(self, support: Tokens | None) -> str:
        """Return the kind of a request: `WHOLE`, or `CHOSEN` where a support's ids are sent."""
        del support
        return WHOLE

    def row(self, pairs: Iterable[tuple[int, float | None]], support: Tokens | None) -> Logprobs:
        """Return a row made of (token id, log-probability) pairs.

        A missing or invalid value (NaN, null, or above 0) makes the whole row NaN.
        """
        values = np.full(self.vocabulary_size, np.nan, dtype=np.float32)
        found = dict(pairs)  # as one array: an element at a time takes a tenth of a second of 49,152
        if not all(type(token) is int and 0 <= token < self.vocabulary_size for token in found):
            raise Malformed
        logprobs = [np.nan if logprob is None else logprob for logprob in found.values()]
        with np.errstate(all="ignore"):  # a warning would reveal a value beyond float32
            values[list(found)] = np.array(logprobs, dtype=np.float32)
        row = values if support is None else values[np.asarray(support, dtype=np.intp)]
        row[row < NEGLIGIBLE] = -np.inf
        if np.isnan(row).any() or (row > EXCESS).any():
            row[:] = np.nan
        return row


def spread(size: int) -> list[int]:
    """Return up to 100 token ids spread evenly over a vocabulary of this size."""
    return [int(token) for token in np.unique(np.linspace(0, size - 1, 100, dtype=int))]


def field(answer: Any, *path: str | int) -> Any:
    """Return the value at a path of keys and indices in a JSON answer, or raise `Malformed`."""
    try:
        for key in path:
            answer = answer[key]
    except (KeyError, IndexError, TypeError):
        raise Malformed from None
    return answer


def only(steps: Any) -> Any:
    """Return the one entry of a list, or raise `Malformed`: an answer holds one predicted token."""
    if not isinstance(steps, list) or len(steps) != 1:
        raise Malformed
    return steps[0]


def token_ids(answer: Any) -> list[int]:
    """Return the list of token ids in an answer's field "tokens", or raise `Malformed`."""
    tokens = field(answer, "tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise Malformed
    return tokens


async def gather(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Return results in order; the first failure cancels the rest."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
