"""docs/results/utility.md from the raw cells: `python -m bench.utility_page > docs/results/utility.md`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bench.utility import DELTA, HEADLINE_REPETITIONS, ITEMS, MODELS, RAW, REPETITIONS
from bench.utility_data import DATA_SETS
from bench.utility_head import head
from bench.utility_tables import (
    WRITER,
    by_mechanism,
    by_records,
    calibrations,
    expectations,
    level,
    missing,
    settings_table,
    sweep,
)
from bench.utility_writers import by_population, certified
from dpfewshot.evaluation import Results
from dpfewshot.evaluation.conditions import title_of


def main() -> None:
    """Prints the page."""
    cells = Results(RAW).cells
    print(head(cells))
    print(certified(cells))
    print(by_population(cells))
    print(opening())
    for model, _ in MODELS.values():
        mine = [cell for cell in cells if cell.model == model]
        if not mine:
            continue
        print(f"### {model}\n")
        print(settings_table(mine, model))
        print(expectations(mine, model))
        print(calibrations(mine))
        if model == WRITER:
            print(by_mechanism(mine))
            print(by_records(mine))
    print(Path(__file__).with_name("utility.md").read_text(encoding="utf-8"))
    print(biases())
    print(sweep(cells))
    print(radii())
    print(overhead())
    print(missing(cells))


def opening() -> str:
    """The measurements and their methods."""
    raw = RAW.relative_to(RAW.parents[3])
    rows = "\n".join(
        f"| {name} | {numbers(data.prompts)} × {numbers(data.records_per_prompt)} | {data.our_prompts} × 1 | {data.max_tokens}{f', ours {data.our_tokens}' if data.our_tokens else ''} |"
        for name, data in DATA_SETS.items()
    )
    return f"""## Mechanisms beside each other

{ITEMS} test items (the first ones), repetitions with labels, draws and noise of their own ({HEADLINE_REPETITIONS} at ε = 0, 1 and without privacy, {REPETITIONS} else and with Qwen), four demonstrations in
the prompt, each of another label. Accuracy in per cent with 95 % intervals: items are resampled, repetitions have a t error ([why](../decisions/intervals.md)).
Classification is by label probability: with Gemma calibrated by the test texts themselves, as `icl.batch_calibrated` does, with Qwen not calibrated; the other
calibrations are shown beside it. Extraction is greedy decoding, correct if the whole label matches, ignoring case and spaces. **Gemma 3 270M** (base, Q4_K_M unpacked to bfloat16) writes
all demonstrations. The raw cells, with the outcome of every item: [{raw.name}](raw/{raw.name}).

**ε** is that of the whole plan, all four demonstrations together, an upper bound for neighbours *zero-out*, at δ = {DELTA:g}. Classes are disjoint, so labels compose in
parallel; where labels are free (MIT), the four shots compose in sequence. The papers' δ is 1/n of a label, here 1/4605 to 1/86. Three things to know:

- **Speed.** Prompts were evaluated many to a call (`bench/batched.py`): their rounding depends on each other, which the guarantee does not allow. The noise is that of the
  certified plan; the demonstrations measured here are not certified themselves, and say `certified=False`.
- **Fresh draws.** Tang et al. and AdaDPSyn draw records anew for each token. At equal M that takes 12 to 25 times the tokens of one draw a demonstration
  ([mechanisms](mechanisms.md)), too much for two cores. Their rows have the noise of such a plan, on the vectors of *one* draw a demonstration. That approximates
  their utility, untested, and carries no guarantee. Ours is as it would be released.
- **Their accounting is ours**: Poisson draws, numerical composition. As published, the noise of both would be larger.

| task | M × N of Tang et al. | M × N of ours | T |
|---|---|---|---|
{rows}

AdaDPSyn has the M, N and settings of its Tables 13 to 17. The directors and genres to generate for are public lists (in `bench/utility_data.py`). n, the records of each label:
{populations()}

`zero-shot`: no demonstration. ε = 0, `few-shot`: demonstrations from the instruction alone. σ = 0: ours without noise. `private`: four random private records, unchanged.
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


def biases() -> str:
    """The effect of calibration."""
    raw = RAW.with_name("calibration.json")
    if not raw.exists():
        return ""
    groups: dict[tuple[str, str, float | None], list[dict[str, dict[str, float]]]] = {}
    for one in json.loads(raw.read_text()):
        groups.setdefault((one["task"], one["setting"], one["epsilon"]), []).append(one)

    def mean(runs: Sequence[dict[str, dict[str, float]]], kind: str) -> str:
        accuracy, share = (
            100 * fmean(run[kind][what] for run in runs) for what in ("accuracy", "most_predicted")
        )
        return f"**{accuracy:.1f}** ({share:.0f})"

    rows = "\n".join(
        f"| {task} | {title_of(condition)} | {level(epsilon)} | {len(runs)} | "
        + " | ".join(mean(runs, kind) for kind in ("none", "contextual", "batch"))
        + " |"
        for (task, condition, epsilon), runs in groups.items()
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
the tokens of four demonstrations without noise, on the 100 likeliest public tokens (`bench/radius.py`, Gemma 3 270M). AdaDPSyn and our rounds gain by scaling noise to such a radius.

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

Seconds a token over those of the same {found["prompts"]} prompts without noise, in turns, {found["rounds"]} rounds (`bench/overhead.py`, SmolLM2-135M, {found["tokens"]} tokens on one draw). The
cost of noise does not show beside the spread of a shared machine; that of reading records instead of one prompt does.

| | ratio | least to most |
|---|---|---|
{rows}
"""


def numbers(value: float) -> str:
    """Numbers as text, without a trailing point."""
    return json.dumps(value)


if __name__ == "__main__":
    main()
