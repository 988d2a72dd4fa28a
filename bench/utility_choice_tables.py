"""The head tables of docs/results/utility.md: what is shipped when it is chosen under DP. See bench/utility_page.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.choosing import DRAWS
from bench.utility_choice import Line
from bench.utility_data import ALL_SETS, DATA_SETS
from bench.utility_pool import SHOTS, large
from bench.utility_tables import NOTHING_READ, OURS, USER, WRITER
from dpfewshot.evaluation import Cell
from dpfewshot.evaluation.conditions import NON_PRIVATE_SAMPLE
from dpfewshot.evaluation.summaries import mean_of

ALONE = {WRITER: "contextual", USER: "none"}
"""The calibration of prompts that are not chosen, where one text is labelled at a time: each model's best."""

SERVICES = {"single": "one text at a time", "together": "texts labelled together"}

Rows = NDArray[np.float64]
"""Outcomes, shape (repetitions, items): 0 and 1, or the fraction of draws in which an item is right."""


@dataclass(frozen=True)
class Group:
    """All repetitions of a task, by one user, served one way."""

    lines: Sequence[Line]
    service: str
    cells: Sequence[Cell]

    @property
    def calibration(self) -> str:
        """That of the prompts which are not chosen."""
        first = self.lines[0]
        if len(first.outcomes["none"]) == 1:
            return "none"
        return "batch" if self.service == "together" else ALONE[first.user]

    def of(self, name: str) -> Rows | None:
        """A prompt's outcomes; `{r}` in its name is the repetition."""
        found = [
            line.outcomes.get(name.format(r=line.repetition), {}).get(self.calibration) for line in self.lines
        ]
        return _rows(outcomes for outcomes in found if outcomes is not None)

    @property
    def plain(self) -> list[Rows]:
        """Zero-shot, ε = 0 and ours. ε = 0 with its earlier repetitions where they had the same T and examples."""
        first = self.lines[0]
        bare, free, ours = (self.of(name) for name in NAMES[first.kind])
        if first.kind == "held-out" and first.task in DATA_SETS and not DATA_SETS[first.task].our_tokens:
            earlier = stored(self.cells, first, self.calibration, NOTHING_READ[first.task], 0.0)
            if free is not None and earlier is not None and earlier.shape[1] == first.items:
                free = np.concatenate([free, earlier])
        return [
            each if place else each[:1] for place, each in enumerate((bare, free, ours)) if each is not None
        ]

    @property
    def chosen(self) -> Rows:
        """The chosen prompts' outcomes: of a cross-fit too on all items, see `achieved`."""
        rows = []
        for line in self.lines:
            total = np.zeros(line.items)
            for option, times in line.chosen[self.service].picked.items():
                name, calibration = option.split()
                total += times * _row(line.outcomes[name][calibration])
            rows.append(total / DRAWS)
        return np.array(rows)

    @property
    def achieved(self) -> float:
        """The chosen prompts' accuracy on items that did not choose."""
        return self.mean("achieved")

    def mean(self, name: str) -> float:
        """The mean of a number of `Chosen` over the repetitions."""
        return float(np.mean([getattr(line.chosen[self.service], name) for line in self.lines]))

    def share(self, beginning: str) -> float:
        """The fraction of draws that choose a prompt whose name begins so."""
        times = sum(
            count
            for line in self.lines
            for option, count in line.chosen[self.service].picked.items()
            if option.startswith(beginning)
        )
        return times / DRAWS / len(self.lines)

    @property
    def chosen_held(self) -> float:
        """The chosen prompts' accuracy on all held-out records that were scored."""
        total = 0.0
        for line in self.lines:
            for option, times in line.chosen[self.service].picked.items():
                name, calibration = option.split()
                total += times * line.held[name][calibration]
        return total / DRAWS / len(self.lines)

    def held(self, name: str) -> float:
        """A prompt's accuracy on them."""
        each = [line.held[name.format(r=line.repetition)][self.calibration] for line in self.lines]
        return float(np.mean(each))

    @property
    def released(self) -> Rows | None:
        """The chosen prompts' outcomes with a released calibration."""
        if self.service == "together" or any(line.released is None for line in self.lines):
            return None
        return np.array([line.released for line in self.lines], dtype=np.float64) / DRAWS


def _row(outcomes: str) -> NDArray[np.float64]:
    return np.array([float(one) for one in outcomes])


def _rows(given: Iterable[str]) -> Rows | None:
    rows = [_row(outcomes) for outcomes in given]
    return np.array(rows) if rows else None


NAMES = {
    "held-out": ("none", f"instruction-{SHOTS}-r{{r}}", f"ours-{SHOTS}-r{{r}}"),
    "cross-fit": ("none", "instruction-{r}", "ours"),
}
"""Zero-shot, ε = 0 and ours."""


def groups(lines: Sequence[Line], kind: str, cells: Sequence[Cell] = ()) -> list[Group]:
    """In the tables' order: by service, user and task."""
    found: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        for service in line.chosen:
            if line.kind == kind and (service == "single" or line.user == WRITER):
                found.setdefault((service, line.user, line.task), []).append(line)
    order = [(service, user, task) for service in SERVICES for user in ALONE for task in ALL_SETS]
    return [Group(found[key], key[0], cells) for key in order if key in found]


def choices(lines: Sequence[Line], cells: Sequence[Cell], kind: str) -> str:
    """Accuracy by what is shipped."""
    rows = []
    for group in groups(lines, kind, cells):
        first = group.lines[0]
        shift = group.achieved - float(group.chosen.mean())
        noiseless, real = (
            stored(cells, first, group.calibration, condition, None)
            for condition in (OURS.get(first.task), NON_PRIVATE_SAMPLE)
        )
        measured_real = group.of(f"real-{SHOTS}-r{{r}}")
        rows.append(
            f"| {SERVICES[group.service]} | {first.user} | {first.task} | {len(group.lines)} | "
            + " | ".join(
                [
                    *(shown(each) for each in group.plain),
                    shown(group.chosen, shift),
                    shown(group.released),
                    shown(noiseless),
                    shown(real if measured_real is None else measured_real),
                ]
            )
            + " |"
        )
    if not rows:
        return "Nothing has been measured yet.\n"
    head = [
        "| service | user | task | runs | zero-shot | ε = 0 | ours | chosen | chosen, released calibration | σ = 0 | real records |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def stored(
    cells: Sequence[Cell], line: Line, calibration: str, condition: str | None, epsilon: float | None
) -> Rows | None:
    """The earlier cells' outcomes of a condition."""
    found = [
        cell
        for cell in cells
        if (cell.task, cell.model, cell.condition) == (line.task, line.user, condition)
        and cell.epsilon_asked == epsilon
        and cell.shots == SHOTS
    ]
    kept: dict[str, list[str | None]] = {
        "contextual": [cell.outcomes for cell in found],
        "batch": [cell.batch_calibrated for cell in found],
    }
    plain: list[str | None] = [
        cell.outcomes if cell.uncalibrated is None else cell.uncalibrated for cell in found
    ]
    return _rows(one for one in kept.get(calibration, plain) if one is not None)


def shown(rows: Rows | None, shift: float = 0.0) -> str:
    """A mean in per cent with its interval."""
    if rows is None:
        return "–"
    mean, low, high = (100 * (value + shift) for value in mean_of(rows))
    return f"**{mean:.1f}** [{max(0.0, low):.1f}, {min(100.0, high):.1f}]"


def statements(lines: Sequence[Line]) -> str:
    """The published accuracy, its interval, and the accuracies that it is an estimate of, in per cent."""
    rows = []
    for group in groups(lines, "held-out"):
        first = group.lines[0]
        ours = group.of(NAMES["held-out"][2])
        values = [
            group.mean("stated"),
            group.mean("width"),
            group.chosen_held,
            group.achieved,
            group.mean("covers"),
            group.mean("covers_test"),
            group.held(NAMES["held-out"][2]),
            0.0 if ours is None else float(ours.mean()),
        ]
        rows.append(
            f"| {SERVICES[group.service]} | {first.user} | {first.task} | "
            f"{first.held_out} of {first.population} | {' | '.join(f'{100 * one:.1f}' for one in values)} | "
            f"{'–' if first.shift is None else f'{100 * first.shift:.0f}'} |"
        )
    if not rows:
        return ""
    head = [
        "| service | user | task | held-out records scored | stated | half of its interval | chosen, records | chosen, test | interval holds records' | interval holds test's | ours, records | ours, test | labels moved |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def scores(lines: Sequence[Line]) -> str:
    """What is chosen by right and wrong, and by the label's probability."""
    rows = []
    for group in groups(lines, "held-out"):
        by = {SERVICES[group.service]: [line.chosen[group.service].by_score for line in group.lines]}
        if group.service == "single":
            by[f"{SERVICES['single']}, released calibration"] = [
                line.released_by_score for line in group.lines
            ]
        for service, found in by.items():
            if all(found):
                values = (
                    f"{100 * float(np.mean([one[kind] for one in found])):.1f}"
                    for kind in ("accuracy", "likelihood")
                )
                rows.append(
                    f"| {service} | {group.lines[0].user} | {group.lines[0].task} | {' | '.join(values)} |"
                )
    head = ["| service | user | task | right or wrong | probability of the label |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n" if rows else ""


def picks(lines: Sequence[Line], kind: str) -> str:
    """Which kinds of prompts are chosen, in per cent of the draws."""
    rows = []
    for group in groups(lines, kind):
        shares: dict[str, float] = {}
        for line in group.lines:
            for option, times in line.chosen[group.service].picked.items():
                name = what(option.split()[0], line)
                shares[name] = shares.get(name, 0.0) + 100 * times / DRAWS / len(group.lines)
        first = group.lines[0]
        cells = " | ".join(f"{shares.get(name, 0.0):.0f}" for name in WHAT)
        rows.append(f"| {SERVICES[group.service]} | {first.user} | {first.task} | {cells} |")
    if not rows:
        return ""
    head = [f"| service | user | task | {' | '.join(WHAT)} |", "|---|---|---|" + "---|" * len(WHAT)]
    return "\n".join([*head, *rows]) + "\n"


WHAT = ("no demonstration", "instruction-only", "ours, four", "ours, more")


def what(name: str, line: Line) -> str:
    """The kind of a prompt."""
    if name == "none":
        return WHAT[0]
    if name.startswith("instruction"):
        return WHAT[1]
    return WHAT[3] if name.startswith(f"ours-{large(ALL_SETS[line.task])}-") else WHAT[2]
