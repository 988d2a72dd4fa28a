"""`Synthesizer` with language models that fail, lie or are dead: what is charged, and what errors say."""

import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.values import Record
from tests.support import inside
from tests.support.factory import synthesizer
from tests.support.scripts import WORDS, Sentence, tickets

POISON = Record("my secret is swordfish", "refund")


class Poisoned(Sentence):
    """Fails on any prompt with the word ' secret' in it, quoting the prompt as libraries do."""

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        for prompt in prompts:
            if WORDS.index(" secret") in prompt:
                raise RuntimeError(f"cannot evaluate {self.detokenize(prompt)}")
        return super().next_token_logprobs(prompts, support)


def test_a_record_that_crashes_the_backend_is_a_zero_vector() -> None:
    made = synthesizer(Poisoned(), [POISON] * 20 + tickets(), prompts_per_draw=200, population=None)
    demonstration = made.generate("refund")
    assert demonstration.certified
    assert demonstration.text


class Fussy(Sentence):
    """Answers a call without prompts in a shape of its own."""

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        if not prompts:
            return np.empty(0, dtype=np.float32)
        return super().next_token_logprobs(prompts, support)


def test_an_empty_draw_never_reaches_the_backend() -> None:
    made = synthesizer(Fussy(), population={"refund": 10**9, "delivery": 10**9}, prompts_per_draw=1)
    assert made.generate("refund").certified


class Dead(Sentence):
    """Fails on every prompt."""

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        del support
        raise RuntimeError(f"cannot evaluate {[self.detokenize(prompt) for prompt in prompts]}")


class Dying(Sentence):
    """Its server goes away in the middle."""

    def answer(self, prompt: list[int]) -> list[float]:
        if self.prompts > 120:
            raise dpf.BackendError("the server is gone", retryable=True)
        return super().answer(prompt)


@pytest.mark.parametrize("backend", [Dead(), Dying()])
def test_a_dead_backend_fails_the_demonstration_with_its_charge_standing(backend: Sentence) -> None:
    made = synthesizer(
        backend, [Record("my secret is swordfish", "refund")] * 200, labels=["refund"], prompts_per_draw=50
    )
    with pytest.raises(dpf.BackendError) as caught:
        made.generate("refund")
    told = "".join(traceback.format_exception(caught.value))
    assert "swordfish" not in told
    assert "secret" not in told
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_server_that_is_dead_from_the_start_costs_nothing(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    ledger = f"sqlite:///{tmp_path / 'budget.db'}"
    made = synthesizer(Dead(), ledger=ledger)
    with pytest.raises(dpf.BackendError):
        made.generate("refund")
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)
    assert synthesizer(ledger=ledger).generate("refund").certified


def test_a_backend_that_fails_after_a_draw_keeps_the_charge() -> None:
    made = synthesizer(Dying(), prompts_per_draw=50)
    with pytest.raises(dpf.BackendError):
        made.generate("refund")
    assert made.spent.epsilon > 3.9


def test_a_lying_backend_is_refused() -> None:
    class Lying(Sentence):
        def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
            return super().next_token_logprobs(prompts, support)[:, :-1]

    with pytest.raises(dpf.BackendError, match="shape"):
        synthesizer(Lying()).generate("refund")


@pytest.mark.parametrize("nothing", [np.nan, -np.inf, np.inf])
def test_a_model_without_any_probability_costs_nothing(nothing: float) -> None:
    """A token drawn from its answers would mean nothing; the prompt without records is public."""

    class Mute(Sentence):
        def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
            return np.full_like(super().next_token_logprobs(prompts, support), nothing)

    made = synthesizer(Mute())
    with pytest.raises(dpf.BackendError, match="no probability at all"):
        made.generate("refund")
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)


def test_nan_and_truncated_logprobs_are_zero_vectors_or_zero_coordinates() -> None:
    class Broken(Sentence):
        def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
            rows = super().next_token_logprobs(prompts, support)
            if support is not None:
                rows[::3] = np.nan
                rows[1::3, 0] = -np.inf
            return rows

    assert synthesizer(Broken(), prompts_per_draw=100).generate("refund").certified


def test_reprs_hold_no_private_text() -> None:
    made = synthesizer(records=[POISON] * 100, labels=["refund"])
    made.generate("refund")
    things = [POISON, made, made.plan, made.account, *inside.objects(made)]
    assert not [thing for thing in things if "swordfish" in repr(thing) or "secret" in repr(thing)]
