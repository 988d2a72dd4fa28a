"""vLLM: `/v1/completions` takes token ids and returns log-probabilities by id, of a support if asked.

`make vllm` runs it on vLLM 0.32.0 without a GPU; 0.26.0 was run by hand with one: docs/decisions/servers.md.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.client import Absent, Malformed, Refused, Unanswered
from dpfewshot.backends.servers.dialect import CHOSEN, MORE_THAN_ANY, Dialect, field, gather, only, token_ids
from dpfewshot.backends.text import END_NAMES, readable
from dpfewshot.errors import BackendError

MOST_IDS = 128
"""The longest `logprob_token_ids`."""

USUAL_MOST = 20
"""How many log-probabilities vLLM returns by default."""

CHUNK = 256
"""How many tokens' texts one request asks for, with a separator between them."""

BRACKET = re.compile(r"(?<=[<>\[\]])")
"""Texts are split after brackets: special tokens are written in brackets, so no piece holds one."""

TOKEN = re.compile(r"token_id:(\d+)")
"""How vLLM spells a token with `return_tokens_as_token_ids`."""

ALLOWED = re.compile(r"max allowed\D*(\d+)")
"""Where vLLM's refusal says how many log-probabilities it returns."""

NEUTRAL: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sent explicitly, since the server's defaults come from the model's files."""


class VLLM(Dialect):
    """vLLM.

    A support of up to 128 tokens is requested by ids. Anything else needs the whole vocabulary, which the
    server returns if it was started with `--max-logprobs -1`. Every request has a fresh `cache_salt`, so that
    no cached prefix of an earlier private prompt is reused.

    The server's tokenizer would parse special tokens wherever a text spells them.
    """

    name: ClassVar[str] = "vllm"
    advice: ClassVar[str] = "start vLLM with --max-num-seqs 1 and --no-enable-prefix-caching"
    distorted: ClassVar[Mapping[str, Any]] = {"temperature": 0.5, "repetition_penalty": 1.5}
    prompts_per_request: ClassVar[int] = 16

    picks = True
    _most = MORE_THAN_ANY

    async def connect(self) -> None:
        """Read the model card, the tokenizer, and how many log-probabilities the server returns."""
        await self._read_card()
        await self._connect_tokenizer()
        prompts = [[next(iter(self.end_token_ids))]]
        try:
            ids = await self.client.ask(*self.request(prompts, None, {}), _ids, public=True)
        except Refused as refusal:  # it returns no more than it says
            stated = ALLOWED.search(refusal.message)
            self._most = int(stated.group(1)) if stated else USUAL_MOST
            ids = await self.client.ask(*self.request(prompts, None, {}), _ids)
        self.vocabulary_size = len(ids)
        if ids != set(range(len(ids))):
            raise BackendError(
                f"this vLLM returns {self._most} log-probabilities per token: start it with --max-logprobs -1"
            )

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a private text, split after brackets so that special tokens stay text."""
        pieces = [piece for piece in BRACKET.split(readable(text)) if piece]
        tokens = await gather(self._tokens_of(piece, add_special_tokens=False) for piece in pieces)
        return [token for piece in tokens for token in piece]

    async def detokenize(self, tokens: Tokens) -> str:
        """Ask `/detokenize`, which may refuse tokens that only pad the model's matrices."""
        if not tokens:
            return ""
        body = {"model": self.model, "skip_special_tokens": False, "tokens": list(tokens)}
        return await self.client.ask(
            f"{self.client.root}/detokenize", body, lambda answer: str(field(answer, "prompt"))
        )

    async def token_texts(self) -> list[str]:
        """Return the text of each token; of those that only pad the model's matrices, none."""
        texts: list[str] = []
        while any(chunk := await self._chunk(range(len(texts), len(texts) + CHUNK))):
            texts += chunk
        padding = [""] * (self.vocabulary_size - len(texts))
        return [*texts, *padding][: self.vocabulary_size]

    def kind_of(self, support: Tokens | None) -> str:
        """Return whether ids are sent. Such a request would void the answers of others in its batch."""
        picked = self.picks and support is not None and len(support) <= MOST_IDS
        return CHOSEN if picked else super().kind_of(support)

    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Request a support by its ids if the server takes that many, else all that the server returns."""
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
        return f"{self.client.base}/completions", body

    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:
        """Read one choice per prompt, in the order of their indices."""
        choices = field(answer, "choices")
        if not isinstance(choices, list) or len(choices) != len(prompts):
            raise Malformed
        choices = sorted(choices, key=lambda choice: field(choice, "index"))
        if [choice["index"] for choice in choices] != list(range(len(prompts))):
            raise Malformed
        return [self.row(_top(choice), support) for choice in choices]

    async def _read_card(self) -> None:
        listed = await self.client.get(f"{self.client.base}/models")
        cards = {card.get("id"): card for card in (listed or {}).get("data", [])}
        if self.model not in cards:
            raise BackendError(
                f"the server has no model {self.model!r}; it has {', '.join(map(repr, cards))}"
            )
        self.context_tokens = cards[self.model].get("max_model_len")

    async def _connect_tokenizer(self) -> None:
        """Find the tokens that end a text, and the one that begins it."""
        server = f"the server at {self.client.host}"
        try:
            parsed = [await self._tokens_of(name, add_special_tokens=False) for name in END_NAMES]
        except (Absent, Refused):
            raise BackendError(
                f"{server} does not tokenise ({self.client.root}/tokenize is missing): "
                "prompts are sent as token ids, so it needs that page, and one that detokenises"
            ) from None
        self._end_names = {
            tokens[0]: name
            for name, tokens in zip(END_NAMES, parsed, strict=True)
            if len(tokens) == 1 and await self.detokenize(tokens) == name
        }
        if not self._end_names:
            raise BackendError(f"{server} knows none of the usual end tokens")
        for token, name in self._end_names.items():
            if token in await self.tokenize(f"a{name}b"):
                raise BackendError(f"{server} parses special tokens out of texts")
        self.end_token_ids = frozenset(self._end_names)
        dressed, bare = await self._tokens_of("a"), await self._tokens_of("a", add_special_tokens=False)
        self.bos = dressed[0] if dressed[1:] == bare else None

    async def _chunk(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts of neighbouring tokens, in one request if the separator tells them apart."""
        separator, name = next(iter(self._end_names.items()))
        woven = [separator, *(each for token in tokens for each in (token, separator))]
        texts = (await self._text_or_nothing(woven)).split(name)[1:-1]
        if len(texts) == len(tokens):
            return texts
        return await gather(self._text_or_nothing([token]) for token in tokens)

    async def _text_or_nothing(self, tokens: Tokens) -> str:
        try:
            return await self.detokenize(tokens)
        except (Refused, Unanswered):
            return ""

    async def _tokens_of(self, text: str, **settings: Any) -> list[int]:
        body = {"model": self.model, "skip_special_tokens": False, **settings, "prompt": text}
        return await self.client.ask(f"{self.client.root}/tokenize", body, token_ids)


def _ids(answer: Any) -> set[int]:
    """Return the ids whose log-probabilities the first choice holds."""
    return {token for token, _ in _top(field(answer, "choices", 0))}


def _top(choice: Any) -> Iterator[tuple[int, float]]:
    """Yield the token ids and log-probabilities of the one predicted token."""
    step = only(field(choice, "logprobs", "top_logprobs"))
    if not isinstance(step, dict):
        raise Malformed
    for name, logprob in step.items():
        found = TOKEN.fullmatch(name)
        if found is None:
            raise Malformed
        yield int(found.group(1)), logprob
