"""The estimate of a plan's seconds, on models whose clock moves by a known law."""

from __future__ import annotations

import time

import pytest

import dpfewshot as dpf
from dpfewshot.backends.protocol import ReplayedBlock
from dpfewshot.mechanisms import Gaussian
from tests.support.factory import synthesizer
from tests.support.scripts import TASK, WORDS, Sentence

CAP = 12


class Clocked(Sentence):
    """Says one word for ever. Each prompt takes 50 ms, and 2 ms for each of its tokens."""

    def __init__(self) -> None:
        super().__init__((" my",), sure=0.999)
        self.now = 0.0

    def next_token_logprobs(self, prompts, support=None):
        self.now += sum(0.05 + 0.002 * len(prompt) for prompt in prompts)
        return super().next_token_logprobs(prompts, support)


class Keeping(Clocked):
    """Keeps up to `kept_prompts` prompts of a draw, whose further answers take 10 ms each."""

    def __init__(self, kept_prompts: int = 75) -> None:
        super().__init__()
        self.kept_prompts = kept_prompts
        self.prefixes: set[tuple[int, ...]] = set()

    def open_block(self, prefix, suffixes, tokens, *, public=False):
        del tokens
        if tuple(prefix) not in self.prefixes:
            self.prefixes.add(tuple(prefix))
            self.now += 0.002 * len(prefix)
        return KeepingBlock(self, prefix, suffixes, public=public)


class KeepingBlock(ReplayedBlock):
    """Answers as a replayed block does, and moves the clock by its own law."""

    def __init__(self, backend, prefix, suffixes, *, public) -> None:
        super().__init__(backend, prefix, suffixes, public=public)
        self.backend, self.suffixes, self.asked = backend, suffixes, 0

    def next_token_logprobs(self, support=None):
        now = self.backend.now
        answers = super().next_token_logprobs(support)
        for place, suffix in enumerate(self.suffixes):
            if self.asked and place < self.backend.kept_prompts:
                now += 0.01
            else:
                now += 0.05 + 0.002 * (len(suffix) + self.asked)
        self.backend.now, self.asked = now, self.asked + 1
        return answers


@pytest.fixture
def records():
    """Records that fill their caps: each word is a token of the scripted models."""
    return [dpf.Record(" my" * (CAP + 3), label) for label in TASK.labels for _ in range(60)]


@pytest.mark.parametrize("tokens_per_draw", [1, 4, 10])
@pytest.mark.parametrize(
    "backend", [Clocked, Keeping, lambda: Keeping(8)], ids=["replayed", "kept", "some kept"]
)
def test_the_estimate_is_the_time_of_a_run_whose_draws_have_the_planned_size(
    backend, tokens_per_draw, records, monkeypatch
) -> None:
    model = backend()
    monkeypatch.setattr(time, "perf_counter", lambda: model.now)
    monkeypatch.setattr("dpfewshot.writing.public_loop.COMPLETION", 0)  # which no estimate counts
    made = synthesizer(
        model,
        records,
        mechanism=Gaussian(top_k=4),
        budget=dpf.NO_PRIVACY,
        sampling="fixed-size",
        prompts_per_draw=20,
        max_tokens=10,
        tokens_per_draw=tokens_per_draw,
        record_token_cap=CAP,
    )
    plan = made.probe(5.0)
    begun = model.now
    assert all(each.token_count == 10 for each in made.generate_all())
    assert plan.estimated_seconds == pytest.approx(model.now - begun, rel=0.03)


def test_a_probe_asks_for_public_prompts_alone_and_ends(records) -> None:
    asked: list[list[int]] = []

    class Heard(Sentence):
        def answer(self, prompt):
            asked.append(prompt)
            return super().answer(prompt)

    secret = [dpf.Record(" secret", record.label) for record in records]
    made = synthesizer(Heard(), secret, max_tokens=3)
    assert made.plan.estimated_seconds is None
    assert made.probe(1e-9).estimated_seconds == made.plan.estimated_seconds > 0  # each part once
    assert 0 < len(asked) < 10
    assert not any(WORDS.index(" secret") in prompt for prompt in asked)
