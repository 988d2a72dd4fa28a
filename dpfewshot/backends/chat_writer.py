"""A chat model that writes texts from what was released: hosted, or on a server of your own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dpfewshot.backends.servers import dialect
from dpfewshot.backends.servers.client import Client, Fault, Gate, Malformed, server_address
from dpfewshot.errors import BackendError, needs_extra
from dpfewshot.runtime.background import in_background

TextWriter = Callable[[str], str]
"""Answers a public prompt, as a chat model does. It may be called by several threads at the same time."""

_SECONDS: Final = 60.0
"""For how long a request is retried; it is given up after five times as long."""


@dataclass(frozen=True)
class ChatWriter:
    """Asks an OpenAI-compatible server to write texts. See `Synthesizer`'s `text_writer`.

    It is sent the task and the released histogram of a label: public words, and no record. Needs the extra
    "openai".

    Args:
        model: its name at the server.
        base_url: such as "http://localhost:8000/v1" or "https://api.openai.com/v1".
        api_key_env: the environment variable that holds the key, which no object keeps; None: no key.
        proxy, ca_bundle: as those of `OpenAICompatible`; the environment's are ignored.
        log: a file to which each prompt is added before it is sent; None: no file.

    Raises:
        BackendError: an argument is malformed, or the key is missing; and when it is called, the server does
            not answer, or refuses.
    """

    model: str
    base_url: str
    api_key_env: str | None = None
    proxy: str | None = field(default=None, repr=False)  # may hold a password
    ca_bundle: str | None = None
    log: str | None = None

    def __post_init__(self) -> None:
        if not str(self.model).strip():
            raise BackendError("a text writer needs the name of its model")
        server_address(self.base_url)  # refuses one that holds a password
        with needs_extra("ChatWriter", "openai"):
            import httpcore2  # noqa: F401 - missing, it would be missed after the budget is spent
        message = None
        try:
            self._client()
        except BackendError as error:
            message = str(error)
        if message is not None:  # raised there, it would carry the key along
            raise BackendError(message)

    @property
    def host(self) -> str:
        """Where it sends what it is told."""
        return server_address(self.base_url).netloc

    def __call__(self, prompt: str) -> str:
        """Return the model's answer to one message of the user."""
        if self.log is not None:
            try:
                with Path(self.log).open("a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{prompt}\n\n{'-' * 60}\n\n")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", error)
                raise BackendError(f"cannot write {self.log!r}, so nothing is sent: {reason}") from None
        # in another thread, since an event loop may run in the caller's
        found = in_background(lambda: asyncio.run(self._answer(prompt))).result()
        if isinstance(found, str):
            return found
        refused = self.api_key_env is not None and str(found).endswith(("401", "403"))
        key = f" to the key of {self.api_key_env}" * refused
        raise BackendError(
            f"the text writer {self.model!r} at {self.host} {found}{key}", retryable=found.retryable
        )

    def _client(self) -> Client:
        variable = self.api_key_env
        if variable is not None and not os.environ.get(variable):
            raise BackendError(f"the key of the text writer: the variable {variable} is unset or empty")
        return Client(
            self.base_url,
            gate=Gate(1),
            timeout=_SECONDS,
            api_key=None if variable is None else os.environ[variable],
            proxy=self.proxy,
            ca_bundle=self.ca_bundle,
        )

    async def _answer(self, prompt: str) -> str | Fault:
        """The answer, or the fault in its place: raised here, it would carry the key along."""
        client = self._client()
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}]}
        try:
            return await client.ask(f"{client.base}/chat/completions", body, _content, public=True)
        except Fault as fault:
            return fault
        finally:
            await client.close()


def _content(answer: Any) -> str:
    content = dialect.field(answer, "choices", 0, "message", "content")
    if not isinstance(content, str | None):
        raise Malformed
    return content or ""
