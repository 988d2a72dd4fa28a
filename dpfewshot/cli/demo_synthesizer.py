"""The demo: made-up support tickets, the packaged model, one demonstration a label under ε = 4."""

from __future__ import annotations

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.planning.population import default_delta
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.synthesizer import Synthesizer
from dpfewshot.values import PrivacyBudget

EPSILON = 4.0
PROMPTS_PER_TOKEN = 45
MAX_TOKENS = 18


def demo_synthesizer(backend: LogprobBackend, *, epsilon: float = EPSILON) -> Synthesizer:
    """The synthesizer of the demo: all tokens of a demonstration on one draw of about 45 of 300 tickets.

    One draw a demonstration is what two cores do in a minute: each prompt is read once, and every
    further token costs one decode step (docs/decisions/blocks.md).
    """
    tickets = support_tickets()
    return Synthesizer(
        SUPPORT_TICKETS,
        tickets,
        backend,
        budget=PrivacyBudget(epsilon=epsilon, delta=default_delta(None, tickets)),
        prompts_per_token=PROMPTS_PER_TOKEN,
        max_tokens=MAX_TOKENS,
        resample_every=MAX_TOKENS,
        record_token_cap=32,
    )
