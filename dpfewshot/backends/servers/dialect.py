"""What a server's dialect is: how its vocabulary, its tokens and its log-probabilities are asked for."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.faults import Malformed
from dpfewshot.backends.servers.transport import Transport
from dpfewshot.errors import BackendError

NEGLIGIBLE = -9000.0
"""Log-probabilities below are a server's way to write minus infinity in JSON."""

WHOLE, CHOSEN = "log-probabilities of the server's choice", "log-probabilities of chosen ids"
"""The kinds of requests for log-probabilities."""

EXCESS = 1e-3
"""How far a log-probability may be above 0, in nats: rounding."""


class Dialect(ABC):
    """One kind of server.

    Args:
        transport: the server.
        model: the model's name there.
        allow_truncated: whether a few log-probabilities a prompt are enough.

    Attributes, which `connect` finds out:
        vocabulary_size: V.
        end_token_ids: the tokens with which the model ends a text.
        context_tokens: the longest prompt with the token that follows it; None if the server does not tell.
        bos: a token that the model wants in front of every prompt; None if it wants none.
        whole: whether the server tells the log-probabilities of the whole vocabulary.
        picks: whether a support is asked for by its ids, where the dialect can and the server does it right.
        slots: how many prompts the server computes at once; None if it does not tell.
        identity: what every answer says of the model; a change means another model.
    """

    name: ClassVar[str]
    advice: ClassVar[str]
    """How to start the server so that answers are batch-invariant."""

    distorted: ClassVar[Mapping[str, Any]]
    """Sampling settings that must not move a log-probability."""

    prompts_per_request: ClassVar[int] = 1

    def __init__(self, transport: Transport, model: str, *, allow_truncated: bool) -> None:
        self._transport = transport
        self.model = model
        self.allow_truncated = allow_truncated
        self.vocabulary_size = 0
        self.end_token_ids: frozenset[int] = frozenset()
        self.context_tokens: int | None = None
        self.bos: int | None = None
        self.whole = True
        self.picks = False
        self.slots: int | None = None
        self.identity: tuple[Any, ...] | None = None

    @abstractmethod
    async def connect(self) -> None:
        """Ask for everything that is public.

        Raises:
            BackendError: the server cannot serve as a backend; says why and what to do.
        """

    def check_numbers(self) -> None:
        """Refuse a server whose numbers are none.

        Raises:
            BackendError: one is no positive integer.
        """
        told = {"vocabulary": self.vocabulary_size, "context": self.context_tokens, "slots": self.slots}
        for name, number in told.items():
            if number is not None and not (type(number) is int and number > 0):
                raise BackendError(f"{self.name} tells a number of its {name} that is no positive integer")

    @abstractmethod
    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a private text; special tokens in it stay text."""

    @abstractmethod
    def known_text(self, tokens: Tokens) -> str | None:
        """The text of tokens, if no request is needed for it. A whole vocabulary is asked for, one by one."""

    @abstractmethod
    async def detokenize(self, tokens: Tokens) -> str:
        """The text of tokens."""

    @abstractmethod
    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """URL and body that ask for the next token of each prompt, with these sampling settings."""

    @abstractmethod
    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """One row a prompt, over the support or the vocabulary.

        Raises:
            Malformed: the answer does not have the documented form.
        """

    @abstractmethod
    def identity_of(self, answer: Any) -> tuple[Any, ...]:
        """What an answer says of the model."""

    def kind_of(self, support: Tokens | None) -> str:  # noqa: ARG002 - most dialects have one kind
        """Which requests this one may be computed beside: those of its kind alone."""
        return WHOLE

    async def ask(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> tuple[list[Logprobs], tuple[Any, ...]]:
        """One request: a row for each of at most `prompts_per_request` prompts, and the model's identity.

        Raises:
            Fault: see `Transport.post`.
        """
        url, body = self.request(prompts, support, settings or {})

        def read(answer: Any) -> tuple[list[Logprobs], tuple[Any, ...]]:
            return self.read(answer, prompts, support), self.identity_of(answer)

        return await self._transport.post(url, body, read, kind=self.kind_of(support))

    def row(self, pairs: Iterable[tuple[int, float | None]], support: Tokens | None) -> Logprobs:
        """A row from (token id, log-probability) pairs.

        What was asked for and is not there is -inf where the server truncates, else the whole row is NaN;
        so it is where a value is none: NaN, null, or above 0.
        """
        values = np.full(self.vocabulary_size, -np.inf if not self.whole else np.nan, dtype=np.float32)
        for token, logprob in pairs:
            if not 0 <= token < self.vocabulary_size:
                raise Malformed
            with np.errstate(all="ignore"):  # a warning would tell that a value is beyond float32
                values[token] = np.nan if logprob is None else logprob
        row = values if support is None else values[np.asarray(support, dtype=np.intp)]
        row[row < NEGLIGIBLE] = -np.inf
        if np.isnan(row).any() or (row > EXCESS).any():
            row[:] = np.nan
        return row


def spread(size: int, count: int = 100) -> list[int]:
    """Token ids spread evenly over a vocabulary of this size."""
    return [int(token) for token in np.unique(np.linspace(0, size - 1, count, dtype=int))]


def field(answer: Any, *path: str | int) -> Any:
    """What stands at a path of keys and places in a JSON answer.

    Raises:
        Malformed: nothing does.
    """
    try:
        for key in path:
            answer = answer[key]
    except (KeyError, IndexError, TypeError):
        raise Malformed from None
    return answer


def token_ids(answer: Any, *path: str | int) -> list[int]:
    """The list of token ids at a path.

    Raises:
        Malformed: there is none.
    """
    tokens = field(answer, *path)
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise Malformed
    return tokens


def readable(text: str) -> str:
    """The text as UTF-8 can carry it: which text a record holds must not decide whether a call fails."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


async def gather(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Results in order; the first failure cancels the rest."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
