"""Print docs/results/readability.md from the cells of bench/readability.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from dpfewshot.mechanisms import PublicCentred, SoftmaxChoice
from dpfewshot.planning.defaults import QUIET, prompts_within
from dpfewshot.planning.plan import Stratum
from dpfewshot.planning.planner import plan_stratum
from dpfewshot.planning.settings import PROMPT_TOKEN_LIMIT, PlanSettings
from dpfewshot.values import PrivacyBudget

HEAD = """# How much noise text bears

    python -m bench.readability DATA packaged gemma-3-270m-q4_k_m.gguf cells.jsonl
    python -m bench.readability DATA gemma-3-270m-q4_k_m.gguf gemma-3-270m-q4_k_m.gguf cells.jsonl
    python -m bench.readability_page cells.jsonl > docs/results/readability.md

A row is one run: one text a label of at most 16 tokens, each on one draw of M = 24. The tasks are made-up support tickets (five labels, n = 300) and four labels of banking77 (n = 180 to 187), which no setting
was tuned on. ε is 8, 4, 2, 1, 0.5 and 0.25. *nats*: the mean negative log-probability of a token under Gemma 3 270M as the reader, without records. *more*: nats above the same writer's texts without noise.
Fluent text without content has few nats, so only what noise adds says something. Four or five texts a row: differences below about half a nat mean little. Rows that are missing were not run.
"""

RECORDS, EPSILONS, TOKENS = (30, 100, 200, 500, 1000, 5000), (0.5, 1.0, 2.0, 4.0, 8.0), (20, 40)
PROMPT = 130
"""Tokens of a prompt without those released: a record of 100, the cap, and two fields."""
KEPT = 140
"""Prompts that `LlamaCpp` keeps by default."""

Cell = dict[str, Any]


def main() -> None:
    """Print the page."""
    cells = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print("\n".join([HEAD, *_measured(cells), *_planned()]))


def _measured(cells: list[Cell]) -> Iterator[str]:
    groups: dict[tuple[str, str], dict[tuple[str, float | None], list[Cell]]] = {}
    for cell in cells:
        group = groups.setdefault((cell["writer"], cell["task"]), {})
        group.setdefault((cell["condition"], cell["epsilon"]), []).append(cell)
    for (writer, task), rows in groups.items():
        yield f"## {writer}, {task}\n\n| texts | ε | noise on the mean | nats | more | one of them |\n|---|---|---|---|---|---|"
        base = _nats(rows["gaussian", None])
        for (condition, epsilon), row in sorted(rows.items(), key=_order):
            noise = mean(one["noise"] or 0.0 for one in row)
            shown = "no noise" if (condition, epsilon) == ("gaussian", None) else condition
            numbers = (
                ("–", "–", "")
                if epsilon is None
                else (f"{epsilon:g}", f"{noise:.2f}", f"{_nats(row) - base:+.1f}")
            )
            text = row[1]["text"].replace("|", "/")
            yield f"| {shown} | {numbers[0]} | {numbers[1]} | {_nats(row):.1f} | {numbers[2]} | {text} |"
        yield ""


def _order(row: tuple[tuple[str, float | None], list[Cell]]) -> tuple[bool, str, float]:
    """What has no noise, then each mechanism from the least noise to the most."""
    condition, epsilon = row[0]
    return epsilon is not None, condition, -(epsilon or 0.0)


def _nats(row: list[Cell]) -> float:
    return float(mean(one["nats"] for one in row))


def _planned() -> Iterator[str]:
    yield (
        "## Noise of the planned settings\n\nComputed for the mechanism that the planner takes, public-centred "
        f"up to {QUIET} and softmax-choice above: one demonstration a label, one draw, "
        f"at most {PROMPT_TOKEN_LIMIT:,} tokens a demonstration, δ = 1e-5, prompts of {PROMPT} + T tokens, "
        f"a backend that keeps {KEPT} prompts.\n"
    )
    heads = [f"ε = {epsilon:g}" for epsilon in EPSILONS]
    yield f"| T | records of a label | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}"
    for tokens in TOKENS:
        for records in RECORDS:
            noises = [_noise(tokens, records, epsilon) for epsilon in EPSILONS]
            yield f"| {tokens} | {records:,} | {' | '.join(f'{noise:.2f}' for noise in noises)} |"


def _noise(tokens: int, records: int, epsilon: float) -> float:
    work = PROMPT_TOKEN_LIMIT // (PROMPT + 2 * tokens - 1)
    settings = PlanSettings(min(records, work, prompts_within(KEPT)), 1, tokens, 1, tokens, 100)
    stratum = Stratum("label", ("label",), records)
    noises = (
        plan_stratum(mechanism, settings, PrivacyBudget(epsilon, 1e-5), stratum).noise_on_mean or 0.0
        for mechanism in (PublicCentred(), SoftmaxChoice())
    )
    return centred if (centred := next(noises)) <= QUIET else min(centred, next(noises))


if __name__ == "__main__":
    main()
