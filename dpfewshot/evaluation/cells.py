"""Results: one line per cell, appended when it is measured, so that an interrupted evaluation can resume."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from dpfewshot.errors import InvalidRecords
from dpfewshot.runtime.files import write_errors

STORED_AS = {"condition": "setting", "description": "settings", "confidential": "private"}
"""Keys of a line that differ from the attributes' names."""

_OLD_CLASSES = {"ZeroPrivate(": "InstructionOnly(", "RandomPrivate(": "NonPrivateSample("}
"""Former class names of conditions, which descriptions of stored cells hold."""

Key: TypeAlias = tuple[str, str, str, str, str, float | None, int, int, int]
"""What identifies a cell."""


@dataclass(frozen=True)
class Cell:
    """One measurement: one set of demonstrations, used on the test items.

    Attributes:
        task: the task's name.
        model: the name of the model that used the demonstrations.
        writer: the name of the model that wrote them.
        condition: the name of the condition.
        description: the condition's public parameters; they distinguish cells.
        epsilon_asked: the budget's ε; 0 for baselines that read no record, None without privacy.
        epsilon: certified upper bound for all demonstrations together, at most the budget's; None without
            privacy.
        delta: the same for δ.
        relation: the neighbouring relation of (ε, δ); None without privacy.
        shots: the number of demonstrations in the prompt.
        repetition: from 0; each has its own draws, noise and labels.
        items: the number of test items.
        outcomes: one character per item, "1" if it was right and "0" if not.
        uncalibrated: the same without calibration; None for extraction.
        batch_calibrated: the same with calibration by the test texts; None for extraction and in older cells.
        population: n, the number of units of each label, or of "" if labels are free.
        confidential: whether records or test items are private, and so the cell is for the operator alone.
        details: further facts, such as seconds.
    """

    task: str
    model: str
    writer: str
    condition: str
    epsilon_asked: float | None
    epsilon: float | None
    delta: float | None
    relation: str | None
    shots: int
    repetition: int
    items: int
    outcomes: str
    uncalibrated: str | None
    population: Mapping[str, int]
    confidential: bool = True
    description: str = ""
    batch_calibrated: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What identifies the cell."""
        return (
            self.task,
            self.model,
            self.writer,
            self.condition,
            self.description,
            self.epsilon_asked,
            self.shots,
            self.repetition,
            self.items,
        )

    @property
    def accuracy(self) -> float:
        """The fraction of items that were right."""
        return self.outcomes.count("1") / self.items

    def as_dict(self) -> dict[str, Any]:
        """Return the values of its JSON line."""
        line = {STORED_AS.get(name, name): value for name, value in asdict(self).items()}
        return line | {"correct": self.outcomes.count("1")}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Cell:
        """Read what `as_dict` wrote, now or in an older version.

        Raises:
            ValueError: the mapping is not a cell.
        """
        attributes = {STORED_AS.get(one.name, one.name): one.name for one in fields(cls)}
        try:
            cell = cls(**{attributes[key]: value for key, value in line.items() if key in attributes})
            cell = replace(cell, description=_with_new_names(cell.description))
            kept = (cell.outcomes, cell.uncalibrated or cell.outcomes, cell.batch_calibrated or cell.outcomes)
            if cell.items < 1 or any(len(one) != cell.items or set(one) - {"0", "1"} for one in kept):
                raise ValueError("outcomes do not fit the items")
        except (TypeError, AttributeError) as error:
            raise ValueError("not a cell") from error
        return cell


def _with_new_names(description: str) -> str:
    for old, new in _OLD_CLASSES.items():
        description = description.replace(old, new)
    return description


class Results:
    """A file of cells, one line each.

    Args:
        path: a .jsonl file, created with the first cell. None keeps the cells in memory.

    Raises:
        InvalidRecords: a line is not a cell; the message names it. An incomplete last line is removed, and
            its cell is measured again.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self.cells: list[Cell] = list(self._read())
        self._keys = {cell.key for cell in self.cells}

    def __contains__(self, wanted: Key) -> bool:
        return wanted in self._keys

    def add(self, cell: Cell) -> None:
        """Append a cell, and wait until it is on disk.

        Raises:
            DPFewShotError: the file cannot be written.
        """
        self.cells.append(cell)
        self._keys.add(cell.key)
        if self._path is None:
            return
        with write_errors(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell.as_dict(), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> Iterable[Cell]:
        if self._path is None or not self._path.exists():
            return
        try:
            content = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidRecords(f"{self._path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidRecords(f"{self._path}: is not UTF-8") from None
        *whole, cut_off = content.split("\n")
        if cut_off:  # the run died while writing
            self._cut(len(content.encode()) - len(cut_off.encode()))
        for number, line in enumerate(whole, start=1):
            if not line.strip():
                continue
            try:
                yield Cell.from_dict(json.loads(line))
            except (ValueError, RecursionError):
                raise InvalidRecords(f"{self._path}: line {number}: is not a cell of an evaluation") from None

    def _cut(self, length: int) -> None:
        """Truncate the file, without rewriting what stays."""
        assert self._path is not None  # noqa: S101 - it was read
        try:
            os.truncate(self._path, length)
        except OSError as error:
            raise InvalidRecords(
                f"{self._path}: its incomplete last line cannot be removed: {error.strerror}"
            ) from None
