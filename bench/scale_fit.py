"""Fits of bench/scale.py's series, and what a large run costs by them."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfewshot.planning.settings import PlanSettings
from dpfewshot.planning.speed import Lengths, Speed

RAW = Path(__file__).parents[1] / "docs/results/raw/scale.json"
POWER, LINE = "power", "line"


@dataclass(frozen=True)
class Series:
    """One quantity against one variable.

    Attributes:
        name: of the series.
        variable: what grows.
        unit: of the quantity.
        setup: what stays as it is.
        points: each value of the variable, with what every round measured.
    """

    name: str
    variable: str
    unit: str
    setup: str
    points: list[tuple[float, list[float]]]

    @property
    def medians(self) -> list[tuple[float, float]]:
        """Each value with the median of its rounds."""
        return [(x, statistics.median(each)) for x, each in self.points]


@dataclass(frozen=True)
class Fit:
    """A straight line y = a + b·x, fitted by least relative squares.

    Attributes:
        fixed: a, at least 0.
        slope: b, at least 0.
        spread: the greatest ratio of a measured value and the line, or of the line and a measured value.
        power: the exponent c of y ∝ x^c, fitted by least squares to the logarithms.
    """

    fixed: float
    slope: float
    spread: float
    power: float

    def __call__(self, x: float) -> float:
        """The line's value."""
        return self.fixed + self.slope * x


def fit(points: list[tuple[float, float]]) -> Fit:
    """Fit both forms to at least two points with positive values."""
    weighted = [(1 / y, x / y) for x, y in points]
    aa, ab, bb = (sum(p[i] * p[j] for p in weighted) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(p[0] for p in weighted), sum(p[1] for p in weighted)
    determinant = aa * bb - ab * ab
    fixed, slope = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if fixed < 0:
        fixed, slope = 0.0, b / bb
    if slope < 0:
        fixed, slope = a / aa, 0.0
    spread = max(max(y / (fixed + slope * x), (fixed + slope * x) / y) for x, y in points)
    logs = [(math.log(x), math.log(y)) for x, y in points]
    return Fit(fixed, slope, spread, statistics.linear_regression(*zip(*logs, strict=True)).slope)


def recorded() -> dict[str, Any]:
    """Everything that was measured, by name."""
    found: dict[str, Any] = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else {}
    return found


def series(name: str) -> Series:
    """A measured series."""
    return Series(name, **recorded()[name])


@dataclass(frozen=True)
class Fleet:
    """k workers, each with a model of its own.

    Attributes:
        workers: k.
        speed: of one of them.
        share: of its own speed that a worker keeps beside the others; two that gain 1.8 times keep 0.9.
    """

    workers: int
    speed: Speed
    share: float

    def hours(self, lengths: Lengths, settings: PlanSettings, labels: int) -> float:
        """Hours of the language model for `shots_per_label` demonstrations of each label.

        A label's demonstrations are made one after another, on one worker at a time.
        """
        turns = -(-labels // self.workers) * settings.shots_per_label
        share = self.share if self.workers > 1 else 1.0
        return turns * self.speed.demonstration(lengths, settings) / share / 3600
