"""A task's schema: a regular expression, or a JSON schema that becomes one.

Only keywords whose meaning a regular expression can hold are translated; any other is refused, so what
matches is valid under the whole schema. The expression is narrower than the schema. Members come in the
schema's order, without those that the schema does not name. A space follows each `,` and `:`. Numbers have at
most 15 digits before the point and 6 behind it. Line breaks and control characters of strings are escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import unquote

from dpfewshot.errors import InvalidTask
from dpfewshot.runtime.files import once_each
from dpfewshot.tasks.automaton import TOO_DEEP, Automaton, Either, Part, Times, automaton_of, between
from dpfewshot.tasks.expressions import parsed

_JSON: Final = re.compile(r"\s*\{(?!\d)")
"""How a JSON schema begins. An expression begins with a brace only as the repetition of a space."""

_LETTER: Final = Either([parsed(".", in_json=True), ["\\", parsed(r'["\\/bfnrt]')]])
"""One character of a JSON string."""

_FRACTION: Final = parsed(r"(\.\d{1,6})?")
_TIME: Final = parsed(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ")
_DATE: Final = parsed(
    r"[12]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
)
"""A date of the calendar from the year 1000. 29 February is left out, whatever the year."""

_FORMATS: Final[Mapping[str, Part]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": [_DATE, "T", _TIME],
    "uuid": parsed("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}

_IDENTIFIERS: Final = frozenset({"$id", "$schema"})
"""Keywords that restrict nothing at the root. Below it they change what `$ref` and other keywords mean."""

_NOTES: Final = _IDENTIFIERS | {
    *("$comment", "$defs", "default", "definitions", "deprecated"),
    *("description", "examples", "readOnly", "title", "writeOnly"),
}
"""Keywords that restrict nothing."""

_TYPES: Final[Mapping[str, tuple[set[type], set[str]]]] = {
    "string": ({str}, {"minLength", "maxLength", "pattern", "format"}),
    "integer": ({int}, {"minimum", "maximum"}),
    "number": ({int, float}, {"minimum", "maximum"}),
    "boolean": ({bool}, set()),
    "null": ({type(None)}, set()),
    "object": ({dict}, {"properties", "required", "additionalProperties"}),
    "array": ({list}, {"items", "minItems", "maxItems"}),
}
"""The values of each type, and the keywords beside it. 5.0 is no integer here: validators differ."""

_LARGEST: Final = 10**15 - 1


def checked(schema: object) -> str:
    """A schema as a task keeps it: JSON, or a regular expression.

    A mapping is a JSON schema, and so is a string that begins with a brace, which no regular expression does.
    Refuses with `InvalidTask` what cannot be used.
    """
    if not isinstance(schema, (str, Mapping)):
        raise InvalidTask(f"the task's schema must be a mapping or a string, not {type(schema).__name__}")
    try:
        kept = schema if isinstance(schema, str) and not _JSON.match(schema) else _json(schema)
        automaton(kept)
    except InvalidTask as error:
        raise InvalidTask(f"the task's schema {error}") from None
    except RecursionError:
        raise InvalidTask(f"the task's schema {TOO_DEEP}") from None
    return kept


@lru_cache(maxsize=8)
def automaton(schema: str) -> Automaton:
    """The automaton of a schema that `checked` returned."""
    if not _JSON.match(schema):
        return automaton_of(parsed(schema))
    root = json.loads(schema)
    return automaton_of(_Translation(root).of(root, ""))


def _json(schema: str | Mapping[str, object]) -> str:
    """A JSON schema as one line of JSON."""
    given, unique = isinstance(schema, str), partial(once_each, error=InvalidTask)
    try:
        written = schema if isinstance(schema, str) else json.dumps(dict(schema), allow_nan=False)
        kept = json.dumps(json.loads(written, object_pairs_hook=unique), ensure_ascii=False, allow_nan=False)
        kept.encode()  # refuses half a surrogate pair
    except InvalidTask:
        raise
    except (TypeError, ValueError):
        raise InvalidTask(
            "begins like a JSON schema and is not JSON" if given else "holds a value that JSON has not"
        ) from None
    return kept


class _Translation:
    """Translates one schema. Every method takes the place in the schema, for messages."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._named: dict[str, Part | None] = {}  # what each $ref names; None while it is translated

    def of(self, schema: object, place: str) -> Part:
        if not isinstance(schema, dict):
            raise _wrong(place, "is not a JSON object; a schema says its type, enum, const, anyOf or $ref")
        self._check_identifiers(schema, place)
        used = schema.keys() - _NOTES
        if "$ref" in used:
            _check_alone(used, "$ref", place)
            return self._referenced(schema["$ref"], place)
        if "anyOf" in used:
            _check_alone(used, "anyOf", place)
            some = enumerate(_list(schema, "anyOf", place))
            return Either([self.of(each, f"{place}/anyOf/{number}") for number, each in some])
        for name in ("enum", "const"):
            if name in used:
                _check_alone(used - {"type"}, name, place)
                values = _list(schema, "enum", place) if name == "enum" else [schema["const"]]
                types = _types(schema, place) if "type" in used else [*_TYPES]
                if not all(any(type(value) in _TYPES[each][0] for each in types) for value in values):
                    raise _wrong(place, f"has a value in {name!r} that is not of its type")
                return Either([_written(value) for value in values])
        return self._typed(schema, used, place)

    def _typed(self, schema: Mapping[str, Any], used: Any, place: str) -> Part:
        types = _types(schema, place)
        known = set().union(*(_TYPES[each][1] for each in types))
        if unknown := sorted(used - known - {"type"}):
            raise _wrong(
                place, f"has the keyword {unknown[0]!r}, which is not supported for {' and '.join(types)}"
            )
        constants: dict[str, Part] = {"boolean": Either(["true", "false"]), "null": "null"}
        return Either([constants.get(each) or getattr(self, f"_{each}")(schema, place) for each in types])

    def _string(self, schema: Mapping[str, Any], place: str) -> Part:
        if len(schema.keys() & {"pattern", "format"}) + bool(schema.keys() & {"minLength", "maxLength"}) > 1:
            raise _wrong(place, "has two of pattern, format and a length: put the length into the pattern")
        if "format" in schema:
            if not isinstance(schema["format"], str) or schema["format"] not in _FORMATS:
                raise _wrong(place, f"has a format that is not one of {', '.join(_FORMATS)}: use a pattern")
            return ['"', _FORMATS[schema["format"]], '"']
        if "pattern" in schema:
            return ['"', _pattern(schema["pattern"], place), '"']
        return ['"', Times(_LETTER, *_span(schema, "minLength", "maxLength", place)), '"']

    def _integer(self, schema: Mapping[str, Any], place: str) -> Part:
        return _whole_numbers(*_limits(schema, place))

    def _number(self, schema: Mapping[str, Any], place: str) -> Part:
        least, most = _limits(schema, place)
        parts: list[Part] = [_whole_numbers(least, most)]
        if least < most and least < 0:  # with a fraction, its whole part is below the bound
            parts.append(["-", _whole_numbers(max(-most, 0), -least - ("minimum" in schema)), _FRACTION])
        if least < most and most > 0:
            parts.append([_whole_numbers(max(least, 0), most - ("maximum" in schema)), _FRACTION])
        return Either(parts)

    def _object(self, schema: Mapping[str, Any], place: str) -> Part:
        members, required = schema.get("properties", {}), schema.get("required", [])
        names = isinstance(required, list) and all(isinstance(name, str) for name in required)
        if not isinstance(schema.get("additionalProperties", True), (bool, dict)):
            raise _wrong(place, "needs true, false or a schema as additionalProperties")
        if not isinstance(members, dict) or not names or len(set(required)) < len(required):
            raise _wrong(place, "needs properties as an object and required as a list of different names")
        if missing := [name for name in required if name not in members]:
            raise _wrong(place, f"requires {missing[0]!r}, which is not among its properties")
        each = [
            ([f"{_written(name)}: ", self.of(value, f"{place}/properties/{name}")], name in required)
            for name, value in members.items()
        ]
        some = _some(each) if each else ""
        return ["{", some if required else Times(some, 0, 1), "}"]

    def _array(self, schema: Mapping[str, Any], place: str) -> Part:
        if "items" not in schema:
            raise _wrong(place, "needs items: the schema of its elements")
        least, most = _span(schema, "minItems", "maxItems", place)
        if most == 0:
            return "[]"
        item = self.of(schema["items"], f"{place}/items")
        some: Part = [item, Times([", ", item], max(least - 1, 0), most and most - 1)]
        return ["[", some if least else Times(some, 0, 1), "]"]

    def _referenced(self, name: object, place: str) -> Part:
        if not isinstance(name, str) or not name.startswith("#/"):
            raise _wrong(place, "has a $ref that does not begin with '#/': put what it names into $defs")
        if name in self._named:
            if (known := self._named[name]) is None:
                raise _wrong(place, f"is recursive: {name!r} contains itself")
            return known
        self._named[name] = None
        found = self._root
        for key in unquote(name[2:]).split("/"):
            inner = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or inner not in found:
                raise _wrong(place, f"has a $ref to {name!r}, which leads to no member of an object")
            self._check_identifiers(found, place)
            found = found[inner]
        self._named[name] = translated = self.of(found, place)
        return translated

    def _check_identifiers(self, schema: Mapping[str, Any], place: str) -> None:
        if schema is not self._root and (found := sorted(schema.keys() & _IDENTIFIERS)):
            raise _wrong(place, f"has {found[0]!r} below the root: put its definitions into the root's $defs")


def _some(members: Sequence[tuple[Part, bool]]) -> Part:
    """Some members of an object, at least one, with those that are required."""
    if len(members) == 1:
        return members[0][0]
    half = len(members) // 2
    further = [Times([", ", member], int(needed), 1) for member, needed in members[half:]]
    ways: list[Part] = [[_some(members[:half]), *further]]
    if not any(needed for _, needed in members[:half]):
        ways.append(_some(members[half:]))
    return Either(ways)


def _pattern(pattern: object, place: str) -> Part:
    """A pattern of a whole string, without what a JSON string escapes."""
    if not isinstance(pattern, str):
        raise _wrong(place, "has a pattern that is not a string")
    try:
        return parsed(pattern, in_json=True)
    except InvalidTask as error:
        raise _wrong(place, f"has a pattern that {error}") from None


def _written(value: object) -> str:
    """A value as JSON on one line. JSON leaves some line breaks as they are."""
    written = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029]", lambda letter: rf"\u{ord(letter[0]):04x}", written)


def _types(schema: Mapping[str, Any], place: str) -> list[str]:
    told = schema.get("type")
    types: list[Any] = told if isinstance(told, list) else [told]
    known = all(isinstance(each, str) and each in _TYPES for each in types)
    if not types or not known or len(set(types)) < len(types):
        raise _wrong(place, f"needs a type: one or several of {', '.join(_TYPES)}")
    return types


def _wrong(place: str, what: str) -> InvalidTask:
    return InvalidTask(f"{f'at {repr(place)[1:-1]} ' if place else ''}{what}")


def _check_alone(used: Any, name: str, place: str) -> None:
    if others := sorted(used - {name}):
        raise _wrong(place, f"has {name!r} beside {others[0]!r}, which is not supported")


def _list(schema: Mapping[str, Any], name: str, place: str) -> Sequence[object]:
    values = schema[name]
    if not isinstance(values, list) or not values:
        raise _wrong(place, f"needs at least one value in the list {name!r}")
    return values


def _span(schema: Mapping[str, Any], first: str, last: str, place: str) -> tuple[int, int | None]:
    least, most = schema.get(first, 0), schema.get(last)
    for value in (least, most if last in schema else 0):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _wrong(place, f"needs whole numbers from 0 up as {first} and {last}")
    if most is not None and most < least:
        raise _wrong(place, f"has a {first} above its {last}")
    return least, most


def _limits(schema: Mapping[str, Any], place: str) -> tuple[int, int]:
    told = schema.get("minimum", -_LARGEST), schema.get("maximum", _LARGEST)
    least, most = (int(each) if isinstance(each, float) and each.is_integer() else each for each in told)
    for value in (least, most):
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
            raise _wrong(place, "needs whole numbers of at most 15 digits as minimum and maximum")
    if most < least:
        raise _wrong(place, "has a minimum above its maximum")
    return least, most


def _whole_numbers(least: int, most: int) -> Part:
    """The whole numbers from `least` to `most`, without -0."""
    if least < 0:
        below: Part = ["-", _whole_numbers(max(1, -most), -least)]
        return below if most < 0 else Either([below, _whole_numbers(0, most)])
    digits = range(ord("0"), ord("9") + 1)
    nines = [10**length - 1 for length in range(len(str(least)), len(str(most)))]  # the last of each length
    ends = zip([least, *(each + 1 for each in nines)], [*nines, most], strict=True)
    return Either([between(str(first).encode(), str(last).encode(), digits) for first, last in ends])
