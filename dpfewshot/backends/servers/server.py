"""One server: its dialect, and requests for rows of log-probabilities and for tokens.

A row is independent of the other prompts: a prompt at fault gives a row of NaN, a changed model an error.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np

from dpfewshot.backends.conformance import SAMPLE_PREFIX
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.client import Client, Fault, Overloaded, Refused
from dpfewshot.backends.servers.dialect import CHOSEN, Dialect, gather, spread
from dpfewshot.backends.servers.llama_server import LlamaServer
from dpfewshot.backends.servers.vllm import VLLM
from dpfewshot.errors import BackendError, DPFewShotError

CANARY_SECONDS = 60.0
"""How long the canary's last answer counts. It depends on time alone, never on what was asked meanwhile."""

DRIFT: Final = 0.1
"""The most that a probability of the canary may change on a server that is not batch-invariant."""

DIALECTS: Final[Mapping[str, type[Dialect]]] = {dialect.name: dialect for dialect in (LlamaServer, VLLM)}
"""Every dialect by name."""

OWNERS: Final[Mapping[str, type[Dialect]]] = {"llamacpp": LlamaServer, "vllm": VLLM}
"""Dialects by the owner of a model in `/v1/models`."""

Result = TypeVar("Result")


class Server:
    """A connected server, used in one event loop, each of its coroutines through `understood`.

    A prompt without an answer is at fault itself, or was held up by others: a slow server, a full queue and
    a quota look the same. So it is asked again alone, with no other request in flight to any replica, which
    may share a machine or a quota with this one:

        1. The canary, a public prompt whose answer is remembered, is retried until the server has finished
           abandoned requests. If it gets no answer, the server is gone.
        2. The prompt is asked. An answer is its row.
        3. The canary is asked again, unless the server refused the prompt. If the canary gets an answer, the
           prompt is at fault and gives a row of NaN.

    Everything else fails the draw, with an error about public requests alone. The canary is also asked each
    minute, always alone.

    Args:
        dialect: the dialect's name, or "auto".

    Attributes:
        name: the server in messages.
        dialect: the connected dialect.
        identity: what every answer says about the model; None before the first.
        exact: whether the canary's answer must stay the same to the bit.
    """

    def __init__(self, client: Client, model: str, dialect: str) -> None:
        if dialect != "auto" and dialect not in DIALECTS:
            raise BackendError(
                f"unknown dialect {dialect!r}; choose 'auto', {', '.join(map(repr, DIALECTS))}"
            )
        self.client = client
        self.name = f"the server at {client.host}"
        self.identity: tuple[Any, ...] | None = None
        self.exact = False
        self._model = model
        self._dialect_name = dialect
        self._expected: dict[str, Logprobs] = {}
        self._asked: dict[str, float] = {}

    async def understood(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await work of this server, and raise nothing but this package's errors.

        The fields of a server's answers may have any type, such as a list in place of a name.
        """
        try:
            return await work
        except DPFewShotError:
            raise
        except Fault as fault:
            raise fault.error(self.name) from None
        except Exception as error:  # noqa: BLE001 - the message may quote the server
            failed = type(error).__name__
        raise BackendError(f"{self.name} answers in an undocumented form ({failed})")

    # ---- connecting --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the dialect, and connect."""
        kind = DIALECTS.get(self._dialect_name) or await self._detected()
        self.name = f"{kind.name} at {self.client.host}"
        self.dialect = kind(self.client, self._model)
        await self.dialect.connect()
        self.dialect.check_numbers()
        if self.dialect.slots is not None:  # a queue at the server would use up requests' time
            self.client.gate.limit = min(self.client.gate.limit, self.dialect.slots)
        self._canary = await self.dialect.tokenize(SAMPLE_PREFIX)
        await self.look_at_canary()

    async def _detected(self) -> type[Dialect]:
        listed = await self.client.get(f"{self.client.base}/models")
        models = listed.get("data") if isinstance(listed, dict) else None
        owners = [str(model.get("owned_by")) for model in models or [] if isinstance(model, dict)]
        if found := [OWNERS[owner] for owner in owners if owner in OWNERS]:
            return found[0]
        raise BackendError(
            f"{self.name} does not say that it is vLLM or llama-server: OpenAI's completions return 5 or 20 "
            "log-probabilities of their own choice, by text and not by token id, so mechanisms cannot ask "
            "for the tokens they need. Use one of those, or LlamaCpp in process: its model='ollama:NAME' "
            "loads what Ollama has fetched. If it is one of those two under another name, say so by dialect="
        )

    def facts(self) -> dict[str, object]:
        """Return what the replicas of a server have in common, by name. All of it is public."""
        dialect = self.dialect
        return {
            "kind of server": dialect.name,
            "model": self.identity,
            "vocabulary": dialect.vocabulary_size,
            "tokenizer": (self._canary, dialect.bos, dialect.end_token_ids),
            "context": dialect.context_tokens,
        }

    # ---- rows --------------------------------------------------------------------------------------------

    async def rows(self, prompts: Sequence[Tokens], support: Tokens | None) -> Logprobs:
        """Return float32 of shape (prompts, support or V). Requests hold a public number of whole prompts.

        A `BackendError` means that the server is at fault, or that its model changed.
        """
        await self.look_at_canary(support, CANARY_SECONDS)
        size = self.dialect.prompts_per_request
        batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        try:
            answers = await gather(self._batch(batch, support) for batch in batches)
        except BaseException:
            self._asked.clear()  # the server may still be busy: the next call waits for it with a canary
            raise
        rows = [row for answer in answers for row in answer]
        return np.stack(rows) if rows else np.empty((0, self._width(support)), dtype=np.float32)

    async def _batch(self, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """Return a row for each prompt. A request of several that fails is repeated prompt by prompt."""
        try:
            rows = await self.answer(prompts, support)
        except Fault:
            if len(prompts) > 1:
                return [*chain(*await gather(self._batch([prompt], support) for prompt in prompts))]
            return [await self._row_by_itself(prompts[0], support)]
        return [
            await self._row_by_itself(prompt, support) if np.isnan(row).any() else row
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    async def _row_by_itself(self, prompt: Tokens, support: Tokens | None) -> Logprobs:
        rows = await self._by_itself(
            lambda: self.answer([prompt], support), lambda: self.look_at_canary(support)
        )
        return np.full(self._width(support), np.nan, dtype=np.float32) if rows is None else rows[0]

    async def _by_itself(
        self, ask: Callable[[], Awaitable[Result]], look: Callable[[], Awaitable[None]]
    ) -> Result | None:
        """Ask with no other request in flight anywhere; None if what is asked is at fault.

        `look` fails unless the server answers a public request.
        """
        async with self.client.gate.alone(everywhere=True):
            await look()
            try:
                return await ask()
            except Overloaded:
                raise BackendError(
                    f"{self.name} is overloaded or enforces a quota: reserve it for this backend",
                    retryable=True,
                ) from None
            except Refused:
                return None
            except Fault:
                await look()
                return None

    async def answer(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> list[Logprobs]:
        """Send one request for up to `prompts_per_request` prompts; another model's answer is a `Fault`."""
        dialect = self.dialect
        url, body = dialect.request(prompts, support, settings or {})

        def read(answer: Any) -> tuple[list[Logprobs], tuple[Any, ...]]:
            return dialect.read(answer, prompts, support), dialect.identity_of(answer)

        rows, identity = await self.client.ask(url, body, read, kind=dialect.kind_of(support))
        if self.identity is None:
            self.identity = identity
        elif identity != self.identity:  # only the canary's answer proves a change of model
            raise Fault("serves a different model than before: connect again")
        return rows

    def _width(self, support: Tokens | None) -> int:
        return self.dialect.vocabulary_size if support is None else len(support)

    async def look_at_canary(self, support: Tokens | None = None, seconds: float = 0.0) -> None:
        """Ask the canary unless its answer is newer than `seconds`, and refuse a different one than before.

        The request is of the kind that this support needs: requests of two kinds are never mixed.
        """
        kind = self.dialect.kind_of(support)
        if self._is_fresh(kind, seconds):
            return
        asked = spread(self.dialect.vocabulary_size) if kind == CHOSEN else None
        async with self.client.gate.alone(patient=kind in self._expected):
            if self._is_fresh(kind, seconds):  # another thread asked while this one waited
                return
            (row,) = await self.answer([self._canary], asked)
            self._asked[kind] = time.monotonic()
        if np.isnan(row).any():
            raise BackendError(f"{self.name} answered a public prompt with invalid log-probabilities")
        expected = self._expected.setdefault(kind, row)
        same = expected.tobytes() == row.tobytes()
        if not same and (self.exact or not np.abs(np.exp(row) - np.exp(expected)).max() <= DRIFT):
            raise BackendError(
                f"{self.name} answers the same prompt differently than before: its model changed, or its "
                "answers depend on other requests; connect again"
            )

    def _is_fresh(self, kind: str, seconds: float) -> bool:
        return kind in self._asked and time.monotonic() - self._asked[kind] < seconds

    # ---- tokens ------------------------------------------------------------------------------------------

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text; see `Dialect.tokenize`.

        A text without an answer is sent again alone. It is at fault if a public text gets an answer; if none
        does, the server is gone, and the error is retryable.
        """
        return await self._of_one(lambda: self.dialect.tokenize(text), "tokenise a text")

    async def detokenize(self, tokens: Tokens) -> str:
        """Return the text of tokens, which may be a record's; asked for and at fault as in `tokenize`."""
        return await self._of_one(lambda: self.dialect.detokenize(tokens), "detokenise tokens")

    async def _of_one(self, ask: Callable[[], Awaitable[Result]], what: str) -> Result:
        with suppress(Fault):
            return await ask()
        found = await self._by_itself(ask, self._look_at_text)
        if found is None:
            raise BackendError(f"{self.name} does not {what}")
        return found

    async def _look_at_text(self) -> None:
        """Tokenise a public text, once the server has finished abandoned requests."""
        try:
            async with self.client.gate.alone(everywhere=True, patient=True):
                await self.dialect.tokenize(SAMPLE_PREFIX)
        except Fault as fault:
            # retryable whatever the fault: no private text caused it
            raise BackendError(str(fault.error(self.name)), retryable=True) from None
