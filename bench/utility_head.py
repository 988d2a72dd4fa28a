"""The first part of docs/results/utility.md: what is chosen at ε = 1 in all. See bench/utility_page.py."""

from __future__ import annotations

from collections.abc import Sequence

from bench.certified import CERTIFIED, TASKS
from bench.choosing import DRAWS
from bench.recalibrating import CALIBRATION_EPSILON
from bench.recalibrating import DELTA as CALIBRATION_DELTA
from bench.utility import DELTA, MODELS
from bench.utility_choice import Line, read
from bench.utility_choice_tables import choices, picks, scores, statements
from bench.utility_data import ALL_SETS
from bench.utility_jargon import section as jargon
from bench.utility_pool import EPSILON, HELD_OUT, large
from bench.utility_targets import targets, verdict
from dpfewshot.evaluation import Cell


def head(cells: Sequence[Cell]) -> str:
    """Tables of held-out choices, then those of the cross-fit."""
    lines = read()
    return f"""# Accuracy in use

    make models
    make utility DATA=folder-with-the-data-sets STORE=folder-for-the-demonstrations

A run that was interrupted resumes, and a longer one adds to what is there. Raw outcomes of every item: [choice.jsonl](raw/choice.jsonl) for this part, [utility.jsonl](raw/utility.jsonl) for
"Mechanisms beside each other".

## What is shipped when it is chosen, ε = {EPSILON:g} in all

{method(lines)}

{choices(lines, cells, "held-out")}
Differences in points, on the same items:

{targets(lines, cells, "held-out")}
{verdict(lines, cells, "held-out")}
What is chosen, in per cent of the draws:

{picks(lines, "held-out")}
The published accuracy, with its 95 % interval (`releases/estimates.py`), and what it is an estimate of. "Interval holds records'": in per cent of {DRAWS} draws of as many records with replacement from the scored ones, whose accuracies are
thereby known, the interval holds the chosen prompt's. "Holds test's": the same for the test items, which differ from the records: for most fixed prompts too, such as `ours`, which nothing chose. "Labels moved" is one reason: the per cent of test items that would need another label for
both to have the same label frequencies (total variation). A statement, and a choice, are for texts like the records.

{statements(lines)}
What the choice should score: one half of the scored records chooses, by right and wrong or by the probability of the label (`score="likelihood"`), and the other half gives the accuracy in per cent. No test item is in this table.

{scores(lines)}
Probabilities choose better where a released calibration follows: accuracy without it says little about the accuracy with it. They choose no worse where all candidates have the same calibration ("together"), and
between prompts without and with contextual calibration they compare badly. So the tables use probabilities for the released calibration alone. That was decided on held-out records.

{jargon()}
## Cross-fit on the earlier cells

No record was held out for these demonstrations (200 test items; Gemma wrote them). One half of the test items chooses with the noise of ε = {EPSILON:g}, the other gives the accuracy; {DRAWS} draws. The prompts: no demonstration, the
instruction-only set of every repetition, and one set of ours. So it also shows Qwen, and five repetitions.

{choices(lines, cells, "cross-fit")}
Differences in points:

{targets(lines, cells, "cross-fit")}
{verdict(lines, cells, "cross-fit")}
## Not measured yet

{lacking(lines, cells)}"""


def lacking(lines: Sequence[Line], cells: Sequence[Cell]) -> str:
    """What this part of the page should have and has not; `make utility` goes on with it."""
    there = {(line.user, line.task) for line in lines if line.kind == "held-out"}
    gone = [
        f"choices on held-out records with {user}: {', '.join(tasks)}"
        for user, _ in MODELS.values()
        if (tasks := [task for task in ALL_SETS if (user, task) not in there])
    ]
    certified = {cell.task for cell in cells if CERTIFIED in cell.condition}
    gone += [f"certified runs: {', '.join(task for task in TASKS if task not in certified)}"] * (
        not certified.issuperset(TASKS)
    )
    if not any(cell.condition.endswith(" records") for cell in cells):
        gone.append("accuracy by the number of records (`bench/certified.py --records`)")
    gone.append("SmolLM2 as writer or user; more than three repetitions and 200 items of held-out choices")
    return "\n".join(f"- {one}" for one in gone) + "\n"


def method(lines: Sequence[Line]) -> str:
    """How the tables were made."""
    sizes = sizes_of(lines)
    shots = ", ".join(f"{name} {large(data)}" for name, data in ALL_SETS.items())
    return f"""A hash of its text puts {100 * HELD_OUT:.0f} % of the records aside. The others write one plan of demonstrations at (ε, δ) = ({EPSILON:g}, {DELTA:g}), for neighbours *zero-out*; those put aside choose at ε = {EPSILON:g}.
A record is in one part only, so all of it together has ε = {EPSILON:g} (parallel composition). The choice is that of `dpf.choose`, by its own code: permute-and-flip on one half of the scored records at the ε₀ that their sampling rate allows; the other half
measures the published accuracy. For a **released calibration** the records put aside spend ε = {EPSILON - CALIBRATION_EPSILON:g} on choosing and ({CALIBRATION_EPSILON:g}, {CALIBRATION_DELTA:g}) on the calibration of the chosen prompt, which is that of `dpf.release_calibration`: the mean of clipped logarithms, with all labels of weight 1 (the release weighs frequent labels less where their numbers are public). There the
probability of the label chooses (`score="likelihood"`), after contextual calibration; else right and wrong.

The prompts to choose from: none at all, the instruction-only sets of all repetitions (four demonstrations each, ε = 0), and ours with the first four or all demonstrations of the plan ({shots}). `ours` is
the first four. ε = 0 has, beside its sets, the earlier repetitions on the same test items (all but DBPedia, whose T was another). Where one text is labelled at a time, each prompt stands there without calibration and with contextual calibration, and the choice decides; where texts are labelled together, their
unlabelled texts calibrate. Means are over {DRAWS} draws of halves and noise, with the exact samplers of a release, for each repetition's prompts.

{sizes}

Limits. Many prompts share a call (`bench/batched.py`), so the demonstrations are stand-ins and say `certified=False`. The records that are scored are the first of those put aside, in place of a random sample of that size. `dpf.choose` scores 1,000 by
default. σ = 0 has the earlier cells' demonstrations, from all records. Nothing here was tuned on the test items but M, T and the public examples, which are those of the earlier cells,
and the clip of a released calibration ([decision](../decisions/calibration.md))."""


def sizes_of(lines: Sequence[Line]) -> str:
    """How many items each row stands on."""
    rows = [
        f"| {user} | {task} | {one.items} | {one.held_out} of {one.population} | {large(ALL_SETS[task])} |"
        for user, _ in MODELS.values()
        for task in ALL_SETS
        for one in [line for line in lines if (line.kind, line.user, line.task) == ("held-out", user, task)][
            :1
        ]
    ]
    head = [
        "| user | task | test items | held-out records scored | demonstrations of a plan |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"
