"""Any other server with OpenAI's completions: a few log-probabilities, by token id."""

from __future__ import annotations

from typing import Any, ClassVar

from dpfewshot.backends.servers.faults import Refused
from dpfewshot.backends.servers.vllm import VLLM
from dpfewshot.errors import BackendError

MOST = (20, 5)
"""The most log-probabilities that such servers return, tried in this order."""


class OpenAICompletions(VLLM):
    """A server of an unknown kind.

    OpenAI's completions return 5 or 20 log-probabilities of the server's choice, name tokens by their text,
    and have no endpoint that tokenises. This dialect needs vLLM's `/tokenize`, `/detokenize` and
    `return_tokens_as_token_ids`, and `allow_truncated=True`.
    """

    name: ClassVar[str] = "openai"
    advice: ClassVar[str] = "use vLLM, SGLang, llama-server, or LlamaCpp in process"
    prompts_per_request: ClassVar[int] = 1

    async def connect(self) -> None:
        """Connect as to vLLM, if truncation is allowed."""
        if not self.allow_truncated:
            raise BackendError(self._truncated())
        await super().connect()

    async def _read_card(self) -> None:
        """Do nothing: such servers list models in many ways, and the first request checks the name."""

    async def _most_logprobs(self) -> int:
        for most in MOST:
            self._most = most
            url, body = self.request([[next(iter(self.end_token_ids))]], None, {})
            try:
                await self._transport.post(url, body, _anything)
            except Refused:
                continue
            return most
        raise BackendError("the server refuses log-probabilities of next tokens, or prompts of token ids")

    def _truncated(self) -> str:
        return (
            "this server is not vLLM, SGLang or llama-server: OpenAI's completions return 5 or 20 "
            "log-probabilities of their own choice, by text and not by token id, so mechanisms cannot ask "
            "for the tokens they need. Use one of those, or LlamaCpp in process: its model='ollama:NAME' "
            "loads what Ollama has fetched. If the server also has "
            "vLLM's /tokenize, /detokenize and token ids, allow_truncated=True accepts it: the guarantee is "
            "the same, since a truncated vector is still a function of its own prompt, but all other tokens "
            "count as impossible, so texts get worse"
        )


def _anything(answer: Any) -> Any:
    return answer
