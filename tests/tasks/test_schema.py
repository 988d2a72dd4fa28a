"""Schemas: what is translated into an expression, and what is refused, where."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.errors import InvalidTask
from dpfewshot.tasks import automaton as automaton_module
from dpfewshot.tasks import layout
from dpfewshot.tasks.schema import automaton
from tests.support.scripts import TASK
from tests.support.shapes import matches

TICKET = {
    "title": "Ticket",
    "type": "object",
    "properties": {
        "category": {"$ref": "#/$defs/Category", "description": "its kind"},
        "date": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
        "amount": {"type": "number", "minimum": 0, "maximum": 500},
        "note": {"type": ["string", "null"], "maxLength": 10},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["category", "amount"],
    "$defs": {"Category": {"enum": ["refund", 'a "bug"', "\\d"], "type": "string"}},
}


DOUBLED = {
    "$ref": "#/$defs/a0",
    "$defs": {
        f"a{i}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/a{i + 1}"} for name in "xy"},
            "required": ["x", "y"],
        }
        for i in range(26)
    }
    | {"a26": {"type": "boolean"}},
}
"""A short schema that a text of 2^26 values matches."""


NULLS = {"type": "object", "properties": {"a": {"type": "null"}}}


def named(schema: object) -> object:
    return {"$ref": "#/$defs/a", "$defs": {"a": schema}}


def nested(schema: object, levels: int) -> object:
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "text",
    [
        '{"category": "refund", "amount": 12.5}',
        '{"category": "a \\"bug\\"", "date": "2026-11-22", "amount": 500, "note": "ü", "tags": []}',
        '{"category": "\\\\d", "amount": 0.25, "note": null, "tags": ["a", "b"]}',
    ],
)
def test_a_schema_is_matched_by_what_is_valid_under_it(text: str) -> None:
    assert json.loads(text)
    assert matches(TICKET, text)
    assert matches(json.dumps(TICKET, indent=1), text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"category": "refund"}',
        '{"category": "refund", "amount": 500.5}',
        '{"category": "refund", "amount": -1}',
        '{"category": "refund", "amount": 007}',
        '{"category": "refund", "amount": 7, "tags": ["a", "b", "a"]}',
        '{"category": "refund", "date": "2026-1-22", "amount": 1}',
        '{"category": "refund", "date": "٢٠٢٦-11-22", "amount": 1}',
        '{"category": "refund", "amount": 1, "note": "12345678901"}',
        '{"category": "5", "amount": 1}',
        '{"category": "refund", "amount": 1, "other": 1}',
    ],
)
def test_a_schema_is_not_matched_by_anything_else(text: str) -> None:
    assert not matches(TICKET, text)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "format": "date"}, '"2024-02-28"', '"2023-02-29"'),
        ({"type": "string", "format": "date-time"}, '"2024-02-28T23:59:59Z"', '"2024-02-28T24:00:00Z"'),
        ({"type": "string", "minLength": 2}, '"né"', '"n"'),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "[true, false]", "[true]"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, "[]", "[null]"),
        ({"anyOf": [{"const": 1}, {"const": None}]}, "null", "2"),
        ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}}, '{"b": 2}', '{"b": 2, }'),
        ({"type": "string", "pattern": r'[^"\\]*'}, '"a b"', '"a\tb"'),
        (r"[A-Z]{2}-\d+", "AB-17", "AB-"),
        (r"^(?:yes|no)$", "no", "maybe"),
        (r"a\$", "a$", "a"),
        (r"[ab]\\$", "a\\", "a$"),
        ("^yes$|^no$", "yes", "^yes"),
        (r"\w\s[\w.-]{2}\/", "a b-/", "a\u00a0b-/"),
        (r"\w", "_", "é"),
        (".{3}", "aé😀", "a\u2028b"),
        ("[^a]", "é", "\u0085"),
        ("a{2}?b", "aab", "b"),
        (" {2}[a-z]", "  a", " a"),
        ({"type": "string", "pattern": ".+"}, '"a b"', '"a"b"'),
        ({"type": "string", "pattern": "[ -~]"}, '"!"', '"\\"'),
        ({"const": "\u2028\x7f"}, r'"\u2028\u007f"', '"\u2028\x7f"'),
        ({"enum": [1, 2.5], "type": ["integer", "number"]}, "2.5", "2"),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"const": 1}}}, "1", "2"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, "[null]", "[null, null]"),
        ("a|ab", "ab", "abb"),
        ({"type": "number"}, "12.5", "12."),
        ({"type": "number"}, "-999999999999999.999999", "1000000000000000"),
        ({"type": "integer"}, "-100", "-0"),
        ({"type": "number", "minimum": 0.0, "maximum": 9.0}, "8.5", "-0.5"),
    ],
)
def test_what_else_may_be_said(schema: object, valid: str, invalid: str) -> None:
    assert matches(schema, valid)
    assert not matches(schema, invalid)


@pytest.mark.parametrize(
    ("schema", "trouble"),
    [
        (5, "must be a mapping or a string, not int"),
        (["a"], "must be a mapping or a string, not list"),
        ("{'type': 'null'}", "begins like a JSON schema and is not JSON"),
        ("  {type: string}", "is not JSON"),
        ({"enum": [object()]}, "holds a value that JSON has not"),
        ({"const": float("nan")}, "holds a value that JSON has not"),
        ({"const": "\ud800"}, "holds a value that JSON has not"),
        ({1: 2, "1": 3}, "has the key '1' twice"),
        ('{"type": "integer", "minimum": 0, "minimum": 5}', "has the key 'minimum' twice"),
        ('{"items":' * 100_000, "nested too deeply"),
        ("(" * 300 + "a" + ")" * 300, "nested too deeply"),
        ("(", "not a regular expression .* a '\\(' without"),
        ("a)|(b", "a '\\)' without"),
        ("(a{1000}){1000}", "too large"),
        ("((a|b){9}[c-z]){2999}", "too large"),
        ("a{99999}", "repetition"),
        ("[ab\ud800]{3}", "half a surrogate pair"),
        ("[ab]*a[ab]{14}", "too large"),
        ("[ab]*a[ab]{30}", "too large"),
        ("(){999}" * 9999, "too large"),
        (f"(a{'|' * 3000}){{9999}}", "too large"),
        ("(?:(?:a*)*|b?){9999}", "too large"),
        ("[a-z ]{0,60}refund[a-z ]{0,60}", "too large"),
        ("|" * 3_000_000, "too large"),
        ({"type": "string", "pattern": "a" * 1_000_000}, "too large"),
        ("[ab\ud800]", "half a surrogate pair"),
        ({"type": "string", "maxLength": None}, "whole numbers from 0 up"),
        ({"type": ["null", "null"]}, "needs a type"),
        (NULLS | {"required": ["a", "a"]}, "different names"),
        ({"type": "object", "additionalProperties": 7}, "true, false or a schema as additionalProperties"),
        ({"type": "string", "maxLength": 2000}, "too large"),
        (nested({"type": "boolean"}, 40), "too large"),
        (DOUBLED, "too large"),
        ({"type": "object", "properties": {f"p{i}": {"const": i} for i in range(2000)}}, "too large"),
        ({}, "needs a type"),
        ({"type": "text"}, "needs a type"),
        ({"type": "text", "enum": ["a"]}, "needs a type"),
        ({"type": "string", "enum": ["a", 5]}, "a value in 'enum' that is not of its type"),
        ({"type": "integer", "const": True}, "a value in 'const' that is not of its type"),
        ({"type": []}, "needs a type"),
        ({"enum": []}, "at least one value"),
        ({"anyOf": []}, "at least one value"),
        ({"type": "integer", "multipleOf": 5}, "keyword 'multipleOf', which is not supported for integer"),
        ({"type": "integer", "minimum": 0.5}, "whole numbers"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "a minimum above its maximum"),
        ({"type": "string", "minLength": 5, "maxLength": 4}, "a minLength above its maxLength"),
        ({"type": "string", "minLength": -1}, "whole numbers from 0"),
        ({"type": "string", "minLength": 1, "pattern": "a"}, "two of pattern, format and a length"),
        ({"type": "string", "format": "email"}, "format that is not one of"),
        ({"type": "string", "pattern": "("}, "pattern that is not a regular expression"),
        ({"type": "string", "pattern": 'a"'}, "no quotes or backslashes"),
        ({"type": "string", "format": ["date"]}, "format that is not one of"),
        ({"type": "string", "pattern": 5}, "pattern that is not a string"),
        ({"type": "array"}, "needs items"),
        ({"type": "object", "properties": {"a": True}}, "at /properties/a is not a JSON object"),
        ({"type": "object", "properties": {"a\n": True}}, r"at /properties/a\\n is not a JSON object"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "requires 'a'"),
        (NULLS | {"required": [["a"]]}, "list of different names"),
        ({"type": "object", "properties": []}, "needs properties"),
        ({"type": "object", "patternProperties": {}}, "'patternProperties'"),
        ({"type": "string", "enum": ["a"], "maxLength": 1}, "'enum' beside 'maxLength'"),
        ({"$ref": "#/$defs/a"}, "leads to no member"),
        (named({"$id": "http://b", "type": "null"}), "'\\$id' below the root"),
        ({"$ref": "#/a/b", "a": {"$id": "http://b", "b": {"type": "null"}}}, "'\\$ref' beside 'a'"),
        ({"$ref": "other.json"}, "does not begin with '#/'"),
        (named({"type": "array", "items": {"$ref": "#/$defs/a"}}), "recursive"),
    ],
)
def test_a_wrong_schema_is_one_error(schema: Any, trouble: str) -> None:
    with pytest.raises(InvalidTask, match=trouble) as raised:
        dataclasses.replace(TASK, schema=schema)
    assert str(raised.value).startswith("the task's schema")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "expression",
    [
        *("a(?=b)", "(?i)a", "(?x)a#[\n)|(?:b#]\n", "(?P<name>a)", r"(a)\1", r"\bfoo", r"\p{Lu}", r"\x41"),
        *(r"[^\d]", r"\<a", r"[A-\d]", r"[\d-x]", "[a-z&&[^b]]", "[a&&b]", "[a--b]", "[[:alpha:]]", "[]a]"),
        *("[^]", "[z-a]", "[a", "a{ 2 }", "a{,2}", "a{3,2}", "a{", "{2}a", "}", "]", "*a", "a**", "a{2}+"),
        *("(|*)", "^*", "^^a", "a$$", "(^a$)", "a^b", "a|b^", "$a", "a\nb", "\u2028", "[\n]"),
    ],
)
def test_what_readers_of_expressions_do_not_share_is_refused(expression: str) -> None:
    for schema in (expression, {"type": "string", "pattern": expression}):
        with pytest.raises(InvalidTask, match="is not a regular expression that can be used: it has"):
            dataclasses.replace(TASK, schema=schema)


def test_states_on_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automaton_module, "MOST_STATES", 9)
    assert matches("[ab]{6}", "ababab")
    with pytest.raises(InvalidTask, match="too large"):
        dataclasses.replace(TASK, schema="[^a]{6}")


def test_a_schema_is_kept_as_a_string_for_one_field_on_one_line() -> None:
    task = dataclasses.replace(TASK, schema=TICKET)
    assert task.identity()["schema"] == json.dumps(TICKET)
    assert dataclasses.replace(task) == task
    assert hash(task)
    assert task.layout == layout.TextLayout(("Ticket",), schema=json.dumps(TICKET))
    for settings in ({"multiline": True}, {"text_field": "", "text_fields": ("A", "B")}):
        with pytest.raises(InvalidTask, match="has one text field and is not multiline"):
            dataclasses.replace(TASK, schema="a+", **settings)


@pytest.mark.parametrize("schema", ["schema = '[0-9]+'", '[schema]\ntype = "integer"'])
def test_a_schema_in_a_file(schema: str, tmp_path: Path) -> None:
    words = 'name = "n"\ninstruction = "Write."\nlabel_field = "Kind"\ntext_field = "Ticket"\n'
    path = tmp_path / "task.toml"
    path.write_text(words + schema)
    assert dpf.Task.from_file(path).schema in {"[0-9]+", '{"type": "integer"}'}
    path.write_text(words + "schema = '('")
    with pytest.raises(InvalidTask, match=r"task\.toml: the task's schema is not a regular expression"):
        dpf.Task.from_file(path)


def test_what_a_long_text_forces() -> None:
    long = automaton("[ab]{9000}c")
    assert long.forced(long.after(long.initial, b"a" * 9000))[0] == "c"
    assert long.forced(long.initial)[0] == ""
