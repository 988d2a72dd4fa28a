"""vLLM: `/v1/completions` with token ids, log-probabilities by id, and those of a support alone.

Run by hand on vLLM 0.26.0 with a GPU, which no test has: docs/decisions/servers.md.
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
"""More log-probabilities than any vocabulary has: vLLM then says how many it gives at most."""

MOST_IDS = 128
"""The longest `logprob_token_ids`."""

TOKEN = re.compile(r"token_id:(\d+)")
"""How vLLM writes a token where it is told to write ids."""

ALLOWED = re.compile(r"max allowed\D*(\d+)")
"""Where vLLM's refusal says how many log-probabilities it gives."""

USUAL_MOST = 20
"""How many it gives if it is not told otherwise."""

NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Stated, since the server's own defaults come from the model's files."""


class VLLM(WithServedTokenizer):
    """vLLM.

    A support of up to 128 tokens is asked for by ids; all else takes the whole vocabulary, which the
    server gives if it was started with `--max-logprobs -1`. Every request has a fresh `cache_salt`, so
    that no cached prefix of an earlier private prompt is reused.
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
        """Model card, tokenizer, and how many log-probabilities the server gives."""
        await self._read_card()
        await self.connect_tokenizer()
        self._most = await self._most_logprobs()
        prompt = [next(iter(self.end_token_ids))]
        url, body = self.request([prompt], None, {})
        told = await self._transport.post(url, body, _told)
        self.whole = told == set(range(len(told)))
        if self.whole:
            self.vocabulary_size = len(told)
        elif self.allow_truncated:
            self.vocabulary_size = await self.written_vocabulary()
        else:
            raise BackendError(self._truncated())

    def kind_of(self, support: Tokens | None) -> str:
        """Whether the ids are sent. In one batch, such requests take away the answers of all others."""
        picked = self.whole and self.picks and support is not None and len(support) <= MOST_IDS
        return CHOSEN if picked else WHOLE

    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """A support by its ids where the server takes that many, else as much as the server gives."""
        body = {
            **NEUTRAL,
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
        """One choice a prompt, in the order of their indices."""
        choices = field(answer, "choices")
        if not isinstance(choices, list) or len(choices) != len(prompts):
            raise Malformed
        choices = sorted(choices, key=lambda choice: field(choice, "index"))
        if [choice["index"] for choice in choices] != list(range(len(prompts))):
            raise Malformed
        return [self.row(_top(choice), support) for choice in choices]

    def identity_of(self, answer: Any) -> tuple[Any, ...]:
        """The model's name and the fingerprint of the server's settings."""
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
        """How many log-probabilities a token the server gives: it says so when asked for too many."""
        self._most = MORE_THAN_ANY
        url, body = self.request([[next(iter(self.end_token_ids))]], None, {})
        try:
            await self._transport.post(url, body, lambda answer: answer, public=True)
        except Refused as refusal:
            told = ALLOWED.search(refusal.message)
            return int(told.group(1)) if told else USUAL_MOST
        return MORE_THAN_ANY

    def _truncated(self) -> str:
        return (
            f"this vLLM gives {self._most} log-probabilities a token: start it with --max-logprobs -1 "
            "(or say allow_truncated=True, which is as private and makes worse text: all other tokens "
            "count as impossible)"
        )


def _told(answer: Any) -> set[int]:
    """The ids of which the first choice tells log-probabilities."""
    return {token for token, _ in _top(field(answer, "choices", 0))}


def _top(choice: Any) -> Iterator[tuple[int, float]]:
    """Token ids and log-probabilities of the only token that was predicted."""
    steps = field(choice, "logprobs", "top_logprobs")
    if not isinstance(steps, list) or len(steps) != 1 or not isinstance(steps[0], dict):
        raise Malformed
    for name, logprob in steps[0].items():
        found = TOKEN.fullmatch(name)
        if found is None:
            raise Malformed
        yield int(found.group(1)), logprob
