"""The baselines draw what they say, at p < 1e-9, with controls that must be rejected."""

import itertools

import numpy as np
from scipy import stats

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.values import Record
from tests.support.laws import IMPOSSIBLE
from tests.support.scripts import TASK


def test_at_temperature_one_tokens_come_with_the_models_probabilities() -> None:
    texts, law = ("a!", "b!", "c!", "d!", "\n"), np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    backend = Scripted(texts, lambda _prompt: law.tolist())

    def p_value(shots: int, temperature: float | None, top_k: int | None, kept: int) -> float:
        made = dpf.instruction_only_demonstrations(
            TASK, backend, ["refund"], shots=shots, max_tokens=1, temperature=temperature, top_k=top_k
        )
        drawn = [one.text for one in made]
        expected = law[:kept] / law[:kept].sum() * shots
        assert set(drawn) == set(texts[:kept])
        return float(stats.chisquare([drawn.count(text) for text in texts[:kept]], expected).pvalue)

    assert p_value(8_000, None, None, 4) > IMPOSSIBLE  # the first token never ends it
    assert p_value(8_000, 1.0, 3, 3) > IMPOSSIBLE
    assert p_value(8_000, 1.5, None, 4) < IMPOSSIBLE


def test_records_are_drawn_uniformly_in_every_order() -> None:
    records = [Record(str(i), "refund") for i in range(4)]
    draws = [
        tuple(one.text for one in dpf.non_private_sample(TASK, records, ["refund"], shots=2))
        for _ in range(6_000)
    ]
    observed = [draws.count(pair) for pair in itertools.permutations("0123", 2)]
    assert sum(observed) == len(draws)
    assert stats.chisquare(observed).pvalue > IMPOSSIBLE
    one_too_likely = [*observed[:-1], observed[-1] * 2]
    assert stats.chisquare(one_too_likely).pvalue < IMPOSSIBLE
