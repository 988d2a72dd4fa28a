"""The form of a model's weights that reads prompts fastest on this machine."""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from dpfewshot.backends.conformance import random_tokens
from dpfewshot.backends.factory import weights_for_worker
from dpfewshot.backends.llama_cpp.files import shards_of
from dpfewshot.backends.llama_cpp.library import load_library
from dpfewshot.backends.llama_cpp.model import CELL_BLOCK, FILE, FILE_TYPES, LlamaModel
from dpfewshot.backends.machine import Facts, keep_verdict, kept_verdict, usable_memory
from dpfewshot.backends.streams.threads import lanes_of, side_by_side
from dpfewshot.errors import BackendError

VERSION = 2
"""Incremented when the measurement changes, so that choices of older ones no longer count."""

PROMPT_TOKENS = 64
"""Tokens of the measured prompt: about those of a private prompt behind its shared prefix."""

_BYTES: Final = {"bf16": 2.0, "f16": 2.0, "q8_0": 34 / 32}
"""Bytes of a converted weight. 32 weights of Q8_0 share a scale of two bytes."""

_SHARE_OF_MEMORY = 1 / 8
"""The most of the machine's memory that converted weights take: a process holds them for itself."""

_WORTH_CONVERTING = 1.2
"""How many times as fast a converted form must be: converting takes seconds at every load."""

_ROUNDS = 5
"""Measured evaluations of a form; the fastest counts, since neighbours only slow one down."""


def load_fastest(path: Path, threads: int, facts: Facts) -> LlamaModel:
    """Load a model with the form that `fastest_weights` returns, or in a worker with the caller's.

    A library that cannot convert weights leaves them as in the file. If it could, but not now, they stay so
    with a warning. A worker's must be the caller's.
    """
    if (given := weights_for_worker()) is not None:
        return LlamaModel(path, threads, weights=given)
    form = fastest_weights(path, threads, facts) if load_library().converts else FILE
    try:
        return LlamaModel(path, threads, weights=form)
    except BackendError as error:
        if form == FILE:
            raise
        model = LlamaModel(path, threads)
        warnings.warn(f"{error}. The weights stay as in the file", RuntimeWarning, stacklevel=3)
        return model


def fastest_weights(path: Path, threads: int, facts: Facts) -> str:
    """Return the form of the weights with which a public prompt is evaluated fastest.

    The forms are the file's own, and those to which its weights convert almost without loss and within an
    eighth of the machine's memory. The choice is cached for the user, unless a form could not be tried: later
    loads take the same form. `facts` are those of `backend.build_facts`.
    """
    facts = dict(facts) | {"measured": VERSION, "threads": threads, "memory": usable_memory()}
    found = kept_verdict(facts, str)
    if found not in {FILE, *FILE_TYPES}:
        found, tried_all = _measured(path, threads)
        if tried_all:
            keep_verdict(facts, found)
    return found


def _measured(path: Path, threads: int) -> tuple[str, bool]:
    """Return the fastest form, and whether all candidates could be tried."""
    with closing(LlamaModel(path, threads)) as model:
        weight_count = model.weight_count
        seconds = {FILE: _seconds(model)}
    file_size = sum(shard.stat().st_size for shard in shards_of(path))
    candidates = _candidates(file_size / weight_count, weight_count)
    for form in candidates:
        try:
            with closing(LlamaModel(path, threads, weights=form)) as model:
                seconds[form] = _seconds(model)
        except BackendError:  # no room for the copy, or an architecture that does not convert
            continue
    best = min(seconds, key=lambda form: seconds[form])
    chosen = best if seconds[FILE] >= _WORTH_CONVERTING * seconds[best] else FILE
    return chosen, seconds.keys() == {FILE, *candidates}


def _candidates(file_bytes: float, weight_count: int) -> list[str]:
    """Forms with at least as many bytes a weight as the file has, that the memory allows."""
    most = _SHARE_OF_MEMORY * usable_memory() / weight_count
    return [form for form, each in _BYTES.items() if 0.95 * file_bytes <= each <= most]


def _seconds(model: LlamaModel) -> float:
    """Return the least time in which all lanes evaluate a public prompt, after one evaluation to warm up."""
    prompt = random_tokens("measured", PROMPT_TOKENS, model.vocabulary_size)
    count = lanes_of(model.threads)
    seconds = []
    with ExitStack() as stack:
        lanes = [stack.enter_context(closing(model.open_streams(1, CELL_BLOCK, count))) for _ in range(count)]
        for _ in range(1 + _ROUNDS):
            for lane in lanes:
                lane.rewind(0, 0)
            started = time.perf_counter()
            side_by_side(lanes, [prompt] * count, lambda lane, tokens: lane.extend(0, 0, tokens))
            seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
