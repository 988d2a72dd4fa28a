"""The elements of charts, as inline SVG.

A drawing is a tree of elements, never concatenated text, so no label can become markup. Colours are classes
of the style sheet, which has a light and a dark set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from dpfewshot.report.palette import SERIES
from dpfewshot.report.text import visible

WIDTH: Final = 460
HEIGHT: Final = 300
LEFT: Final = 54
RIGHT: Final = 22
TOP: Final = 34
BOTTOM: Final = 50
"""Margins around a plot, for its axes and their labels."""

DASHES: Final = ("", "7 4", "2 3", "9 3 2 3", "12 5")
MARKERS: Final = ("circle", "square", "triangle", "diamond", "cross", "plus", "wedge")
"""Seven markers, six colours and five dashes distinguish 210 series."""

_SHAPES: Final = {
    "square": "M-4-4H4V4H-4Z",
    "triangle": "M0-5L5 4H-5Z",
    "diamond": "M0-6L5 0L0 6L-5 0Z",
    "cross": "M-4-4L4 4M4-4L-4 4",
    "plus": "M0-5V5M-5 0H5",
    "wedge": "M0 5L5-4H-5Z",
    "circle": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
}


@dataclass(frozen=True)
class Scale:
    """A linear map from values to coordinates.

    Args:
        low: the value at `start`.
        high: the value at `end`, greater than `low`.
        start: a coordinate of the drawing.
        end: a coordinate of the drawing.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


class Drawing:
    """An SVG image with a title and a description for readers who cannot see it.

    Args:
        name: its id, unique on the page: letters, digits and hyphens.
        title: its title.
        description: what it shows, in words.
        width: in the drawing's units, roughly pixels.
        height: in the same units.
    """

    def __init__(
        self, name: str, title: str, description: str, *, width: int = WIDTH, height: int = HEIGHT
    ) -> None:
        ids = f"{name}-title", f"{name}-description"
        attributes = {"id": name, "viewBox": f"0 0 {width} {height}", "role": "img"}
        self.root = Element("svg", attributes | {"class": "chart", "aria-labelledby": " ".join(ids)})
        for tag, identifier, words in (("title", ids[0], title), ("desc", ids[1], description)):
            SubElement(self.root, tag, {"id": identifier}).text = visible(words)

    def __html__(self) -> str:
        """Return its markup, whose text is already escaped."""
        return tostring(self.root, encoding="unicode")

    def line(self, points: Iterable[tuple[float, float]], style: str, *, dash: str = "") -> None:
        """Draw a line through points."""
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        SubElement(self.root, "path", {"d": path, "class": f"line {style}"} | _dashed(dash))

    def area(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """Draw a filled shape."""
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"
        SubElement(self.root, "path", {"d": path, "class": style})

    def marker(self, x: float, y: float, series: int) -> None:
        """Draw a series' marker."""
        shape = _SHAPES[MARKERS[series % len(MARKERS)]]
        attributes = {"d": shape, "transform": f"translate({x:.1f} {y:.1f})"}
        SubElement(self.root, "path", attributes | {"class": f"marker {series_class(series)}"})

    def words(self, x: float, y: float, words: str, *, anchor: str = "middle", style: str = "") -> None:
        """Write a line of text; `anchor` is "start", "middle" or "end"."""
        attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
        SubElement(self.root, "text", attributes | ({"class": style} if style else {})).text = visible(words)


class Plot(Drawing):
    """A drawing with two axes.

    Args:
        name: as in `Drawing`.
        title: as in `Drawing`.
        description: as in `Drawing`.
        across: the values at the left and right ends.
        up: the values at the bottom and the top.
        axes: the labels of the axes, horizontal and vertical.
    """

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        *,
        across: tuple[float, float],
        up: tuple[float, float],
        axes: tuple[str, str],
    ) -> None:
        super().__init__(name, title, description)
        self.x = Scale(*across, LEFT, WIDTH - RIGHT)
        self.y = Scale(*up, HEIGHT - BOTTOM, TOP)
        self.words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, axes[0])
        self.words(4, 16, axes[1], anchor="start")

    def ticks(
        self, across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]], *, both: bool = True
    ) -> None:
        """Draw axes, values and grid lines before anything else; vertical lines only if `both`."""
        left, right, bottom, top = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP
        for value, words in up:
            self.line([(left, self.y(value)), (right, self.y(value))], "grid")
            self.words(left - 7, self.y(value) + 4.5, words, anchor="end")
        for value, words in across:
            if both:
                self.line([(self.x(value), bottom), (self.x(value), top)], "grid")
            self.words(self.x(value), bottom + 19, words)
        self.line([(left, top), (left, bottom), (right, bottom)], "axis")

    def at(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return the coordinates of points given as values."""
        return [(self.x(x), self.y(y)) for x, y in points]


@dataclass(frozen=True)
class Swatch:
    """A series' line in a legend, with its marker if it has one; the text beside it names the series."""

    series: int
    marked: bool = True

    def __html__(self) -> str:
        """Return its markup."""
        root = Element("svg", {"viewBox": "0 0 36 14", "class": "swatch", "aria-hidden": "true"})
        line = {"d": "M1 7H35", "class": f"line {series_class(self.series)}"}
        SubElement(root, "path", line | _dashed(dash_of(self.series)))
        if self.marked:
            shape = {"d": _SHAPES[MARKERS[self.series % len(MARKERS)]], "transform": "translate(18 7)"}
            SubElement(root, "path", shape | {"class": f"marker {series_class(self.series)}"})
        return tostring(root, encoding="unicode")


def series_class(series: int) -> str:
    """Return the style class with a series' colour."""
    return f"series-{series % SERIES + 1}"


def dash_of(series: int) -> str:
    """Return the dash pattern of a series' line."""
    return DASHES[series % len(DASHES)]


def round_values(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values between `low` and `high` > `low`."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _dashed(dash: str) -> dict[str, str]:
    return {"stroke-dasharray": dash} if dash else {}
