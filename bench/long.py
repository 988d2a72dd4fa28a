"""Long texts from made-up clinical notes: what they cost, how they read, what noise they bear (docs/results/long.md).

    python -m bench.long plans
    python -m bench.long write MODEL.gguf VECTORS [FIRST LAST]
    python -m bench.long agreement VECTORS
    python -m bench.long_page > docs/results/long.md

The first three append to docs/results/raw/long.jsonl. VECTORS is a folder outside of the project: the probabilities at
each token of each text, with which `agreement` tries other noise on the same records. The records are made up, so
nothing private is kept. FIRST and LAST choose among the texts of `CELLS`. A text is written once.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpfewshot as dpf
from bench.notes import FORMED_NOTES, NOTES, NOTES_PER_LABEL, PATIENT_NUMBER, notes
from dpfewshot.account.permit import Permit
from dpfewshot.accounting.events import Event
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms import Draws, Gaussian, Mechanism, PublicCentred, Release, RowChange, SoftmaxChoice
from dpfewshot.planning.defaults import QUIET
from dpfewshot.planning.plan import Stratum
from dpfewshot.planning.planner import plan_stratum
from dpfewshot.planning.settings import Settings

RAW = Path(__file__).parents[1] / "docs" / "results" / "raw" / "long.jsonl"

DELTA = 1e-5
CAP = 400
"""Tokens of a record that enter a prompt: the longest note has no more."""
PROMPT = 430
"""Tokens of a prompt without those released: a record of 400, the cap, and two fields."""
POPULATIONS, LENGTHS, EPSILONS = (1000, NOTES_PER_LABEL, 20_000), (40, 100, 200, 400), (4.0, 8.0)
LIMITS = (20_000, 50_000, 100_000, 200_000, 400_000)
SHARES = (1, 4, 16)
"""Draws of a text that the planner tries first: R is T, T/4, T/16."""
FEWEST_PROMPTS = 4
LABEL = "Cardiology"
KEPT = 110
MECHANISMS: dict[str, Mechanism] = {each.name: each for each in (PublicCentred(), SoftmaxChoice())}
TRIED: dict[str, Mechanism] = {**MECHANISMS, "gaussian": Gaussian()}
NOISES = (0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4)
"""Noise on the mean that `agreement` tries."""
REPEATS = 4
OUT_OF_PLACE = 0.01
"""A released token is out of place if the prompts with records give it a mean probability below this."""
PARTS = ((0, 16), (16, 50), (50, 100), (100, 200), (200, 400))
"""Positions of a text that `agreement` tells apart."""


@dataclass(frozen=True)
class Cell:
    """One text.

    Attributes:
        tokens: T.
        epsilon: ε.
        limit: the most tokens that the model may evaluate for it.
        form: whether the instruction has the headings.
        ngram: `Task.no_repeat_ngram_size`.
    """

    tokens: int
    epsilon: float
    limit: int
    form: bool = False
    ngram: int = 0

    @property
    def suffix(self) -> str:
        """Behind the name of what it was written with."""
        return f"{'.form' * self.form}{f'.ngram{self.ngram}' if self.ngram else ''}"


CELLS = (
    Cell(400, 8.0, 75_000),
    Cell(200, 8.0, 50_000),
    Cell(400, 4.0, 75_000),
    Cell(100, 4.0, 38_000),
    Cell(200, 4.0, 50_000),
    Cell(100, 8.0, 38_000),
    Cell(100, 8.0, 20_000),
    Cell(200, 4.0, 50_000, form=True),
    Cell(200, 4.0, 50_000, form=True, ngram=4),
    Cell(400, 8.0, 75_000, ngram=4),
    Cell(400, 8.0, 75_000, form=True, ngram=4),
    Cell(400, 4.0, 75_000, form=True, ngram=4),
)


@dataclass
class Seen:
    """Of each token: log-probabilities of all prompts, and of the public one, on the support; the released index."""

    rows: list[NDArray[np.float16]] = field(default_factory=list)
    public: list[NDArray[np.float16]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Watched:
    """A mechanism whose predictions are kept. For made-up records alone."""

    inner: Mechanism
    seen: Seen = field(repr=False)

    @property
    def name(self) -> str:
        """See `Mechanism.name`."""
        return self.inner.name

    @property
    def top_k(self) -> int | None:
        """See `Mechanism.top_k`."""
        return self.inner.top_k

    def check(self, vocabulary_size: int) -> None:
        """See `Mechanism.check`."""
        self.inner.check(vocabulary_size)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """See `Mechanism.event`."""
        return self.inner.event(draws, noise_multiplier)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float | None:
        """See `Mechanism.noise_on_mean`."""
        return self.inner.noise_on_mean(draws, noise_multiplier)

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        return _Watching(self.inner.start(draws, noise_multiplier, random_source), self.seen)


@dataclass(frozen=True)
class _Watching:
    inner: Release
    seen: Seen = field(repr=False)

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        return self.inner.support(public_logprobs, excluded)

    def token(
        self, logprobs: NDArray[np.float32], public_logprobs: NDArray[np.float32], permit: Permit
    ) -> int | None:
        chosen = self.inner.token(logprobs, public_logprobs, permit)
        self.seen.rows.append(logprobs.astype(np.float16))
        self.seen.public.append(public_logprobs.astype(np.float16))
        self.seen.chosen.append(-1 if chosen is None else chosen)
        return chosen


def plans() -> None:
    """Compute what the planner would have to choose from, without a model."""
    for records, tokens, epsilon, limit in itertools.product(POPULATIONS, LENGTHS, EPSILONS, LIMITS):
        for share in SHARES if records == NOTES_PER_LABEL else SHARES[:1]:
            every = -(-tokens // share)
            one = Settings(1, 1, tokens, 1, every, CAP)
            draws = one.draws_per_demonstration
            prompts = min(limit // (draws * (PROMPT + tokens) + tokens - draws), records)
            if prompts >= FEWEST_PROMPTS:
                settings = replace(one, prompts_per_draw=prompts)
                name, noise = _least_noise(settings, records, epsilon)
                line = {
                    "kind": "plan",
                    "records": records,
                    "tokens": tokens,
                    "epsilon": epsilon,
                    "limit": limit,
                }
                append(
                    line | {"every": every, "prompts": prompts, "mechanism": name, "noise": round(noise, 4)}
                )


def _least_noise(settings: Settings, records: int, epsilon: float) -> tuple[str, float]:
    """The mechanism that the planner takes, and its noise on the mean."""
    stratum, budget = Stratum(LABEL, (LABEL,), records), dpf.PrivacyBudget(epsilon, DELTA)
    noises = {}
    for name, mechanism in MECHANISMS.items():  # public-centred first
        noises[name] = plan_stratum(mechanism, settings, budget, stratum).noise_on_mean or 0.0
        if noises[name] <= QUIET:
            break
    return min(noises.items(), key=lambda one: one[1])


def write(model: str, folder: str, first: str = "0", last: str = str(len(CELLS) - 1)) -> None:
    """Write the texts that are missing."""
    vectors = Path(folder)
    vectors.mkdir(parents=True, exist_ok=True)
    records = [one for one in notes() if one.label == LABEL]
    with dpf.backends.LlamaCpp(model, context_tokens=900, kept_prompts=KEPT, threads=1) as backend:
        print(backend.describe(), file=sys.stderr, flush=True)
        for cell in CELLS[int(first) : int(last) + 1]:
            name = f"{Path(model).stem}.{cell.tokens}.{cell.epsilon:g}.{cell.limit}{cell.suffix}"
            if (vectors / f"{name}.npz").exists():
                continue
            line, seen = _written(backend, Path(model).stem, records, cell)
            kept: dict[str, Any] = {"prompts": line["prompts"], "chosen": seen.chosen}
            kept |= {f"rows{number}": rows for number, rows in enumerate(seen.rows)}
            kept |= {f"public{number}": row for number, row in enumerate(seen.public)}
            np.savez_compressed(vectors / f"{name}.npz", **kept)
            append(line)


def _written(
    backend: dpf.backends.LlamaCpp, model: str, records: list[dpf.Record], cell: Cell
) -> tuple[dict[str, Any], Seen]:
    task = replace(FORMED_NOTES if cell.form else NOTES, no_repeat_ngram_size=cell.ngram)
    settings: dict[str, Any] = {
        "budget": dpf.PrivacyBudget(cell.epsilon, DELTA),
        "labels": [LABEL],
        "max_tokens": cell.tokens,
        "record_token_cap": CAP,
        "prompt_token_limit": cell.limit,
    }
    with dpf.Synthesizer(task, records, backend, **settings) as planned:
        mechanism, planned_seconds = MECHANISMS[planned.plan.mechanism], planned.probe(4.0).estimated_seconds
    seen = Seen()
    before, started, busy = backend.tokens_evaluated, time.perf_counter(), time.process_time()
    with dpf.Synthesizer(
        task, records, backend, mechanism=Watched(mechanism, seen), **settings
    ) as synthesizer:
        made, plan = synthesizer.generate(LABEL), synthesizer.plan
    numbers = {number for one in records for number in PATIENT_NUMBER.findall(one.text)}
    agreed, misplaced = judged([_mean(each) for each in seen.rows], seen.chosen)
    line = {
        "kind": "text",
        "model": model,
        "tokens": cell.tokens,
        "epsilon": cell.epsilon,
        "records": len(records),
        "limit": cell.limit,
        "form": cell.form,
        "ngram": cell.ngram,
        "prompts": plan.settings.prompts_per_draw,
        "every": plan.settings.tokens_per_draw,
        "mechanism": plan.mechanism,
        "noise": round(plan.noise_on_mean or 0.0, 4),
        "planned_tokens": plan.prompt_tokens,
        "planned_seconds": round(planned_seconds or 0.0),
        "evaluated": backend.tokens_evaluated - before,
        "seconds": round(time.perf_counter() - started),
        "processor_seconds": round(time.process_time() - busy),
        "load": round(os.getloadavg()[0], 1),
        "released": made.token_count,
        "agreed": sum(agreed),
        "misplaced": sum(misplaced),
        "copied": len(numbers.intersection(PATIENT_NUMBER.findall(made.text))),
        "text": made.text,
    }
    return line, seen


def judged(means: list[NDArray[np.float64]], chosen: list[int]) -> tuple[list[bool], list[bool]]:
    """For each token whether it is the noiseless one, and whether it is out of place."""
    agreed = [int(np.argmax(mean)) == index for mean, index in zip(means, chosen, strict=True)]
    misplaced = [index < 0 or mean[index] < OUT_OF_PLACE for mean, index in zip(means, chosen, strict=True)]
    return agreed, [bool(each) for each in misplaced]


def agreement(folder: str) -> None:
    """Try each mechanism and noise on the kept predictions of every text that has no such lines yet."""
    done = {json.loads(line).get("source") for line in RAW.read_text(encoding="utf-8").splitlines()}
    for path in sorted(path for path in Path(folder).glob("*.npz") if path.stem not in done):
        with np.load(path) as kept:
            chosen, prompts = kept["chosen"], int(kept["prompts"])
            rows = [kept[f"rows{number}"] for number in range(len(chosen))]
            public = [kept[f"public{number}"] for number in range(len(chosen))]
        draws = Draws(0.01, 1, len(rows) * REPEATS, prompts, RowChange.ADDED)
        for name, mechanism in TRIED.items():
            for noise in NOISES:
                found = _tried(mechanism, draws, noise, rows, public)
                append({"kind": "agreement", "source": path.stem, "mechanism": name, "noise": noise, **found})
        append({"kind": "gaps", "source": path.stem, "gaps": [round(gap, 4) for gap in _gaps(rows)]})


def _gaps(rows: list[NDArray[np.float16]]) -> Iterator[float]:
    """How far the likeliest token's mean probability is above the next one's, token by token."""
    for each in rows:
        mean = np.sort(_mean(each))
        yield float(mean[-1] - mean[-2])


def _mean(rows: NDArray[np.float16]) -> NDArray[np.float64]:
    """The mean probabilities; an absent prompt's row is NaN and counts as 0."""
    return np.asarray(np.nan_to_num(np.exp(rows.astype(np.float64))).mean(axis=0))


def _tried(
    mechanism: Mechanism,
    draws: Draws,
    noise: float,
    rows: list[NDArray[np.float16]],
    public: list[NDArray[np.float16]],
) -> dict[str, Any]:
    sigma = noise / (mechanism.noise_on_mean(draws, 1.0) or 1.0)
    release = mechanism.start(draws, sigma)
    permit = Permit.unpaid(draws.tokens_per_draw, sigma)
    private, apart = [each.astype(np.float32) for each in rows], [each.astype(np.float32) for each in public]
    means = [_mean(each) for each in rows]
    agreed, misplaced = np.zeros(len(rows)), np.zeros(len(rows))
    for _ in range(REPEATS):
        chosen = [
            -1 if (token := release.token(each, one, permit)) is None else token
            for each, one in zip(private, apart, strict=True)
        ]
        right, wrong = judged(means, chosen)
        agreed, misplaced = agreed + right, misplaced + wrong
    parts = [(low, min(high, len(rows))) for low, high in PARTS if low < len(rows)]
    return {
        "positions": [high - low for low, high in parts],
        "agreed": [round(float(agreed[low:high].mean()) / REPEATS, 4) for low, high in parts],
        "misplaced": [round(float(misplaced[low:high].mean()) / REPEATS, 4) for low, high in parts],
    }


def append(line: dict[str, Any]) -> None:
    """Add a line to the raw figures."""
    with RAW.open("a", encoding="utf-8") as file:
        print(json.dumps(line, ensure_ascii=False), file=file)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"plans": plans, "write": write, "agreement": agreement}
    commands[sys.argv[1]](*sys.argv[2:])
