"""The report's charts, as inline SVG. Each has a description for readers who cannot see it.

A drawing is a tree of elements, never concatenated text, so no label can become markup. Colours are classes
of the style sheet, which has a light and a dark set. Charts never tell series apart by colour alone: markers
and dashes differ.
"""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from dpfewshot.audit import Figure
from dpfewshot.evaluation import Cell, Summary, summarise
from dpfewshot.report.promise import Promise
from dpfewshot.report.spending import Moment, Spending
from dpfewshot.values import counted, epsilon_text, percent_text

MOST_POINTS: Final = 400
"""Approximate maximum of points on a line; more would not be visible."""

_SHARES: Final = [(share / 100, f"{share} %") for share in range(0, 101, 20)]
_DAY: Final = 86_400.0

Point = tuple[float, float]
Mark = tuple[float, str]
Margins = tuple[float, float, float, float]
"""Left, right, top and bottom, in pixels."""

_SIZE: Final = (460, 300)
_MARGINS: Final = (54, 22, 34, 50)
"""For axes and their labels."""

SERIES: Final = 6
"""The number of series colours; a chart with more series starts over."""

_DASHES: Final = ("", "7 4", "2 3", "9 3 2 3", "12 5")
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
    """The style class with a series' colour."""
    return f"series-{series % SERIES + 1}"


class Drawing:
    """An SVG image of `size` pixels, on which the values from `low` to `high` lie between the margins."""

    def __init__(
        self,
        attributes: Mapping[str, str],
        size: Point,
        low: Point,
        high: Point,
        margins: Margins = (0, 0, 0, 0),
    ) -> None:
        (width, height), (left, right, top, bottom) = size, margins
        self._values = low, high
        self._places = (left, height - bottom), (width - right, top)
        self.root = Element("svg", {**attributes, "viewBox": f"0 0 {width} {height}"})

    def __html__(self) -> str:
        """Return its markup, whose text is already escaped."""
        return tostring(self.root, encoding="unicode")

    def line(self, points: Iterable[Point], style: str, *, dash: str = "") -> None:
        """Draw a line through points."""
        dashes = {"stroke-dasharray": dash} if dash else {}
        SubElement(self.root, "path", {"d": self._path(points), "class": f"line {style}"} | dashes)

    def curve(self, points: Iterable[Point], series: int) -> None:
        """Draw a series' line, in its colour and its dashes."""
        self.line(points, series_class(series), dash=_DASHES[series % len(_DASHES)])

    def area(self, points: Iterable[Point], style: str) -> None:
        """Draw a filled shape."""
        SubElement(self.root, "path", {"d": self._path(points) + "Z", "class": style})

    def marker(self, x: float, y: float, series: int) -> None:
        """Draw a series' marker."""
        place = "translate({:.1f} {:.1f})".format(*self._at(x, y))
        attributes = {"d": _MARKERS[series % len(_MARKERS)], "transform": place}
        SubElement(self.root, "path", attributes | {"class": f"marker {series_class(series)}"})

    def words(self, x: float, y: float, words: str, *, aside: Point, anchor: str = "middle") -> None:
        """Write a line of text so many pixels beside a point; `anchor` is "start", "middle" or "end"."""
        across, down = (place + by for place, by in zip(self._at(x, y), aside, strict=True))
        attributes = {"x": f"{across:.1f}", "y": f"{down:.1f}", "text-anchor": anchor}
        SubElement(self.root, "text", attributes).text = visible(words)

    def _path(self, points: Iterable[Point]) -> str:
        return "M" + "L".join("{:.1f} {:.1f}".format(*self._at(x, y)) for x, y in points)

    def _at(self, *value: float) -> Point:
        """The pixels of a point."""
        x, y = (
            start + (one - low) / (high - low) * (end - start)
            for one, low, high, start, end in zip(value, *self._values, *self._places, strict=True)
        )
        return x, y


def swatch(series: int, *, marked: bool = True) -> Drawing:
    """A series' line in a legend, with its marker if it has one; the text beside it names the series."""
    drawing = Drawing({"class": "swatch", "aria-hidden": "true"}, size=(36, 14), low=(0, 0), high=(36, 14))
    drawing.curve([(1, 7), (35, 7)], series)
    if marked:
        drawing.marker(18, 7, series)
    return drawing


class Chart(Drawing):
    """A drawing with a title and a description for readers who cannot see it.

    `name` is its id, unique on the page: letters, digits and hyphens.
    """

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        low: Point,
        high: Point,
        *,
        size: Point = _SIZE,
        margins: Margins = _MARGINS,
    ) -> None:
        ids = f"{name}-title", f"{name}-description"
        attributes = {"id": name, "role": "img", "class": "chart", "aria-labelledby": " ".join(ids)}
        super().__init__(attributes, size, low, high, margins)
        for tag, identifier, words in (("title", ids[0], title), ("desc", ids[1], description)):
            SubElement(self.root, tag, {"id": identifier}).text = visible(words)

    def axes(
        self, labels: tuple[str, str], across: Sequence[Mark], up: Sequence[Mark], *, grid: bool = False
    ) -> None:
        """Draw axes with values and lines across; with `grid`, lines upwards too. Call it first."""
        (left, bottom), (right, top) = self._values
        self.words((left + right) / 2, bottom, labels[0], aside=(0, 42))
        self.words(left, top, labels[1], aside=(-50, -18), anchor="start")
        for value, words in up:
            self.line([(left, value), (right, value)], "grid")
            self.words(left, value, words, aside=(-7, 4.5), anchor="end")
        for value, words in across:
            if grid:
                self.line([(value, bottom), (value, top)], "grid")
            self.words(value, bottom, words, aside=(0, 19))
        self.line([(left, top), (left, bottom), (right, bottom)], "axis")


def round_values(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values between `low` and `high` > `low`."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def budget_chart(spending: Spending, *, dates: bool) -> Chart:
    """Draw the ε spent after each plan, and the budget; over time if `dates`, else by the order of plans."""
    moments = thinned(spending.moments)
    places = [moment.at.timestamp() if dates else float(moment.plans) for moment in moments]
    first, last = places[0], max(places[-1], places[0] + 1)
    highest = max(max(moment.spent.epsilon, moment.budget.epsilon) for moment in moments)
    chart = Chart(
        "budget-chart",
        "Budget spent",
        f"A line climbs in steps to an epsilon of {epsilon_text(spending.spent.epsilon)} after "
        f"{counted(len(spending.plans), 'plan')}, below a dashed line at the budget of "
        f"{epsilon_text(spending.budget.epsilon)}.",
        low=(first, 0.0),
        high=(last, highest * 1.08),
    )
    numbers = [value for value in round_values(first, last) if value == int(value)]
    chart.axes(
        ("date" if dates else "plans, in the order in which they were reserved", "epsilon"),
        _dates(first, last) if dates else [(value, f"{value:g}") for value in numbers],
        [(value, f"{value:g}") for value in round_values(0.0, highest)],
    )
    spent = _steps([(x, moment.spent.epsilon) for x, moment in zip(places, moments, strict=True)], last)
    budget = _steps([(x, moment.budget.epsilon) for x, moment in zip(places, moments, strict=True)], last)
    chart.area([(first, 0.0), *spent, (last, 0.0)], "wash-1")
    chart.curve(spent, 0)
    chart.curve(budget, 1)
    return chart


def thinned(moments: Sequence[Moment]) -> list[Moment]:
    """Keep a few hundred moments: the largest spend of each group, changes of budget, and both ends."""
    size = -(-len(moments) // MOST_POINTS)
    groups = [range(start, min(start + size, len(moments))) for start in range(0, len(moments), size)]
    kept = {0, len(moments) - 1}
    kept |= {max(group, key=lambda place: moments[place].spent.epsilon) for group in groups}
    kept |= {place for place, (a, b) in enumerate(pairwise(moments), start=1) if a.budget != b.budget}
    return [moments[place] for place in sorted(kept)]


def _steps(points: Sequence[Point], last: float) -> list[Point]:
    """Hold each value until the next."""
    corners = [points[0]]
    for (_, before), (x, value) in pairwise(points):
        corners += [(x, before), (x, value)]
    return [*corners, (last, points[-1][1])]


def _dates(first: float, last: float) -> list[Mark]:
    form = "%Y-%m-%d" if last - first > 2 * _DAY else "%d %H:%M"
    places = [first + (last - first) * share for share in (0.1, 0.5, 0.9)]
    return [(place, datetime.fromtimestamp(place, UTC).strftime(form)) for place in places]


def attack_chart(promise: Promise) -> Chart:
    """Draw the best that any attacker can do: detections against false alarms."""
    f, t = promise.corner
    bound = [(0.0, promise.detection(0.0)), (f, t), (1.0 - promise.delta, 1.0), (1.0, 1.0)]
    chart = Chart(
        "attack-chart",
        "The best that any attack can do",
        f"Detections against false alarms. The bound bends at {percent_text(f)} false alarms and "
        f"{percent_text(t)} detections; the diagonal is guessing. No attack lies above the bound.",
        low=(0.0, 0.0),
        high=(1.0, 1.0),
    )
    chart.axes(("false alarms", "detections"), _SHARES, _SHARES, grid=True)
    chart.area([*bound, (0.0, 0.0)], "wash-1")
    chart.curve(bound, 0)
    chart.curve([(0.0, 0.0), (1.0, 1.0)], 1)
    chart.marker(f, t, 0)
    return chart


@dataclass(frozen=True)
class Panel:
    """A chart's contents: all conditions of a task, a model and a number of shots, and those without."""

    task: str
    model: str
    shots: int
    series: Mapping[str, Sequence[Summary]]
    """Of each condition, by ascending ε, no privacy last."""

    @property
    def uncertified(self) -> list[str]:
        """The conditions with an ε that is only the noise's."""
        return [
            name
            for name, ones in self.series.items()
            if any(one.epsilon is not None and not one.certified for one in ones)
        ]


def panels(cells: Sequence[Cell]) -> list[Panel]:
    """Return one panel for each task, model and number of shots, in order of measurement."""
    summaries = summarise(cells)
    found = []
    for task, model in dict.fromkeys((one.task, one.model) for one in summaries):
        of_model = [one for one in summaries if (one.task, one.model) == (task, model)]
        for shots in sorted({one.shots for one in of_model} - {0}) or [0]:
            shown = [one for one in of_model if one.shots in {0, shots}]
            found.append(Panel(task, model, shots, _by_condition(shown)))
    return found


def _by_condition(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Group by condition, and by the writer if there are several."""
    writers = len({one.writer for one in summaries if one.shots}) > 1
    series: dict[str, list[Summary]] = defaultdict(list)
    for one in sorted(summaries, key=_epsilon_order):
        series[one.condition + (f" by {one.writer}" if writers and one.shots else "")].append(one)
    return series


def _epsilon_order(summary: Summary) -> float:
    return math.inf if summary.epsilon is None else summary.epsilon


def accuracy_chart(panel: Panel, name: str) -> Chart:
    """Draw accuracy against ε with 95 % intervals, one series per condition."""
    summaries = [one for ones in panel.series.values() for one in ones]
    epsilons = sorted(set(map(_epsilon_order, summaries)))
    best = max(summaries, key=lambda each: each.accuracy)
    low = max(0.0, min(each.low for each in summaries) - 0.03)
    high = min(1.0, max(each.high for each in summaries) + 0.03)
    left, right = -0.5, len(epsilons) - 0.5
    chart = Chart(
        name,
        f"{panel.task}, {panel.model}: accuracy against epsilon",
        f"{counted(len(panel.series), 'condition')}: {', '.join(panel.series)}. The highest is "
        f"{best.condition} with {100 * best.accuracy:.1f} % at epsilon {epsilon_mark(best.epsilon)}.",
        low=(left, low),
        high=(right, high),
    )
    chart.axes(
        ("epsilon (∞: no privacy)", "accuracy"),
        [(place, epsilon_mark(epsilon)) for place, epsilon in enumerate(epsilons)],
        [(value, f"{100 * value:g} %") for value in round_values(low, high)],
    )
    width = 0.6 / len(panel.series)
    for number, ones in enumerate(panel.series.values()):
        style, aside = series_class(number), (number - (len(panel.series) - 1) / 2) * width
        places = [epsilons.index(_epsilon_order(each)) + aside for each in ones]
        if [one.epsilon for one in ones] in ([0.0], [None]):  # a baseline to compare with
            level = ones[0].accuracy
            chart.line([(left, level), (right, level)], f"faint {style}", dash="4 4")
        elif len(ones) > 1:
            chart.curve(zip(places, (one.accuracy for one in ones), strict=True), number)
        for place, one in zip(places, ones, strict=True):
            chart.line([(place, one.low), (place, one.high)], style)
            chart.marker(place, one.accuracy, number)
    return chart


def epsilon_mark(epsilon: float | None) -> str:
    """Write an ε for an axis or a table, without padding zeros."""
    if epsilon is None or epsilon == math.inf:
        return "∞"
    return f"{epsilon:g}" if float(f"{epsilon:g}") == epsilon else epsilon_text(epsilon)


def interval_chart(figure: Figure, name: str) -> Chart:
    """Draw one figure of an audit: value, interval and reference."""
    ends = [end for end in (figure.low, figure.high) if end is not None]
    numbers = [figure.value, *ends, *([] if figure.reference is None else [figure.reference])]
    low, high = min(numbers), max(numbers)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    else:
        low, high = low - 0.1 * (high - low) - 1e-9, high + 0.1 * (high - low) + 1e-9
    against = "" if figure.reference is None else f", reference {figure.reference:.4g}"
    words = f"{figure.value:.4g}, interval: {interval_text(figure)}{against}"
    size, middle = (170, 26), 13
    chart = Chart(name, figure.name, words, (low, 0), (high, 26), size=size, margins=(8, 8, 0, 0))
    chart.line([(low, middle), (high, middle)], "grid")
    if ends:
        reached = [min(*ends, figure.value), max(*ends, figure.value)]
        chart.line([(end, middle) for end in reached], f"thick {series_class(0)}")
    for end in ends:
        chart.line([(end, middle + 5), (end, middle - 5)], series_class(0))
    if figure.reference is not None:
        chart.line([(figure.reference, 23), (figure.reference, 3)], series_class(1), dash=_DASHES[2])
    chart.marker(figure.value, middle, 0)
    return chart


def interval_text(figure: Figure) -> str:
    """Write a figure's interval, which may be open at one end."""
    low, high = figure.low, figure.high
    if low is None:
        return "none" if high is None else f"at most {high:.4g}"
    return f"at least {low:.4g}" if high is None else f"{low:.4g} to {high:.4g}"
