"""Tasks with a schema, from a synthesizer to its texts."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.mechanisms import MECHANISMS, Gaussian, Mechanism, SparseVector, by_name
from tests.support.factory import synthesizer
from tests.support.scripts import TASK
from tests.support.shapes import PIECES, Calm, Moody

FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["refund", "fun"]},
        "day": {"type": "string", "format": "date"},
        "sum": {"type": "number", "minimum": 0, "maximum": 20},
    },
    "required": ["kind", "day", "sum"],
}
ALIKE = [dpf.Record("fun", label) for label in TASK.labels or ()] * 200
"""Whoever is drawn, the prompts are the same."""

SHAPED = dataclasses.replace(TASK, schema=SCHEMA)


def shaped(seed: int = 0, **settings: Any) -> dpf.Synthesizer:
    defaults = {"task": SHAPED, "max_tokens": 14}
    return synthesizer(settings.pop("backend", Moody(seed)), **(defaults | settings))


def check(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA, format_checker=FORMATS)


ALL: list[Mechanism] = [by_name(name, top_k=100) for name in MECHANISMS]
ALL += [SparseVector(Gaussian(), threshold=0.5, releases=2)]


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)
def test_every_mechanism_writes_what_the_schema_asks_for(mechanism: Mechanism) -> None:
    with_tests = isinstance(mechanism, SparseVector)
    made = shaped(mechanism=mechanism, tokens_per_draw=14 if with_tests else 2)
    one = made.generate("refund")
    check(one.text)
    assert one.token_count <= 14
    assert one.certified
    assert made.spent.epsilon <= 4


@pytest.mark.parametrize("seed", range(3))
def test_what_is_forced_is_the_same_whatever_shares_a_draw(seed: int) -> None:
    settings = {"records": ALIKE, "budget": dpf.NO_PRIVACY}
    texts = {shaped(seed, **settings, tokens_per_draw=every).generate("refund").text for every in (1, 3, 14)}
    assert len(texts) == 1
    check(texts.pop())


def test_workers_write_the_same() -> None:
    settings = {"records": ALIKE, "budget": dpf.NO_PRIVACY, "tokens_per_draw": 3}
    with ThreadPoolExecutor(2) as executor:
        made = shaped(**settings).generate_all(executor=executor)
    alone = shaped(**settings).generate_all()
    assert {one.text for one in made} == {one.text for one in alone}
    for one in made:
        check(one.text)


class Swapped(Moody):
    """Another vocabulary, which no public prompt shows: no prompt has these digits."""

    def detokenize(self, tokens: Any) -> str:
        return super().detokenize(tokens).translate(str.maketrans("78", "87"))


def test_a_worker_with_other_tokens_is_refused_before_it_costs() -> None:
    made = shaped(tokens_per_draw=3)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(InvalidPlan, match="other tokens for the task's schema"),
    ):
        made.generate_all(executor=executor, worker_backend=lambda: Swapped(0))


def test_a_token_that_the_schema_cannot_read_is_one_error() -> None:
    draft = shaped().set_up.loop.draft()
    with pytest.raises(BackendError, match="does not fit the task's schema"):
        draft.add(PIECES.index("é"))


class Dying(Moody):
    """Fails once the day is written."""

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if any('"sum' in self.detokenize(prompt) for prompt in prompts):
            raise RuntimeError
        return super().next_token_logprobs(prompts, support)


def test_a_run_resumes_within_its_text(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ledger": f"sqlite:///{tmp_path / 'budget.db'}"}
    settings |= {"labels": ["refund"], "budget": dpf.PrivacyBudget(100.0, 1e-5)}
    with shaped(backend=Dying(0), **settings) as first, pytest.raises(BackendError):
        first.generate_all()
    assert not shaped(task=dataclasses.replace(TASK, schema="[a-z]+"), **settings).unfinished
    [one] = shaped(**settings).generate_all(resume=True)
    check(one.text)


def test_a_text_of_fewer_tokens_than_it_needs_is_completed() -> None:
    one = shaped().generate("refund", max_tokens=2)
    check(one.text)
    assert one.token_count == 2


def test_the_instruction_alone_writes_what_the_schema_asks_for() -> None:
    for one in dpf.instruction_only_demonstrations(SHAPED, Calm(1), shots=3, max_tokens=14):
        check(one.text)
        assert one.token_count <= 14
    with pytest.raises(InvalidPlan, match="needs at least"):
        dpf.instruction_only_demonstrations(SHAPED, Calm(1), max_tokens=3)


class Sure(Moody):
    """Gives one token all probability, or none any."""

    def _row(self, _prompt: Any) -> Any:
        row = np.full(len(PIECES), -np.inf)
        row[PIECES.index("Z")] = 0.0 if self.seeds[0] else -np.inf
        return row


def test_a_model_that_wants_none_of_the_allowed_tokens() -> None:
    for one in dpf.instruction_only_demonstrations(SHAPED, Sure(1), shots=2, max_tokens=14):
        check(one.text)
    with pytest.raises(BackendError, match="gives no token of a public prompt"):
        dpf.instruction_only_demonstrations(SHAPED, Sure(0), max_tokens=14)


@pytest.mark.parametrize(
    ("schema", "trouble"),
    [
        ({"type": "string", "minLength": 120}, "needs at least [0-9]+ tokens: max_tokens=14"),
        ("[α-ω]+", "no text that the model can write"),
        ({"const": 5}, "one text alone"),
    ],
)
def test_a_schema_that_the_model_cannot_meet_costs_nothing(schema: Any, trouble: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    task = dataclasses.replace(TASK, schema=schema)
    with pytest.raises(InvalidPlan, match=trouble):
        shaped(task=task, ledger=url)
    assert dpf.open_account(url, "tickets").entries == 0


def test_forced_tokens_count_for_the_context() -> None:
    """The longest prompt has what the schema forces; one token less of context is refused."""
    backend = Moody(0)
    longest = shaped(backend=backend).plan.prompt_tokens  # T prompts of R = 1, M times
    plain = synthesizer(Moody(0), max_tokens=14).plan.prompt_tokens
    forced = len('{"kind": "", "day": "--", "sum": ')
    assert (longest - plain) / (14 * 20) >= forced
