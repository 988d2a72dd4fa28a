"""Print docs/results/readability.md from the cells of bench/readability.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from dpfewshot.mechanisms import PublicCentred
from dpfewshot.planning.defaults import PROMPT_TOKEN_LIMIT
from dpfewshot.planning.plan import Stratum
from dpfewshot.planning.planner import plan_stratum
from dpfewshot.planning.settings import Settings
from dpfewshot.values import PrivacyBudget

HEAD = """# How much noise text bears

    python -m bench.readability banking77.train.jsonl.gz packaged READER.gguf > smol.jsonl
    python -m bench.readability banking77.train.jsonl.gz gemma-3-270m-q4_k_m.gguf READER.gguf > gemma.jsonl
    python -m bench.readability_page smol.jsonl gemma.jsonl > docs/results/readability.md

One text a label of at most 16 tokens, all of them on one draw of M = 24: made-up support tickets (five labels, n = 300) and four labels of banking77 (n = 180 to 187), which no setting was tuned on.
ε goes from 16 to 1. The page shows one run, and a cell is four or five texts. *nats*: the mean negative log-probability of a token under Gemma 3 270M as the reader, without records; *more*: nats above the
same writer's texts without noise. Fluent text without content has few nats, so only what is added by noise says something.
"""

RECORDS, EPSILONS, TOKENS = (30, 100, 200, 500, 1000, 5000), (0.5, 1.0, 2.0, 4.0, 8.0), (20, 40)
PROMPT = 130
"""Tokens of a prompt without those released: a record of 100, the cap, and two fields."""


def main() -> None:
    """Print the page."""
    cells = [json.loads(line) for name in sys.argv[1:] for line in Path(name).read_text().splitlines()]
    print("\n".join([HEAD, *_measured(cells), *_planned()]))


def _measured(cells: list[dict[str, Any]]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["writer"], cell["task"]), []).append(cell)
    for (writer, task), members in groups.items():
        yield f"## {writer}, {task}\n\n| texts | noise on the mean | nats | more | one of them |\n|---|---|---|---|---|"
        rows: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
        for cell in members:
            rows.setdefault((cell["condition"], _rounded(cell["noise"])), []).append(cell)
        base = mean(one["nats"] for one in rows["gaussian", 0.0])
        for (condition, noise), row in sorted(rows.items(), key=lambda one: (one[0][0], one[0][1] or 0.0)):
            nats = mean(one["nats"] for one in row)
            shown = "no noise" if noise == 0.0 else condition
            more = "" if noise in {None, 0.0} else f"{nats - base:+.1f}"
            text = row[1]["text"].replace("|", "/")
            yield f"| {shown} | {'–' if noise is None else f'{noise:.2f}'} | {nats:.1f} | {more} | {text} |"
        yield ""


def _rounded(noise: float | None) -> float | None:
    return None if noise is None else round(noise, 2)


def _planned() -> Iterator[str]:
    yield (
        "## Noise of the planned settings\n\nComputed: public-centred, one demonstration a label, one draw, "
        f"at most {PROMPT_TOKEN_LIMIT:,} tokens a demonstration, δ = 1e-5, prompts of {PROMPT} + T tokens.\n"
    )
    heads = [f"ε = {epsilon:g}" for epsilon in EPSILONS]
    yield f"| T | records of a label | {' | '.join(heads)} |\n|---|---{'|---' * len(heads)}|"
    for tokens in TOKENS:
        for records in RECORDS:
            noises = [_noise(tokens, records, epsilon) for epsilon in EPSILONS]
            yield f"| {tokens} | {records:,} | {' | '.join(f'{noise:.2f}' for noise in noises)} |"


def _noise(tokens: int, records: int, epsilon: float) -> float:
    prompts = min(records, PROMPT_TOKEN_LIMIT // (PROMPT + 2 * tokens - 1))
    settings = Settings(prompts, 1, tokens, 1, tokens, 100)
    stratum = Stratum("label", ("label",), records)
    planned = plan_stratum(PublicCentred(), settings, PrivacyBudget(epsilon, 1e-5), stratum)
    assert planned.noise_on_mean is not None  # noqa: S101 - public-centred has it
    return planned.noise_on_mean


if __name__ == "__main__":
    main()
