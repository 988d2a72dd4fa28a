"""Certified runs beside their stand-ins, and ours by the number of records: tables of docs/results/utility.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.certified import CERTIFIED
from bench.utility_data import DATA_SETS
from bench.utility_tables import OURS, SHOTS, WRITER
from dpfewshot.evaluation import Cell
from dpfewshot.evaluation.summaries import Calibration, Difference, difference, summarise

RECORDS = " records"
"""What the condition of a run on fewer records ends with, before "public examples"."""


def certified(cells: Sequence[Cell]) -> str:
    """Certified runs beside the stand-ins of the same plan."""
    rows: list[str] = []
    outside: list[str] = []
    differing: list[str] = []
    for task in DATA_SETS:
        for calibration in calibrations(task):
            found = [cell for cell in cells if cell.task == task and CERTIFIED in cell.condition]
            if not found:
                continue
            beside = stand_ins(cells, task)
            same = [cell for cell in beside if cell.repetition in {one.repetition for one in found}]
            name = task if len(calibrations(task)) == 1 else f"{task}, {calibration}"
            each = [100 * _accuracy(cell, calibration) for cell in beside]
            runs = [100 * _accuracy(cell, calibration) for cell in found]
            gap = difference(found, same, calibration=calibration)
            if gap.low > 0 or gap.high < 0:
                differing.append(name)
            if min(runs) < min(each) or max(runs) > max(each):
                outside.append(name)
            rows.append(
                f"| {name} | {', '.join(f'{one:.1f}' for one in runs)} | {_points(gap)} | "
                f"{np.mean(each):.1f} | {min(each):.1f} to {max(each):.1f} | {np.std(each, ddof=1):.1f} |"
            )
    return f"""## Certified runs beside the stand-ins

The same plans at ε = 1 with every prompt evaluated by itself (`bench/certified.py`, the Q4_K_M file through llama.cpp): these demonstrations are certified, at ε of at most 1, and say `certified=True`. Gemma 3 270M uses both.
A run has draws and noise of its own, so two runs of the same plan differ too: the last three columns are those of the stand-ins' repetitions.

| task | certified, each run | less the stand-ins of the same repetitions | stand-ins | from, to | s.d. |
|---|---|---|---|---|---|
{chr(10).join(rows) or "| none yet | | | | | |"}

The certified runs differ from the stand-ins, with an interval that excludes 0: {"; ".join(differing) or "nowhere"}. Outside of the range of the stand-ins' repetitions: {"; ".join(outside) or "none"}. The interval of a difference is that of the items alone where there is one run.
"""


def by_population(cells: Sequence[Cell]) -> str:
    """Ours from fewer records, and from all."""
    rows = []
    for task in DATA_SETS:
        few = {
            int(cell.condition.split(", ")[1].split()[0]): cell
            for cell in cells
            if cell.task == task and f"{RECORDS}" in cell.condition and "a prompt" not in cell.condition
        }
        if not few:
            continue
        (full,) = [cell for cell in stand_ins(cells, task) if cell.repetition == 0]
        for count, cell in [*sorted(few.items()), (sum((full.population or {}).values()), full)]:
            values = " | ".join(
                f"{100 * _accuracy(cell, each):.1f}" for each in ("none", *calibrations(task))
            )
            least = min((cell.population or {"": 0}).values())
            rows.append(f"| {task} | {count} | {least} | {values} |")
    return f"""## By the number of records

Ours at ε = 1 from the first n records of AG News, one repetition with the same labels, Gemma 3 270M writing and using; the first 200 test items. Noise is larger on fewer records: the plan keeps M, and a draw takes more of each
label's records. One run a row: accuracies
show no trend in n, and this task is labelled as well without demonstrations. The texts show what accuracy does not: at n = 300 they are fragments that noise wrote ("GTM'led us last year"), at 1,000 three of four still are ("All
(single-subject)"), and at 5,000 they are sentences ("The United Nations has called for an immediate ceasefire in Gaza").

| task | n | records of the rarest label | no calibration | contextual | batch |
|---|---|---|---|---|---|
{chr(10).join(rows) or "| none yet | | | | | |"}
"""


def calibrations(task: str) -> tuple[Calibration, ...]:
    """Those of a task's tables."""
    return ("contextual",) if DATA_SETS[task].task.labels is None else ("contextual", "batch")


def stand_ins(cells: Sequence[Cell], task: str) -> list[Cell]:
    """Ours at ε = 1 with Gemma."""
    return [
        cell
        for cell in cells
        if (cell.task, cell.condition) == (task, OURS[task])
        and (cell.model, cell.epsilon_asked, cell.shots) == (WRITER, 1.0, SHOTS)
    ]


def _accuracy(cell: Cell, calibration: Calibration) -> float:
    return summarise([cell], calibration=calibration)[0].accuracy


def _points(found: Difference) -> str:
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
