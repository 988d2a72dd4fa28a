"""Where a demonstration ends: at one of the model's end tokens, or at whatever holds a newline."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakKeyDictionary

from dpfewshot.backends.protocol import LogprobBackend

_FOUND: WeakKeyDictionary[LogprobBackend, frozenset[int]] = WeakKeyDictionary()
"""By backend: finding them takes the text of every token, a fifth of a second for 50,000."""


def ending_tokens(backend: LogprobBackend) -> frozenset[int]:
    """The tokens that end a demonstration, found once a backend."""
    with suppress(KeyError, TypeError):  # a backend of one's own may have no hash or take no weak reference
        return _FOUND[backend]
    newlines = (t for t in range(backend.vocabulary_size) if "\n" in backend.detokenize([t]))
    ends = frozenset(backend.end_token_ids).union(newlines)
    with suppress(TypeError):
        _FOUND[backend] = ends
    return ends


def text_of(backend: LogprobBackend, released: Iterable[int], ends: frozenset[int]) -> str:
    """The demonstration's text, without the token that ended it."""
    return backend.detokenize([token for token in released if token not in ends]).strip()
