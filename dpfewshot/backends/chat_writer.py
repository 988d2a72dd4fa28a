"""A chat model that writes texts from what was released: hosted, or on a server of your own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dpfewshot.backends.servers.client import TRANSIENT, server_address
from dpfewshot.errors import BackendError, needs_extra

TextWriter = Callable[[str], str]
"""Answers a public prompt, as a chat model does. It may be called by several threads at the same time."""

_SECONDS: Final = 300.0
"""Until a request is given up: a model that reasons first takes minutes."""

_RETRIES: Final = 4


@dataclass(frozen=True)
class ChatWriter:
    """Asks an OpenAI-compatible server to write texts. See `Synthesizer`'s `text_writer`.

    It is sent the task and the released histogram of a label: public words, and no record.

    Args:
        model: its name at the server.
        base_url: such as "http://localhost:8000/v1"; None: OPENAI_BASE_URL, or else OpenAI itself.
        api_key_env: the environment variable that holds the key. A server of your own may need none.

    Raises:
        BackendError: when it is called, the server does not answer, or refuses.
    """

    model: str
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        if not self.model:
            raise BackendError("a text writer needs the name of its model")
        if self.base_url is not None:
            server_address(self.base_url)  # refuses one that holds a password

    def __call__(self, prompt: str) -> str:
        """Return the model's answer to one message of the user."""
        with needs_extra("ChatWriter", "text-writer"):
            import openai
        try:
            key = os.environ.get(self.api_key_env) or "none"
            # a client for each request: it crosses no fork, and no attribute holds the key
            with openai.OpenAI(
                base_url=self.base_url, api_key=key, timeout=_SECONDS, max_retries=_RETRIES
            ) as client:
                answer = client.chat.completions.create(
                    model=self.model, messages=[{"role": "user", "content": prompt}]
                )
            return answer.choices[0].message.content or ""
        except openai.APIStatusError as error:
            status = error.status_code
            key = f"; the key is taken from {self.api_key_env}" if status in {401, 403} else ""
            message, again = f"answered status {status}{key}", status in TRANSIENT
        except openai.APIConnectionError as error:
            message, again = f"does not answer ({type(error).__name__})", True
        except Exception as error:  # noqa: BLE001 - a message of the library may quote the key
            message, again = f"failed with {type(error).__name__}", False
        raise BackendError(f"the text writer {self.model!r} {message}", retryable=again)
