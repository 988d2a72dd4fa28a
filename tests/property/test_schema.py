"""Whatever the model and the noise say, a text matches its schema, and no record changes the support."""

import dataclasses
import json
import random
import re
from fractions import Fraction
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import dpfewshot as dpf
from dpfewshot.account.draws import Terms
from dpfewshot.account.permit import Permit
from dpfewshot.account.reservation import Reservation
from dpfewshot.errors import InvalidPlan
from dpfewshot.generation.token_loop import TextRequest, TokenLoop
from dpfewshot.generation.units import Bodies
from dpfewshot.mechanisms import MECHANISMS as BY_NAME
from dpfewshot.mechanisms import Draws, Gaussian, InvisibleInk, ReportNoisyMax, RowChange, SparseVector
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.records.units import each_a_unit
from dpfewshot.sampling import PoissonSampler
from dpfewshot.values import Record
from tests.support.scripts import TASK
from tests.support.shapes import Moody, matches

FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
MECHANISMS = (Gaussian(top_k=3), ReportNoisyMax(top_k=None), InvisibleInk(top_k=5))
EVERY = [*(each() for each in BY_NAME.values()), SparseVector(Gaussian(), threshold=0.5, releases=2)]

NAMES = st.text("ab", min_size=1, max_size=2)


def of(type_: str | None = None, **words: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of one type with these keywords."""
    return st.fixed_dictionaries(words | ({"type": st.just(type_)} if type_ else {}))


def between(least: int, width: int) -> st.SearchStrategy[Any]:
    ends = {"minimum": st.just(least), "maximum": st.just(least + width)}
    return of("integer", **ends) | of("number", **ends)


SCALARS = st.one_of(
    of(enum=st.lists(st.sampled_from(["refund", "fun", 'a"b', "é", 1, None]), min_size=1)),
    of("string", maxLength=st.integers(0, 5)),
    of("string", format=st.sampled_from(["date", "time"])),
    of("string", pattern=st.sampled_from(["[A-Z]{2}-\\d+", "^a$|^ab$", "é?x", r"\w\s.?[^\"]"])),
    st.tuples(st.integers(-120, 120), st.integers(0, 200)).flatmap(lambda at: between(*at)),
    st.just({"type": ["boolean", "null"]}),
    st.sampled_from([{"type": "number"}, {"type": "integer"}, {"type": "number", "maximum": 3}]),
    st.just({"enum": ["\u2028", "\x7f", 3], "type": ["string", "integer"]}),
)


def object_of(members: dict[str, Any]) -> st.SearchStrategy[Any]:
    required = st.lists(st.sampled_from(sorted(members)), unique=True) if members else st.just([])
    return of("object", properties=st.just(members), required=required)


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(NAMES, inner, max_size=3).flatmap(object_of)
    arrays = of("array", items=inner, minItems=st.integers(0, 2), maxItems=st.integers(2, 3))
    return objects | arrays | of(anyOf=st.lists(inner, min_size=1, max_size=2))


SCHEMAS = st.recursive(SCALARS, _around, max_leaves=4)


def released(task: dpf.Task, backend: Moody, mechanism: Any, tokens: int, every: int = 1) -> str:
    """The text of one demonstration, of at most so many drawn tokens."""
    records = [Record(f"Kind: {i}", "refund") for i in range(3)]
    loop = TokenLoop(backend, task.layout)
    random_source = random.Random(backend.seeds[0]).randbytes
    writer = PromptWriter(task, backend, 20)
    made: list[int] = []
    request = TextRequest(
        units=Bodies(each_a_unit(records), writer.body),
        sampler=PoissonSampler(Fraction(1), 3, 1, random_source),
        release=mechanism.start(Draws(1.0, 1, 1, 3, RowChange.ADDED), 1.0, random_source),
        reservation=Reservation.make(None, Terms(None, None, tokens, every, 1.0, {})),
        prompts=writer.for_label("refund"),
        max_tokens=tokens,
        released=made,
    )
    assert list(loop.tokens(request)) == made
    assert len(made) <= tokens
    forced = len(loop.draft(made).context) - len(made)
    assert forced <= len(loop.automaton.opening) + loop.automaton.most_forced(tokens, loop.automaton.start)
    assert accepted(loop.automaton, made)  # the text ended in time, and nothing is completed
    return loop.draft(made).text()


def accepted(shape: Any, tokens: list[int]) -> bool:
    """Whether drawn tokens make a text that matches."""
    state = shape.start
    for token in tokens:
        state, _ = shape.after(state, token)
    return bool(shape.accepts(state))


def automaton_of(task: dpf.Task) -> Any:
    return TokenLoop(Moody(0), task.layout).automaton


@settings(max_examples=30)
@given(
    schema=SCHEMAS,
    tokens=st.integers(1, 40),
    mechanism=st.sampled_from(MECHANISMS),
    every=st.sampled_from([1, 3, 40]),
    seed=st.integers(0, 99),
)
def test_a_text_is_valid_under_its_schema(
    schema: Any, tokens: int, mechanism: Any, every: int, seed: int
) -> None:
    task = dataclasses.replace(TASK, schema=schema)
    try:
        automaton_of(task).check(tokens)
    except InvalidPlan:
        assume(tokens > 20)
        return
    text = released(task, Moody(seed), mechanism, tokens, every)
    jsonschema.validate(json.loads(text), schema, format_checker=FORMATS)
    assert len(text.splitlines()) == 1


EXPRESSIONS = ("[a-z ]{3,9}", r"\d+ (?:refund|fun)s?", "a|ab|abb+", " x.*", "é{1,2}=?", "(?:ab)*c", "[^b]{2}")


@settings(max_examples=30)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    tokens=st.integers(3, 12),
    mechanism=st.sampled_from(MECHANISMS),
    seed=st.integers(0, 999),
)
def test_a_text_matches_its_expression(expression: str, tokens: int, mechanism: Any, seed: int) -> None:
    task = dataclasses.replace(TASK, schema=expression)
    assert re.fullmatch(expression, released(task, Moody(seed), mechanism, tokens))


@settings(max_examples=30)
@given(expression=st.sampled_from(EXPRESSIONS), cut=st.integers(0, 4), seed=st.integers(0, 999))
def test_a_text_that_was_cut_off_is_completed(expression: str, cut: int, seed: int) -> None:
    """As after a draw that was lost, or where a mechanism ends a text: nothing more is drawn for it."""
    task = dataclasses.replace(TASK, schema=expression)
    backend, rng = Moody(seed), random.Random(seed)
    loop = TokenLoop(backend, task.layout)
    shape, tokens = automaton_of(task), []
    state = shape.start
    for _ in range(cut):
        allowed = shape.allowed(state, 50)
        if loop.ended(tokens):
            break
        tokens.append(rng.choice(allowed.tolist()))
        state, _ = shape.after(state, tokens[-1])
    assert re.fullmatch(expression, loop.draft(tokens).text())


def test_the_most_tokens_that_are_forced() -> None:
    """A letter and `-`; then `=`; then a digit and `==`; then a letter and `#`."""
    shape = automaton_of(dataclasses.replace(TASK, schema="[ab](?:--[ab]|-=[0-9]==[ab])#+!"))
    assert [shape.most_forced(drawn, shape.start) for drawn in range(6)] == [0, 1, 1, 3, 4, 4]


@settings(max_examples=30)
@given(schema=st.sampled_from(EXPRESSIONS), seed=st.integers(0, 99), private=st.integers(100, 199))
def test_the_support_does_not_depend_on_records(schema: str, seed: int, private: int) -> None:
    """Two models differ in their answers to prompts with records alone; the released tokens are the same."""
    task = dataclasses.replace(TASK, schema=schema)
    seen = []
    for backend in (Moody(seed), Moody(seed, private)):
        released(task, backend, _Public(), 6)
        seen.append(backend.supports)
    assert seen[0] == seen[1]
    assert seen[0]


@pytest.mark.parametrize("mechanism", EVERY, ids=lambda mechanism: mechanism.name)
@given(
    public=npst.arrays(np.float32, 9, elements=st.floats(width=32)),
    allowed=st.sets(st.integers(0, 8), min_size=1),
)
@settings(max_examples=30)
def test_no_mechanism_widens_the_mask(mechanism: Any, public: Any, allowed: set[int]) -> None:
    """Fewer candidates than top_k, one of them at least: all are allowed, and one of them is released."""
    columns = np.array(sorted(allowed))
    draws = Draws(1.0, 1, 8, 3, RowChange.ADDED)
    release = mechanism.start(draws, 1.0)
    kept = release.support(public[columns], frozenset())
    assert kept
    assert set(columns[kept]) <= allowed
    rows = np.tile(public[columns][kept], (2, 1))
    assert release.token(rows, public[columns][kept], Permit(8, 1.0)) in range(len(kept))


class _Public(Gaussian):
    """Releases the first candidate, whatever the rows are."""

    def start(self, *_: Any) -> Any:
        release = super().start(*_)
        object.__setattr__(release, "token", lambda logprobs, public, permit: 0)  # noqa: ARG005
        return release


@given(least=st.integers(-2000, 2000), width=st.integers(0, 3000), data=st.data())
def test_a_range_of_whole_numbers(least: int, width: int, data: Any) -> None:
    schema = {"type": "integer", "minimum": least, "maximum": least + width}
    for number in (least, least + width, data.draw(st.integers(least, least + width))):
        assert matches(schema, str(number))
    for number in (least - 1, least + width + 1, data.draw(st.integers(-9999, 9999))):
        assert matches(schema, str(number)) == (least <= number <= least + width)
    assert not matches(schema, "-0")
    assert not matches(schema, f"0{abs(least)}")


@pytest.mark.parametrize(
    ("schema", "trouble"),
    [
        ("[α-ω]+", "no text that the model can write"),
        ("()", "no text that the model can write"),
        ({"const": "refund"}, "one text alone"),
        ("[a-c]{9}", "needs at least 9 tokens: max_tokens=8"),
    ],
)
def test_a_schema_that_no_text_can_match_is_refused(schema: Any, trouble: str) -> None:
    with pytest.raises(InvalidPlan, match=trouble):
        automaton_of(dataclasses.replace(TASK, schema=schema)).check(8)
