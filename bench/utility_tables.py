"""The tables of docs/results/utility.md that are made from the raw cells; see bench/utility_page.py."""

from __future__ import annotations

from collections.abc import Sequence

from bench.utility import (
    EPSILONS,
    HEADLINE,
    HEADLINE_REPETITIONS,
    MODELS,
    REPETITIONS,
    SEVERAL_RECORDS,
    of_several_records,
    ours,
)
from bench.utility_data import DATA_SETS
from dpfewshot.evaluation import Cell, difference, summarise
from dpfewshot.evaluation.conditions import INSTRUCTION_ONLY, NON_PRIVATE_SAMPLE
from dpfewshot.evaluation.summaries import Calibration, Difference, Summary, grouped

OURS = {name: ours(data).name for name, data in DATA_SETS.items()}
"""The name of our setting in each task."""

NOTHING_READ = {
    name: INSTRUCTION_ONLY + ", public examples" * (data.task.labels is None)
    for name, data in DATA_SETS.items()
}
"""Ours without records: ε = 0."""

NAMES = {"ours": "ours", "gaussian": "Gaussian (Tang et al.)", "adadpsyn": "AdaDPSyn"}
BASELINES = (
    ("zero-shot", 0.0),
    (INSTRUCTION_ONLY, 0.0),
    (f"{INSTRUCTION_ONLY}, public examples", 0.0),
    (NON_PRIVATE_SAMPLE, None),
)
SHOTS = 4
"""The tables but the last."""

POINTS = 0.02
"""The accuracy that ours may lose to noise."""

WRITER, USER = (model for model, _ in MODELS.values())
CALIBRATION: dict[str, Calibration] = {WRITER: "batch", USER: "none"}
"""Each the best of its model without demonstrations."""

CALIBRATIONS: tuple[Calibration, ...] = ("none", "contextual", "batch")


def settings_table(cells: Sequence[Cell], model: str) -> str:
    """One row a task and setting."""
    columns: list[tuple[str, float | None]] = [
        (f"ε = {epsilon:g}", epsilon)
        for epsilon in sorted(e for e in EPSILONS if e)
        if any(cell.epsilon_asked == epsilon for cell in cells)
    ]
    lines = [
        f"| task | setting | {' | '.join(name for name, _ in columns)} | σ = 0 |",
        "|---|---|" + "---|" * (len(columns) + 1),
    ]
    found = {
        (one.task, one.condition, one.epsilon): one
        for one in summarise(
            (cell for cell in cells if cell.shots in (0, SHOTS)), calibration=CALIBRATION[model]
        )
    }
    baselines = [
        "| task | zero-shot | ε = 0, few-shot | the same with public examples | private |",
        "|---|---|---|---|---|",
    ]
    for task in DATA_SETS:
        if not any(cell.task == task for cell in cells):
            continue
        bare = [found.get((task, name, epsilon)) for name, epsilon in BASELINES]
        baselines.append(f"| {task} | " + " | ".join(map(shown, bare)) + " |")
        for setting, name in NAMES.items():
            own = OURS[task] if setting == "ours" else setting
            row = [found.get((task, own, epsilon)) for _, epsilon in columns]
            without = found.get((task, own, None))
            if any(row):
                lines.append(
                    f"| {task} | {name} | "
                    + " | ".join(map(shown, row))
                    + f" | {shown(without) if setting == 'ours' else ''} |"
                )
    return "\n".join(lines) + "\n\n" + "\n".join(baselines) + "\n"


def shown(one: Summary | None) -> str:
    """An accuracy with its interval."""
    if one is None:
        return "–"
    runs = (
        ""
        if one.repetitions == wanted(one.model, one.epsilon) or one.condition == "zero-shot"
        else f" ({one.repetitions} run{'s' * (one.repetitions > 1)})"
    )
    return f"**{100 * one.accuracy:.1f}** [{100 * one.low:.1f}, {100 * one.high:.1f}]{runs}"


def expectations(cells: Sequence[Cell], model: str) -> str:
    """Ours against no noise, and against the papers' at equal ε."""
    groups = {
        (group[0].task, group[0].condition, group[0].epsilon_asked): group
        for group in grouped(cells)
        if group[0].shots == SHOTS
    }
    lines = [
        "Differences in points, with 95 % intervals; a setting that has fewer runs is compared on those.\n",
        "| task | ε | ours less σ = 0 | within 2 points | ours less Gaussian | ours less AdaDPSyn | ours less ε = 0 |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in DATA_SETS:
        for epsilon in sorted(e for e in EPSILONS if e):
            ours = groups.get((task, OURS[task], epsilon))
            if ours is None:
                continue
            others = [
                groups.get((task, OURS[task], None)),
                groups.get((task, "gaussian", epsilon)),
                groups.get((task, "adadpsyn", epsilon)),
                groups.get((task, NOTHING_READ[task], 0.0)),
            ]
            found = [None if other is None else compared(ours, other, model) for other in others]
            within = "–" if found[0] is None else "yes" if round(found[0].mean, 6) >= -POINTS else "no"
            shown_ones = [
                "–" if one is None else f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
                for one in found
            ]
            lines.append(
                f"| {task} | {epsilon:g} | {shown_ones[0]} | {within} | {' | '.join(shown_ones[1:])} |"
            )
    return "\n".join(lines) + "\n"


def compared(first: Sequence[Cell], second: Sequence[Cell], model: str) -> Difference | None:
    """Their difference, on the repetitions that both have."""
    both = {cell.repetition for cell in first} & {cell.repetition for cell in second}
    kept = [[cell for cell in group if cell.repetition in both] for group in (first, second)]
    return difference(*kept, calibration=CALIBRATION[model]) if both else None


def calibrations(cells: Sequence[Cell]) -> str:
    """Ours and the baselines, by calibration."""
    classified = [
        cell
        for cell in cells
        if cell.batch_calibrated is not None
        and cell.shots in (0, SHOTS)
        and (
            cell.condition in {"zero-shot", INSTRUCTION_ONLY, NON_PRIVATE_SAMPLE}
            or (cell.condition == OURS[cell.task] and cell.epsilon_asked in (1.0, None))
        )
    ]
    by_kind = [summarise(classified, calibration=kind) for kind in CALIBRATIONS]
    together = sorted(zip(*by_kind, strict=True), key=lambda kinds: list(DATA_SETS).index(kinds[0].task))
    rows = [
        f"| {kinds[0].task} | {kinds[0].condition} | {level(kinds[0].epsilon)} | {' | '.join(map(shown, kinds))} |"
        for kinds in together
    ]
    if not rows:
        return ""
    head = [
        "By calibration (content-free texts; the test texts):\n",
        "| task | setting | ε | none | contextual | batch |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def by_mechanism(cells: Sequence[Cell]) -> str:
    """Ours on one draw a demonstration, by mechanism."""
    of_one_draw = [
        cell
        for cell in cells
        if cell.epsilon_asked == 1.0
        and cell.shots == SHOTS
        and ("one draw" in cell.condition or cell.condition == OURS[cell.task])
    ]
    if all(cell.condition == OURS[cell.task] for cell in of_one_draw):
        return ""
    lines = [
        "By mechanism at ε = 1, on ours' one draw a demonstration and sizes (Tang et al., Table 4):\n",
        "| task | mechanism | accuracy |",
        "|---|---|---|",
    ]
    found = summarise(of_one_draw, calibration=CALIBRATION[WRITER])
    lines += [f"| {one.task} | {one.condition} | {shown(one)} |" for one in found]
    return "\n".join(lines) + "\n"


def by_records(cells: Sequence[Cell]) -> str:
    """Ours from one record a prompt, and from several."""
    levels = [*sorted(epsilon for epsilon in EPSILONS if epsilon), None]
    found = {
        (one.task, one.condition, one.epsilon): one
        for one in summarise(
            (cell for cell in cells if cell.shots == SHOTS and cell.task in SEVERAL_RECORDS),
            calibration=CALIBRATION[WRITER],
        )
    }
    rows = [
        f"| {task} | {size[0]} × {size[1]} | "
        + " | ".join(shown(found.get((task, name, epsilon))) for epsilon in levels)
        + " |"
        for task, several in SEVERAL_RECORDS.items()
        for size, name in (
            ((DATA_SETS[task].our_prompts, 1), OURS[task]),
            (several, of_several_records(DATA_SETS[task]).name),
        )
    ]
    head = [
        "Ours by records a prompt:\n",
        f"| task | M × N | {' | '.join('σ = 0' if each is None else f'ε = {each:g}' for each in levels)} |",
        "|---|---|" + "---|" * len(levels),
    ]
    return "\n".join([*head, *rows]) + "\n"


def sweep(cells: Sequence[Cell]) -> str:
    """Accuracy by the number of demonstrations."""
    many = [
        one
        for one in summarise(
            (cell for cell in cells if cell.condition == OURS[cell.task] and cell.model == WRITER),
            calibration=CALIBRATION[WRITER],
        )
        if one.epsilon in (1.0, None)
    ]
    shots = sorted({one.shots for one in many})
    if set(shots) <= {SHOTS}:
        return ""
    lines = [
        "## Number of demonstrations\n",
        "Ours, Gemma 3 270M.\n",
        f"| task | ε | {' | '.join(map(str, shots))} |",
        "|---|---|" + "---|" * len(shots),
    ]
    by = {(one.task, one.epsilon, one.shots): one for one in many}
    for task, epsilon in sorted({(one.task, one.epsilon) for one in many if one.shots != SHOTS}, key=str):
        row = [shown(by.get((task, epsilon, count))) for count in shots]
        lines.append(f"| {task} | {level(epsilon)} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def missing(cells: Sequence[Cell]) -> str:
    """The cells of the grid that the raw cells lack."""
    there = {(cell.model, cell.task, cell.condition, cell.epsilon_asked, cell.repetition) for cell in cells}
    gone: dict[tuple[str, str], list[str]] = {}
    for key, (model, _) in MODELS.items():
        for task in DATA_SETS if key == "gemma" else ("trec", "mit-d"):
            for epsilon in (None, *EPSILONS) if key == "gemma" else (None, 1.0, 4.0):
                for setting in NAMES if epsilon is not None else ("ours",):
                    own = OURS[task] if setting == "ours" else setting
                    runs = wanted(model, epsilon)
                    have = sum((model, task, own, epsilon, run) in there for run in range(runs))
                    if have < runs:
                        name = "σ = 0" if epsilon is None else f"{setting} at ε = {epsilon:g}"
                        gone.setdefault((model, task), []).append(f"{name} ({have} of {runs})")
    if not gone:
        return ""
    rows = "\n".join(f"- {model}, {task}: {', '.join(names)}" for (model, task), names in gone.items())
    return f"### Not measured yet of these\n\n`make utility` goes on with them:\n\n{rows}"


def wanted(model: str, epsilon: float | None) -> int:
    """The number of repetitions of a cell."""
    return HEADLINE_REPETITIONS if model == WRITER and epsilon in HEADLINE else REPETITIONS


def level(epsilon: float | None) -> str:
    """An ε as the tables print it."""
    return "none" if epsilon is None else f"{epsilon:g}"
