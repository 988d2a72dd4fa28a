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

    `name` is its id, unique on the page: letters, digits and hyphens. Sizes are roughly pixels.
    """

    def __init__(
        self, name: str, title: str, description: str, *, width: int = WIDTH, height: int = HEIGHT
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
    """A drawing with two axes: the values at their ends, and their labels, horizontal and vertical."""

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


def budget_chart(spending: Spending, *, dates: bool) -> Drawing:
    """Draw the ε spent after each plan, and the budget; over time if `dates`, else by the order of plans."""
    moments = thinned(spending.moments)
    places = [moment.at.timestamp() if dates else float(moment.plans) for moment in moments]
    first, last = places[0], max(places[-1], places[0] + 1)
    highest = max(max(moment.spent.epsilon, moment.budget.epsilon) for moment in moments)
    plot = Plot(
        "budget-chart",
        "Budget spent",
        f"A line climbs in steps to an epsilon of {epsilon_text(spending.spent.epsilon)} after "
        f"{counted(len(spending.plans), 'plan')}, below a dashed line at the budget of "
        f"{epsilon_text(spending.budget.epsilon)}.",
        across=(first, last),
        up=(0.0, highest * 1.08),
        axes=("date" if dates else "plans, in the order in which they were reserved", "epsilon"),
    )
    plot.ticks(
        _dates(first, last) if dates else [(v, f"{v:g}") for v in round_values(first, last) if v == int(v)],
        [(value, f"{value:g}") for value in round_values(0.0, highest)],
        both=False,
    )
    spent = _steps([(x, moment.spent.epsilon) for x, moment in zip(places, moments, strict=True)], last)
    budget = _steps([(x, moment.budget.epsilon) for x, moment in zip(places, moments, strict=True)], last)
    plot.area(plot.at([(first, 0.0), *spent, (last, 0.0)]), "wash-1")
    plot.line(plot.at(spent), series_class(0))
    plot.line(plot.at(budget), series_class(1), dash=dash_of(1))
    return plot


def thinned(moments: Sequence[Moment]) -> list[Moment]:
    """Keep a few hundred moments: the largest spend of each group, changes of budget, and both ends."""
    size = -(-len(moments) // MOST_POINTS)
    groups = [range(start, min(start + size, len(moments))) for start in range(0, len(moments), size)]
    kept = {0, len(moments) - 1}
    kept |= {max(group, key=lambda place: moments[place].spent.epsilon) for group in groups}
    kept |= {place for place, (a, b) in enumerate(pairwise(moments), start=1) if a.budget != b.budget}
    return [moments[place] for place in sorted(kept)]


def _steps(points: Sequence[tuple[float, float]], last: float) -> list[tuple[float, float]]:
    """Hold each value until the next."""
    corners = [points[0]]
    for (_, before), (x, value) in pairwise(points):
        corners += [(x, before), (x, value)]
    return [*corners, (last, points[-1][1])]


def _dates(first: float, last: float) -> list[tuple[float, str]]:
    form = "%Y-%m-%d" if last - first > 2 * _DAY else "%d %H:%M"
    places = [first + (last - first) * share for share in (0.1, 0.5, 0.9)]
    return [(place, datetime.fromtimestamp(place, UTC).strftime(form)) for place in places]


def attack_chart(promise: Promise) -> Drawing:
    """Draw the best that any attacker can do: detections against false alarms."""
    f, t = promise.corner
    bound = [(0.0, promise.detection(0.0)), (f, t), (1.0 - promise.delta, 1.0), (1.0, 1.0)]
    plot = Plot(
        "attack-chart",
        "The best that any attack can do",
        f"Detections against false alarms. The bound bends at {percent_text(f)} false alarms and "
        f"{percent_text(t)} detections; the diagonal is guessing. No attack lies above the bound.",
        across=(0.0, 1.0),
        up=(0.0, 1.0),
        axes=("false alarms", "detections"),
    )
    plot.ticks(_SHARES, _SHARES)
    plot.area(plot.at([*bound, (0.0, 0.0)]), "wash-1")
    plot.line(plot.at(bound), series_class(0))
    plot.line(plot.at([(0.0, 0.0), (1.0, 1.0)]), series_class(1), dash=dash_of(1))
    plot.marker(*plot.at([(f, t)])[0], 0)
    return plot


@dataclass(frozen=True)
class Panel:
    """The contents of a chart: all conditions of a task, model and number of shots, and those without shots.

    Attributes:
        shots: the number of demonstrations in the prompt; 0 if nothing else was measured.
        series: the summaries of each condition, by ascending ε, no privacy last.
    """

    task: str
    model: str
    shots: int
    series: Mapping[str, Sequence[Summary]]

    @property
    def summaries(self) -> list[Summary]:
        """All summaries, by condition."""
        return [one for ones in self.series.values() for one in ones]

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


def accuracy_chart(panel: Panel, name: str) -> Drawing:
    """Draw accuracy against ε with 95 % intervals, one series per condition."""
    summaries = panel.summaries
    epsilons = sorted(set(map(_epsilon_order, summaries)))
    best = max(summaries, key=lambda each: each.accuracy)
    plot = Plot(
        name,
        f"{panel.task}, {panel.model}: accuracy against epsilon",
        f"{counted(len(panel.series), 'condition')}: {', '.join(panel.series)}. The highest is "
        f"{best.condition} with {100 * best.accuracy:.1f} % at epsilon {epsilon_mark(best.epsilon)}.",
        across=(-0.5, len(epsilons) - 0.5),
        up=(
            max(0.0, min(each.low for each in summaries) - 0.03),
            min(1.0, max(each.high for each in summaries) + 0.03),
        ),
        axes=("epsilon (∞: no privacy)", "accuracy"),
    )
    plot.ticks(
        [(place, epsilon_mark(epsilon)) for place, epsilon in enumerate(epsilons)],
        [(value, f"{100 * value:g} %") for value in round_values(plot.y.low, plot.y.high)],
        both=False,
    )
    width = 0.6 / len(panel.series)
    for number, ones in enumerate(panel.series.values()):
        aside = (number - (len(panel.series) - 1) / 2) * width
        places = [epsilons.index(_epsilon_order(each)) + aside for each in ones]
        _series(plot, number, places, ones)
    return plot


def _series(plot: Plot, number: int, places: Sequence[float], ones: Sequence[Summary]) -> None:
    style = series_class(number)
    if [one.epsilon for one in ones] in ([0.0], [None]):  # a baseline to compare with
        level = ones[0].accuracy
        plot.line(plot.at([(plot.x.low, level), (plot.x.high, level)]), f"faint {style}", dash="4 4")
    elif len(ones) > 1:
        values = (one.accuracy for one in ones)
        plot.line(plot.at(zip(places, values, strict=True)), style, dash=dash_of(number))
    for place, one in zip(places, ones, strict=True):
        plot.line(plot.at([(place, one.low), (place, one.high)]), style)
        plot.marker(plot.x(place), plot.y(one.accuracy), number)


def epsilon_mark(epsilon: float | None) -> str:
    """Write an ε for an axis or a table, without padding zeros."""
    if epsilon is None or epsilon == math.inf:
        return "∞"
    return f"{epsilon:g}" if float(f"{epsilon:g}") == epsilon else epsilon_text(epsilon)


def interval_chart(figure: Figure, name: str) -> Drawing:
    """Draw one figure of an audit: value, interval and reference."""
    numbers = [n for n in (figure.value, figure.low, figure.high, figure.reference) if n is not None]
    low, high = min(numbers), max(numbers)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    else:
        low, high = low - 0.1 * (high - low) - 1e-9, high + 0.1 * (high - low) + 1e-9
    against = "" if figure.reference is None else f", reference {figure.reference:.4g}"
    words = f"{figure.value:.4g}, interval: {interval_text(figure)}{against}"
    width, height = 170, 26
    drawing = Drawing(name, figure.name, words, width=width, height=height)
    x, middle = Scale(low, high, 8, width - 8), height / 2
    drawing.line([(8, middle), (width - 8, middle)], "grid")
    ends = [x(end) for end in (figure.low, figure.high) if end is not None]
    if ends:
        start, end = min([*ends, x(figure.value)]), max([*ends, x(figure.value)])
        drawing.line([(start, middle), (end, middle)], f"thick {series_class(0)}")
        for place in ends:
            drawing.line([(place, middle - 5), (place, middle + 5)], series_class(0))
    if figure.reference is not None:
        place = x(figure.reference)
        drawing.line([(place, 3), (place, height - 3)], series_class(1), dash=dash_of(2))
    drawing.marker(x(figure.value), middle, 0)
    return drawing


def interval_text(figure: Figure) -> str:
    """Write a figure's interval, which may be open at one end."""
    low, high = figure.low, figure.high
    if low is None:
        return "none" if high is None else f"at most {high:.4g}"
    return f"at least {low:.4g}" if high is None else f"{low:.4g} to {high:.4g}"
