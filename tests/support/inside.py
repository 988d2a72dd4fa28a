"""Every look of the tests at a private attribute of the package, each because nothing public can tell.

A change inside of the package is followed here, and nowhere else in the tests.
"""

from __future__ import annotations

from typing import Any

from dpfewshot.backends.streams.backend import Use
from dpfewshot.generation.units import Bodies
from dpfewshot.records.units import UnitSequence
from dpfewshot.runtime.stopping import StopSignal

# ---- backends --------------------------------------------------------------------------------------------


def model(backend: Any) -> Any:
    """The loaded model: to compare answers with the library's own, or to make the library fail."""
    return backend._model


def tokenizer(backend: Any) -> Any:
    """The tokenizer of transformers that a `HuggingFace` loaded."""
    return backend._model._tokenizer


def decode_batch(backend: Any) -> int:
    """The sequences in one decode step of a `LlamaCpp`; `describe` says in words alone what it chose."""
    return backend._decode_batch


def contexts_of_blocks(backend: Any) -> int:
    """The contexts in which a `LlamaCpp` keeps the prompts of blocks."""
    return len(backend._pools[Use.STEPS]._pools)


def picks_ids(backend: Any) -> bool:
    """Whether an `OpenAICompatible` asks its server for the ids of a support alone."""
    return bool(backend._replicas.first.dialect.picks)


def client(backend: Any) -> Any:
    """The HTTP client of an `OpenAICompatible`, whose gate limits the requests that are sent at once."""
    return backend._replicas.first.client


def lock_of_turns(turns: Any) -> Any:
    """What a thread of a parent may hold while the process forks."""
    return turns._moved


def hurry(backend: Any, seconds: float) -> None:
    """Let a connected `OpenAICompatible` give up early: `timeout=` would hold for the connecting too."""
    for server in backend._replicas.servers:
        server.client._timeout = seconds


def gate_is_empty(gate: Any) -> bool:
    """Whether no request is under way at a gate, and none waits."""
    return gate._under_way == 0 and not gate._waiting


# ---- mechanisms ------------------------------------------------------------------------------------------


def good_radius(release: Any, rows: Any) -> Any:
    """AdaDPSyn's GoodRadius alone."""
    return release._good_radius(rows)


def refined_mean(release: Any, rows: Any, radius: Any) -> Any:
    """AdaDPSyn's mean after its rounds of projection, from a given radius."""
    return release._refined_mean(rows, radius)[0]


def exponential_rate(test: Any) -> Any:
    """The rate of a sparse vector test's noise, in its integer units."""
    return test._rate


def integer_threshold(test: Any) -> int:
    """The threshold of a sparse vector test, in its integer units."""
    return test._threshold


# ---- generations -----------------------------------------------------------------------------------------


def run_of(synthesizer: Any, label: str) -> Any:
    """The run of a label's stratum, or of its first part."""
    return next(run for run in synthesizer._generation.runs if label in run.plan.labels)


def turn(synthesizer: Any, label: str) -> Any:
    """The lock of a stratum's run: whoever holds it is generating."""
    return run_of(synthesizer, label).lock


def no_draws(synthesizer: Any) -> Any:
    """The locks of all runs."""
    return synthesizer._generation.no_draws()


def draws_left(synthesizer: Any) -> list[int]:
    """The draws left of each open reservation."""
    return [run.reservation.draws_left for run in synthesizer._generation.runs if run.reservation]


def bodies(synthesizer: Any) -> list[Any]:
    """Each record's tokens, as a draw of everything would have them; None for a null."""
    found = []
    for run in synthesizer._generation.runs:
        kept = run.set_up.bodies(run.plan, run.part)
        found += kept.of([[(unit, one) for unit, size in enumerate(kept.sizes) for one in range(size)]])[0]
    return found


def units_of(bodies: Bodies) -> UnitSequence:
    """The units that a demonstration draws from."""
    return bodies.units


def beginnings(synthesizer: Any, label: str, tokens: int) -> list[tuple[list[int], str]]:
    """The first tokens of a demonstration for each number of them, and the text that they would have made."""
    released: list[int] = []
    run_of(synthesizer, label).release(label, tokens, StopSignal(), released.append)
    cuts = [released[:count] for count in range(1, len(released) + 1)]
    return [(cut, synthesizer.set_up.loop.draft(cut).text()) for cut in cuts]


def objects(synthesizer: Any) -> list[object]:
    """What a synthesizer generates with: objects that must not show what they hold."""
    return [synthesizer._generation, *synthesizer._generation.runs]
