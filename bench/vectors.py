"""Next-token vectors of real data sets, teacher-forced on held-out texts, for bench/mechanisms.py.

    python -m bench.vectors DATA CACHE

DATA holds trec, mit_d and agnews (`NAME.train.jsonl.gz` or `.train_subset.`, and `.test.`); CACHE is a folder outside
of the project. For each text: a Poisson draw of more prompts than any setting needs (each setting thins it, and a
thinned Poisson draw is a Poisson draw), and for each token of the text the log-probabilities of all prompts on the
256 likeliest public tokens. Texts in CACHE are not evaluated again. Progress goes to standard error.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.backends.protocol import closing_block
from dpfewshot.generation.units import Bodies
from dpfewshot.prompts.writer import LabelPrompts, PromptWriter
from dpfewshot.records.units import UnitSequence, units, units_by_label
from dpfewshot.sampling import PoissonSampler

WIDTH = 256
"""Public tokens whose log-probabilities are kept."""

KEPT = 160
"""Prompts of a block; a larger draw takes several blocks."""


@dataclass(frozen=True)
class DataSet:
    """A data set, the cut of its texts, and the mean number of prompts of a draw.

    Attributes:
        train: the private records.
        test: the source of the forced texts.
        labels: to generate; each gets so many `texts`.
        max_tokens: T.
        prompts: M that the settings start from.
        pool: prompts of a draw on average.
    """

    task: dpf.Task
    train: str
    test: str
    labels: tuple[str, ...]
    texts: int
    max_tokens: int
    prompts: int
    pool: int


DATA_SETS = {
    "TREC": DataSet(
        dpf.tasks.TREC,
        "trec.train.jsonl.gz",
        "trec.test.jsonl.gz",
        ("Number", "Location", "Person", "Description", "Entity"),
        texts=5,
        max_tokens=15,
        prompts=80,
        pool=300,
    ),
    "MIT-D": DataSet(
        dpf.tasks.MIT_D,
        "mit_d.train.jsonl.gz",
        "mit_d.test.jsonl.gz",
        ("steven spielberg", "quentin tarantino", "james cameron", "martin scorsese"),
        texts=3,
        max_tokens=20,
        prompts=80,
        pool=320,
    ),
    "AG News": DataSet(
        dpf.tasks.AGNEWS,
        "agnews.train_subset.jsonl.gz",
        "agnews.test.jsonl.gz",
        ("World", "Sports", "Business", "Technology"),
        texts=2,
        max_tokens=30,
        prompts=40,
        pool=200,
    ),
}


@dataclass(frozen=True)
class Text:
    """One forced text and what was computed on it.

    Attributes:
        population: n of the units drawn from.
        pool: mean number of prompts of the draw.
        public: log-probabilities of the prompt without records, (positions, WIDTH).
        rows: of the drawn prompts, (positions, prompts, WIDTH).
        suffix_tokens: of each prompt, after the common prefix and before the first released token.
    """

    population: int
    pool: int
    public: NDArray[np.float32]
    rows: NDArray[np.float32]
    suffix_tokens: NDArray[np.int64]


def collected(name: str, folder: Path) -> Iterator[Text]:
    """The texts of a data set that were collected in a folder."""
    for path in sorted(folder.glob(f"{name}.*.npz")):
        with np.load(path) as kept:
            scalars = int(kept["population"]), int(kept["pool"])
            yield Text(*scalars, kept["public"], kept["rows"], kept["suffix_tokens"])


def collect(name: str, data: Path, folder: Path, backend: LlamaCpp) -> None:
    """Evaluates the texts that the folder lacks."""
    chosen = DATA_SETS[name]
    records = dpf.read_records(data / chosen.train)
    held_out = dpf.read_records(data / chosen.test)
    writer = PromptWriter(chosen.task, backend, 100)
    parts = units_by_label(records) if chosen.task.labels else dict.fromkeys(chosen.labels, units(records))
    for label in chosen.labels:
        texts = itertools.islice((one.text for one in held_out if one.label == label), chosen.texts)
        for number, text in enumerate(texts):
            path = folder / f"{name}.{label}.{number}.npz"
            if path.exists():
                continue
            started = time.perf_counter()
            forced = [*backend.tokenize(" " + text), *backend.tokenize("\n")][: chosen.max_tokens]
            bodies = _draw(parts[label], chosen.pool, writer)
            found: dict[str, Any] = _evaluate(backend, writer.for_label(label), bodies, forced)
            np.savez(path, **found, population=len(parts[label]), pool=chosen.pool)
            seconds = time.perf_counter() - started
            print(f"{name} {label} {number}: {len(forced)} tokens, {seconds:.0f} s", file=sys.stderr)


def _draw(population: UnitSequence, pool: int, writer: PromptWriter) -> list[list[int]]:
    sampler = PoissonSampler(Fraction(pool, len(population)), pool, 1)
    drawn = Bodies(population, writer.body).of(sampler.draw(population.sizes))
    return [body for subset in drawn for body in subset if body is not None]


def _evaluate(
    backend: LlamaCpp, prompts: LabelPrompts, bodies: Sequence[list[int]], forced: Sequence[int]
) -> dict[str, NDArray[np.generic]]:
    suffixes = [prompts.suffix([body], []) or [] for body in bodies]
    supports, public = _public_rows(backend, prompts, forced)
    chunks = [suffixes[start : start + KEPT] for start in range(0, len(suffixes), KEPT)]
    rows = np.concatenate([_rows(backend, prompts, chunk, forced, supports) for chunk in chunks], axis=1)
    return {"public": public, "rows": rows, "suffix_tokens": np.array([len(suffix) for suffix in suffixes])}


def _public_rows(
    backend: LlamaCpp, prompts: LabelPrompts, forced: Sequence[int]
) -> tuple[list[list[int]], NDArray[np.float32]]:
    supports, kept = [], []
    public = [prompts.public_suffix]
    with closing_block(backend, prompts.prefix, public, len(forced), public=True) as block:
        for token in forced:
            row = block.next_token_logprobs(None)[0]
            supports.append(np.sort(np.argsort(-row, kind="stable")[:WIDTH]).tolist())
            kept.append(row[supports[-1]])
            block.append(token)
    return supports, np.array(kept, dtype=np.float32)


def _rows(
    backend: LlamaCpp,
    prompts: LabelPrompts,
    suffixes: Sequence[list[int]],
    forced: Sequence[int],
    supports: Sequence[Sequence[int]],
) -> NDArray[np.float32]:
    found = []
    with closing_block(backend, prompts.prefix, suffixes, len(forced)) as block:
        for token, support in zip(forced, supports, strict=True):
            found.append(np.array(block.next_token_logprobs(support), dtype=np.float32))
            block.append(token)
    return np.array(found)


def collect_all(data: Path, folder: Path) -> None:
    """Every data set."""
    folder.mkdir(parents=True, exist_ok=True)
    with LlamaCpp(packaged_model_path(), context_tokens=256, kept_prompts=KEPT) as backend:
        for name in DATA_SETS:
            collect(name, data, folder, backend)


if __name__ == "__main__":
    collect_all(Path(sys.argv[1]), Path(sys.argv[2]))
