"""The tables of docs/comparison.md, from the raw lines and cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.peers import accountants
from bench.peers.accuracy import EPSILONS, TASKS
from bench.peers.figures import CALIBRATION, PEERS, Spread, accuracy_of, ahead, compared, group, ratios
from bench.peers.raw import Line, of_kind
from bench.peers.speed import OURS_WAY
from bench.utility_tables import OURS
from dpfewshot.evaluation import Cell, summarise

MECHANISMS = Path(__file__).parents[2] / "docs/results/mechanisms.md"
AGREEING = {
    "public-centred, three rounds, R = T": "dpfewshot's default, one draw a demonstration",
    "public-centred, three rounds, R = T, 2 M": "the same, 2 M",
    "Gaussian, as published (√2)": "Tang et al., as published",
    "AdaDPSyn, paper's accounting": "AdaDPSyn, as published",
    "AdaDPSyn": "AdaDPSyn, our accounting",
    "private prediction, τ = 1": "private prediction, τ = 1",
    "private prediction, c = 10": "private prediction, c = 10",
    "InvisibleInk, τ = 1": "InvisibleInk, τ = 1",
}
"""Rows of docs/results/mechanisms.md, and their names here."""


def speed(lines: Sequence[Line]) -> Iterator[str]:
    """Seconds and tokens a demonstration, by data set."""
    measured = of_kind(lines, "speed")
    if not measured:
        yield (
            "**Not measured yet.** [The backend's cost](results/backends.md) has Tang et al.'s way of asking beside "
            "one draw in process, with SmolLM2-135M and 20 prompts."
        )
        return
    yield "| task | way | M × N | seconds | ours in that run | times ours | model tokens |"
    yield "|---|---|---|---|---|---|---|"
    for task in dict.fromkeys(line["task"] for line in measured):
        for peer in ordered(measured, task):
            rows = [line for line in measured if (line["task"], line["peer"]) == (task, peer)]
            rows = [line for line in rows if line["turns"] == rows[0]["turns"]]
            size = f"{rows[0]['prompts']} × {rows[0]['records_per_prompt']}" if rows[0]["prompts"] else "–"
            seconds = Spread.of([line["seconds"] for line in rows]).shown()
            beside = [line for line in measured if (line["task"], line["peer"]) == (task, OURS_WAY)]
            ours = Spread.of(
                [line["seconds"] for line in beside if line["turns"] == rows[0]["turns"]]
            ).shown()
            factor = "1" if peer == OURS_WAY else ratios(measured, task, peer, OURS_WAY).shown()
            tokens = round(sum(line["tokens"] for line in rows) / len(rows))
            yield f"| {task} | {peer} | {size} | {seconds} | {ours} | {factor} | {tokens:,} |"


def ordered(measured: Iterable[Line], task: str) -> list[str]:
    """The ways of a task, ours first."""
    names = dict.fromkeys(line["peer"] for line in measured if line["task"] == task)
    return sorted(names, key=lambda name: (not name.startswith(OURS_WAY), name))


def claims(lines: Sequence[Line]) -> Iterator[str]:
    """ε stated, and certified."""
    yield "| peer | setting | ε stated | its accounting, recomputed | with the draws of the code | as it runs | |"
    yield "|---|---|---|---|---|---|---|"
    from_code = [line for line in of_kind(lines, "run") if line.get("with") == "its formula"]
    for line in [*of_kind(lines, "claim"), *from_code]:
        stated = line.get("stated", line.get("epsilon"))
        each = (stated, line["own"], line["drawn"], line["as_run"])
        shown = " | ".join("none" if value is None else rounded_up(value) for value in each[2:])
        first = " | ".join("–" if value is None else f"{value:.3g}" for value in each[:2])
        yield f"| {line['peer']} | {line['setting']} | {first} | {shown} | {line['why']} |"


def rounded_up(value: float) -> str:
    """An upper bound to three digits, rounded up."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step - 1e-6) * step:.3g}"


def accuracy(cells: Sequence[Cell]) -> Iterator[str]:
    """Accuracy by task, mechanism and ε, with the difference from ours."""
    yield "| task | mechanism | " + " | ".join(f"ε = {e:g} | runs | less ours" for e in EPSILONS) + " |"
    yield "|---|---|" + "---|---|---|" * len(EPSILONS)
    for task in TASKS:
        for condition, name in ((OURS[task], "dpfewshot"), *PEERS.items()):
            row = [
                cell
                for epsilon in EPSILONS
                for cell in accuracy_cells(
                    group(cells, task, condition, epsilon), group(cells, task, OURS[task], epsilon), task
                )
            ]
            yield f"| {task} | {name} | {' | '.join(row)} |"


def accuracy_cells(peer: Sequence[Cell], ours: Sequence[Cell], task: str) -> tuple[str, str, str]:
    """Accuracy, runs and difference; dashes if nothing was measured."""
    if not peer:
        return "not measured", "0", "–"
    (one,) = summarise(peer, calibration=CALIBRATION[task])
    shown = f"**{100 * one.accuracy:.1f}** [{100 * one.low:.1f}, {100 * one.high:.1f}]"
    if peer[0].condition == ours[0].condition:
        return shown, str(len(peer)), ""
    found = compared(ours, peer, task)
    mark = " **ahead**" if ahead(found) else ""
    points = f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]{mark}"
    return shown, str(len(peer)), points


def leads(cells: Sequence[Cell]) -> tuple[list[str], int, int]:
    """Where a peer is more accurate beyond the spread, in how many comparisons ours is, and how many there are."""
    found, ours_ahead, measured = [], 0, 0
    for task in TASKS:
        for condition, name in PEERS.items():
            for epsilon in EPSILONS:
                peer, ours = (group(cells, task, each, epsilon) for each in (condition, OURS[task]))
                measured += bool(peer and ours)
                if not (peer and ours):
                    continue
                one = compared(ours, peer, task)
                ours_ahead += one.high < 0
                if ahead(one):
                    found.append(f"{name} on {task} at ε = {epsilon:g} ({100 * one.mean:+.1f} points)")
    return found, ours_ahead, measured


def dots(cells: Sequence[Cell], epsilon: float) -> list[tuple[str, float, float, float]]:
    """The rows of the plot of accuracies."""
    rows = []
    for task in TASKS:
        for condition, name in ((OURS[task], "dpfewshot"), *PEERS.items()):
            found = group(cells, task, condition, epsilon)
            if found:
                (one,) = summarise(found, calibration=CALIBRATION[task])
                rows.append((f"{task}: {name}", 100 * one.accuracy, 100 * one.low, 100 * one.high))
    return rows


def spread(cells: Sequence[Cell]) -> Iterator[str]:
    """How far apart the runs of each mechanism are, at the first ε."""
    yield f"| runs at ε = {EPSILONS[0]:g} lie from, to | {' | '.join(TASKS)} |"
    yield f"|{'---|' * (len(TASKS) + 1)}"
    for condition, name in {"": OURS_WAY, **PEERS}.items():
        groups = [group(cells, task, condition or OURS[task], EPSILONS[0]) for task in TASKS]
        each = zip(groups, TASKS, strict=True)
        ranges = [Spread.of(accuracy_of(found, task)) if found else None for found, task in each]
        shown = ["–" if one is None else f"{one.low:.1f} to {one.high:.1f}" for one in ranges]
        yield f"| {name} | {' | '.join(shown)} |"


def agreement() -> Iterator[str]:
    """Agreement with the noiseless token, from the page of mechanisms."""
    yield "| data set | mechanism | model tokens a token | ε = 1 | ε = 4 |"
    yield "|---|---|---|---|---|"
    data_set = ""
    for line in MECHANISMS.read_text(encoding="utf-8").splitlines():
        data_set = line.removeprefix("## ") if line.startswith("## ") else data_set
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0] in AGREEING and len(cells) > 10:  # noqa: PLR2004 - the tables of data sets have 11 columns
            yield f"| {data_set} | {AGREEING[cells[0]]} | {cells[2]} | {cells[3]} | {cells[5]} |"


def accounting(lines: Sequence[Line]) -> Iterator[str]:
    """ε at the printed σ, and seconds."""
    measured = of_kind(lines, "accounting")
    ours = {(line["task"], line["target"]): line for line in measured if line["tool"] == "dpfewshot"}
    yield "| tool | rows | ε in that of dpfewshot, least to most | milliseconds an ε | in those of dpfewshot | what it states |"
    yield "|---|---|---|---|---|---|"
    for tool, states in accountants.BOUNDS.items():
        rows = [line for line in measured if line["tool"] == tool and "epsilon" in line]
        ratio = [line["epsilon"] / ours[line["task"], line["target"]]["epsilon"] for line in rows]
        slower = [line["seconds"] / ours[line["task"], line["target"]]["seconds"] for line in rows]
        milliseconds = Spread.of([1000 * line["seconds"] for line in rows]).shown()
        yield (
            f"| {tool} | {len(rows)} | {min(ratio):.4f} to {max(ratio):.4f} | {milliseconds} "
            f"| {Spread.of(slower).shown()} | {states} |"
        )


def noise(lines: Sequence[Line]) -> Iterator[str]:
    """Gaussian draws a second."""
    yield "| tool | draws a second | exact |"
    yield "|---|---|---|"
    for line in sorted(of_kind(lines, "noise"), key=lambda one: -float(one["normals_a_second"])):
        yield f"| {line['tool']} | {line['normals_a_second']:,.0f} | {'yes' if line['exact'] else 'no'} |"


def runs(lines: Sequence[Line]) -> Iterator[str]:
    """What the packages gave."""
    yield "| package | how | outcome |"
    yield "|---|---|---|"
    for line in of_kind(lines, "run"):
        if line.get("formula") or line.get("with") == "its formula":
            continue
        call = f", {line['call']}" if "call" in line else ""
        yield f"| {line['peer']} | {line['with']}{call} | {outcome(line)} |"


def outcome(line: Line) -> str:
    """An error word for word, or what came back."""
    if "error" in line:
        return f"`{line['error']}`"
    if "characters" in line:
        return f"a demonstration of {line['characters']} characters"
    return f"a text; ε stated {line['stated']:.3g}; digest of the text {line['same_as']}"


def versions(lines: Sequence[Line]) -> str:
    """Of everything that took part."""
    found: dict[str, set[str]] = {}
    for line in lines:
        for name, version in line["versions"].items():
            found.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(each))}" for name, each in sorted(found.items()))
