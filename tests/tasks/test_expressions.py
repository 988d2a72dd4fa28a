"""Every expression that is accepted means what Python and JSON schema's validators read, or less."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks.automaton import Automaton, automaton_of, character
from dpfewshot.tasks.expressions import parsed
from dpfewshot.tasks.schema import automaton, checked
from tests.support.shapes import accepts

ATOMS = [
    *("a", "b", "é", r"\d", r"\w", r"\s", ".", "[a-c]", "[^ab]", "[-b]", r"[\w-]", r"\.", "-", "[5&]"),
    r"[^\"\\]",
]
CODES = {*range(0xD800), *range(0xE000, 0x110000)}


def expressions(atoms: list[str], most: int = 6) -> st.SearchStrategy[str]:
    return st.recursive(st.sampled_from(atoms), _around, max_leaves=most)


def _around(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{1,2}?"])).map(
            lambda both: f"({both[0]}){both[1]}"
        ),
    )


SIGNS = st.text(r"ab5[]()^$|\dwsbp-&{},?*+.:#<=!~ " + '"\n', max_size=9)
"""What may be an expression, and mostly is none."""

TEXTS = st.text("ab5-_&. ", max_size=5)
"""Texts whose every character the readers of expressions read alike."""

OTHERS = st.text('aé٣乵😀\u00a0\u0085\u2028\x7f\t\n"\\', max_size=3)


def walk(found: Automaton, seed: int) -> str:
    """A text that matches, if there is one: random steps, and the shortest way from some length on."""
    rng, state, written = random.Random(seed), found.initial, b""
    distances = np.where(found.accepting, 0.0, np.inf)
    while (nearer := np.minimum(distances, distances[found.following].min(axis=1) + 1) < distances).any():
        distances = np.where(nearer, distances[found.following].min(axis=1) + 1, distances)
    while 0 < distances[state] < np.inf:
        ahead = distances[found.following[state]]
        onward = np.flatnonzero(ahead < (np.inf if len(written) < 40 else distances[state]))
        written += bytes([byte := rng.choice(onward.tolist())])
        state = int(found.following[state, byte])
    return written.decode()


@settings(max_examples=150)
@given(expression=expressions(ATOMS), text=TEXTS, other=OTHERS, seed=st.integers(0, 99))
def test_an_expression_means_what_python_reads(expression: str, text: str, other: str, seed: int) -> None:
    found = automaton(checked(expression))
    assert accepts(found, text) == bool(re.fullmatch(expression, text))
    for narrower in (text + other, walk(found, seed)):
        assert not accepts(found, narrower) or re.fullmatch(expression, narrower)
        assert not accepts(found, narrower) or narrower.splitlines() in ([], [narrower])


@settings(max_examples=300)
@given(expression=SIGNS, text=TEXTS, other=OTHERS)
def test_signs_are_refused_or_read_as_python_does(expression: str, text: str, other: str) -> None:
    try:
        schema = checked({"type": "string", "pattern": expression})
    except InvalidTask:
        return
    found = automaton(schema)
    for each in (text, text + other):
        written = json.dumps(each, ensure_ascii=False)
        assert not accepts(found, written) or re.search(expression, each)


@settings(max_examples=60)
@given(pattern=expressions(ATOMS), anchored=st.booleans(), seed=st.integers(0, 99))
def test_a_text_of_a_pattern_is_valid_json(pattern: str, anchored: bool, seed: int) -> None:
    schema = {"type": "string", "pattern": f"^{pattern}$" if anchored and "|" not in pattern else pattern}
    text = walk(automaton(checked(schema)), seed)
    if text:
        jsonschema.validate(json.loads(text), schema)


def test_what_is_compared_can_differ() -> None:
    found = automaton_of(parsed("[a-zé]"))
    texts = [chr(code) for code in range(0x20, 0x3000) if not 0xD800 <= code < 0xE000]
    assert [text for text in texts if accepts(found, text) != bool(re.fullmatch("[a-z]", text))] == ["é"]


@given(ends=st.tuples(*[st.characters(exclude_categories=["Cs"])] * 2), near=st.integers(-2, 2))
def test_a_range_of_characters_is_that_range_in_utf8(ends: tuple[str, str], near: int) -> None:
    first, last = sorted(ends)
    pieces = [(first, last)] if last < "\ud800" or first > "\udfff" else [(first, "\ud7ff"), ("\ue000", last)]
    found = automaton_of(character([(ord(low), ord(high)) for low, high in pieces]))
    for code in {ord(first) + near, ord(last) + near, (ord(first) + ord(last)) // 2} & CODES:
        assert accepts(found, chr(code)) == (first <= chr(code) <= last)
    assert not any(accepts(found, text) for text in ("", 2 * first))
    assert not accepts(found, "\U0010ffff".encode()[:-1])
