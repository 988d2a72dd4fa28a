"""Measured accuracy, summed up for charts: a panel for each task, model and number of shots."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_NORMAL_95: Final = 1.959963984540054
"""The standard normal's 97.5 % quantile."""

_SETTING: Final = ("task", "model", "setting", "epsilon", "delta", "relation", "shots")

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """All repetitions of one setting.

    Attributes:
        task: its name.
        model: which read the demonstrations.
        setting: as in "gaussian", "zero-shot".
        epsilon: of the demonstrations, an upper bound; 0 without any of the data, None without privacy.
        delta: likewise.
        relation: the neighbouring relation of both.
        shots: demonstrations in the prompt.
        accuracy: the share that was right, over all repetitions and items.
        low: the lower end of its 95 % interval.
        high: the upper end.
        repetitions: how often demonstrations were made.
        items: test items of one repetition.
    """

    task: str
    model: str
    setting: str
    epsilon: float | None
    delta: float | None
    relation: str | None
    shots: int
    accuracy: float
    low: float
    high: float
    repetitions: int
    items: int


@dataclass(frozen=True)
class Panel:
    """What one chart shows: every setting of one task, model and number of shots, and those without shots.

    Attributes:
        task: its name.
        model: which read the demonstrations.
        shots: demonstrations in the prompt; 0 where nothing else was measured.
        series: of each setting its summaries, by growing ε.
    """

    task: str
    model: str
    shots: int
    series: Mapping[str, Sequence[Summary]]

    @property
    def rows(self) -> list[Summary]:
        """All summaries, setting by setting."""
        return [summary for summaries in self.series.values() for summary in summaries]


def epsilon_order(epsilon: float | None) -> float:
    """Where an ε stands among others; no privacy is last."""
    return math.inf if epsilon is None else epsilon


def panels(summaries: Sequence[Summary]) -> list[Panel]:
    """One panel for each task, model and number of shots, in the order in which they were measured."""
    found = []
    for task, model in dict.fromkeys((each.task, each.model) for each in summaries):
        of_model = [each for each in summaries if (each.task, each.model) == (task, model)]
        for shots in sorted({each.shots for each in of_model if each.shots}) or [0]:
            shown = [each for each in of_model if each.shots in {0, shots}]
            found.append(Panel(task, model, shots, _by_setting(shown)))
    return found


def summarise(cells: Sequence[Cell]) -> list[Summary]:
    """Sum up the repetitions of each setting.

    The interval is the normal one. Its variance is that of the repetitions' mean plus that of the items, as
    if all repetitions were of the same items: they are.

    Args:
        cells: of a results file.
    """
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[tuple(cell[name] for name in _SETTING)].append(cell)
    return [_summary(group) for group in groups.values()]


def _summary(cells: Sequence[Cell]) -> Summary:
    shares = [cell["correct"] / cell["items"] for cell in cells]
    accuracy = sum(cell["correct"] for cell in cells) / sum(cell["items"] for cell in cells)
    items = min(cell["items"] for cell in cells)
    variance = accuracy * (1 - accuracy) / items
    if len(shares) > 1:
        squares = sum((share - accuracy) ** 2 for share in shares)
        variance += squares / (len(shares) - 1) / len(shares)
    margin = _NORMAL_95 * math.sqrt(variance)
    low, high = max(0.0, accuracy - margin), min(1.0, accuracy + margin)
    setting = {name: cells[0][name] for name in _SETTING}
    return Summary(**setting, accuracy=accuracy, low=low, high=high, repetitions=len(cells), items=items)


def _by_setting(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    series: dict[str, list[Summary]] = defaultdict(list)
    for each in sorted(summaries, key=lambda each: epsilon_order(each.epsilon)):
        series[each.setting].append(each)
    order = dict.fromkeys(each.setting for each in summaries)
    return {setting: series[setting] for setting in order}
