"""What a schema costs: seconds to read the vocabulary through it, and its share of the time of a token.

    python -m bench.schema [model.gguf]

Prints one line of JSON for each number of tokens that share a draw, and one for each schema.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, LogprobBackend, packaged_model_path
from dpfewshot.backends.end_tokens import ending_tokens
from dpfewshot.backends.token_automaton import TokenAutomaton
from dpfewshot.mechanisms import Gaussian

SCHEMAS: dict[str, Any] = {
    "ticket": {
        "type": "object",
        "properties": {
            "category": {"enum": ["refund", "late delivery", "other"]},
            "date": {"type": "string", "format": "date"},
            "amount": {"type": "number", "minimum": 0, "maximum": 999},
            "note": {"type": "string"},
        },
        "required": ["category", "date", "amount", "note"],
    },
    "string of 100": {"type": "string", "maxLength": 100},
    "string of 1000": {"type": "string", "maxLength": 1000},
    "digits": "[0-9]{4}",
}
TOKENS, PROMPTS = 32, 20


class Clock:
    """Adds up the seconds within some methods."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, with its seconds added."""

        @wraps(method)
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


def task(schema: Any) -> dpf.Task:
    """A task of that schema."""
    return dpf.Task(
        "extracts", "Write the record of a ticket.", "Team", "Record", ("Payments",), schema=schema
    )


def build(backend: LogprobBackend, name: str) -> dict[str, object]:
    """The seconds to make a schema's automaton in the backend's tokens, the texts of tokens included."""
    ends = ending_tokens(backend)
    begun = time.perf_counter()
    shape = TokenAutomaton(task(SCHEMAS[name]).layout.schema, backend, ends)
    seconds = time.perf_counter() - begun
    return {"schema": name, "seconds": round(seconds, 3), "shortest": shape.left(shape.start)}


def share(backend: LogprobBackend, every: int, clock: Clock) -> dict[str, object]:
    """The seconds of one demonstration, and those of the schema's part of it."""
    text = '{"category": "refund", "date": "2026-11-22", "amount": 12.5, "note": "I paid twice."}'
    synthesizer = dpf.Synthesizer(
        task(SCHEMAS["ticket"]),
        [dpf.Record(text, "Payments")] * 200,
        backend,
        budget=dpf.PrivacyBudget(4, 1e-5),
        mechanism=Gaussian(),
        prompts_per_draw=PROMPTS,
        max_tokens=TOKENS,
        tokens_per_draw=every,
    )
    clock.seconds, begun = 0.0, time.perf_counter()
    one = synthesizer.generate("Payments")
    seconds = time.perf_counter() - begun
    json.loads(one.text)
    return {
        "tokens_per_draw": every,
        "tokens": one.token_count,
        "characters": len(one.text),
        "seconds": round(seconds, 2),
        "ms_a_token": round(1e3 * clock.seconds / one.token_count, 2),
        "share": round(clock.seconds / seconds, 4),
    }


def main() -> None:
    """Measure the model that is named, or the packaged one."""
    path = sys.argv[1] if len(sys.argv) > 1 else packaged_model_path()
    clock = Clock()
    for name in ("allowed", "after", "ends_at"):
        setattr(TokenAutomaton, name, clock.on(getattr(TokenAutomaton, name)))
    with LlamaCpp(path, context_tokens=512, kept_prompts=PROMPTS + 11, weights="file") as backend:
        for name in SCHEMAS:
            print(json.dumps(build(backend, name)))
        for every in (1, TOKENS) * 3:
            print(json.dumps(share(backend, every, clock)))


if __name__ == "__main__":
    main()
