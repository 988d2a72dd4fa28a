"""The tokens that end a text: their usual names, and where a demonstration ends."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakKeyDictionary

from dpfewshot.backends.characters import whole_text
from dpfewshot.backends.protocol import LogprobBackend

END_NAMES = (
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|endofprompt|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<turn|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""The texts of common end tokens. A model's configuration often names one; a server names none."""

_ENDING_TOKENS: WeakKeyDictionary[LogprobBackend, frozenset[int]] = WeakKeyDictionary()
"""Cached by backend: the search reads the text of every token, 0.2 s for a vocabulary of 50,000."""


def ending_tokens(backend: LogprobBackend) -> frozenset[int]:
    """Return the tokens that end a demonstration: the model's end tokens, and all that hold a newline."""
    with suppress(KeyError, TypeError):  # a custom backend may be unhashable or refuse weak references
        return _ENDING_TOKENS[backend]
    newlines = (t for t in range(backend.vocabulary_size) if "\n" in backend.detokenize([t]))
    ends = frozenset(backend.end_token_ids).union(newlines)
    with suppress(TypeError):
        _ENDING_TOKENS[backend] = ends
    return ends


def text_of(backend: LogprobBackend, released: Iterable[int], ends: frozenset[int]) -> str:
    """Return the demonstration's text, without the token that ended it and without parts of characters."""
    return whole_text(backend, [token for token in released if token not in ends]).strip()
