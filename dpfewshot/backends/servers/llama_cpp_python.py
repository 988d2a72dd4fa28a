"""llama-cpp-python's server: text prompts, and tokens named by their text. In process it does better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dpfewshot.backends.end_tokens import END_NAMES
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.dialect import WHOLE, Dialect, field, gather, readable, token_ids
from dpfewshot.backends.servers.faults import Malformed, Refused, Unanswered
from dpfewshot.backends.servers.served_tokenizer import BRACKET, CHUNK
from dpfewshot.errors import BackendError

MORE_THAN_ANY = 1 << 24
"""More log-probabilities than any vocabulary has: the server then gives all."""

NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "top_k": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "grammar": 'root ::= "a"',
}

FLUSHES = (".", ",")
"""Two public prompts that begin with other tokens than each other."""


class LlamaCppPython(Dialect):
    """`python -m llama_cpp.server --logits_all true`.

    It takes no token ids, so a prompt is sent as its text; where the server would parse a special token
    out of that, the prompt is a row of NaN. Tokens are named by text: those whose text is no token's
    own, such as parts of a character, cannot be told apart and count as impossible, which is why
    `allow_truncated` is asked for. The server keeps the last prompt's cache: a public prompt that begins
    with another token goes before each, so that nothing of a private one is reused. A grammar makes it
    sample a letter always: of an end token it tells no log-probabilities, and a token that ends within a
    character it follows with others. Those it tells are from before the grammar.
    """

    name: ClassVar[str] = "llama-cpp-python"
    advice: ClassVar[str] = "let no other client use the server; or use LlamaCpp in process, the same library"
    distorted: ClassVar[Mapping[str, Any]] = {"temperature": 0.5, "repeat_penalty": 1.5}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tokens: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._flushes: dict[str, int] = {}
        self.slots = 1

    async def connect(self) -> None:
        """Texts of tokens from one public answer; their ids by tokenising many at once."""
        if not self.allow_truncated:
            raise BackendError(
                "llama-cpp-python's server names tokens by their text, and some texts are no token's own: "
                "use LlamaCpp(model=...), the same library in process, or llama-server; or say "
                "allow_truncated=True, which is as private and counts such tokens as impossible"
            )
        self.whole = False
        self._prefix = await self._tokenize("")
        ends = {name: tokens for name in END_NAMES if len(tokens := await self._tokenize(name)) == 1}
        if not ends:
            raise BackendError("the server knows none of the usual end tokens")
        self.end_token_ids = frozenset(tokens[0] for tokens in ends.values())
        try:
            answer = await self._transport.post(
                *self._completion("a", {}), lambda answer: answer, public=True
            )
            names = list(_top(answer))
        except (Malformed, Refused, Unanswered):
            raise BackendError(
                "the server tells no log-probabilities: start it with --logits_all true"
            ) from None
        separator, (end,) = next(iter(ends.items()))
        pieces: list[list[int]] = []
        for start in range(0, len(names), CHUNK):
            pieces += _split(await self._tokenize(separator.join(names[start : start + CHUNK])), end)
        if len(pieces) != len(names):
            raise BackendError("the server's tokens cannot be told apart by their texts")
        self._tokens = {name: piece[0] for name, piece in zip(names, pieces, strict=True) if len(piece) == 1}
        self._texts = {token: name for name, token in self._tokens.items()}
        self._texts |= {tokens[0]: name for name, tokens in ends.items()}
        self.vocabulary_size = max(self._texts) + 1
        self._flushes = {text: (await self._tokenize(text))[0] for text in FLUSHES}

    async def tokenize(self, text: str) -> list[int]:
        """Cut behind each bracket, so that special tokens stay text; nothing is added."""
        pieces = [piece for piece in BRACKET.split(readable(text)) if piece]
        return [token for tokens in await gather(map(self._tokenize, pieces)) for token in tokens]

    def known_text(self, tokens: Tokens) -> str | None:
        """The text of tokens that have one of their own; special ones are written out if they end a text."""
        if all(token in self._texts for token in tokens):
            return "".join(self._texts[token] for token in tokens)
        return "\ufffd" if len(tokens) == 1 else None

    async def detokenize(self, tokens: Tokens) -> str:
        """The text of tokens, some of which may be parts of a character."""
        known = self.known_text(tokens)
        if known is not None:
            return known
        body = {"tokens": list(tokens)}
        url = f"{self._transport.root}/extras/detokenize"
        return await self._transport.post(url, body, lambda answer: str(field(answer, "text")))

    async def ask(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any] | None = None
    ) -> tuple[list[Logprobs], tuple[Any, ...]]:
        """The prompt as text, after a public one; see `Dialect.ask`."""
        (prompt,) = prompts
        text = await self.detokenize(prompt)
        parsed = self.end_token_ids.intersection(await self._tokenize(text)) - set(prompt)
        flush = next(text for text, token in self._flushes.items() if token != prompt[0])

        def read(answer: Any) -> tuple[list[Logprobs], tuple[Any, ...]]:
            return self.read(answer, prompts, support), self.identity_of(answer)

        async with self._transport.together(WHOLE):  # nothing comes between the two
            url, body = self._completion("" if parsed else text, settings or {})
            await self._transport.post(
                url, {**body, "prompt": flush, "logprobs": None}, lambda answer: answer
            )
            rows, identity = await self._transport.post(url, body, read)
        return [np.full_like(row, np.nan) if parsed else row for row in rows], identity

    def request(
        self, prompts: Sequence[Tokens], support: Tokens | None, settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Not of token ids: `ask` sends text."""
        raise NotImplementedError

    def read(self, answer: Any, prompts: Sequence[Tokens], support: Tokens | None) -> list[Logprobs]:  # noqa: ARG002 - one prompt a request
        """The log-probabilities of the texts that are a token's own."""
        known = ((self._tokens[name], value) for name, value in _top(answer).items() if name in self._tokens)
        return [self.row(known, support)]

    def identity_of(self, answer: Any) -> tuple[Any, ...]:
        """The model's name."""
        return (field(answer, "model"),)

    async def _tokenize(self, text: str) -> list[int]:
        url = f"{self._transport.root}/extras/tokenize"
        tokens = await self._transport.post(url, {"input": text}, lambda answer: token_ids(answer, "tokens"))
        return tokens[len(self._prefix) :] if text else tokens

    def _completion(self, text: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        body = {**NEUTRAL, **settings, "prompt": text, "max_tokens": 1, "logprobs": MORE_THAN_ANY}
        return f"{self._transport.base}/completions", {**body, "model": self.model}


def _split(tokens: Sequence[int], separator: int) -> list[list[int]]:
    """The stretches between separators."""
    pieces: list[list[int]] = [[]]
    for token in tokens:
        if token == separator:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


def _top(answer: Any) -> dict[str, Any]:
    """Log-probabilities of the only token that was predicted, by text."""
    steps = field(answer, "choices", 0, "logprobs", "top_logprobs")
    if not isinstance(steps, list) or len(steps) != 1 or not isinstance(steps[0], dict):
        raise Malformed
    return steps[0]
