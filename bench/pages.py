"""Writes the tables of the results pages from the raw rows in bench/results: `python -m bench.pages`.

A table stands in its page between the comments `<!-- NAME -->` and `<!-- end -->`; the prose around it is the page's own.
`PAGES` says which function makes which table. README.md and docs/comparison.md have theirs in bench/readme.py and
bench/peers/page.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

from bench.utility import (
    BASELINES,
    CERTIFIED,
    DATA_SETS,
    EPSILONS,
    MODELS,
    RAW,
    ROOT,
    SEVERAL_RECORDS,
    SHOTS,
    ZERO_SHOT,
    of_several_records,
    ours,
    repetitions,
)
from dpfewshot.errors import InvalidRecords
from dpfewshot.evaluation import Cell, Results, summarise
from dpfewshot.evaluation.conditions import NON_PRIVATE_SAMPLE
from dpfewshot.evaluation.summaries import Calibration, Summary, grouped, interval_of_mean, outcomes_of
from dpfewshot.runtime.files import write_whole

Lines: TypeAlias = list[str]
Table: TypeAlias = Callable[[], Iterable[str]]

OURS = {name: ours(data).name for name, data in DATA_SETS.items()}
"""The name of our condition in each task."""

NOTHING_READ = {name: BASELINES[data.free] for name, data in DATA_SETS.items()}
"""Ours without records: ε = 0."""

WRITER, USER = (model for model, _ in MODELS.values())
CALIBRATION: dict[str, Calibration] = {WRITER: "batch", USER: "none"}
"""Each the best of its model without demonstrations."""

CALIBRATIONS: tuple[Calibration, ...] = ("none", "contextual", "batch")
POINTS = 0.02
"""The accuracy that ours may lose to noise."""


# Writing


def table(head: str, rows: Iterable[Sequence[object]]) -> Lines:
    """Markdown rows under the names of a head."""
    body = (f"| {' | '.join(map(str, row))} |" for row in rows)
    return [f"| {head} |", f"|{'---|' * (1 + head.count('|'))}", *body]


def written(text: str, tables: Mapping[str, Table]) -> str:
    """A page with its tables made anew.

    Raises:
        ValueError: the page has no place for a table.
    """
    for name, make in tables.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (mark and end):
            raise ValueError(f"the page lacks <!-- {name} --> or its <!-- end -->")
        text = f"{before}{mark}\n" + "\n".join(make()) + f"\n\n{end}{after}"
    return text


def write(page: Path, tables: Mapping[str, Table]) -> None:
    """Makes a page's tables anew."""
    write_whole(page, written(page.read_text(encoding="utf-8"), tables))


def rows(name: str) -> Any:
    """The raw rows of a file in bench/results."""
    text = (RAW.parent / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)


# Accuracy in use


@cache
def cells() -> Sequence[Cell]:
    """Every measured cell."""
    return Results(RAW).cells


@dataclass(frozen=True)
class Difference:
    """The difference of two accuracies, in -1..1, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def difference(
    first: Sequence[Cell], second: Sequence[Cell], *, calibration: Calibration = "contextual"
) -> Difference:
    """The accuracy of a condition's repetitions less that of another's, compared item by item.

    The same repetitions in the same order have the same labels, and are compared pairwise.

    Raises:
        InvalidRecords: the numbers of items differ, or a cell has no outcomes with this calibration.
    """
    one, other = (outcomes_of(group, calibration) for group in (first, second))
    if one.shape[1] != other.shape[1]:
        raise InvalidRecords("the two groups were measured on different numbers of items")
    together = [cell.repetition for cell in first] == [cell.repetition for cell in second]
    groups = [one - other] if together else [one, other]
    low, high = interval_of_mean(one.mean(axis=0) - other.mean(axis=0), groups)
    return Difference(float(one.mean() - other.mean()), low, high)


Key: TypeAlias = tuple[str, str, float | None]
"""Task, condition, ε."""


@cache
def summaries(model: str, calibration: Calibration) -> Mapping[Key, Summary]:
    """Accuracies with four demonstrations, or none."""
    chosen = (cell for cell in cells() if cell.model == model and cell.shots in (0, SHOTS))
    found = summarise(chosen, calibration=calibration)
    return {(one.task, one.condition, one.epsilon): one for one in found if one.writer == WRITER}


def tasks_of(model: str) -> list[str]:
    """Those that a model was measured on."""
    there = {cell.task for cell in cells() if cell.model == model}
    return [task for task in DATA_SETS if task in there]


def levels_of(model: str) -> list[float]:
    """The ε that a model was measured at."""
    there = {cell.epsilon_asked for cell in cells() if cell.model == model}
    return [epsilon for epsilon in EPSILONS if epsilon in there]


def level(epsilon: float | None) -> str:
    """An ε as the tables print it."""
    return "none" if epsilon is None else f"{epsilon:g}"


def shown(one: Summary | None) -> str:
    """An accuracy with its interval, and its runs where they are fewer than planned."""
    if one is None:
        return "–"
    wanted = repetitions(one.epsilon if one.model == WRITER else 2.0)
    whole = one.repetitions == wanted or one.condition == ZERO_SHOT
    runs = "" if whole else f" ({one.repetitions} run{'s' * (one.repetitions > 1)})"
    return f"**{100 * one.accuracy:.1f}** [{100 * one.low:.1f}, {100 * one.high:.1f}]{runs}"


def points(found: Difference | None) -> str:
    """A difference with its interval."""
    if found is None:
        return "–"
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def by_epsilon(model: str) -> Lines:
    """Ours and the papers' mechanisms."""
    found, levels = summaries(model, CALIBRATION[model]), levels_of(model)
    made = []
    for task in tasks_of(model):
        named = {"ours": OURS[task], "Gaussian (Tang et al.)": "gaussian", "AdaDPSyn": "adadpsyn"}
        for name, condition in named.items():
            row = [shown(found.get((task, condition, epsilon))) for epsilon in levels]
            row.append(shown(found.get((task, condition, None))) if name == "ours" else "")
            made.append([task, name, *row])
    return table(f"task | setting | {' | '.join(f'ε = {each:g}' for each in levels)} | σ = 0", made)


def baselines(model: str) -> Lines:
    """What reads no record, and what protects none."""
    found = summaries(model, CALIBRATION[model])
    conditions = ((ZERO_SHOT, 0.0), *((name, 0.0) for name in BASELINES), (NON_PRIVATE_SAMPLE, None))
    head = "task | zero-shot | ε = 0, few-shot | the same with public examples | private"
    return table(
        head,
        ([task, *(shown(found.get((task, *each))) for each in conditions)] for task in tasks_of(model)),
    )


def differences(model: str) -> Lines:
    """Ours against no noise, and against the papers' at equal ε."""
    groups = {
        (group[0].task, group[0].condition, group[0].epsilon_asked): group
        for group in grouped(cell for cell in cells() if cell.model == model and cell.shots == SHOTS)
    }
    made = []
    for task in tasks_of(model):
        for epsilon in levels_of(model):
            mine = groups[task, OURS[task], epsilon]
            others = (
                (OURS[task], None),
                ("gaussian", epsilon),
                ("adadpsyn", epsilon),
                (NOTHING_READ[task], 0.0),
            )
            found = [compared(mine, groups.get((task, *each)), model) for each in others]
            within = "–" if found[0] is None else "yes" if round(found[0].mean, 6) >= -POINTS else "no"
            made.append([task, level(epsilon), points(found[0]), within, *map(points, found[1:])])
    head = "task | ε | ours less σ = 0 | within 2 points | ours less Gaussian | ours less AdaDPSyn | ours less ε = 0"
    return table(head, made)


def compared(first: Sequence[Cell], second: Sequence[Cell] | None, model: str) -> Difference | None:
    """Their difference, on the repetitions that both have."""
    both = {cell.repetition for cell in first} & {cell.repetition for cell in second or ()}
    kept = [[cell for cell in group if cell.repetition in both] for group in (first, second or ())]
    return difference(*kept, calibration=CALIBRATION[model]) if both else None


def by_calibration(model: str) -> Lines:
    """Ours and the baselines without calibration, by content-free texts, and by the test texts."""
    wanted = {(name, 0.0) for name in (ZERO_SHOT, BASELINES[0])} | {(NON_PRIVATE_SAMPLE, None)}
    chosen = [
        cell
        for cell in cells()
        if cell.model == model
        and cell.batch_calibrated is not None
        and cell.shots in (0, SHOTS)
        and (cell.condition, cell.epsilon_asked) in wanted | {(OURS[cell.task], 1.0), (OURS[cell.task], None)}
    ]
    kinds = zip(*(summarise(chosen, calibration=kind) for kind in CALIBRATIONS), strict=True)
    ordered = sorted(kinds, key=lambda each: list(DATA_SETS).index(each[0].task))
    made = ([each[0].task, each[0].condition, level(each[0].epsilon), *map(shown, each)] for each in ordered)
    return table("task | setting | ε | none | contextual | batch", made)


def by_mechanism() -> Lines:
    """Ours on one draw a demonstration, by mechanism."""
    found = summaries(WRITER, CALIBRATION[WRITER])
    made = [
        [task, one.condition, shown(one)]
        for (task, condition, epsilon), one in found.items()
        if epsilon == 1.0 and ("one draw" in condition or condition == OURS[task])
    ]
    return table("task | mechanism | accuracy", made)


def by_records_a_prompt() -> Lines:
    """Ours from one record a prompt, and from several."""
    found, levels = summaries(WRITER, CALIBRATION[WRITER]), (*EPSILONS, None)
    made = []
    for task, several in SEVERAL_RECORDS.items():
        data = DATA_SETS[task]
        for size, condition in (
            ((data.our_prompts, 1), OURS[task]),
            (several, of_several_records(data).name),
        ):
            row = (shown(found.get((task, condition, epsilon))) for epsilon in levels)
            made.append([task, f"{size[0]} × {size[1]}", *row])
    return table(f"task | M × N | {' | '.join(f'ε = {each:g}' for each in EPSILONS)} | σ = 0", made)


def by_shots() -> Lines:
    """Ours by the number of demonstrations."""
    chosen = (cell for cell in cells() if cell.condition == OURS[cell.task] and cell.model == WRITER)
    found = {
        (one.task, one.epsilon, one.shots): one
        for one in summarise(
            (c for c in chosen if c.epsilon_asked in (1.0, None)), calibration=CALIBRATION[WRITER]
        )
    }
    shots = sorted({key[2] for key in found})
    varied = sorted({key[:2] for key in found if key[2] != SHOTS}, key=str)
    made = ([task, level(e), *(shown(found.get((task, e, count))) for count in shots)] for task, e in varied)
    return table(f"task | ε | {' | '.join(map(str, shots))}", made)


def stand_ins(task: str) -> list[Cell]:
    """Ours at ε = 1, written and used by Gemma many prompts to a call."""
    wanted = (task, OURS[task], WRITER, 1.0, SHOTS)
    return [
        cell
        for cell in cells()
        if (cell.task, cell.condition, cell.model, cell.epsilon_asked, cell.shots) == wanted
    ]


def calibrations_of(task: str) -> tuple[Calibration, ...]:
    """Those of a task's tables."""
    return ("contextual",) if DATA_SETS[task].free else ("contextual", "batch")


def percent_right(cell: Cell, calibration: Calibration) -> float:
    """Its accuracy, in per cent."""
    return 100 * summarise([cell], calibration=calibration)[0].accuracy


def certified() -> Lines:
    """Certified runs beside the stand-ins of the same plan."""
    made = []
    for task in DATA_SETS:
        stands_in = f"{ours(DATA_SETS[task]).name.partition(',')[0]}, {CERTIFIED}"
        found = [cell for cell in cells() if cell.task == task and cell.condition.startswith(stands_in)]
        for calibration in calibrations_of(task) if found else ():
            beside = stand_ins(task)
            same = [cell for cell in beside if cell.repetition in {one.repetition for one in found}]
            each = [percent_right(cell, calibration) for cell in beside]
            runs = ", ".join(f"{percent_right(cell, calibration):.1f}" for cell in found)
            gap = points(difference(found, same, calibration=calibration))
            name = task if DATA_SETS[task].free else f"{task}, {calibration}"
            spread = f"{min(each):.1f} to {max(each):.1f}", f"{stdev(each):.1f}"
            made.append([name, runs, gap, f"{fmean(each):.1f}", *spread])
    head = "task | certified, each run | less the stand-ins of the same repetitions | stand-ins | from, to | s.d."
    return table(head, made)


def by_population() -> Lines:
    """Ours from the first records, and from all."""
    made = []
    for task in DATA_SETS:
        found = [
            (int(cell.condition.split(", ")[1].split()[0]), cell)
            for cell in cells()
            if cell.task == task and " records" in cell.condition and "a prompt" not in cell.condition
        ]
        if found:
            (whole,) = (cell for cell in stand_ins(task) if cell.repetition == 0)
            found.append((sum((whole.population or {}).values()), whole))
        for count, cell in sorted(found, key=lambda each: each[0]):
            values = (f"{percent_right(cell, kind):.1f}" for kind in ("none", *calibrations_of(task)))
            made.append([task, count, min((cell.population or {"": 0}).values()), *values])
    return table("task | n | records of the rarest label | no calibration | contextual | batch", made)


def sizes() -> Lines:
    """M, N and T."""
    made = (
        [
            name,
            f"{data.prompts} × {data.records_per_prompt}",
            f"{data.our_prompts} × 1",
            f"{data.max_tokens}{f', ours {data.our_tokens}' if data.our_tokens else ''}",
        ]
        for name, data in DATA_SETS.items()
    )
    return table("task | M × N of Tang et al. | M × N of ours | T", made)


def biases() -> Lines:
    """The effect of calibration: accuracy, and the share of the most predicted label."""
    groups: dict[tuple[str, str, float | None], list[dict[str, dict[str, float]]]] = {}
    for one in rows("calibration.json"):
        groups.setdefault((one["task"], one["setting"], one["epsilon"]), []).append(one)

    def mean(runs: Sequence[dict[str, dict[str, float]]], kind: str) -> str:
        right, most = (
            100 * fmean(run[kind][what] for run in runs) for what in ("accuracy", "most_predicted")
        )
        return f"**{right:.1f}** ({most:.0f})"

    made = (
        [
            task,
            condition,
            level(epsilon),
            len(runs),
            *(mean(runs, kind) for kind in CALIBRATIONS),
        ]
        for (task, condition, epsilon), runs in groups.items()
    )
    return table("task | setting | ε | runs | none | contextual | batch", made)


def radii() -> Lines:
    """AdaDPSyn's Table 1."""
    made = (
        [
            task,
            f"{one['prompts']} × {one['records_per_prompt']}",
            one["tokens"],
            *(f"{one[of]:.3f}" for of in ("radius", "radius_around_public")),
        ]
        for task, one in rows("radius.json").items()
    )
    return table("task | M × N | tokens | radius | around the public prompt", made)


def overhead() -> Lines:
    """Tang's Table 22."""
    made = (
        [name, f"{one['ratio']:.2f}", f"{one['least']:.2f} to {one['most']:.2f}"]
        for name, one in rows("overhead.json")["ratios"].items()
    )
    return table("| ratio | least to most", made)


# Attacks


def membership(loss: str) -> Lines:
    """One row a model, task and demonstration."""
    names = {"records": "a private record", "inf": "synthetic, ε = ∞"}
    made = []
    for key, found in rows("membership.json").items():
        model, task, setting = key.split(" | ")
        figure, details = found[loss]["figures"][0], found[loss]["details"]
        asked = f"{details['members']}, {details['non_members']}"
        interval = f"{figure['low']:.3f} to {figure['high']:.3f}"
        bound = "" if figure["reference"] is None else f"{figure['reference']:.3f}"
        name = names.get(setting, f"synthetic, ε = {setting}")
        made.append([model, task, name, details["trials"], asked, f"{figure['value']:.3f}", interval, bound])
    head = "model | task | demonstration | trials | members, non-members asked | AUC | 95 % interval | the most that ε, δ allow"
    return table(head, made)


def findings(kind: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The keys and findings of one kind of the page on influence."""
    for key, finding in rows("influence.json").items():
        model, what, *rest = key.split(" | ")
        if what == kind:
            yield [model, *rest], finding


def influence() -> Lines:
    """One row a model, number of shots and kind of answers."""
    made = []
    for names, finding in findings("influence"):
        mean, largest, *positions = finding["figures"]
        interval = f"{mean['low']:.2f} to {mean['high']:.2f}"
        by_position = ", ".join(f"{one['value']:.2f}" for one in positions)
        made.append([*names, f"{mean['value']:.2f}", interval, f"{largest['value']:.2f}", by_position])
    head = (
        "model | shots | answers | mean influence | 95 % interval | largest | mean by position, first to last"
    )
    return table(head, made)


def losses() -> Lines:
    """One row a model and setting of private prediction."""
    made = []
    for names, finding in findings("loss"):
        d = finding["details"]
        figures = (f"{one[of]:.4f}" for one in finding["figures"] for of in ("value", "reference"))
        setting = (f"{d['clip']:.4g}", f"{d['temperature']:.4g}", d["prompts"], d["tokens"])
        made.append([*names, *setting, *figures, finding["verdict"]])
    head = (
        "model | table: solved for | ε of 2000 tokens | c | τ | s | tokens run | loss of a token | claim, 2c/(sτ) "
        "| loss of the run | claim, ε of the run | verdict"
    )
    return table(head, made)


def of_model(model: str, key: str) -> dict[str, Table]:
    """The tables of one model that uses the demonstrations."""
    return {
        f"{key}: accuracy": lambda: by_epsilon(model),
        f"{key}: baselines": lambda: baselines(model),
        f"{key}: differences": lambda: differences(model),
        f"{key}: calibrations": lambda: by_calibration(model),
    }


PAGES: dict[str, dict[str, Table]] = {
    "docs/results/utility.md": {
        "certified": certified,
        "population": by_population,
        "sizes": sizes,
        **of_model(WRITER, "gemma"),
        "mechanisms": by_mechanism,
        "records a prompt": by_records_a_prompt,
        **of_model(USER, "qwen"),
        "biases": biases,
        "shots": by_shots,
        "radii": radii,
        "overhead": overhead,
    },
    "docs/results/membership.md": {
        "label": lambda: membership("label"),
        "record": lambda: membership("record"),
    },
    "docs/results/influence.md": {"influence": influence, "losses": losses},
}


def main() -> None:
    """Makes every table anew."""
    for page, tables in PAGES.items():
        write(ROOT / page, tables)


if __name__ == "__main__":
    main()
