"""What a model's tokens say. Each is asked for once, since a server is slow."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.backends.text import ending_tokens
from dpfewshot.mechanisms.word_histogram import has_a_name
from dpfewshot.writing.draft import tokenized

_TAG: Final = re.compile(r"<.+>|\[[A-Z_]+\]")
"""How special tokens are spelled."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a backend, as words."""

    backend: LogprobBackend
    _said: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        return ending_tokens(self.backend)

    def spelled(self, token: int) -> str:
        """What a token says."""
        if token not in self._said:
            self._said[token] = self.backend.detokenize([token])
        return self._said[token]

    def commonest_first(self, shares: Mapping[int, float]) -> dict[str, float]:
        """The words of these tokens with their shares, the commonest first."""
        ranked = sorted(shares, key=shares.__getitem__, reverse=True)
        return {self.spelled(word).strip(): shares[word] for word in ranked}

    def with_tokens(self, phrases: tuple[str, ...]) -> list[tuple[str, list[int]]]:
        """Phrases with their tokens, behind a space and not, but for those that the vocabulary lacks."""
        return self.backend.known(
            ("phrases", phrases),
            lambda: [(each, one) for each in phrases for one in tokenized([f" {each}", each], self.backend)],
        )

    def is_a_name(self, token: int, besides: Collection[str]) -> bool:
        """Whether a token is a name within a sentence; words of the prompt (`besides`) are none."""
        return has_a_name(f"a {self.spelled(token).strip()}", besides)

    def is_markup(self, token: int) -> bool:
        """Whether a token that ends no text is no part of one: "<|im_start|>" where the end is refused."""
        spelled = self.spelled(token)
        is_tag = token not in self.ends and _TAG.fullmatch(spelled) is not None
        return is_tag and token not in self.backend.tokenize(spelled)
