"""Untrusted text, made visible."""

from __future__ import annotations

import unicodedata
from typing import Final

_JOINERS: Final = "\u200c\u200d"
"""Persian and emoji need them."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of invisible or rearranging characters: control and format characters (among them
changes of writing direction), surrogates, private use, line and paragraph separators."""


def visible(text: str) -> str:
    """Write out every invisible character, as in ⟨U+202E⟩; line ends stay."""
    return "".join(f"⟨U+{ord(each):04X}⟩" if _is_hidden(each) else each for each in text)


def plural(count: int, noun: str) -> str:
    """Write a number with its noun: "1 plan", "2,000 plans"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN and character not in "\n\t" + _JOINERS
