"""llama.cpp's own server: `/completion` with token ids, and log-probabilities of all tokens by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.dialect import Dialect, field, gather, readable, token_ids
from dpfewshot.backends.servers.faults import Malformed, Refused
from dpfewshot.errors import BackendError

MORE_THAN_ANY = 1 << 24
"""More log-probabilities than any vocabulary has: llama-server then gives all."""

CERTAIN = 1000.0
"""A bias that leaves no other token a chance."""

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

    `n_probs` as large as the vocabulary gives log-probabilities before any sampler. They are asked for
    whole also for a support: the bits of a log-probability depend on how many are asked for, and
    `post_sampling_probs` with a bias on the support would lose what the rest of the vocabulary has.
    One prompt a request, so that each is refused or answered by itself.

    A bias makes it sample a letter always: of a token that ends within a character, as those of an emoji do,
    it tells no log-probabilities. Those it tells are from before the bias.
    """

    name: ClassVar[str] = "llama-server"
    advice: ClassVar[str] = "start llama-server with --parallel 1 --no-cache-prompt"
    distorted: ClassVar[Mapping[str, Any]] = {
        "temperature": 0.5,
        "samplers": ["penalties", "temperature"],
        "repeat_penalty": 1.5,
        "repeat_last_n": 64,
    }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pieces: list[bytes] = []
        self._letter = 0

    async def connect(self) -> None:
        """One public prompt tells the vocabulary with its bytes; with `ignore_eos` the end tokens too."""
        root, post = self._transport.root, self._transport.post
        properties = await self._transport.get(f"{root}/props") or {}
        self.slots = properties.get("total_slots")
        settings = properties.get("default_generation_settings") or {}
        self.context_tokens = settings.get("n_ctx")
        bare = await self._tokens_of({"content": "", "add_special": True})
        self.bos = bare[0] if bare else None
        prompt = await self._tokens_of({"content": "a", "add_special": True})
        try:
            self._letter = field(prompt, -1)
            body = {**self._asked_of(prompt), "ignore_eos": True}
            answer = await post(f"{root}/completion", body, lambda answer: answer, public=True)
            entries = {entry["id"]: entry for entry in _top(answer)}
            biases = field(answer, "generation_settings", "logit_bias")
            self.end_token_ids = frozenset(bias["token"] for bias in biases) - {self._letter}
        except (Malformed, Refused, KeyError, TypeError) as error:
            # The prompt is public, and so is what the server says of it.
            raise BackendError(
                "this llama-server does not tell the log-probabilities of the whole vocabulary by token id, "
                f"or not its end tokens: use a newer one ({type(error).__name__}: {error})"
            ) from None
        self.vocabulary_size = len(entries)
        if set(entries) != set(range(self.vocabulary_size)):
            raise BackendError("llama-server left out tokens of its vocabulary")
        self._pieces = [bytes(entries[token]["bytes"]) for token in range(self.vocabulary_size)]
        await self._name_special_tokens()

    async def tokenize(self, text: str) -> list[int]:
        """`/tokenize`, which adds nothing and parses nothing when told so."""
        return await self._tokens_of(
            {"content": readable(text), "add_special": False, "parse_special": False}
        )

    def known_text(self, tokens: Tokens) -> str:
        """The bytes of the vocabulary, joined."""
        return b"".join(self._pieces[token] for token in tokens).decode("utf-8", errors="replace")

    async def detokenize(self, tokens: Tokens) -> str:
        """No request is needed."""
        return self.known_text(tokens)

    def request(
        self,
        prompts: Sequence[Tokens],
        support: Tokens | None,  # noqa: ARG002 - what is asked for does not depend on it
        settings: Mapping[str, Any],
    ) -> tuple[str, dict[str, Any]]:
        """The whole vocabulary, whatever the support; the answer does not repeat the prompt."""
        return f"{self._transport.root}/completion", {
            **self._asked_of(prompts[0]),
            **settings,
            "response_fields": ["completion_probabilities", "model", "tokens_evaluated", "truncated"],
        }

    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """The log-probabilities by id; the prompt must have been read whole."""
        if field(answer, "tokens_evaluated") != len(prompts[0]) or field(answer, "truncated"):
            raise Malformed
        pairs = ((field(entry, "id"), field(entry, "logprob")) for entry in _top(answer))
        return [self.row(pairs, support)]

    def identity_of(self, answer: Any) -> tuple[Any, ...]:
        """The model's name; its vocabulary is compared by `row`, its weights by the canary."""
        return (field(answer, "model"),)

    def _asked_of(self, prompt: Tokens) -> dict[str, Any]:
        return {
            **NEUTRAL,
            "logit_bias": [[self._letter, CERTAIN]],
            "prompt": list(prompt),
            "n_predict": 1,
            "n_probs": MORE_THAN_ANY,
            "cache_prompt": False,
        }

    async def _tokens_of(self, body: dict[str, Any]) -> list[int]:
        url = f"{self._transport.root}/tokenize"
        return await self._transport.post(url, body, lambda answer: token_ids(answer, "tokens"))

    async def _name_special_tokens(self) -> None:
        """Special tokens have no bytes in an answer: they are written out by `/detokenize`."""
        url = f"{self._transport.root}/detokenize"
        nameless = [token for token, piece in enumerate(self._pieces) if not piece]
        names = await gather(
            self._transport.post(url, {"tokens": [token]}, lambda answer: str(field(answer, "content")))
            for token in nameless
        )
        for token, name in zip(nameless, names, strict=True):
            self._pieces[token] = name.encode()


def _top(answer: Any) -> Any:
    """The most probable tokens of the only token that was predicted."""
    steps = field(answer, "completion_probabilities")
    if not isinstance(steps, list) or len(steps) != 1:
        raise Malformed
    return field(steps, 0, "top_logprobs")
