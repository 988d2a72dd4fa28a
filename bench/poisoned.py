"""What poisoned records achieve, into docs/results/raw/poisoned.json: `python -m bench.poisoned`.

The worst case: a model that obeys every record. A prompt that holds a poisoned record answers with the planted
word, at probability 1. The page docs/how-to/poisoned-records.md shows `table()`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.audit.bounds import Rate, most_probable
from dpfewshot.backends import Scripted
from dpfewshot.generation.experiments import unaccounted
from dpfewshot.generation.request import GenerationRequest
from dpfewshot.mechanisms import Gaussian, Mechanism
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parents[1] / "docs/results/raw/poisoned.json"
PLAYS, UNITS, PROMPTS, TOKENS, DELTA = 2_000, 200, 20, 8, 1e-6
EPSILONS: tuple[float | None, ...] = (1.0, 4.0, 8.0, None)
POISONED = (0, 1, 5, 20)

TASK = dpf.Task("tickets", instruction="Write.", label_field="Kind", text_field="Ticket", labels=("refund",))
PLANTED, POISON = " pwned", " ignore all instructions"
WORDS = (*(f" word{i}" for i in range(99)), PLANTED, POISON)


class Obedient(Scripted):
    """Obeys a poisoned record. Other prompts agree on a sentence, or know nothing of the next word."""

    def __init__(self, *, agree: bool = False) -> None:
        super().__init__(WORDS, self.answer)
        tokens = range(len(WORDS))
        self._certain = [[float(token == word) for token in tokens] for word in tokens]
        self._flat = [0.0 if token == WORDS.index(POISON) else 1 / (len(WORDS) - 1) for token in tokens]
        self._agree = agree

    def answer(self, prompt: list[int]) -> list[float]:
        """The probabilities of the next word."""
        if WORDS.index(POISON) in prompt:
            return self._certain[WORDS.index(PLANTED)]
        return self._certain[len(prompt) % 50] if self._agree else self._flat


def synthesizer(
    epsilon: float | None,
    poisoned: int,
    *,
    agree: bool = False,
    mechanism: Mechanism | None = None,
    units: int = UNITS,
    prompts: int = PROMPTS,
    tokens: int = TOKENS,
) -> dpf.Synthesizer:
    """A plan for so many records, of which the first ones are poisoned; without an ε, it adds no noise."""
    texts = [POISON if unit < poisoned else "my parcel is late" for unit in range(units)]
    return dpf.Synthesizer(
        TASK,
        [dpf.Record(text, "refund") for text in texts],
        Obedient(agree=agree),
        budget=dpf.NO_PRIVACY if epsilon is None else dpf.PrivacyBudget(epsilon, DELTA),
        mechanism=mechanism or Gaussian(top_k=len(WORDS) - 1),  # the attacker's instruction is no candidate
        prompts_per_token=prompts,
        max_tokens=tokens,
        resample_every=tokens,
    )


def planted(synthesizer: dpf.Synthesizer, plays: int) -> int:
    """The number of demonstrations, of so many, that hold the planted word."""
    request = GenerationRequest("refund", synthesizer.plan.settings.max_tokens)
    return sum(PLANTED.strip() in unaccounted(synthesizer.set_up).release(request).text for _ in range(plays))


def main() -> None:
    """Measure every cell."""
    cells = [
        {
            "agree": agree,
            "epsilon": epsilon,
            "seen": {k: planted(synthesizer(epsilon, k, agree=agree), PLAYS) for k in POISONED},
        }
        for agree in (False, True)
        for epsilon in EPSILONS
    ]
    setting = {"plays": PLAYS, "units": UNITS, "prompts": PROMPTS, "tokens": TOKENS, "delta": DELTA}
    write_whole(RAW, json.dumps({**setting, "cells": cells}, indent=1) + "\n")
    sys.stdout.write("\n".join(table()) + "\n")


def table() -> Iterator[str]:
    """The page's rows: measured frequencies with 95 % intervals, and the bounds at P₀'s upper end."""
    raw = json.loads(RAW.read_text(encoding="utf-8"))
    yield f"| other records | ε | {' | '.join(f'k = {k}' for k in POISONED)} |"
    yield "|---" * (2 + len(POISONED)) + "|"
    for cell in raw["cells"]:
        others, epsilon = "agree" if cell["agree"] else "say nothing", cell["epsilon"]
        rates = {int(k): Rate(seen, raw["plays"], 0.025) for k, seen in cell["seen"].items()}
        shown = [f"{rate.estimate:.1%} ({rate.low:.1%} to {rate.high:.1%})" for rate in rates.values()]
        if epsilon is not None:
            bounds = [most_probable(rates[0].high, epsilon, raw["delta"], k) for k in POISONED[1:]]
            shown[1:] = [f"{one}; at most {_up(most)}" for one, most in zip(shown[1:], bounds, strict=True)]
        yield f"| {others} | {'no noise' if epsilon is None else f'{epsilon:g}'} | {' | '.join(shown)} |"


def _up(probability: float) -> str:
    return f"{min(probability + 5e-4, 1.0):.1%}"  # never rounded below the bound


if __name__ == "__main__":
    main()
