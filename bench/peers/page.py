"""The tables and plots of docs/comparison.md, from the lines and cells in bench/results: `python -m bench.peers --page`.

`peers.jsonl` has one measurement a line, of a kind: seconds ("speed"), ε of other accountants ("accounting"), Gaussian
draws ("noise"), ε as it is stated ("claim"), and what a peer's package gave ("run"). `peers-accuracy.jsonl` has cells.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import Any, TypeAlias

from bench.pages import OURS, Difference, Lines, Table, difference, percent_right, points, rows, table, write
from bench.utility import MODELS, RAW, ROOT, SHOTS
from dpfewshot.evaluation import Cell, Results, summarise
from dpfewshot.evaluation.summaries import Calibration

LINES, CELLS = RAW.with_name("peers.jsonl"), RAW.with_name("peers-accuracy.jsonl")
PAGE = ROOT / "docs/comparison.md"

TASKS = ("trec", "mit-d", "agnews")
EPSILONS = (1.0, 4.0)
AMIN, INK = "private-prediction", "invisible-ink"
PEERS = {
    "gaussian": "Tang et al., Gaussian",
    "adadpsyn": "AdaDPSyn",
    AMIN: "private prediction (Amin et al.)",
    INK: "InvisibleInk",
    "private-evolution": "Private Evolution",
}
"""Conditions of cells, and their names on the page."""

CALIBRATION: dict[str, Calibration] = {"trec": "batch", "agnews": "batch", "mit-d": "contextual"}
"""As in docs/results/utility.md: extraction has one kind of outcomes."""

TANG_WAY = "Tang et al., as published"
ADADPSYN_WAY = "AdaDPSyn, as published"
OURS_WAY = "dpfewshot"
AGREEING_WAY = "dpfewshot, 2 M"
SAME_NOISE_WAY = "dpfewshot, Gaussian, M raised to the noise of Tang et al."
EVOLUTION_WAY = "Private Evolution"
INK_WAY = "InvisibleInk (invink)"

FASTER = 10.0
"""The goal beside Tang et al.'s way at the same noise."""

STATES = {
    "dpfewshot": "upper bound, with a proof of its rounding",
    "dp-accounting": "upper bound of the pessimistic discretisation; floats are not bounded",
    "prv-accountant": "upper end of the bracket; floats are not bounded",
    "autodp": "upper bound by Rényi divergences, at a grid of orders; floats are not bounded",
}
"""What each accountant states."""

Line: TypeAlias = dict[str, Any]
"""A JSON object with the keys "kind" and "versions"."""


def lines(kind: str) -> list[Line]:
    """The measurements of a kind, in order."""
    return [line for line in rows(LINES.name) if line["kind"] == kind]


@cache
def cells() -> Sequence[Cell]:
    """Those of four demonstrations at the page's ε, by Gemma."""
    writer = MODELS["gemma"][0]
    return [
        cell
        for path in (RAW, CELLS)
        for cell in Results(path).cells
        if cell.task in TASKS
        and cell.model == cell.writer == writer
        and cell.shots == SHOTS
        and cell.epsilon_asked in EPSILONS
    ]


@dataclass(frozen=True)
class Spread:
    """A median with its range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of some values."""
        return cls(statistics.median(values), min(values), max(values))

    def shown(self, digits: int = 1) -> str:
        """As in the tables."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def ratios(task: str, peer: str) -> Spread:
    """Seconds of a peer in those of ours, round by round, in the run in which both took turns."""
    return ratios_of(lines("speed"), task, peer, OURS_WAY)


def ratios_of(measured: Iterable[Line], task: str, peer: str, ours: str) -> Spread:
    """The same of given lines."""
    seconds = {
        (line["peer"], line["turns"], line["round"]): line["seconds"]
        for line in measured
        if line["task"] == task
    }
    rounds = [key[1:] for key in seconds if key[0] == peer and (ours, *key[1:]) in seconds]
    return Spread.of([seconds[peer, *each] / seconds[ours, *each] for each in rounds])


def group(task: str, condition: str, epsilon: float) -> list[Cell]:
    """The repetitions of a condition, with the public examples where ours has them."""
    wanted = condition if condition == OURS[task] or task != "mit-d" else f"{condition}, public examples"
    found = [
        cell for cell in cells() if (cell.task, cell.condition, cell.epsilon_asked) == (task, wanted, epsilon)
    ]
    return renumbered(found)


def renumbered(found: Iterable[Cell]) -> list[Cell]:
    """Cells as repetitions of one condition, whichever script measured them."""
    return [replace(cell, repetition=number) for number, cell in enumerate(found)]


def less_ours(task: str, condition: str, epsilon: float) -> Difference | None:
    """A peer's accuracy less ours; None if nothing was measured."""
    peer, ours = group(task, condition, epsilon), group(task, OURS[task], epsilon)
    return difference(peer, ours, calibration=CALIBRATION[task]) if peer and ours else None


def ahead(found: Difference) -> bool:
    """Whether a peer is more accurate beyond the spread."""
    return found.low > 0


# Tables


def goals() -> Lines:
    """Each goal with what was found."""
    leading, behind, compared = leads()
    whole = len(TASKS) * len(PEERS) * len(EPSILONS)
    state = verdict(not leading) if leading or compared == whole else "open"
    who = (
        f"{'; '.join(leading) or 'no peer is'}; ours is in {behind}, and the others show no difference; "
        f"{compared} of {whole} comparisons on {len(TASKS)} tasks were measured"
    )
    found = [["at equal certified ε no peer is more accurate beyond the spread", who, state]]
    for task in dict.fromkeys(line["task"] for line in lines("speed")):
        found += goals_of_speed(lines("speed"), task)
    return table("goal | found |", found)


def leads() -> tuple[list[str], int, int]:
    """Where a peer is more accurate beyond the spread, in how many comparisons ours is, and how many there are."""
    found, ours_ahead, measured = [], 0, 0
    for task in TASKS:
        for condition, name in PEERS.items():
            for epsilon in EPSILONS:
                one = less_ours(task, condition, epsilon)
                measured += one is not None
                ours_ahead += one is not None and one.high < 0
                if one is not None and ahead(one):
                    found.append(f"{name} on {task} at ε = {epsilon:g} ({100 * one.mean:+.1f} points)")
    return found, ours_ahead, measured


def goals_of_speed(measured: Sequence[Line], task: str) -> list[list[str]]:
    """Those of one data set."""
    there = {line["peer"] for line in measured if line["task"] == task}
    others = [way for way in (INK_WAY, EVOLUTION_WAY) if way in there]
    each = {way: ratios_of(measured, task, way, OURS_WAY) for way in others}
    faster = [
        f"{way} takes {ratio.shown(2)} of the seconds" for way, ratio in each.items() if ratio.median < 1
    ]
    beside = f"none of {', '.join(others)}, at its own settings" if others else "not measured"
    state = verdict(not faster) if others else "open"
    found = [[f"no peer is faster, {task}", "; ".join(faster) or beside, state]]
    ours = {SAME_NOISE_WAY: "at the same noise", AGREEING_WAY: "at the same agreement or more"}
    for way, what in ours.items():
        ratio = ratios_of(measured, task, TANG_WAY, way)
        name = f"a tenth of the seconds of Tang et al.'s way {what}, {task}"
        found.append([name, f"{ratio.shown()} times fewer", verdict(ratio.median >= FASTER)])
    return found


def verdict(holds: bool) -> str:
    """The word for it."""
    return "met" if holds else "**missed**"


def speed() -> Lines:
    """Seconds and tokens a demonstration, by data set."""
    found = []
    for task, peer in ordered():
        measured = [line for line in lines("speed") if line["task"] == task]
        turns = next(line["turns"] for line in measured if line["peer"] == peer)
        ways, beside = (
            [line for line in measured if (line["peer"], line["turns"]) == (way, turns)]
            for way in (peer, OURS_WAY)
        )
        size = f"{ways[0]['prompts']} × {ways[0]['records_per_prompt']}" if ways[0]["prompts"] else "–"
        seconds = [Spread.of([line["seconds"] for line in each]).shown() for each in (ways, beside)]
        factor = "1" if peer == OURS_WAY else ratios(task, peer).shown()
        tokens = f"{round(sum(line['tokens'] for line in ways) / len(ways)):,}"
        found.append([task, peer, size, *seconds, factor, tokens])
    return table("task | way | M × N | seconds | ours in that run | times ours | model tokens", found)


def ordered() -> list[tuple[str, str]]:
    """The tasks and ways of "speed", ours first."""
    found = dict.fromkeys((line["task"], line["peer"]) for line in lines("speed"))
    tasks = list(dict.fromkeys(task for task, _ in found))
    return sorted(found, key=lambda each: (tasks.index(each[0]), not each[1].startswith(OURS_WAY), each[1]))


def claims() -> Lines:
    """ε stated, and certified."""
    from_code = [line for line in lines("run") if line.get("with") == "its formula"]
    found = []
    for line in [*lines("claim"), *from_code]:
        told = ("–" if value is None else f"{value:.3g}" for value in (line["stated"], line["own"]))
        certified = (
            "none" if value is None else rounded_up(value) for value in (line["drawn"], line["as_run"])
        )
        found.append([line["peer"], line["setting"], *told, *certified, line["why"]])
    head = (
        "peer | setting | ε stated | its accounting, recomputed | with the draws of the code | as it runs |"
    )
    return table(head, found)


def rounded_up(value: float) -> str:
    """An upper bound to three digits, rounded up."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step - 1e-6) * step:.3g}"


def accuracy() -> Lines:
    """Accuracy by task, mechanism and ε, with the difference from ours."""
    found = []
    for task in TASKS:
        for condition, name in ((OURS[task], OURS_WAY), *PEERS.items()):
            row = (cell for epsilon in EPSILONS for cell in accuracy_of(task, condition, epsilon))
            found.append([task, name, *row])
    return table(f"task | mechanism | {' | '.join(f'ε = {e:g} | runs | less ours' for e in EPSILONS)}", found)


def accuracy_of(task: str, condition: str, epsilon: float) -> tuple[str, str, str]:
    """Accuracy, runs and difference; dashes if nothing was measured."""
    peer = group(task, condition, epsilon)
    if not peer:
        return "not measured", "0", "–"
    (one,) = summarise(peer, calibration=CALIBRATION[task])
    mean = f"**{100 * one.accuracy:.1f}** [{100 * one.low:.1f}, {100 * one.high:.1f}]"
    found = less_ours(task, condition, epsilon)
    if found is None or condition == OURS[task]:
        return mean, str(len(peer)), ""
    return mean, str(len(peer)), points(found) + " **ahead**" * ahead(found)


def spread() -> Lines:
    """How far apart the runs of each mechanism are, at the first ε."""
    found = []
    for condition, name in {"": OURS_WAY, **PEERS}.items():
        row = []
        for task in TASKS:
            runs = group(task, condition or OURS[task], EPSILONS[0])
            each = [percent_right(cell, CALIBRATION[task]) for cell in runs]
            row.append(f"{min(each):.1f} to {max(each):.1f}" if each else "–")
        found.append([name, *row])
    return table(f"runs at ε = {EPSILONS[0]:g} lie from, to | {' | '.join(TASKS)}", found)


def accounting() -> Lines:
    """ε at the printed σ, and seconds."""
    measured = lines("accounting")
    ours = {(line["task"], line["target"]): line for line in measured if line["tool"] == OURS_WAY}
    found = []
    for tool, states in STATES.items():
        each = [line for line in measured if line["tool"] == tool and "epsilon" in line]
        pairs = [(line, ours[line["task"], line["target"]]) for line in each]
        ratio = [line["epsilon"] / one["epsilon"] for line, one in pairs]
        slower = Spread.of([line["seconds"] / one["seconds"] for line, one in pairs]).shown()
        milliseconds = Spread.of([1000 * line["seconds"] for line in each]).shown()
        found.append([tool, len(each), f"{min(ratio):.4f} to {max(ratio):.4f}", milliseconds, slower, states])
    head = "tool | rows | ε in that of dpfewshot, least to most | milliseconds an ε | in those of dpfewshot | what it states"
    return table(head, found)


def noise() -> Lines:
    """Gaussian draws a second."""
    fastest = sorted(lines("noise"), key=lambda one: -float(one["normals_a_second"]))
    made = (
        [one["tool"], f"{one['normals_a_second']:,.0f}", "yes" if one["exact"] else "no"] for one in fastest
    )
    return table("tool | draws a second | exact", made)


def runs() -> Lines:
    """What the packages gave."""
    made = (
        [line["peer"], line["with"] + (f", {line['call']}" if "call" in line else ""), outcome(line)]
        for line in lines("run")
        if not line.get("formula") and line["with"] != "its formula"
    )
    return table("package | how | outcome", made)


def outcome(line: Line) -> str:
    """An error word for word, or what came back."""
    if "error" in line:
        return f"`{line['error']}`"
    if "characters" in line:
        return f"a demonstration of {line['characters']} characters"
    return f"a text; ε stated {line['stated']:.3g}; digest of the text {line['same_as']}"


def versions() -> Lines:
    """Of everything that took part."""
    found: dict[str, set[str]] = {}
    for line in rows(LINES.name):
        for name, version in line["versions"].items():
            found.setdefault(name, set()).add(version)
    each = (f"{name} {' and '.join(sorted(versions))}" for name, versions in sorted(found.items()))
    return [f"Versions: {', '.join(each)}."]


TABLES: dict[str, Table] = {
    "goals": goals,
    "speed": speed,
    "claims": claims,
    "accuracy": accuracy,
    "spread": spread,
    "accounting": accounting,
    "noise": noise,
    "runs": runs,
    "versions": versions,
}


# Plots


def plots() -> dict[str, str]:
    """The pictures by name."""
    seconds = [
        (f"{task}: {peer}", 1.0 if peer == OURS_WAY else ratios(task, peer).median)
        for task, peer in ordered()
    ]
    dots = []
    for task in TASKS:
        for condition, name in ((OURS[task], OURS_WAY), *PEERS.items()):
            dots += [
                (f"{task}: {name}", 100 * one.accuracy, 100 * one.low, 100 * one.high)
                for one in summarise(group(task, condition, EPSILONS[0]), calibration=CALIBRATION[task])
            ]
    return {
        "comparison-speed.svg": bars("Seconds a demonstration, in those of dpfewshot (logarithmic)", seconds),
        "comparison-accuracy.svg": intervals(f"Accuracy at ε = {EPSILONS[0]:g}, 95 % intervals", dots),
    }


WIDTH, LEFT, ROW = 760, 300, 26
GREY, BLUE = "#767676", "#2f6fb3"
"""Readable on light and on dark pages."""


def bars(title: str, rows: Sequence[tuple[str, float]]) -> str:
    """A bar for each name and its value, which is at least 0.1, on a logarithmic axis."""
    most = max(value for _, value in rows)
    scale = (WIDTH - LEFT - 80) / math.log10(10 * most)
    parts = [text(8, 18, title, weight="bold")]
    for index, (name, value) in enumerate(rows):
        top = 34 + ROW * index
        length = max(2.0, scale * math.log10(10 * value))
        parts.append(text(LEFT - 8, top + 15, name, anchor="end"))
        parts.append(f'<rect x="{LEFT}" y="{top + 3}" width="{length:.0f}" height="16" fill="{BLUE}"/>')
        parts.append(text(round(LEFT + length + 6), top + 15, f"{value:.3g}"))
    return whole(34 + ROW * len(rows) + 8, parts)


def intervals(title: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """A dot with its interval for each name, mean, lower and upper end, in per cent, on an axis from 0 to 100."""

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 60) * min(100.0, max(0.0, value)) / 100

    parts = [text(8, 18, title, weight="bold")]
    bottom = 34 + ROW * len(rows)
    for mark in range(0, 101, 20):
        x = place(mark)
        parts.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="28" y2="{bottom}" stroke="{GREY}" opacity="0.3"/>')
        parts.append(text(round(x), bottom + 16, f"{mark} %", anchor="middle"))
    for index, (name, mean, low, high) in enumerate(rows):
        y = 34 + ROW * index + 11
        parts.append(text(LEFT - 8, y + 4, name, anchor="end"))
        parts.append(
            f'<line x1="{place(low):.0f}" x2="{place(high):.0f}" y1="{y}" y2="{y}" stroke="{BLUE}" stroke-width="2"/>'
        )
        parts.append(f'<circle cx="{place(mean):.0f}" cy="{y}" r="4" fill="{BLUE}"/>')
    return whole(bottom + 28, parts)


def text(x: int, y: int, what: str, *, anchor: str = "start", weight: str = "normal") -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="{GREY}">{escape(what)}</text>'


def whole(height: int, parts: Sequence[str]) -> str:
    """The picture."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13">\n{body}\n</svg>\n'
    )


def main() -> None:
    """Makes the page's tables and the plots anew."""
    write(PAGE, TABLES)
    for name, picture in plots().items():
        PAGE.with_name(name).write_text(picture, encoding="utf-8")
