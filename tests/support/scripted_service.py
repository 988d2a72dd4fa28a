"""The example service with a scripted model, in a process of its own: what the tests start and kill.

SERVICE_SECONDS is how long an answer to private prompts takes.
"""

from __future__ import annotations

import os
import time
from typing import Any

import dpfewshot as dpf
from examples.service.app import create_app
from tests.support.factory import synthesizer
from tests.support.scripts import Sentence

PACE = 1.5
"""Seconds; a machine with other work needs part of them."""

SECONDS = float(os.environ.get("SERVICE_SECONDS", "0"))


class Slow(Sentence):
    """Says its sentence, one token after the other."""

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None:
            time.sleep(SECONDS)
        return super().next_token_logprobs(prompts, support)


def open_synthesizer() -> dpf.Synthesizer:
    return synthesizer(
        Slow(sure=0.999999),
        budget=dpf.PrivacyBudget(epsilon=2, delta=1e-6),
        max_tokens=4,
        ledger=os.environ["LEDGER"],
    )


app = create_app(open_synthesizer, pace=PACE)
