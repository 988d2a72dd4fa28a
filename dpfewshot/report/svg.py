"""The elements of charts, as inline SVG.

A drawing is a tree of elements, never concatenated text, so no label can become markup. Colours are classes
of the style sheet, which has a light and a dark set. Charts never tell series apart by colour alone: markers
and dashes differ.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

WIDTH: Final = 460
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 54, 22, 34, 50  # margins around a plot, for its axes and their labels

SERIES: Final = 6
"""The number of series colours; a chart with more series starts over."""

DASHES: Final = ("", "7 4", "2 3", "9 3 2 3", "12 5")
_MARKERS: Final = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",  # a circle
    "M-4-4H4V4H-4Z",
    "M0-5L5 4H-5Z",
    "M0-6L5 0L0 6L-5 0Z",
    "M-4-4L4 4M4-4L-4 4",
    "M0-5V5M-5 0H5",
    "M0 5L5-4H-5Z",
)
"""Seven markers, six colours and five dashes distinguish 210 series."""

_JOINERS: Final = "\u200c\u200d"
"""Persian and emoji need them."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of invisible or rearranging characters: control and format characters (among them
changes of writing direction), surrogates, private use, line and paragraph separators."""


def visible(text: str) -> str:
    """Write out every invisible character, as in ⟨U+202E⟩; line ends stay."""

    def hidden(each: str) -> bool:
        return unicodedata.category(each) in _HIDDEN and each not in "\n\t" + _JOINERS

    return "".join(f"⟨U+{ord(each):04X}⟩" if hidden(each) else each for each in text)


def series_class(series: int) -> str:
    """Return the style class with a series' colour."""
    return f"series-{series % SERIES + 1}"


def dash_of(series: int) -> str:
    """Return the dash pattern of a series' line."""
    return DASHES[series % len(DASHES)]


@dataclass(frozen=True)
class Scale:
    """A linear map from values in low..high to coordinates in start..end."""

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
        self,
        name: str,
        title: str,
        description: str,
        *,
        width: int = WIDTH,
        height: int = HEIGHT,
    ) -> None:
        ids = f"{name}-title", f"{name}-description"
        attributes = {"id": name, "viewBox": f"0 0 {width} {height}", "role": "img", "class": "chart"}
        self.root = Element("svg", attributes | {"aria-labelledby": " ".join(ids)})
        for tag, identifier, words in (("title", ids[0], title), ("desc", ids[1], description)):
            SubElement(self.root, tag, {"id": identifier}).text = visible(words)

    def __html__(self) -> str:
        """Return its markup, whose text is already escaped."""
        return tostring(self.root, encoding="unicode")

    def line(self, points: Iterable[tuple[float, float]], style: str, *, dash: str = "") -> None:
        """Draw a line through points."""
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashes = {"stroke-dasharray": dash} if dash else {}
        SubElement(self.root, "path", {"d": path, "class": f"line {style}"} | dashes)

    def area(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """Draw a filled shape."""
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"
        SubElement(self.root, "path", {"d": path, "class": style})

    def marker(self, x: float, y: float, series: int) -> None:
        """Draw a series' marker."""
        attributes = {"d": _MARKERS[series % len(_MARKERS)], "transform": f"translate({x:.1f} {y:.1f})"}
        SubElement(self.root, "path", attributes | {"class": f"marker {series_class(series)}"})

    def words(self, x: float, y: float, words: str, *, anchor: str = "middle", style: str = "") -> None:
        """Write a line of text; `anchor` is "start", "middle" or "end"."""
        attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
        SubElement(self.root, "text", attributes | ({"class": style} if style else {})).text = visible(words)


class Swatch(Drawing):
    """A series' line in a legend, with its marker if it has one; the text beside it names the series."""

    def __init__(self, series: int, *, marked: bool = True) -> None:
        self.root = Element("svg", {"viewBox": "0 0 36 14", "class": "swatch", "aria-hidden": "true"})
        self.line([(1, 7), (35, 7)], series_class(series), dash=dash_of(series))
        if marked:
            self.marker(18, 7, series)


class Plot(Drawing):
    """A drawing with two axes.

    Args:
        name: as in `Drawing`, like the next two.
        title: see above.
        description: see above.
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


def round_values(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values between `low` and `high` > `low`."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
