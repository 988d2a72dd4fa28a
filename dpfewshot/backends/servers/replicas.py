"""Replicas of one server: one model at several addresses, and a rule that names each prompt's replica."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import numpy as np

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.client import server_address
from dpfewshot.backends.servers.connection import Connection
from dpfewshot.backends.servers.gate import Gate
from dpfewshot.backends.servers.worker import Worker
from dpfewshot.errors import BackendError

RULE = b"dpfewshot replica of a prompt, 1"
"""The public constant that the hash of a prompt begins with."""

Result = TypeVar("Result")


def replica_of(prompt: Tokens, count: int) -> int:
    """Return the number of a prompt's replica, in 0 to `count` - 1: a function of its own tokens.

    It is SHA-256 of `RULE` and the token ids, 8 bytes each, modulo `count`.
    """
    digest = hashlib.sha256(RULE + np.asarray(prompt, dtype="<u8").tobytes()).digest()
    return int.from_bytes(digest) % count


class Replicas:
    """Blocking calls to one process's connections, for `OpenAICompatible`.

    Every call for rows ends with a public prompt to every replica: a dead replica fails the call whether or
    not one of the private prompts was there. Of several failures, the first in the order of addresses is
    raised, so the error depends on the replicas alone.

    Args:
        base_urls: the addresses, at least one, each once.
        concurrency: the most requests in flight to each replica.
        options: of each `Connection`.

    Raises:
        BackendError: an address is invalid, or is given twice.
    """

    def __init__(self, base_urls: Sequence[str], *, concurrency: int, **options: Any) -> None:
        _check_addresses(base_urls)
        gates: list[Gate] = []
        self.connections = [Connection(url, gate=Gate(concurrency, gates), **options) for url in base_urls]
        self._worker = Worker()
        self._worker.silence()

    @property
    def first(self) -> Connection:
        """The replica that tokenises, and that the others are compared with."""
        return self.connections[0]

    @property
    def hosts(self) -> str:
        """The hosts, for messages."""
        return ", ".join(connection.host for connection in self.connections)

    def open(self, canary: str) -> None:
        """Connect to every replica, and use a public text as the canary.

        Raises:
            BackendError: a replica does not answer, cannot serve as a backend, or differs from the first.
        """
        self.run(self._open(canary))
        self._worker.silence()  # the first request imports further parts of the client

    async def _open(self, canary: str) -> None:
        for connection in self.connections:  # one by one: replicas may share a machine
            await self._named(connection, connection.open(canary))
            self._check_facts(connection)

    def _check_facts(self, connection: Connection) -> None:
        expected = self.first.facts()
        for name, value in connection.facts().items():
            if value != expected[name]:
                raise self.different(connection, name)

    def different(self, connection: Connection, name: str) -> BackendError:
        """Return the error for a replica that differs from the first."""
        return BackendError(
            f"the replica at {connection.host} differs from the one at {self.first.host} in its {name}: "
            "serve one model with the same settings at every address"
        )

    async def _named(self, connection: Connection, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine whose errors may not say which of several replicas they are about."""
        try:
            return await work
        except BackendError as error:
            told = self.named(connection, error)
        raise told

    def named(self, connection: Connection, error: BackendError) -> BackendError:
        """Return a connection's error with its host, if there are several replicas."""
        if len(self.connections) == 1:
            return error
        return BackendError(f"the replica at {connection.host}: {error}", retryable=error.retryable)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text; see `Connection.tokenize`."""
        return self.run(self.first.tokenize(text))

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of tokens; see `Dialect.detokenize`."""
        known = self.first.dialect.known_text(tokens)
        return self.run(self.first.detokenize(tokens)) if known is None else known

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation of public texts in the model's template; see `ChatBackend`."""
        return self.run(self.first.chat_text(contents))

    def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text; see `ChatBackend`."""
        return self.run(self.first.chat_tokens(text))

    def rows(self, prompts: Sequence[Tokens], support: Tokens | None) -> Logprobs:
        """Return rows of log-probabilities, each from its prompt's replica; see `Asker.rows`.

        Raises:
            BackendError: a replica is at fault, or its model changed.
        """
        return self.run(self._rows(prompts, support))

    async def _rows(self, prompts: Sequence[Tokens], support: Tokens | None) -> Logprobs:
        places: list[list[int]] = [[] for _ in self.connections]
        for place, prompt in enumerate(prompts):
            places[replica_of(prompt, len(places))].append(place)
        outcomes = await asyncio.gather(
            *(
                _outcome(connection.rows([prompts[place] for place in own], support))
                for connection, own in zip(self.connections, places, strict=True)
            )
        )
        failures = [outcome for outcome in await self._looked_at(outcomes, support) if outcome is not None]
        if failures:
            raise failures[0]
        found = [outcome for outcome in outcomes if not isinstance(outcome, BackendError)]
        rows = np.empty((len(prompts), found[0].shape[1]), dtype=np.float32)
        for own, own_rows in zip(places, found, strict=True):
            rows[own] = own_rows
        return rows

    async def _looked_at(
        self, outcomes: Sequence[Logprobs | BackendError], support: Tokens | None
    ) -> list[BackendError | None]:
        """Return each replica's failure: of its rows, or of a public prompt after all rows; None if sound."""

        async def failure(connection: Connection, outcome: Logprobs | BackendError) -> BackendError | None:
            if isinstance(outcome, BackendError):
                return outcome
            return await _outcome(connection.look_at_canary(support)) if len(outcomes) > 1 else None

        return await asyncio.gather(*map(failure, self.connections, outcomes))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of a connection, and wait for its result."""
        try:
            return self._worker.run(work)
        except CancelledError:
            raise BackendError("this OpenAICompatible was closed during the call") from None

    def close(self) -> None:
        """Close the connections and stop the thread."""
        self._worker.close(self._close())

    async def _close(self) -> None:
        for connection in self.connections:
            await connection.close()


async def _outcome(work: Coroutine[Any, Any, Result]) -> Result | BackendError:
    """Return a coroutine's result, or its error."""
    try:
        return await work
    except BackendError as error:
        return error


def _check_addresses(base_urls: Sequence[str]) -> None:
    if not base_urls or not all(isinstance(url, str) for url in base_urls):
        raise BackendError("base_url is an address, or a list of at least one address")
    seen = set()
    for url in base_urls:
        parts = server_address(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        path = re.sub("/+", "/", parts.path).rstrip("/").removesuffix("/v1")
        address = (parts.hostname, port, path)
        if address in seen:
            raise BackendError(
                f"base_url holds {parts.netloc} twice: a server is one replica, whose load one gate controls"
            )
        seen.add(address)
