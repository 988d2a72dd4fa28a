"""vLLM: `/v1/completions` takes token ids and returns log-probabilities by id, of a support if asked.

`make vllm` runs it on vLLM 0.32.0 without a GPU; 0.26.0 was run by hand with one: docs/decisions/servers.md.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.dialect import CHOSEN, WHOLE, field
from dpfewshot.backends.servers.faults import Malformed, Refused
from dpfewshot.backends.servers.served_tokenizer import WithServedTokenizer
from dpfewshot.errors import BackendError

MORE_THAN_ANY = 1 << 24
"""More tokens than any vocabulary has: vLLM refuses, and says how many log-probabilities it returns."""

MOST_IDS = 128
"""The longest `logprob_token_ids`."""

TOKEN = re.compile(r"token_id:(\d+)")
"""How vLLM spells a token with `return_tokens_as_token_ids`."""

ALLOWED = re.compile(r"max allowed\D*(\d+)")
"""Where vLLM's refusal says how many log-probabilities it returns."""

USUAL_MOST = 20
"""How many log-probabilities it returns by default."""

NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sent explicitly, since the server's defaults come from the model's files."""

GREEDY = 0.0
"""The temperature of requests. vLLM lists the sampled token beside the likeliest: a random one would give a
truncated row another entry each time."""


class VLLM(WithServedTokenizer):
    """vLLM.

    A support of up to 128 tokens is requested by ids. Anything else needs the whole vocabulary, which the
    server returns if it was started with `--max-logprobs -1`. Every request has a fresh `cache_salt`, so that
    no cached prefix of an earlier private prompt is reused.
    """

    name: ClassVar[str] = "vllm"
    advice: ClassVar[str] = "start vLLM with --max-num-seqs 1 and --no-enable-prefix-caching"
    distorted: ClassVar[Mapping[str, Any]] = {"temperature": 0.5, "repetition_penalty": 1.5}
    prompts_per_request: ClassVar[int] = 16
    text_of_answer: ClassVar[str] = "prompt"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = 0

    async def connect(self) -> None:
        """Read the model card, the tokenizer, and how many log-probabilities the server returns."""
        await self._read_card()
        await self.connect_tokenizer()
        self._most = await self._most_logprobs()
        prompt = [next(iter(self.end_token_ids))]
        url, body = self.request([prompt], None, {})
        ids = await self._transport.post(url, body, _ids)
        self.whole = ids == set(range(len(ids)))
        if self.whole:
            self.vocabulary_size = len(ids)
        elif self.allow_truncated:
            self.vocabulary_size = await self.written_vocabulary()
        else:
            raise BackendError(self._truncated())

    def kind_of(self, support: Tokens | None) -> str:
        """Return whether ids are sent. Such a request would void the answers of others in its batch."""
        picked = self.whole and self.picks and support is not None and len(support) <= MOST_IDS
        return CHOSEN if picked else WHOLE

    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Request a support by its ids if the server takes that many, else all that the server returns."""
        body = {
            **NEUTRAL,
            "temperature": GREEDY,
            **settings,
            "model": self.model,
            "prompt": [list(prompt) for prompt in prompts],
            "max_tokens": 1,
            "logprobs": self._most,
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
            "cache_salt": secrets.token_urlsafe(32),
        }
        if support is not None and self.kind_of(support) == CHOSEN:
            body |= {"logprobs": len(support), "logprob_token_ids": list(support)}
        return f"{self._transport.base}/completions", body

    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """Read one choice per prompt, in the order of their indices."""
        choices = field(answer, "choices")
        if not isinstance(choices, list) or len(choices) != len(prompts):
            raise Malformed
        choices = sorted(choices, key=lambda choice: field(choice, "index"))
        if [choice["index"] for choice in choices] != list(range(len(prompts))):
            raise Malformed
        return [self.row(_top(choice), support) for choice in choices]

    def identity_of(self, answer: Any) -> tuple[Any, ...]:
        """Return the model's name and the fingerprint of the server's settings."""
        return field(answer, "model"), answer.get("system_fingerprint")

    async def _read_card(self) -> None:
        listed = await self._transport.get(f"{self._transport.base}/models")
        cards = {card.get("id"): card for card in (listed or {}).get("data", [])}
        if self.model not in cards:
            raise BackendError(
                f"the server has no model {self.model!r}; it has {', '.join(map(repr, cards))}"
            )
        self.context_tokens = cards[self.model].get("max_model_len")

    async def _most_logprobs(self) -> int:
        """Return how many log-probabilities per token the server returns, which its refusal of more says."""
        self._most = MORE_THAN_ANY
        url, body = self.request([[next(iter(self.end_token_ids))]], None, {})
        try:
            await self._transport.post(url, body, lambda answer: answer, public=True)
        except Refused as refusal:
            stated = ALLOWED.search(refusal.message)
            return int(stated.group(1)) if stated else USUAL_MOST
        return MORE_THAN_ANY

    def _truncated(self) -> str:
        return (
            f"this vLLM returns {self._most} log-probabilities per token: start it with --max-logprobs -1. "
            "Or set allow_truncated=True: the guarantee is the same, but all other tokens count as "
            "impossible, so texts get worse"
        )


def _ids(answer: Any) -> set[int]:
    """Return the ids whose log-probabilities the first choice holds."""
    return {token for token, _ in _top(field(answer, "choices", 0))}


def _top(choice: Any) -> Iterator[tuple[int, float]]:
    """Yield the token ids and log-probabilities of the one predicted token."""
    steps = field(choice, "logprobs", "top_logprobs")
    if not isinstance(steps, list) or len(steps) != 1 or not isinstance(steps[0], dict):
        raise Malformed
    for name, logprob in steps[0].items():
        found = TOKEN.fullmatch(name)
        if found is None:
            raise Malformed
        yield int(found.group(1)), logprob
