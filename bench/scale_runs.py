"""The parts of bench/scale.py with whole runs: two workers against one, plans beside their estimates."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dpfewshot as dpf
from dpfewshot.mechanisms import Gaussian
from dpfewshot.planning.speed import Lengths, Speed, SpeedProbe
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets

ROUNDS = 6
PROBE_SECONDS = 4.0


COST: dict[str, Any] = {
    "max_tokens": 40,
    "tokens_per_draw": 40,
    "prompts_per_draw": 45,
    "record_token_cap": 64,
    "shots_per_label": 4,
}
"""The plan of which the page says what 1,000 labels cost."""


def cost() -> dict[str, Any]:
    """The processor speed of one worker with one thread, and the plan for which it is used."""
    path = dpf.backends.packaged_model_path()
    with dpf.backends.LlamaCpp(path, context_tokens=256, kept_prompts=75, threads=1) as backend:
        made = dpf.Synthesizer(
            SUPPORT_TICKETS, support_tickets(), backend, budget=dpf.PrivacyBudget(4, 1e-5), mechanism=Gaussian(),
            **COST,
        )  # fmt: skip
        with patch.object(time, "perf_counter", time.process_time):
            found, lengths = measured(made, backend, SUPPORT_TICKETS)
        plan = {"settings": asdict(made.plan.settings), "lengths": asdict(lengths)}
        return {"cost": {"backend": backend.describe(), "speed": asdict(found), **plan}}


def workers() -> dict[str, Any]:
    """Tokens a second and a second of processor time: two processes with a thread each, beside one process."""
    path = dpf.backends.packaged_model_path()
    make = partial(dpf.backends.LlamaCpp, path, context_tokens=256, kept_prompts=30, threads=1)
    one, two = make(), make(threads=2)
    pool = ProcessPoolExecutor(
        2,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    ways: dict[str, Callable[[], Taken]] = {
        "one process, one thread": lambda: taken(one),
        "one process, two threads": lambda: taken(two),
        "two processes, a thread each": lambda: taken(one, executor=pool, worker_backend=make),
    }
    found: dict[str, list[Taken]] = {name: [] for name in ways}
    with one, two, pool:
        for turn in range(ROUNDS + 1):
            for name, way in ways.items():
                took = way()
                if turn:  # the first loads the model
                    found[name].append(took)
                print(name, took, flush=True)
    return {"workers": found}


Taken = tuple[float, float]
"""Seconds a token, and processor seconds a token."""


def taken(backend: dpf.backends.LlamaCpp, **options: Any) -> Taken:
    """For a whole `generate_all`: two labels, a demonstration each, 20 prompts a draw, 4 tokens a draw, SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        made = dpf.Synthesizer(
            SUPPORT_TICKETS, support_tickets(), backend, budget=dpf.PrivacyBudget(4, 1e-5), mechanism=Gaussian(),
            labels=["Refund", "Delivery"], shots_per_label=1, sampling="fixed-size", prompts_per_draw=20,
            max_tokens=8, tokens_per_draw=4, record_token_cap=32,
            ledger=f"sqlite:///{folder}/budget.db", dataset="tickets", create=True,
        )  # fmt: skip
        with made:
            started, before = time.perf_counter(), processor_seconds()
            tokens = sum(each.token_count for each in made.generate_all(**options))
            return (
                round((time.perf_counter() - started) / tokens, 4),
                round((processor_seconds() - before) / tokens, 4),
            )


def processor_seconds() -> float:
    """Of this process and its children that live."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for process in ("self", *children):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def replicas() -> dict[str, Any]:
    """The lines that `python -m bench.replicas` prints, with the packaged model."""
    command = [sys.executable, "-m", "bench.replicas", str(dpf.backends.packaged_model_path())]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    print(answer.stdout, flush=True)
    return {"replicas": answer.stdout.splitlines()}


@dataclass(frozen=True)
class Run:
    """A plan that is estimated, and then generated.

    Attributes:
        name: as it is printed.
        task: its task.
        file: of the records in DATA; None: the sample tickets.
        settings: of the Synthesizer.
    """

    name: str
    task: dpf.Task
    file: str | None
    settings: dict[str, Any]


RUNS = (
    Run("tickets, as the planner decides", SUPPORT_TICKETS, None,
        {"labels": ["Refund", "Billing"], "max_tokens": 24, "record_token_cap": 32, "prompt_token_limit": 4000}),
    Run("TREC, a fresh draw for each token", dpf.tasks.TREC, "trec.train.jsonl.gz",
        {"labels": ["Location"], "max_tokens": 15, "record_token_cap": 16, "prompts_per_draw": 20, "tokens_per_draw": 1}),
    Run("AG News, one draw", dpf.tasks.AGNEWS, "agnews.train_subset.jsonl.gz",
        {"labels": ["World", "Sports"], "max_tokens": 40, "record_token_cap": 64, "prompts_per_draw": 40, "tokens_per_draw": 40}),
    Run("TREC, a fresh draw, the default cap of 100 tokens", dpf.tasks.TREC, "trec.train.jsonl.gz",
        {"labels": ["Location"], "max_tokens": 15, "prompts_per_draw": 20, "tokens_per_draw": 1}),
)  # fmt: skip


def plans(data: str) -> dict[str, Any]:
    """Each plan's estimate, what it took, and the estimate for the lengths that its texts turned out to have."""
    path = dpf.backends.packaged_model_path()
    found = []
    with (
        dpf.backends.LlamaCpp(path, context_tokens=512, kept_prompts=60, threads=1) as backend,
        patch.object(time, "perf_counter", time.process_time),
    ):
        for run in RUNS:
            found.append(estimated_and_taken(run, backend, Path(data)))
            print(found[-1], flush=True)
        about = backend.describe()
    return {"plans": {"backend": about, "probe seconds": PROBE_SECONDS, "runs": found}}


def estimated_and_taken(run: Run, backend: dpf.backends.LlamaCpp, data: Path) -> dict[str, Any]:
    """Probe, generate all, and compare."""
    records = support_tickets() if run.file is None else dpf.read_records(data / run.file)
    with dpf.Synthesizer(
        run.task, records, backend, budget=dpf.PrivacyBudget(4, 1e-5), **run.settings
    ) as made:
        started = time.perf_counter()
        plan = made.probe(PROBE_SECONDS)
        probed, started = time.perf_counter() - started, time.perf_counter()
        done = list(made.generate_all())
        took = time.perf_counter() - started
        again, lengths = measured(made, backend, run.task)
    assert plan.estimated_seconds is not None  # noqa: S101 - it was probed
    own = sum(
        again.demonstration(actual(lengths, records, each, run, backend), replace(
            plan.settings, max_tokens=each.token_count,
            tokens_per_draw=min(each.token_count, plan.settings.tokens_per_draw)))
        for each in done
    )  # fmt: skip
    return {
        "run": run.name,
        "M": plan.settings.prompts_per_draw,
        "T": plan.settings.max_tokens,
        "R": plan.settings.tokens_per_draw,
        "cap": plan.settings.record_token_cap,
        "tokens": [each.token_count for each in done],
        "probe": round(probed, 2),
        "estimated": round(plan.estimated_seconds, 2),
        "took": round(took, 2),
        "estimated for these texts": round(own, 2),
    }


def measured(made: dpf.Synthesizer, backend: dpf.backends.LlamaCpp, task: dpf.Task) -> tuple[Speed, Lengths]:
    """The speed, measured again after the run, and the lengths that the plan counts."""
    settings, label = made.plan.settings, made.plan.strata[0].labels[0]
    writer = PromptWriter(task, backend, settings.record_token_cap)
    prompts = writer.for_label(label)
    longest = writer.longest_suffix(label, settings.records_per_prompt, settings.max_tokens)
    lengths = Lengths(len(prompts.prefix), len(prompts.public_suffix), longest - settings.max_tokens)
    return SpeedProbe(backend, prompts.prefix, lengths, settings).measure(PROBE_SECONDS), lengths


def actual(
    lengths: Lengths,
    records: Sequence[dpf.Record],
    done: dpf.Demonstration,
    run: Run,
    backend: dpf.backends.LlamaCpp,
) -> Lengths:
    """The lengths with the mean length of the label's records in place of the cap."""
    cap = run.settings.get("record_token_cap", 100)
    writer = PromptWriter(run.task, backend, cap)
    bodies = [len(writer.body(each) or ()) for each in records if each.label == done.label]
    return replace(lengths, suffix=round(lengths.suffix - cap + statistics.mean(bodies)))
