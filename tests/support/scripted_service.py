"""The example service with a scripted model, in a process of its own: what the tests start and kill.

SERVICE_SECONDS is how long an answer to private prompts takes.
"""

from __future__ import annotations

import os
import time

import dpfewshot as dpf
from examples.service.app import create_app
from tests.support.factory import synthesizer
from tests.support.scripts import Hooked

PACE = 1.5
"""Seconds; a machine with other work needs part of them."""

SECONDS = float(os.environ.get("SERVICE_SECONDS", "0"))


def open_synthesizer() -> dpf.Synthesizer:
    return synthesizer(
        Hooked(lambda _number: time.sleep(SECONDS)),
        budget=dpf.PrivacyBudget(epsilon=2, delta=1e-6),
        max_tokens=4,
        ledger=os.environ["LEDGER"],
    )


app = create_app(open_synthesizer, pace=PACE)
