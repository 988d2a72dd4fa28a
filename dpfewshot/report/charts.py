"""The report's charts. Each has a description for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from dpfewshot.audit import Figure
from dpfewshot.report.accuracy import Panel, epsilon_order
from dpfewshot.report.promise import Promise
from dpfewshot.report.spending import Moment, Spending
from dpfewshot.report.svg import Drawing, Plot, Scale, dash_of, round_values, series_class
from dpfewshot.report.text import plural
from dpfewshot.values import epsilon_text, percent_text

if TYPE_CHECKING:
    from dpfewshot.evaluation import Summary

MOST_POINTS: Final = 400
"""Approximate maximum of points on a line; more would not be visible."""

_SHARES: Final = [(share / 100, f"{share} %") for share in range(0, 101, 20)]


def budget_chart(spending: Spending, *, dates: bool) -> Drawing:
    """Draw the ε spent after each plan, and the budget.

    Args:
        spending: an account's spending.
        dates: whether the axis is time, not the order of plans.
    """
    moments = thinned(spending.moments)
    places = [moment.at.timestamp() if dates else float(moment.plans) for moment in moments]
    first, last = places[0], max(places[-1], places[0] + 1)
    highest = max(max(moment.spent.epsilon, moment.budget.epsilon) for moment in moments)
    plot = Plot(
        "budget-chart",
        "Budget spent",
        f"A line climbs in steps to an epsilon of {epsilon_text(spending.spent.epsilon)} after "
        f"{plural(len(spending.plans), 'plan')}, below a dashed line at the budget of "
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


def accuracy_chart(panel: Panel, name: str) -> Drawing:
    """Draw accuracy against ε with 95 % intervals, one series per condition.

    Args:
        panel: the conditions to draw.
        name: the drawing's id.
    """
    epsilons = sorted({epsilon_order(each.epsilon) for each in panel.summaries})
    lowest, highest = min(each.low for each in panel.summaries), max(each.high for each in panel.summaries)
    best = max(panel.summaries, key=lambda each: each.accuracy)
    plot = Plot(
        name,
        f"{panel.task}, {panel.model}: accuracy against epsilon",
        f"{plural(len(panel.series), 'condition')}: {', '.join(panel.series)}. The highest is "
        f"{best.title} with {100 * best.accuracy:.1f} % at epsilon {epsilon_mark(best.epsilon)}.",
        across=(-0.5, len(epsilons) - 0.5),
        up=(max(0.0, lowest - 0.03), min(1.0, highest + 0.03)),
        axes=("epsilon (∞: no privacy)", "accuracy"),
    )
    plot.ticks(
        [(place, epsilon_mark(epsilon)) for place, epsilon in enumerate(epsilons)],
        [(value, f"{100 * value:g} %") for value in round_values(plot.y.low, plot.y.high)],
        both=False,
    )
    width = 0.6 / len(panel.series)
    for number, rows in enumerate(panel.series.values()):
        aside = (number - (len(panel.series) - 1) / 2) * width
        summaries = [row.summary for row in rows]
        places = [epsilons.index(epsilon_order(each.epsilon)) + aside for each in summaries]
        _series(plot, number, places, summaries)
    return plot


def interval_chart(figure: Figure, name: str) -> Drawing:
    """Draw one figure of an audit: value, interval and reference.

    Args:
        figure: the figure to draw.
        name: the drawing's id.
    """
    numbers = [n for n in (figure.value, figure.low, figure.high, figure.reference) if n is not None]
    low, high = min(numbers), max(numbers)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    else:
        low, high = low - 0.1 * (high - low) - 1e-9, high + 0.1 * (high - low) + 1e-9
    width, height = 170, 26
    drawing = Drawing(name, figure.name, _in_words(figure), width=width, height=height)
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


def epsilon_mark(epsilon: float | None) -> str:
    """Write an ε for an axis or a table, without padding zeros."""
    if epsilon is None or epsilon == float("inf"):
        return "∞"
    return f"{epsilon:g}" if float(f"{epsilon:g}") == epsilon else epsilon_text(epsilon)


def interval_text(figure: Figure) -> str:
    """Write a figure's interval, which may be open at one end."""
    low, high = figure.low, figure.high
    if low is None:
        return "none" if high is None else f"at most {high:.4g}"
    return f"at least {low:.4g}" if high is None else f"{low:.4g} to {high:.4g}"


def thinned(moments: Sequence[Moment]) -> list[Moment]:
    """Keep a few hundred moments: the largest spend of each group, changes of budget, and both ends."""
    size = -(-len(moments) // MOST_POINTS)
    groups = [range(start, min(start + size, len(moments))) for start in range(0, len(moments), size)]
    kept = {0, len(moments) - 1}
    kept |= {max(group, key=lambda place: moments[place].spent.epsilon) for group in groups}
    kept |= {place for place, (a, b) in enumerate(pairwise(moments), start=1) if a.budget != b.budget}
    return [moments[place] for place in sorted(kept)]


def _series(plot: Plot, number: int, places: Sequence[float], rows: Sequence[Summary]) -> None:
    style = series_class(number)
    if [row.epsilon for row in rows] in ([0.0], [None]):  # a baseline to compare with
        level = rows[0].accuracy
        plot.line(plot.at([(plot.x.low, level), (plot.x.high, level)]), f"faint {style}", dash="4 4")
    elif len(rows) > 1:
        values = (row.accuracy for row in rows)
        plot.line(plot.at(zip(places, values, strict=True)), style, dash=dash_of(number))
    for place, row in zip(places, rows, strict=True):
        plot.line(plot.at([(place, row.low), (place, row.high)]), style)
        plot.marker(plot.x(place), plot.y(row.accuracy), number)


def _steps(points: Sequence[tuple[float, float]], last: float) -> list[tuple[float, float]]:
    """Hold each value until the next."""
    corners = [points[0]]
    for (_, before), (x, value) in pairwise(points):
        corners += [(x, before), (x, value)]
    return [*corners, (last, points[-1][1])]


def _dates(first: float, last: float) -> list[tuple[float, str]]:
    day = 86_400.0
    form = "%Y-%m-%d" if last - first > 2 * day else "%d %H:%M"
    places = [first + (last - first) * share for share in (0.1, 0.5, 0.9)]
    return [(place, datetime.fromtimestamp(place, UTC).strftime(form)) for place in places]


def _in_words(figure: Figure) -> str:
    against = "" if figure.reference is None else f", reference {figure.reference:.4g}"
    return f"{figure.value:.4g}, interval: {interval_text(figure)}{against}"
