"""The example service with a scripted model: what the servers of the tests load.

SERVICE_OPENS=before makes the synthesizer when the module is imported, with --preload before the fork.
"""

import os

import dpfewshot as dpf
from examples.service.app import create_app
from tests.support.factory import synthesizer
from tests.support.scripts import Sentence

PACE = 1.5  # a worker's first generation imports the database's library


def open_synthesizer() -> dpf.Synthesizer:
    return synthesizer(
        Sentence(sure=0.999999),
        budget=dpf.PrivacyBudget(epsilon=2, delta=1e-6),
        prompts_per_draw=200,
        ledger=os.environ["LEDGER"],
    )


if os.environ.get("SERVICE_OPENS") == "before":
    opened = open_synthesizer()
    app = create_app(lambda: opened, pace=PACE)
else:
    app = create_app(open_synthesizer, pace=PACE)
