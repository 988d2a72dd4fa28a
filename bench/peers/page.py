"""Writes docs/comparison.md and its plots from the raw lines and cells; the prose is in bench/peers/page.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.peers import tables
from bench.peers.accuracy import EPSILONS, TASKS
from bench.peers.figures import PEERS, cells, ratios
from bench.peers.plots import bars, intervals
from bench.peers.raw import Line, of_kind, read
from bench.peers.speed import AGREEING_WAY, EVOLUTION_WAY, INK_WAY, OURS_WAY, SAME_NOISE_WAY, TANG_WAY
from dpfewshot.evaluation import Cell

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/comparison.md"
TEMPLATE = Path(__file__).parent / "page.md"
SPEED_PLOT, ACCURACY_PLOT = "comparison-speed.svg", "comparison-accuracy.svg"
SHOWN = f"![Seconds a demonstration, in those of dpfewshot]({SPEED_PLOT})"
FASTER = 10.0
"""The goal beside Tang et al.'s way at the same noise."""


def page(lines: Sequence[Line], found: Sequence[Cell]) -> str:
    """The page's text."""
    text = TEMPLATE.read_text(encoding="utf-8")
    parts = {
        "GOALS": goals(lines, found),
        "SPEEDPLOT": SHOWN if of_kind(lines, "speed") else "",
        "SPEED": "\n".join(tables.speed(lines)),
        "CLAIMS": "\n".join(tables.claims(lines)),
        "ACCURACY": "\n".join(tables.accuracy(found)),
        "SPREAD": "\n".join(tables.spread(found)),
        "AGREEMENT": "\n".join(tables.agreement()),
        "ACCOUNTING": "\n".join(tables.accounting(lines)),
        "NOISE": "\n".join(tables.noise(lines)),
        "RUNS": "\n".join(tables.runs(lines)),
        "VERSIONS": tables.versions(lines),
    }
    for name, part in parts.items():
        text = text.replace(f"<{name}>", part)
    return text


def goals(lines: Sequence[Line], found: Sequence[Cell]) -> str:
    """Each goal with what was found."""
    ahead, behind, compared = tables.leads(found)
    whole = len(TASKS) * len(PEERS) * len(EPSILONS)
    state = verdict(not ahead) if ahead or compared == whole else "open"
    who = (
        f"{'; '.join(ahead) or 'no peer is'}; ours is in {behind}, and the others show no difference; "
        f"{compared} of {whole} comparisons on {len(TASKS)} tasks were measured"
    )
    rows = [
        "| goal | found | |",
        "|---|---|---|",
        f"| at equal certified ε no peer is more accurate beyond the spread | {who} | {state} |",
    ]
    measured = of_kind(lines, "speed")
    if not measured:
        rows.append("| no peer is faster at equal accuracy | not measured | open |")
        rows.append("| a tenth of the seconds of Tang et al.'s way at the same noise | not measured | open |")
    for task in dict.fromkeys(line["task"] for line in measured):
        rows += goals_of_speed(measured, task)
    return "\n".join(rows)


def goals_of_speed(measured: Sequence[Line], task: str) -> list[str]:
    """Those of one data set, for the ways that were measured."""
    there = {line["peer"] for line in measured if line["task"] == task}
    others = [way for way in (INK_WAY, EVOLUTION_WAY) if way in there]
    faster = [(way, ratio) for way in others if (ratio := ratios(measured, task, way, OURS_WAY)).median < 1]
    named = "; ".join(f"{way} takes {ratio.shown(2)} of the seconds" for way, ratio in faster)
    beside = f"none of {', '.join(others)}, at its own settings" if others else "not measured"
    rows = [
        f"| no peer is faster, {task} | {named or beside} | {verdict(not faster) if others else 'open'} |"
    ]
    for way, what in (
        (SAME_NOISE_WAY, "at the same noise"),
        (AGREEING_WAY, "at the same agreement or more"),
    ):
        ratio = ratios(measured, task, TANG_WAY, way)
        rows.append(
            f"| a tenth of the seconds of Tang et al.'s way {what}, {task} "
            f"| {ratio.shown()} times fewer | {verdict(ratio.median >= FASTER)} |"
        )
    return rows


def verdict(holds: bool) -> str:
    """The word for it."""
    return "met" if holds else "**missed**"


def plots(lines: Sequence[Line], found: Sequence[Cell]) -> dict[str, str]:
    """The pictures by name."""
    measured = of_kind(lines, "speed")
    rows = [
        (f"{task}: {peer}", 1.0 if peer == OURS_WAY else ratios(measured, task, peer, OURS_WAY).median)
        for task in dict.fromkeys(line["task"] for line in measured)
        for peer in tables.ordered(measured, task)
    ]
    drawn = {}
    if rows:
        drawn[SPEED_PLOT] = bars("Seconds a demonstration, in those of dpfewshot (logarithmic)", rows)
    if found:
        title = f"Accuracy at ε = {EPSILONS[0]:g}, 95 % intervals"
        drawn[ACCURACY_PLOT] = intervals(title, tables.dots(found, EPSILONS[0]))
    return drawn


def write() -> None:
    """Writes the page and the plots."""
    lines, found = read(), cells()
    PAGE.write_text(page(lines, found), encoding="utf-8")
    for name, picture in plots(lines, found).items():
        (PAGE.parent / name).write_text(picture, encoding="utf-8")
