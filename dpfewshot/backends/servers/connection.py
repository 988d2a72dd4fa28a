"""One process's connection to a server: a thread whose event loop runs transport, dialect and asker."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.asker import Asker
from dpfewshot.backends.servers.detection import detect, dialect_named
from dpfewshot.backends.servers.dialect import Dialect
from dpfewshot.backends.servers.faults import Fault, Overloaded, error_of, error_of_load
from dpfewshot.backends.servers.transport import Transport
from dpfewshot.backends.servers.worker import Worker
from dpfewshot.errors import BackendError, DPFewShotError

Result = TypeVar("Result")


class Connection:
    """Blocking calls to one server, for `OpenAICompatible`.

    Args:
        base_url, api_key, concurrency, timeout, proxy, ca_bundle: see `Transport`.
        model, allow_truncated: see `Dialect`.
        dialect: the dialect's name, or "auto".
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str | None,
        dialect: str,
        concurrency: int,
        timeout: float,
        proxy: str | None,
        ca_bundle: str | None,
        allow_truncated: bool,
    ) -> None:
        self._kind = None if dialect == "auto" else dialect_named(dialect)
        self._model = model
        self._allow_truncated = allow_truncated
        self._transport = Transport(
            base_url, api_key, concurrency=concurrency, timeout=timeout, proxy=proxy, ca_bundle=ca_bundle
        )
        self.host = self._transport.host
        self._worker = Worker()
        self._worker.silence()

    def open(self, canary: str) -> None:
        """Find the dialect, connect, and use a public text as the canary.

        Raises:
            BackendError: the server does not answer, or cannot serve as a backend.
        """
        self._public = canary
        self._run(self._open(canary))

    async def _open(self, canary: str) -> None:
        kind = self._kind or await detect(self._transport)
        self.dialect: Dialect = kind(self._transport, self._model, allow_truncated=self._allow_truncated)
        await self.dialect.connect()
        self.dialect.check_numbers()
        self._transport.limit_to(self.dialect.slots)
        tokens = await self.dialect.tokenize(canary)
        self._asker = Asker(self._transport, self.dialect, f"{self.dialect.name} at {self.host}", tokens)
        await self._asker.look_at_canary()
        self._worker.silence()  # the first request imports further parts of the client

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text; see `Dialect.tokenize`.

        A text without an answer is sent again alone. It is at fault if a public text gets an answer.

        Raises:
            BackendError: retryable if the server is gone, not retryable if the text is at fault.
        """
        return self._run(self._tokens(text))

    async def _tokens(self, text: str) -> list[int]:
        with suppress(Fault):
            return await self.dialect.tokenize(text)
        async with self._transport.alone():
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
            async with self._transport.alone(patient=True):
                await self.dialect.tokenize(self._public)
        except Fault as fault:
            error = error_of(fault, f"the server at {self.host}")
            raise BackendError(str(error), retryable=True) from None  # no private text caused it

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of tokens; see `Dialect.detokenize`."""
        known = self.dialect.known_text(tokens)
        return self._run(self.dialect.detokenize(tokens)) if known is None else known

    def rows(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> Logprobs:
        """Return rows of log-probabilities; see `Asker.rows`."""
        return self._run(self._asker.rows(prompts, support, settings))

    @property
    def concurrency(self) -> int:
        """The most requests in flight, no more than the server computes at once."""
        return self._transport.concurrency

    def remember_bits(self, *, exact: bool) -> None:
        """Set whether the canary's answer must stay the same to the bit."""
        self._asker.exact = exact

    def close(self) -> None:
        """Close the connections and stop the thread."""
        self._worker.close(self._transport.close())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, and turn faults and cancellation into a `BackendError`."""
        try:
            return self._worker.run(self._understood(work))
        except CancelledError:
            raise BackendError("this OpenAICompatible was closed during the call") from None
        except Fault as fault:
            raise error_of(fault, f"the server at {self.host}") from None

    async def _understood(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on answers whose fields may have any type, such as a list in place of a name.

        Raises:
            BackendError: the answers have an undocumented form.
        """
        try:
            return await work
        except (DPFewShotError, Fault):
            raise
        except Exception as error:  # noqa: BLE001 - the message may quote the server
            failed = type(error).__name__
        raise BackendError(f"the server at {self.host} answers in an undocumented form ({failed})")
