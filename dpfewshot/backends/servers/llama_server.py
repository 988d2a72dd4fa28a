"""llama-server: `/completion` takes token ids and returns the log-probabilities of all tokens by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.client import Absent, Malformed, Refused
from dpfewshot.backends.servers.dialect import MORE_THAN_ANY, Dialect, field, gather, only, token_ids
from dpfewshot.backends.text import messages_of, readable, template_failed
from dpfewshot.errors import BackendError

CERTAIN = 1000.0
"""A bias that makes a token certain."""

NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "samplers": [],
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "post_sampling_probs": False,
}


class LlamaServer(Dialect):
    """llama-server.

    With `n_probs` as large as the vocabulary, the log-probabilities are those before any sampler. A support
    needs the whole vocabulary too: the bits of a log-probability depend on `n_probs`, and
    `post_sampling_probs` with a bias on the support would lose the probability of all other tokens. Each
    request holds one prompt, so that the server answers or rejects it alone.

    A bias makes the server always sample a letter: it returns no log-probabilities if the sampled token ends
    within a character, as tokens of an emoji do. The log-probabilities are those before the bias.
    """

    name: ClassVar[str] = "llama-server"
    advice: ClassVar[str] = "start llama-server with --parallel 1 --no-cache-prompt"
    distorted: ClassVar[Mapping[str, Any]] = {
        "temperature": 0.5,
        "samplers": ["penalties", "temperature"],
        "repeat_penalty": 1.5,
        "repeat_last_n": 64,
    }

    async def connect(self) -> None:
        """Read the vocabulary with its bytes from one public prompt, and with `ignore_eos` the end tokens."""
        root = self.client.root
        properties = await self.client.get(f"{root}/props") or {}
        self.slots = properties.get("total_slots")
        settings = properties.get("default_generation_settings") or {}
        self.context_tokens = settings.get("n_ctx")
        bare = await self._tokens_of("", add_special=True)
        self.bos = bare[0] if bare else None
        prompt = await self._tokens_of("a", add_special=True)
        try:
            self._letter: int = field(prompt, -1)
            body = {**self._asked_of(prompt), "ignore_eos": True}
            answer = await self.client.ask(f"{root}/completion", body, lambda answer: answer, public=True)
            entries = {entry["id"]: entry for entry in _top(answer)}
            biases = field(answer, "generation_settings", "logit_bias")
            self.end_token_ids = frozenset(bias["token"] for bias in biases) - {self._letter}
        except (Malformed, Refused, KeyError, TypeError) as error:
            # The prompt is public, and so is the server's answer.
            raise BackendError(
                "this llama-server does not return log-probabilities of the whole vocabulary by token id, or "
                f"its end tokens: use a newer one ({type(error).__name__}: {error})"
            ) from None
        self.vocabulary_size = len(entries)
        if set(entries) != set(range(self.vocabulary_size)):
            raise BackendError("llama-server omits tokens of its vocabulary")
        self._pieces = [bytes(entries[token]["bytes"]) for token in range(self.vocabulary_size)]
        await self._name_special_tokens()

    async def chat_text(self, contents: Sequence[str]) -> str:
        """Ask `/apply-template`. A model without a template has llama-server's own, ChatML."""
        url, body = f"{self.client.root}/apply-template", {"messages": messages_of(contents)}
        try:
            text = await self.client.ask(url, body, lambda answer: str(field(answer, "prompt")), public=True)
        except Absent:
            raise BackendError(
                f"{self.name} has no page /apply-template: update llama-server, or use chat=False"
            ) from None
        except Refused as refusal:
            raise template_failed(refusal.message) from None
        return text if self.bos is None else text.removeprefix(await self.detokenize([self.bos]))

    async def chat_tokens(self, text: str) -> list[int]:
        """Ask `/tokenize`, with parsing special tokens on."""
        return await self._tokens_of(text, parse_special=True)

    async def tokenize(self, text: str) -> list[int]:
        """Ask `/tokenize`, with adding and parsing special tokens off."""
        return await self._tokens_of(readable(text))

    async def detokenize(self, tokens: Tokens) -> str:
        """Join the tokens' bytes."""
        return b"".join(self._pieces[token] for token in tokens).decode("utf-8", errors="replace")

    async def token_texts(self) -> list[str]:
        """Return the text of each token's bytes."""
        return [piece.decode("utf-8", errors="replace") for piece in self._pieces]

    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Request the whole vocabulary, whatever the support; the answer does not repeat the prompt."""
        del support
        return f"{self.client.root}/completion", {
            **self._asked_of(prompts[0]),
            **settings,
            "response_fields": ["completion_probabilities", "model", "tokens_evaluated", "truncated"],
        }

    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """Read the log-probabilities by id. The server must have read the whole prompt.

        It calls an answer truncated, too, if the predicted token fills the context.
        """
        length = len(prompts[0])
        fills = self.context_tokens is not None and length + 1 >= self.context_tokens
        if field(answer, "tokens_evaluated") != length or (field(answer, "truncated") and not fills):
            raise Malformed
        try:
            pairs = [(entry["id"], entry["logprob"]) for entry in _top(answer)]
        except (KeyError, TypeError):
            raise Malformed from None
        return [self.row(pairs, support)]

    def _asked_of(self, prompt: Tokens) -> dict[str, Any]:
        return {
            **NEUTRAL,
            "logit_bias": [[self._letter, CERTAIN]],
            "prompt": list(prompt),
            "n_predict": 1,
            "n_probs": MORE_THAN_ANY,  # it then returns all log-probabilities
            "cache_prompt": False,
        }

    async def _tokens_of(self, text: str, **settings: bool) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": False, **settings}
        return await self.client.ask(f"{self.client.root}/tokenize", body, token_ids)

    async def _name_special_tokens(self) -> None:
        """Get the texts of special tokens from `/detokenize`: an answer gives them no bytes."""
        url = f"{self.client.root}/detokenize"
        nameless = [token for token, piece in enumerate(self._pieces) if not piece]
        names = await gather(
            self.client.ask(url, {"tokens": [token]}, lambda answer: str(field(answer, "content")))
            for token in nameless
        )
        for token, name in zip(nameless, names, strict=True):
            self._pieces[token] = name.encode()


def _top(answer: Any) -> Any:
    """Return the entries of the one predicted token's log-probabilities."""
    return field(only(field(answer, "completion_probabilities")), "top_logprobs")
