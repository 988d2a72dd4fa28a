"""Characters that several tokens share: no cap cuts one, and no released text ends in a part of one.

A character is a Unicode code point. Byte-level tokenizers spread many of them over two to four tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

BROKEN: Final = "\ufffd"
"""What `detokenize` returns for bytes that are no character."""


class Detokenizer(Protocol):
    """The part of a backend that reading tokens needs."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, with `BROKEN` for bytes that are no character."""
        ...


def whole_text(backend: Detokenizer, tokens: Sequence[int]) -> str:
    """Return the text of tokens, without the characters that they hold only in part."""
    return backend.detokenize(tokens).replace(BROKEN, "")


def first_tokens(backend: Detokenizer, tokens: Sequence[int], count: int) -> list[int]:
    """Return the first tokens of a text, without those of a character that ends after them.

    Args:
        backend: turns tokens into text.
        tokens: of the whole text.
        count: the most tokens to return.
    """
    kept = list(tokens[:count])
    while len(kept) < len(tokens) and _ends_within_a_character(backend, kept, tokens):
        kept.pop()
    return kept


def _ends_within_a_character(backend: Detokenizer, kept: Sequence[int], tokens: Sequence[int]) -> bool:
    # The last token alone answers for most cuts, without the rest of the text.
    if not backend.detokenize(kept[-1:]).endswith(BROKEN):
        return False
    beginning = backend.detokenize(kept)
    return beginning.endswith(BROKEN) and not backend.detokenize(tokens).startswith(beginning)
