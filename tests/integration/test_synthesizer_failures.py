"""`Synthesizer` with language models that fail, lie or are dead: what is charged, and what errors say."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.backends.protocol import Logprobs, Tokens
from tests.support import inside
from tests.support.factory import synthesizer
from tests.support.scripts import Sentence


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
    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        del support
        raise RuntimeError(f"cannot evaluate {[self.detokenize(prompt) for prompt in prompts]}")


def test_a_server_that_is_dead_from_the_start_costs_nothing(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'budget.db'}"
    made = synthesizer(Dead(), ledger=ledger)
    with pytest.raises(dpf.BackendError):
        made.generate("refund")
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)
    assert synthesizer(ledger=ledger).generate("refund").certified


class Full(Sentence):
    """Has room for some blocks alone."""

    def __init__(self, room: Callable[[int], bool]) -> None:
        super().__init__()
        self.room = room

    def prepare(self, tokens: int) -> None:
        if not self.room(tokens):
            raise dpf.BackendError(f"no room for blocks of {tokens} tokens: lower kept_prompts")


@pytest.mark.parametrize("room", [lambda tokens: tokens == 1, lambda tokens: tokens > 1])
def test_a_model_without_room_for_private_prompts_costs_nothing(room: Callable[[int], bool]) -> None:
    """The last draw is of one token, which takes other streams."""
    made = synthesizer(Full(room), max_tokens=7, tokens_per_draw=3)
    with pytest.raises(dpf.BackendError, match="lower kept_prompts"):
        made.generate("refund")
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)


class Changed(Sentence):
    """Its answers are changed by a function of them and of the support."""

    def __init__(self, change: Callable[[Logprobs, Tokens | None], Logprobs]) -> None:
        super().__init__()
        self.change = change

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        return self.change(super().next_token_logprobs(prompts, support), support)


def test_a_lying_backend_is_refused() -> None:
    with pytest.raises(dpf.BackendError, match="shape"):
        synthesizer(Changed(lambda rows, _: rows[:, :-1])).generate("refund")


@pytest.mark.parametrize("nothing", [np.nan, -np.inf, np.inf])
def test_a_model_without_any_probability_costs_nothing(nothing: float) -> None:
    """A token drawn from its answers would mean nothing; the prompt without records is public."""
    made = synthesizer(Changed(lambda rows, _: np.full_like(rows, nothing)))
    with pytest.raises(dpf.BackendError, match="no probability at all"):
        made.generate("refund")
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)


def test_nan_and_truncated_logprobs_are_zero_vectors_or_zero_coordinates() -> None:
    def broken(rows: Logprobs, support: Tokens | None) -> Logprobs:
        if support is not None:
            rows[::3] = np.nan
            rows[1::3, 0] = -np.inf
        return rows

    assert synthesizer(Changed(broken), prompts_per_draw=100).generate("refund").certified


def test_reprs_hold_no_private_text() -> None:
    secret = dpf.Record("my secret is swordfish", "refund")
    made = synthesizer(records=[secret] * 100, labels=["refund"])
    made.generate("refund")
    things = [secret, made, made.plan, made.account, *inside.objects(made)]
    assert not [thing for thing in things if "swordfish" in repr(thing) or "secret" in repr(thing)]
