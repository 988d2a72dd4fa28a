"""How a text is written: its fields, in order, and what ends each of them. All of it is public.

A field ends at its line's end or, in a multiline task, at a blank line. No record can contain that end,
because `TextLayout.fold` removes it from every value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

BLANK_LINE: Final = re.compile(r"\n[^\S\n]*\n")
"""Ends a field of a multiline task, and separates the fields of one text."""


@dataclass(frozen=True, slots=True)
class TextLayout:
    r"""The fields of a text, and whether their values keep line breaks.

    Several fields make one text, as in `Record.text` and `Demonstration.text`: each value behind its field's
    name, and a blank line between two of them, which no value contains.

    `fields` are their names. The other arguments are those of a `Task`.

    Example:
        >>> layout = TextLayout(("Subject", "Body"))
        >>> layout.text({"Subject": "Refund", "Body": "I paid twice.\n\nBody: no"})
        'Subject: Refund\n\nBody: I paid twice.\nBody: no'
        >>> layout.values("Subject: Refund\n\nBody: I paid twice.\nBody: no")
        ('Refund', 'I paid twice. Body: no')
    """

    fields: tuple[str, ...]
    multiline: bool = False
    schema: str = ""
    no_repeat_ngram_size: int = 0
    example: str = ""

    @property
    def separator(self) -> str:
        """What ends a field in a prompt."""
        return "\n\n" if self.multiline else "\n"

    @property
    def named(self) -> str:
        """The fields' names in a sentence."""
        *others, last = self.fields
        return f"{', '.join(others)} and {last}" if others else last

    def fold(self, value: str) -> str:
        """A value as a prompt shows it, without what ends a field."""
        return on_lines(value) if self.multiline else on_one_line(value)

    def text(self, values: Mapping[str, str]) -> str:
        """The text that these values of several fields make up."""
        return "\n\n".join(f"{name}: {on_lines(values[name])}".rstrip() for name in self.fields)

    def repeated(self, value: str) -> str:
        """The text that has the same value in every field."""
        return self.text(dict.fromkeys(self.fields, value)) if len(self.fields) > 1 else value

    def divided(self, text: str) -> tuple[str, ...] | None:
        """The values that make up a text of several fields; None if it is not one of these fields."""
        blocks = text.split("\n\n")
        if len(blocks) != len(self.fields):
            return None
        if any(not f"{block} ".startswith(f"{name}: ") for name, block in self._named(blocks)):
            return None
        return tuple(block.removeprefix(f"{name}:").strip() for name, block in self._named(blocks))

    def values(self, text: str, longest: int | None = None) -> tuple[str, ...]:
        """Each field's value as a prompt shows it.

        A text that is neither of one field nor made by `text` is the value of the first field; the others are
        empty. A value has `longest` characters at most; None is no limit.
        """
        found = self.divided(text) if len(self.fields) > 1 else None
        whole = found or (text, *[""] * (len(self.fields) - 1))
        folded = tuple(map(self.fold, whole))
        return folded if longest is None else tuple(self.fold(value[:longest]) for value in folded)

    def fields_of(self, text: str) -> dict[str, str]:
        """The value of each field by its name; empty for a layout of one field."""
        return dict(self._named(self.values(text))) if len(self.fields) > 1 else {}

    def _named(self, values: Sequence[str]) -> list[tuple[str, str]]:
        return list(zip(self.fields, values, strict=True))


def on_one_line(text: str) -> str:
    """Replace every run of white space by one space: a line break could pass for a new field."""
    return " ".join(text.split())


def on_lines(text: str) -> str:
    """Keep line breaks, drop blank lines, and replace every other run of white space by one space."""
    return "\n".join(filter(None, map(on_one_line, text.splitlines())))
