"""The state that a checkpoint's lines add up to: what was released, and which draws are left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dpfewshot.demonstrations import from_line
from dpfewshot.values import Demonstration

_LARGEST: Final = 2**63 - 1


@dataclass
class CheckpointedReservation:
    """What is left of a stratum's reservation.

    Attributes:
        entry: the account's number for it.
        leases: the last one that the account granted, then those requested since.
        draws_left: in each disjoint part.
    """

    entry: int
    leases: list[str]
    draws_left: list[int]


@dataclass
class Unfinished:
    """A demonstration in progress.

    Attributes:
        label: its label.
        released: its tokens so far.
    """

    label: str
    released: list[int] = field(default_factory=list)


@dataclass
class Progress:
    """The state that a checkpoint's lines add up to.

    Attributes:
        finished: the demonstrations, in order.
        reserved: by the number of the stratum.
        unfinished: by the number of the stratum, each of which has one demonstration in progress at most.
    """

    finished: list[Demonstration] = field(default_factory=list)
    reserved: dict[int, CheckpointedReservation] = field(default_factory=dict)
    unfinished: dict[int, Unfinished] = field(default_factory=dict)
    _last: int = field(default=0, repr=False)
    """The stratum of the last draw, whose tokens older versions wrote without its number."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Apply a line; not the first, which names the plan.

        Raises:
            KeyError, IndexError, TypeError, ValueError: it is not a line of a checkpoint.
        """
        match line.get("checkpoint"):
            case "reserved":
                left = [_count(draws) for draws in line["blocks"]]
                reservation = CheckpointedReservation(_count(line["entry"]), [_text(line["lease"])], left)
                self.reserved[_count(line["part"])] = reservation
            case "resuming":
                self.reserved[_count(line["part"])].leases.append(_text(line["lease"]))
            case "returned":
                del self.reserved[_count(line["part"])]
            case "draw":
                self._draw(_count(line["part"]), _count(line["of"]), line["label"])
            case "not drawn":
                self.reserved[_count(line["part"])].draws_left[_count(line["of"])] += 1
            case "token":
                stratum, token = _count(line.get("part", self._last)), _count(line["id"])
                if stratum in self.unfinished:  # else its draw is missing, and the token of no use
                    self.unfinished[stratum].released.append(token)
            case None:
                self._finish(from_line(line))
            case _:
                raise ValueError("unknown line")

    def _draw(self, stratum: int, part: int, label: object) -> None:
        left = self.reserved[stratum].draws_left
        left[part] = max(0, left[part] - 1)  # more lines than draws leave none
        if label is None:  # it serves another caller
            return
        self._last = stratum
        if stratum not in self.unfinished or self.unfinished[stratum].label != label:
            self.unfinished[stratum] = Unfinished(_text(label))

    def _finish(self, demonstration: Demonstration) -> None:
        self.finished.append(demonstration)
        done = [number for number, each in self.unfinished.items() if each.label == demonstration.label]
        for number in done:
            del self.unfinished[number]


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError("not a number of a checkpoint")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not words of a checkpoint")
    return value
