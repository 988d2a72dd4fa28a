"""Text that others wrote, so that a reader sees what is there."""

from __future__ import annotations

import unicodedata
from typing import Final

_JOINERS: Final = "\u200c\u200d"
"""Persian and emoji are written with them."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of what is not seen, or moves what is: control and format characters (among them those
that turn the direction of writing), surrogates, private use, separators of lines."""


def visible(text: str) -> str:
    """The text with everything that is not seen written out, as in ⟨U+202E⟩; line ends stay."""
    return "".join(f"⟨U+{ord(each):04X}⟩" if _is_hidden(each) else each for each in text)


def plural(count: int, noun: str) -> str:
    """A number with its noun: "1 plan", "2,000 plans"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN and character not in "\n\t" + _JOINERS
