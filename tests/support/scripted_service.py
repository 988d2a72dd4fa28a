"""The example service with a scripted model: what the servers of the tests load.

SERVICE_OPENS=before makes the synthesizer when the module is imported, with --preload before the fork.
"""

import os

import dpfewshot as dpf
from examples.service.app import create_app
from tests.support.scripts import TASK, Sentence, tickets

PACE = 1.5  # a worker's first generation imports the database's library


def open_synthesizer() -> dpf.Synthesizer:
    return dpf.Synthesizer(
        TASK,
        tickets(),
        Sentence(sure=0.999999),
        budget=dpf.PrivacyBudget(epsilon=2, delta=1e-6),
        mechanism=dpf.mechanisms.Gaussian(top_k=8),
        prompts_per_token=200,
        max_tokens=8,
        shots_per_label=1,
        ledger=os.environ["LEDGER"],
        dataset="tickets",
    )


if os.environ.get("SERVICE_OPENS") == "before":
    opened = open_synthesizer()
    app = create_app(lambda: opened, pace=PACE)
else:
    app = create_app(open_synthesizer, pace=PACE)
