"""What a seeded fault is."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A change that must not pass.

    Attributes:
        file: from the project's root.
        text: the text to replace, which occurs exactly once.
        replacement: the faulty text.
        breaks: the property that no longer holds.
        tests: arguments of pytest; at least one of the tests must fail.
    """

    file: str
    text: str
    replacement: str
    breaks: str
    tests: str

    @property
    def compiled(self) -> bool:
        """Whether the core must be rebuilt."""
        return self.file.startswith("csrc/")
