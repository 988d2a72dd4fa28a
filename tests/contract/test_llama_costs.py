"""The exact number of tokens that a demonstration evaluates: what a public schedule may keep, once."""

from __future__ import annotations

import pytest

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.prompts.writer import PromptWriter

pytestmark = pytest.mark.model

TASK = dpf.Task("colours", "Given a kind, write a word.", "Kind", "Word", ("Colour",))
RECORDS = [dpf.Record(text, "Colour") for text in ("red", "a dark green", "the blue of the sky")]
TOKENS = 4


@pytest.fixture
def backend():
    settings = {"context_tokens": 256, "kept_prompts": 7, "decode_batch": 8, "threads": 1}
    with LlamaCpp(packaged_model_path(), **settings) as loaded:
        yield loaded


def generated(backend, tokens_per_draw):
    """The released tokens of a demonstration whose draws hold every record, so that costs are known."""
    synthesizer = dpf.Synthesizer(
        TASK,
        RECORDS,
        backend,
        budget=dpf.PrivacyBudget(epsilon=1000, delta=1e-5),
        max_tokens=TOKENS,
        settings=dpf.Settings(prompts_per_draw=len(RECORDS), tokens_per_draw=tokens_per_draw),
    )
    return synthesizer.generate("Colour").token_count


def lengths(backend):
    """Tokens of the prefix, of the public prompt after it, and of all private prompts after it."""
    writer = PromptWriter(TASK, backend, 100)
    prompts = writer.for_label("Colour")
    suffixes = [prompts.suffix([writer.body(record)], []) for record in RECORDS]
    return len(prompts.prefix), len(prompts.public_suffix), sum(map(len, suffixes))


def test_a_fresh_draw_costs_its_prompts_after_the_prefix_and_one_public_token(backend):
    released = generated(backend, 1)
    prefix, public, private = lengths(backend)
    grown = sum(len(RECORDS) * position for position in range(released))
    assert backend.tokens_evaluated == prefix + public + (released - 1) + released * private + grown
    assert backend.dummy_tokens_evaluated == 0


def test_a_further_token_of_a_block_costs_one_token_a_prompt(backend):
    released = generated(backend, TOKENS)
    prefix, public, private = lengths(backend)
    first = 2 * prefix + public + private  # public prompts and blocks have caches of their own
    assert backend.tokens_evaluated == first + (released - 1) * (1 + len(RECORDS))
