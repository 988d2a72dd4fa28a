"""A server's tokenizer, which would parse special tokens wherever a text spells them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpfewshot.backends.end_tokens import END_NAMES
from dpfewshot.backends.protocol import Tokens
from dpfewshot.backends.servers.dialect import Dialect, gather, readable, token_ids
from dpfewshot.backends.servers.dialect import field as at
from dpfewshot.backends.servers.faults import Absent, Refused, Unanswered
from dpfewshot.backends.servers.transport import Transport
from dpfewshot.errors import BackendError

BRACKET = re.compile(r"(?<=[<>\[\]])")
"""Texts are split after brackets: special tokens are written in brackets, so no piece holds one."""

CHUNK = 256
"""How many tokens' texts one request asks for, with a separator between them."""


@dataclass
class ServedTokenizer:
    """The tokenizer of a server.

    Attributes:
        transport: the server.
        pages: the URLs that tokenise and detokenise.
        text_field: the request field with the text to tokenise.
        answer_field: the answer field with the detokenised text.
        settings: further fields of both requests.
        bare: fields that keep the tokenizer from adding tokens.
        end_tokens: names of the tokens that end a text, by id.
        bos: the token that the tokenizer puts in front of a text by default; None if none.
    """

    transport: Transport
    pages: tuple[str, str]
    text_field: str
    answer_field: str
    settings: Mapping[str, Any]
    bare: Mapping[str, Any]
    end_tokens: dict[int, str] = field(default_factory=dict)
    bos: int | None = None
    _texts: list[str] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def connect(self) -> None:
        """Find the tokens that end a text, and the one that begins it.

        Raises:
            BackendError: the server has no such pages, or parses special tokens out of texts nevertheless.
        """
        try:
            parsed = [await self._raw(name, self.bare) for name in END_NAMES]
        except (Absent, Refused):
            raise BackendError(
                f"the server at {self.transport.host} does not tokenise ({self.pages[0]} is missing): "
                "prompts are sent as token ids, so it needs that page, and one that detokenises"
            ) from None
        for name, tokens in zip(END_NAMES, parsed, strict=True):
            if len(tokens) == 1 and await self._text(tokens) == name:
                self.end_tokens[tokens[0]] = name
        if not self.end_tokens:
            raise BackendError(f"the server at {self.transport.host} knows none of the usual end tokens")
        for token, name in self.end_tokens.items():
            if token in await self.tokenize(f"a{name}b"):
                raise BackendError(f"the server at {self.transport.host} parses special tokens out of texts")
        dressed, bare = await self._raw("a", {}), await self._raw("a", self.bare)
        self.bos = dressed[0] if dressed[1:] == bare else None

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a private text, split after brackets so that special tokens stay text."""
        pieces = [piece for piece in BRACKET.split(readable(text)) if piece]
        return [
            token
            for tokens in await gather(self._raw(piece, self.bare) for piece in pieces)
            for token in tokens
        ]

    def known_text(self, tokens: Tokens) -> str | None:
        """Return the text of a single token, once `texts` has run; else None."""
        if len(tokens) != 1 or self._texts is None:
            return None if tokens else ""
        return self._texts[tokens[0]] if tokens[0] < len(self._texts) else ""

    async def detokenize(self, tokens: Tokens) -> str:
        """Return the text of tokens. The texts of all single tokens are read once."""
        if len(tokens) != 1:
            return await self._text(tokens) if tokens else ""
        texts = await self.texts()
        return texts[tokens[0]] if tokens[0] < len(texts) else ""

    async def texts(self) -> list[str]:
        """Return the text of every token that has one, by id."""
        async with self._lock:
            if self._texts is None:
                texts: list[str] = []
                while any(chunk := await self._chunk(range(len(texts), len(texts) + CHUNK))):
                    texts += chunk
                while texts and not texts[-1]:
                    texts.pop()
                self._texts = texts
        return self._texts

    async def _chunk(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts of neighbouring tokens, in one request if the separator tells them apart."""
        separator, name = next(iter(self.end_tokens.items()))
        woven = [separator, *(each for token in tokens for each in (token, separator))]
        try:
            texts = (await self._text(woven)).split(name)[1:-1]
        except (Refused, Unanswered):
            texts = []
        if len(texts) == len(tokens):
            return texts
        return await gather(self._text_or_nothing(token) for token in tokens)

    async def _text_or_nothing(self, token: int) -> str:
        try:
            return await self._text([token])
        except (Refused, Unanswered):
            return ""

    async def _raw(self, text: str, settings: Mapping[str, Any]) -> list[int]:
        body = {**self.settings, **settings, self.text_field: text}
        return await self.transport.post(self.pages[0], body, lambda answer: token_ids(answer, "tokens"))

    async def _text(self, tokens: Tokens) -> str:
        body = {**self.settings, "tokens": list(tokens)}
        return await self.transport.post(
            self.pages[1], body, lambda answer: str(at(answer, self.answer_field))
        )


class WithServedTokenizer(Dialect):
    """A dialect with vLLM's `/tokenize` and `/detokenize`."""

    text_of_answer: ClassVar[str]
    """The field in which `/detokenize` returns the text."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.picks = True
        self._tokenizer = ServedTokenizer(
            self._transport,
            pages=(f"{self._transport.root}/tokenize", f"{self._transport.root}/detokenize"),
            text_field="prompt",
            answer_field=self.text_of_answer,
            settings={"model": self.model, "skip_special_tokens": False},
            bare={"add_special_tokens": False},
        )

    async def tokenize(self, text: str) -> list[int]:
        """Return token ids; see `ServedTokenizer.tokenize`."""
        return await self._tokenizer.tokenize(text)

    def known_text(self, tokens: Tokens) -> str | None:
        """Return a text if known; see `ServedTokenizer.known_text`."""
        return self._tokenizer.known_text(tokens)

    async def detokenize(self, tokens: Tokens) -> str:
        """Return a text; see `ServedTokenizer.detokenize`."""
        return await self._tokenizer.detokenize(tokens)

    async def connect_tokenizer(self) -> None:
        """Find the tokens that begin and end a text."""
        await self._tokenizer.connect()
        self.bos = self._tokenizer.bos
        self.end_token_ids = frozenset(self._tokenizer.end_tokens)

    async def written_vocabulary(self) -> int:
        """Return the number of token ids up to the last one that has a text."""
        return max(len(await self._tokenizer.texts()), max(self.end_token_ids) + 1)
