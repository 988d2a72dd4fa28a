"""The connection to one server, in one event loop: transport, dialect and asker."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.asker import Asker
from dpfewshot.backends.servers.detection import detect, dialect_named
from dpfewshot.backends.servers.dialect import Dialect
from dpfewshot.backends.servers.faults import Fault, Overloaded, error_of, error_of_load
from dpfewshot.backends.servers.gate import Gate
from dpfewshot.backends.servers.transport import Transport
from dpfewshot.errors import BackendError, DPFewShotError

Result = TypeVar("Result")


class Connection:
    """One server, for `Replicas`. Every coroutine raises faults as `BackendError`.

    Args:
        base_url, timeout, proxy, ca_bundle, api_key: see `Transport`.
        model, allow_truncated: see `Dialect`.
        dialect: the dialect's name, or "auto".
        gate: admits the requests to this server.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None,
        dialect: str,
        gate: Gate,
        timeout: float,
        proxy: str | None,
        ca_bundle: str | None,
        allow_truncated: bool,
    ) -> None:
        self._kind = None if dialect == "auto" else dialect_named(dialect)
        self._model = model
        self._allow_truncated = allow_truncated
        self._transport = Transport(
            base_url, api_key, gate=gate, timeout=timeout, proxy=proxy, ca_bundle=ca_bundle
        )
        self.host = self._transport.host

    async def open(self, canary: str) -> None:
        """Find the dialect, connect, and use a public text as the canary.

        Raises:
            BackendError: the server does not answer, or cannot serve as a backend.
        """
        await self._understood(self._open(canary))

    async def _open(self, canary: str) -> None:
        self._public = canary
        kind = self._kind or await detect(self._transport)
        self.dialect: Dialect = kind(self._transport, self._model, allow_truncated=self._allow_truncated)
        await self.dialect.connect()
        self.dialect.check_numbers()
        self._transport.limit_to(self.dialect.slots)
        self._tokens = await self.dialect.tokenize(canary)
        self._asker = Asker(
            self._transport, self.dialect, f"{self.dialect.name} at {self.host}", self._tokens
        )
        await self._asker.look_at_canary()

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text; see `Dialect.tokenize`.

        A text without an answer is sent again alone. It is at fault if a public text gets an answer.

        Raises:
            BackendError: retryable if the server is gone, not retryable if the text is at fault.
        """
        return await self._understood(self._tokens_of(text))

    async def _tokens_of(self, text: str) -> list[int]:
        with suppress(Fault):
            return await self.dialect.tokenize(text)
        async with self._transport.alone(everywhere=True):
            await self._look_at_text()
            try:
                return await self.dialect.tokenize(text)
            except Overloaded:
                raise error_of_load(f"the server at {self.host}") from None
            except Fault:
                await self._look_at_text()
        raise BackendError(f"the server at {self.host} does not tokenise a text")

    async def _look_at_text(self) -> None:
        """Tokenise a public text, once the server has finished abandoned requests."""
        try:
            async with self._transport.alone(everywhere=True, patient=True):
                await self.dialect.tokenize(self._public)
        except Fault as fault:
            error = error_of(fault, f"the server at {self.host}")
            raise BackendError(str(error), retryable=True) from None  # no private text caused it

    async def detokenize(self, tokens: Tokens) -> str:
        """Return the text of tokens; see `Dialect.detokenize`."""
        return await self._understood(self.dialect.detokenize(tokens))

    async def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation of public texts in the model's template; see `ChatBackend`."""
        text = await self._understood(self.dialect.chat_text(contents))
        bos = self.dialect.bos
        return text if bos is None else text.removeprefix(await self.detokenize([bos]))

    async def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text; see `ChatBackend`."""
        return await self._understood(self.dialect.chat_tokens(text))

    async def rows(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> Logprobs:
        """Return rows of log-probabilities; see `Asker.rows`."""
        return await self._understood(self._asker.rows(prompts, support, settings))

    async def look_at_canary(self, support: Tokens | None) -> None:
        """Ask the canary and compare; see `Asker.look_at_canary`."""
        await self._understood(self._asker.look_at_canary(support))

    @property
    def concurrency(self) -> int:
        """The most requests in flight, no more than the server computes at once."""
        return self._transport.concurrency

    def facts(self) -> dict[str, object]:
        """Return what the replicas of a server have in common, by name. All of it is public."""
        dialect = self.dialect
        return {
            "kind of server": dialect.name,
            "model": dialect.identity,
            "vocabulary": dialect.vocabulary_size,
            "tokenizer": (self._tokens, dialect.bos, dialect.end_token_ids),
            "context": dialect.context_tokens,
            "number of log-probabilities": dialect.whole,
        }

    def remember_bits(self, *, exact: bool) -> None:
        """Set whether the canary's answer must stay the same to the bit."""
        self._asker.exact = exact

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _understood(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on answers whose fields may have any type, such as a list in place of a name.

        Raises:
            BackendError: the server is at fault, or its answers have an undocumented form.
        """
        try:
            return await work
        except DPFewShotError:
            raise
        except Fault as fault:
            raise error_of(fault, f"the server at {self.host}") from None
        except Exception as error:  # noqa: BLE001 - the message may quote the server
            failed = type(error).__name__
        raise BackendError(f"the server at {self.host} answers in an undocumented form ({failed})")
