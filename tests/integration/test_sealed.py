"""Objects that a synthesizer's public names lead to cannot change what it releases."""

import copy
import inspect
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.amounts import Amount
from dpfewshot.generation.generation import Generation, unaccounted
from dpfewshot.mechanisms import MECHANISMS, by_name
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from tests.support import factory

OURS = "dpfewshot."


synthesizer = partial(factory.synthesizer, budget=dpf.PrivacyBudget(epsilon=1.0, delta=1e-5))


def reached(thing: object, path: str, seen: set[int]) -> Iterator[tuple[str, object, str]]:
    """Every object of the package that public names lead to, and each public name on it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, list | tuple):
        for each in thing:
            yield from reached(each, f"{path}[]", seen)
    if not type(thing).__module__.startswith(OURS) or isinstance(thing, Enum):
        return  # an enumeration's members are what they are by identity
    for name in dir(thing):
        if not name.startswith("_") and not callable(getattr(thing, name)):
            yield path, thing, name
            yield from reached(getattr(thing, name), f"{path}.{name}", seen)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_public_name_can_be_set(mechanism: str) -> None:
    made = synthesizer(mechanism=by_name(mechanism, top_k=8), tokens_per_draw=8, prompts_per_draw=200)
    found = list(reached(made, "synthesizer", set()))
    classes = {type(thing).__name__ for _, thing, _ in found}
    known = {"SetUp", "GenerationPlan", "StratumPlan", "Draws", "PlanSettings", "TokenLoop", "Account"}
    assert known <= classes
    for path, thing, name in found:
        value = getattr(thing, name)
        kept = value is getattr(thing, name)  # what is made anew for each reader may be changed
        assert not (kept and isinstance(value, list | dict | set)), f"{path}.{name} can be changed"
        with pytest.raises((AttributeError, TypeError)):  # the second of a frozen one with slots
            setattr(thing, name, value)


def test_what_draws_is_not_reached() -> None:
    for path, thing, name in reached(synthesizer(), "synthesizer", set()):
        kind = type(getattr(thing, name)).__name__
        assert kind not in {"Generation", "StratumRun", "Reservation", "Permit"}, path


Change = Callable[[GenerationPlan], dict[str, Any]]


def settings(**changes: Any) -> Change:
    return lambda plan: {"plan": replace(plan, settings=replace(plan.settings, **changes))}


def stratum(changes: Callable[[StratumPlan], dict[str, Any]]) -> Change:
    def changed(plan: GenerationPlan) -> dict[str, Any]:
        part, *others = plan.strata
        return {"plan": replace(plan, strata=(replace(part, **changes(part)), *others))}

    return changed


CHANGES: dict[str, Change] = {
    "tokens of a draw": settings(tokens_per_draw=8),
    "records of a prompt": settings(records_per_prompt=2),
    "prompts": settings(prompts_per_draw=40),
    "draws of fixed size": settings(sampling="fixed-size"),
    "noise": stratum(lambda part: {"noise_multiplier": part.noise_multiplier * 0.99}),
    "rate": stratum(lambda part: {"sampling_rate": part.sampling_rate + Fraction(1, 10**6)}),
    "draws": stratum(lambda part: {"draws": replace(part.draws, steps=part.steps + 1)}),
    "draws that it is told of": stratum(lambda part: {"draws": replace(part.draws, tokens_per_draw=8)}),
    "mechanism": lambda _plan: {"mechanism": dpf.mechanisms.ReportNoisyMax(top_k=8)},
}
"""What makes another plan of the same epsilon."""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_certified_set_up_states_what_it_draws(change: Change) -> None:
    set_up = synthesizer().set_up
    other = change(set_up.plan)
    with pytest.raises(dpf.InvalidPlan, match="epsilon is that of other draws"):
        replace(set_up, **other)
    assert not replace(set_up, certified=False, **other).certified


def test_a_certified_set_up_costs_what_it_states() -> None:
    set_up = synthesizer().set_up
    part, *others = set_up.plan.strata
    assert part.cost is not None
    epsilon, delta = part.cost
    for cost in (None, Amount(epsilon - 1, delta), Amount(epsilon, delta - 10**8)):
        plan = replace(set_up.plan, strata=(replace(part, cost=cost), *others))
        with pytest.raises(dpf.InvalidPlan, match="less than its draws cost"):
            replace(set_up, plan=plan)
    more = replace(part, cost=Amount(2 * epsilon, delta))
    assert replace(set_up, plan=replace(set_up.plan, strata=(more, *others))).certified


def test_a_certified_set_up_charges_the_units_that_it_draws() -> None:
    set_up = synthesizer().set_up
    part, *others = set_up.plan.strata
    for scope in ("delivery", None):
        plan = replace(set_up.plan, strata=(replace(part, scope=scope), *others))
        with pytest.raises(dpf.InvalidPlan, match="other units"):
            replace(set_up, plan=plan)
    units = list(set_up.units.items())
    for others_units in (units[::-1], units[:1]):
        with pytest.raises(dpf.InvalidPlan, match="other units"):
            replace(set_up, units=dict(others_units))


def test_the_writer_and_the_units_of_a_set_up_cannot_be_exchanged() -> None:
    set_up = synthesizer().set_up
    with pytest.raises((AttributeError, TypeError)):  # TypeError: a frozen dataclass with slots
        set_up.writer.body = lambda _record: []  # type: ignore[method-assign, misc]
    with pytest.raises(TypeError):
        set_up.units["refund"] = ()  # type: ignore[index]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_account_in_memory_is_not_copied(copied: Callable[[object], object]) -> None:
    with pytest.raises(dpf.LedgerError, match="spend it again"):
        copied(dpf.Account.in_memory(dpf.PrivacyBudget(1.0, 1e-6)))


def test_an_experiment_says_that_it_is_not_private(caplog: pytest.LogCaptureFixture) -> None:
    made = synthesizer()
    altered = replace(made.set_up, **CHANGES["tokens of a draw"](made.set_up.plan), certified=False)
    with caplog.at_level(logging.DEBUG, "dpfewshot"):
        for set_up in (made.set_up, altered):
            one = unaccounted(set_up).release("refund", 8)
            assert not one.certified
            assert one.spent is None
    assert made.spent.epsilon == 0
    assert not caplog.records


def test_no_argument_sets_the_random_source() -> None:
    assert not {"source", "random_source"} & set(inspect.signature(dpf.Synthesizer).parameters)
    set_up = synthesizer().set_up
    assert set_up.random_source is None
    with pytest.raises(dpf.InvalidPlan, match="random generator alone"):
        replace(set_up, random_source=bytes)
    assert not replace(set_up, random_source=bytes, certified=False).certified


def test_what_no_account_pays_for_is_not_private() -> None:
    generation = Generation(synthesizer().set_up, None)
    assert generation.set_up.certified
    assert not generation.release("refund", 8).certified
