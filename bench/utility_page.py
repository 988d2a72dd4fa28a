"""docs/results/utility.md from the raw cells: `python bench/utility_page.py > docs/results/utility.md`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from utility import (
    DELTA,
    EPSILONS,
    HEADLINE,
    HEADLINE_REPETITIONS,
    IN_DETAIL,
    ITEMS,
    MODELS,
    RAW,
    REPETITIONS,
)
from utility_data import DATA_SETS

from dpfewshot.evaluation import Cell, Results, difference, summarise
from dpfewshot.evaluation.summaries import Calibration, Difference, Summary, grouped

OURS = {
    name: "public-centred" + ", public examples" * (data.task.labels is None)
    for name, data in DATA_SETS.items()
}
"""The name of our setting in each task."""

NAMES = {"ours": "ours", "gaussian": "Gaussian (Tang et al.)", "adadpsyn": "AdaDPSyn"}
BASELINES = (
    ("zero-shot", 0.0),
    ("zero-private", 0.0),
    ("zero-private, public examples", 0.0),
    ("random-private", None),
)
SHOTS = 4
"""Of the tables but the last."""

POINTS = 0.02
"""What ours may be less accurate than without noise."""

WRITER, USER = (model for model, _ in MODELS.values())
CALIBRATION: dict[str, Calibration] = {WRITER: "batch", USER: "none"}
"""Each the best of its model without any demonstration."""

CALIBRATIONS: tuple[Calibration, ...] = ("none", "contextual", "batch")


def main() -> None:
    """Print the page."""
    cells = Results(RAW).cells
    print(opening())
    for model, _ in MODELS.values():
        mine = [cell for cell in cells if cell.model == model]
        if not mine:
            continue
        print(f"## {model}\n")
        print(settings_table(mine, model))
        print(expectations(mine, model))
        print(calibrations(mine))
        print(by_mechanism(mine))
    print(Path(__file__).with_name("utility.md").read_text(encoding="utf-8"))
    print(biases())
    print(sweep(cells))
    print(radii())
    print(overhead())
    print(missing(cells))


def opening() -> str:
    """What was measured, and how."""
    raw = RAW.relative_to(RAW.parents[3])
    rows = "\n".join(
        f"| {name} | {numbers(data.prompts)} × {numbers(data.records_per_prompt)} | {data.our_prompts} × 1 | {data.max_tokens}{f', ours {data.our_tokens}' if data.our_tokens else ''} |"
        for name, data in DATA_SETS.items()
    )
    return f"""# Accuracy in use

    make models
    make utility DATA=folder-with-the-data-sets STORE=folder-for-the-demonstrations

{ITEMS} test items (the first ones), repetitions with labels, draws and noise of their own ({HEADLINE_REPETITIONS} at ε = 0, 1 and without privacy, {REPETITIONS} else and with Qwen), four demonstrations in
the prompt, each of another label. Accuracy in per cent with 95 % intervals: items are resampled, repetitions have a t error ([why](../decisions/intervals.md)).
Classification is by label probability: with Gemma calibrated by the test texts themselves, as `icl.batch_calibrated` does, with Qwen not calibrated; the other
calibrations are beside. Extraction is greedy decoding, right if the whole label is, but for case and spaces. **Gemma 3 270M** (base, Q4_K_M unpacked to bfloat16) writes
all demonstrations. The raw cells, with the outcome of every item: [{raw.name}](raw/{raw.name}).

**ε** is that of the whole plan, all four demonstrations together, an upper bound for neighbours *zero-out*, at δ = {DELTA:g}. Classes are disjoint, so labels compose in
parallel; where labels are free (MIT), the four shots compose in sequence. The papers' δ is 1/n of a label, here 1/4605 to 1/86. Three things to know:

- **Speed.** Prompts were evaluated many to a call (`bench/batched.py`): their rounding depends on each other, which the guarantee does not allow. The noise is that of the
  certified plan; the demonstrations measured here are not certified themselves, and say `private=False`.
- **Fresh draws.** Tang et al. and AdaDPSyn draw records anew for each token. At equal M that takes 12 to 25 times the tokens of one draw a demonstration
  ([mechanisms](mechanisms.md)), which two cores have no time for. Their rows have the noise of such a plan, on the vectors of *one* draw a demonstration. That stands in
  for their utility, untested, and holds no guarantee. Ours is as it would be released.
- **Their accounting is ours**: Poisson draws, numerical composition. As published, the noise of both would be larger.

| task | M × N of Tang et al. | M × N of ours | T |
|---|---|---|---|
{rows}

AdaDPSyn has the M, N and settings of its Tables 13 to 17. Directors and genres to generate for are public lists (in `bench/utility_data.py`). n, the records of each label:
{populations()}

`zero-shot`: no demonstration. ε = 0, `few-shot`: demonstrations from the instruction alone. σ = 0: ours without noise. `private`: four random private records as they stand.
"""


def populations() -> str:
    """N of every label."""
    found = {cell.task: cell.population for cell in Results(RAW).cells}
    return (
        "; ".join(
            f"{task}: "
            + (str(n[""]) if "" in n else ", ".join(f"{label} {count}" for label, count in n.items()))
            for task, n in found.items()
        )
        + "."
    )


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
        (one.task, one.setting, one.epsilon): one
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
        if one.repetitions == wanted(one.model, one.epsilon) or one.setting == "zero-shot"
        else f" ({one.repetitions} run{'s' * (one.repetitions > 1)})"
    )
    return f"**{100 * one.accuracy:.1f}** [{100 * one.low:.1f}, {100 * one.high:.1f}]{runs}"


def expectations(cells: Sequence[Cell], model: str) -> str:
    """Ours against no noise, and against the papers' at equal ε."""
    groups = {
        (group[0].task, group[0].setting, group[0].epsilon_asked): group
        for group in grouped(cells)
        if group[0].shots == SHOTS
    }
    lines = [
        "Differences in points, with 95 % intervals; a setting that has fewer runs is compared on those.\n",
        "| task | ε | ours less σ = 0 | within 2 points | ours less Gaussian | ours less AdaDPSyn |",
        "|---|---|---|---|---|---|",
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
            ]
            found = [None if other is None else compared(ours, other, model) for other in others]
            within = "–" if found[0] is None else "yes" if found[0].mean >= -POINTS else "no"
            shown_ones = [
                "–" if one is None else f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
                for one in found
            ]
            lines.append(
                f"| {task} | {epsilon:g} | {shown_ones[0]} | {within} | {shown_ones[1]} | {shown_ones[2]} |"
            )
    return "\n".join(lines) + "\n"


def compared(first: Sequence[Cell], second: Sequence[Cell], model: str) -> Difference | None:
    """Their difference, on the repetitions that both have."""
    both = {cell.repetition for cell in first} & {cell.repetition for cell in second}
    kept = [[cell for cell in group if cell.repetition in both] for group in (first, second)]
    return difference(*kept, calibration=CALIBRATION[model]) if both else None


def calibrations(cells: Sequence[Cell]) -> str:
    """What ours and the baselines are with each calibration."""
    classified = [
        cell
        for cell in cells
        if cell.batch_calibrated is not None
        and cell.shots in (0, SHOTS)
        and (
            cell.setting in {"zero-shot", "zero-private", "random-private"}
            or (cell.setting == OURS[cell.task] and cell.epsilon_asked in (1.0, None))
        )
    ]
    by_kind = [summarise(classified, calibration=kind) for kind in CALIBRATIONS]
    together = sorted(zip(*by_kind, strict=True), key=lambda kinds: list(DATA_SETS).index(kinds[0].task))
    rows = [
        f"| {kinds[0].task} | {kinds[0].setting} | {level(kinds[0].epsilon)} | {' | '.join(map(shown, kinds))} |"
        for kinds in together
    ]
    if not rows:
        return ""
    head = [
        "By calibration (texts that say nothing; the test texts):\n",
        "| task | setting | ε | none | contextual | batch |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def by_mechanism(cells: Sequence[Cell]) -> str:
    """The same one draw a demonstration, by mechanism."""
    of_one_draw = [
        cell
        for cell in cells
        if cell.epsilon_asked == 1.0
        and cell.shots == SHOTS
        and ("one draw" in cell.setting or cell.setting == OURS[cell.task])
        and cell.task in IN_DETAIL
    ]
    if all(cell.setting == OURS[cell.task] for cell in of_one_draw):
        return ""
    lines = [
        "By mechanism at ε = 1, on ours' one draw a demonstration and sizes (Tang et al., Table 4):\n",
        "| task | mechanism | accuracy |",
        "|---|---|---|",
    ]
    found = summarise(of_one_draw, calibration=CALIBRATION[WRITER])
    lines += [f"| {one.task} | {one.setting} | {shown(one)} |" for one in found]
    return "\n".join(lines) + "\n"


def sweep(cells: Iterable[Cell]) -> str:
    """Accuracy by the number of demonstrations."""
    many = [
        one
        for one in summarise(
            (cell for cell in cells if cell.setting == OURS[cell.task] and cell.model == WRITER),
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


def biases() -> str:
    """What calibration takes off."""
    raw = RAW.with_name("calibration.json")
    if not raw.exists():
        return ""
    groups: dict[tuple[str, str, float | None], list[dict[str, dict[str, float]]]] = {}
    for one in json.loads(raw.read_text()):
        groups.setdefault((one["task"], one["setting"], one["epsilon"]), []).append(one)

    def mean(runs: Sequence[dict[str, dict[str, float]]], kind: str) -> str:
        accuracy, share = (
            100 * sum(run[kind][what] for run in runs) / len(runs) for what in ("accuracy", "most_predicted")
        )
        return f"**{accuracy:.1f}** ({share:.0f})"

    rows = "\n".join(
        f"| {task} | {setting} | {level(epsilon)} | {len(runs)} | "
        + " | ".join(mean(runs, kind) for kind in ("none", "contextual", "batch"))
        + " |"
        for (task, setting, epsilon), runs in groups.items()
    )
    return f"""## What the labels' bias does

The same demonstrations, Gemma 3 270M, without calibration, with contextual calibration, and with calibration by the 200 test texts themselves (`icl.batch_calibrated`):
accuracy in per cent, and in brackets the share of the label that is predicted most often (`bench/calibration.py`).

| task | setting | ε | runs | none | contextual | batch |
|---|---|---|---|---|---|---|
{rows}
"""


def radii() -> str:
    """AdaDPSyn's Table 1."""
    raw = RAW.with_name("radius.json")
    if not raw.exists():
        return ""
    rows = "\n".join(
        f"| {task} | {one['prompts']} × {one['records_per_prompt']} | {one['tokens']} | {one['radius']:.3f} | {one['radius_around_public']:.3f} |"
        for task, one in json.loads(raw.read_text()).items()
    )
    return f"""## How far apart the prompts' distributions are (AdaDPSyn, Table 1)

Radius of the smallest ball around one prompt's distribution that holds 80 % of them, and of the ball around the distribution without records; L2, at most √2 = 1.414; mean over
the tokens of four demonstrations without noise, on the 100 likeliest public tokens (`bench/radius.py`, Gemma 3 270M). Noise in proportion to such a radius is what
AdaDPSyn and our rounds gain.

| task | M × N | tokens | radius | around the public prompt |
|---|---|---|---|---|
{rows}
"""


def overhead() -> str:
    """Tang's Table 22."""
    raw = RAW.with_name("overhead.json")
    if not raw.exists():
        return ""
    found = json.loads(raw.read_text())
    rows = "\n".join(
        f"| {name} | {one['ratio']:.2f} | {one['least']:.2f} to {one['most']:.2f} |"
        for name, one in found["ratios"].items()
    )
    return f"""## What privacy costs in time (Tang et al., Table 22)

Seconds a token over those of the same {found["prompts"]} prompts without noise, in turns, {found["rounds"]} rounds (`bench/overhead.py`, SmolLM2-135M, {found["tokens"]} tokens on one draw). What
noise costs does not show beside the spread of a shared machine; reading records instead of one prompt does.

| | ratio | least to most |
|---|---|---|
{rows}
"""


def missing(cells: Sequence[Cell]) -> str:
    """What the issue's grid has and the raw cells have not."""
    there = {(cell.model, cell.task, cell.setting, cell.epsilon_asked, cell.repetition) for cell in cells}
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
    return f"## Not measured yet\n\n`make utility` goes on with them:\n\n{rows}"


def wanted(model: str, epsilon: float | None) -> int:
    """Repetitions."""
    return HEADLINE_REPETITIONS if model == WRITER and epsilon in HEADLINE else REPETITIONS


def level(epsilon: float | None) -> str:
    """ε in a table."""
    return "none" if epsilon is None else f"{epsilon:g}"


def numbers(value: float) -> str:
    """Without a point where it has none."""
    return json.dumps(value)


if __name__ == "__main__":
    main()
