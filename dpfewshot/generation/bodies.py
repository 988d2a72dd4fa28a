"""The units of a stratum as a draw takes them: read and tokenised only when they are drawn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from dpfewshot.prompts.writer import Body, PromptWriter
from dpfewshot.records.units import Integers, UnitSequence

_KEPT: Final = 4096
"""Records whose tokens are kept for later draws: at most some 16 MB."""


class Bodies:
    """The records of units in tokens. Private; the repr shows nothing.

    Args:
        units: to draw from.
        writer: tokenises their records.
    """

    __slots__ = ("_kept", "_units", "_writer")

    def __init__(self, units: UnitSequence, writer: PromptWriter) -> None:
        self._units = units
        self._writer = writer
        self._kept: OrderedDict[tuple[int, int], Body] = OrderedDict()  # the last used is the last

    @property
    def sizes(self) -> Integers:
        """The number of records of each unit, for a sampler."""
        return self._units.sizes

    def check(self) -> None:
        """Find out before a draw is charged whether records can still be read.

        Raises:
            InvalidRecords: their file changed since it was indexed.
        """
        self._units.check()

    def of(self, subsets: Sequence[Sequence[tuple[int, int]]]) -> list[list[Body]]:
        """The bodies of drawn records; None for a record that cannot be read or tokenised.

        Args:
            subsets: of a draw: pairs of a unit and one of its records, both as positions.

        Raises:
            InvalidRecords: the records' file changed since it was indexed.
            BackendError: the tokenizer is unavailable, through no fault of a record; retryable.
        """
        missing = [one for subset in subsets for one in subset if one not in self._kept]
        for one, record in zip(missing, self._units.take(missing), strict=True):
            self._kept[one] = None if record is None else self._writer.body(record)
        bodies = [[self._used(one) for one in subset] for subset in subsets]
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return bodies

    def _used(self, one: tuple[int, int]) -> Body:
        self._kept.move_to_end(one)
        return self._kept[one]
