"""Requests for rows of log-probabilities: a prompt at fault gives a row of NaN, a changed model an error."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.dialect import CHOSEN, Dialect, gather, spread
from dpfewshot.backends.servers.faults import Changed, Fault, Overloaded, Refused, error_of, error_of_load
from dpfewshot.backends.servers.transport import Transport
from dpfewshot.errors import BackendError

CANARY_SECONDS = 60.0
"""How long the canary's last answer counts. It depends on time alone, never on what was asked meanwhile."""

DRIFT = 0.1
"""The most that a probability of the canary may change on a server that is not batch-invariant."""


class Asker:
    """Asks one server for rows, each independent of the other prompts.

    A prompt without an answer is at fault itself, or was held up by others: a slow server, a full queue and
    a quota look the same. So it is asked again alone, with no other request in flight to any replica, which
    may share a machine or a quota with this one:

        1. The canary, a public prompt whose answer is remembered, is retried until the server has finished
           abandoned requests. If it gets no answer, the server is gone.
        2. The prompt is asked. An answer is its row.
        3. The canary is asked again, unless the server refused the prompt. If the canary gets an answer, the
           prompt is at fault and gives a row of NaN.

    Everything else fails the draw, with an error about public requests alone. The canary is also
    asked each minute, always alone.

    Args:
        transport: the server.
        dialect: the connected dialect.
        name: the server's name in messages.
        canary: public token ids.
    """

    def __init__(self, transport: Transport, dialect: Dialect, name: str, canary: Tokens) -> None:
        self._transport = transport
        self._dialect = dialect
        self._name = name
        self._canary = list(canary)
        self._expected: dict[str, Logprobs] = {}
        self._asked: dict[str, float] = {}
        self.exact = False

    async def rows(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> Logprobs:
        """Return float32 of shape (prompts, support or V). Requests hold a public number of whole prompts.

        Raises:
            BackendError: the server is at fault, or its model changed.
        """
        await self.look_at_canary(support, CANARY_SECONDS)
        size = self._dialect.prompts_per_request
        batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        try:
            answers = await gather(self._batch(batch, support, settings) for batch in batches)
        except BaseException:
            self._asked.clear()  # the server may still be busy: the next call waits for it with a canary
            raise
        width = self._dialect.vocabulary_size if support is None else len(support)
        rows = [row for answer in answers for row in answer]
        return np.stack(rows) if rows else np.empty((0, width), dtype=np.float32)

    async def look_at_canary(self, support: Tokens | None = None, seconds: float = 0.0) -> None:
        """Ask the canary unless its answer is newer than `seconds`, and compare.

        The request is of the kind that this support needs: requests of two kinds are never mixed.

        Raises:
            BackendError: the canary gets no answer, or a different one than before.
        """
        kind = self._dialect.kind_of(support)
        if self._is_fresh(kind, seconds):
            return
        asked = spread(self._dialect.vocabulary_size) if kind == CHOSEN else None
        async with self._transport.alone(everywhere=False, patient=kind in self._expected):
            if self._is_fresh(kind, seconds):  # another thread asked while this one waited
                return
            try:
                (row,) = await self._answer([self._canary], asked, None)
            except Fault as fault:
                raise error_of(fault, self._name) from None
            self._asked[kind] = time.monotonic()
        if np.isnan(row).any():
            raise BackendError(f"{self._name} answered a public prompt with invalid log-probabilities")
        expected = self._expected.setdefault(kind, row)
        if not _same(expected, row, exact=self.exact):
            raise BackendError(
                f"{self._name} answers the same prompt differently than before: its model changed, or its "
                "answers depend on other requests; connect again"
            )

    def _is_fresh(self, kind: str, seconds: float) -> bool:
        return kind in self._asked and time.monotonic() - self._asked[kind] < seconds

    async def _batch(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None
    ) -> list[Logprobs]:
        """Return a row for each prompt. A request of several that fails is repeated prompt by prompt."""
        try:
            rows = await self._answer(prompts, support, settings)
        except Fault:
            if len(prompts) > 1:
                answers = await gather(self._batch([prompt], support, settings) for prompt in prompts)
                return [row for answer in answers for row in answer]
            return [await self._by_itself(prompts[0], support, settings)]
        return [
            await self._by_itself(prompt, support, settings) if np.isnan(row).any() else row
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    async def _by_itself(
        self, prompt: Tokens, support: Tokens | None, settings: Mapping[str, Any] | None
    ) -> Logprobs:
        """Ask a prompt with no other request in flight anywhere, and return its row: NaN if it is at fault.

        Raises:
            BackendError: the server is at fault.
        """
        async with self._transport.alone(everywhere=True):
            await self.look_at_canary(support)
            try:
                (row,) = await self._answer([prompt], support, settings)
            except Overloaded:
                raise error_of_load(self._name) from None
            except Fault as fault:
                if not isinstance(fault, Refused):
                    await self.look_at_canary(support)
                width = self._dialect.vocabulary_size if support is None else len(support)
                return np.full(width, np.nan, dtype=np.float32)
            return row

    async def _answer(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None
    ) -> list[Logprobs]:
        rows, identity = await self._dialect.ask(prompts, support, settings)
        if self._dialect.identity is None:
            self._dialect.identity = identity
        elif identity != self._dialect.identity:
            raise Changed  # only the canary's answer proves a change of model
        return rows


def _same(expected: Logprobs, found: Logprobs, *, exact: bool) -> bool:
    """Return whether the canary's answer is unchanged: to the bit if `exact`, else within `DRIFT`."""
    if exact:
        return found.tobytes() == expected.tobytes()
    return bool(np.abs(np.exp(found) - np.exp(expected)).max() <= DRIFT)
