"""The first part of docs/results/utility.md: what is chosen at ε = 1 in all. See bench/utility_page.py."""

from __future__ import annotations

from collections.abc import Sequence

from bench.certified import CERTIFIED, TASKS
from bench.choosing import DELTA as CALIBRATION_DELTA
from bench.choosing import DRAWS
from bench.utility import DELTA, MODELS
from bench.utility_choice import CALIBRATION_EPSILON, Line, read
from bench.utility_choice_tables import Gain, choices, gains, picks, statements, targets
from bench.utility_data import ALL_SETS
from bench.utility_pool import EPSILON, HELD_OUT, large
from dpfewshot.evaluation import Cell

POINT, AHEAD = 0.01, 0.03
"""What choosing may lose to the best prompt, and what it should gain over ε = 0."""


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

{targets(lines, "held-out")}
{verdict(lines, "held-out")}
What is chosen, in per cent of the draws:

{picks(lines, "held-out")}
The published accuracy, and what it is an estimate of. `stated` is close to the accuracy on all held-out records that were scored, with a standard deviation over draws that is mostly that of the half which measures. Test
items are easier than held-out training records for most fixed prompts too, such as `ours`, which nothing chose: a statement speaks for texts like the records. Why the test items are easier was not examined.

{statements(lines)}
## Cross-fit on the earlier cells

No record was held out for these demonstrations (200 test items; Gemma wrote them). One half of the test items chooses with the noise of ε = {EPSILON:g}, the other gives the accuracy; {DRAWS} draws. The prompts: no demonstration, the
instruction-only set of every repetition, and one set of ours. So it also shows Qwen, and five repetitions.

{choices(lines, cells, "cross-fit")}
{targets(lines, "cross-fit")}
{verdict(lines, "cross-fit")}
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
    held = [line for line in lines if line.kind == "held-out"]
    sizes = "; ".join(
        f"{task} {line.items} test items, {line.held_out} of {line.population} held-out records"
        for task in ALL_SETS
        for line in [one for one in held if one.task == task][:1]
    )
    shots = ", ".join(f"{name} {large(data)}" for name, data in ALL_SETS.items())
    return f"""A hash of its text puts {100 * HELD_OUT:.0f} % of the records aside. The others write one plan of demonstrations at (ε, δ) = ({EPSILON:g}, {DELTA:g}), for neighbours *zero-out*; those put aside choose at ε = {EPSILON:g}.
A record is in one part only, so all of it together has ε = {EPSILON:g} (parallel composition). The choice is permute-and-flip on one half of the held-out records; the other half measures the published accuracy.
For a **released calibration** the held-out records spend ε = {EPSILON - CALIBRATION_EPSILON:g} on choosing and ({CALIBRATION_EPSILON:g}, {CALIBRATION_DELTA:g}) on the mean of the label probabilities after the chosen prompt.

The prompts to choose from: none at all, the instruction-only sets of all repetitions (four demonstrations each, ε = 0), and ours with the first four or all demonstrations of the plan ({shots}). `ours` is
the first four. Where one text is labelled at a time, each prompt stands there without calibration and with contextual calibration, and the choice decides; where texts are labelled together, their
unlabelled texts calibrate. Means are over {DRAWS} draws of halves and noise, with the exact samplers of a release, for each repetition's prompts. {sizes}.

Limits. Many prompts share a call (`bench/batched.py`), so the demonstrations are stand-ins and say `private=False`. Of the held-out records only the first were scored: a release would score more, with less
relative noise; the calibration's noise is that of all held-out records, its mean that of the scored ones. `dpf.release_calibration` averages clipped
logarithms, not probabilities ([decision](../decisions/calibration.md)): that column stands for the idea, not yet for that release. σ = 0 has the earlier cells' demonstrations, from all records. Nothing here was tuned on the test items
but M, T and the public examples, which are those of the earlier cells."""


def verdict(lines: Sequence[Line], kind: str) -> str:
    """The targets, and what misses them."""
    found = gains(lines, kind)
    if not found:
        return ""
    below = [missed(one) for one in found if one.best < -POINT]
    ahead = [one.where for one in found if one.free >= AHEAD and one.surely_ahead]
    mean = 100 * sum(one.ours for one in found) / len(found)
    return f"""- Chosen more than 1 point below the best of zero-shot, ε = 0 and ours: {"; ".join(below) or "nowhere"}.
- Chosen less ours, mean over the rows: {mean:+.1f} points.
- At least 3 points above ε = 0, with an interval above 0: {", ".join(ahead) or "nowhere"}.
"""


def missed(gain: Gain) -> str:
    """A row below the target, and what the choice saw."""
    shown = f"{gain.where} ({100 * gain.best:+.1f}"
    if gain.held is None:
        return shown + ")"
    best, chosen = (100 * each for each in gain.held)
    return (
        f"{shown}; on the held-out records that best prompt has {best:.1f} %, the chosen ones {chosen:.1f})"
    )
