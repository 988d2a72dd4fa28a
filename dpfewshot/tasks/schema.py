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
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks.automaton import LONGEST, TOO_DEEP, TOO_LARGE, Automaton, automaton_of
from dpfewshot.tasks.expressions import escaped, letters_of_strings, portable

_JSON: Final = re.compile(r"\s*\{(?!\d)")
"""How a JSON schema begins. An expression begins with a brace only as the repetition of a space."""

_LETTER: Final = rf'(?:{letters_of_strings()}|\\["\\/bfnrt])'
"""One character of a JSON string."""

_FRACTION: Final = r"(?:\.[0-9]{1,6})?"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z"
_DATE: Final = (
    r"[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
"""A date of the calendar from the year 1000. 29 February is left out, whatever the year."""

_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}

_IDENTIFIERS: Final = frozenset({"$id", "$schema"})
"""Keywords that restrict nothing at the root. Below it they change what `$ref` and other keywords mean."""

_NOTES: Final = _IDENTIFIERS | {
    *("$comment", "$defs", "default", "definitions", "deprecated"),
    *("description", "examples", "readOnly", "title", "writeOnly"),
}
"""Keywords that restrict nothing."""

_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
}

_VALUES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
"""The values of each type. 5.0 is no integer here: validators differ."""

_LARGEST: Final = 10**15 - 1
_MOST_WRITTEN: Final = 20 * LONGEST
"""The most characters that are written for a schema and all the schemas within it."""


def checked(schema: object) -> str:
    """A schema as a task keeps it: JSON, or a regular expression.

    A mapping is a JSON schema, and so is a string that begins with a brace, which no regular expression does.
    Refuses with `InvalidTask` what cannot be used.
    """
    if not isinstance(schema, (str, Mapping)):
        raise InvalidTask(f"the task's schema must be a mapping or a string, not {type(schema).__name__}")
    kept = schema if isinstance(schema, str) and not _JSON.match(schema) else _json(schema)
    automaton(kept)
    return kept


@lru_cache(maxsize=8)
def automaton(schema: str) -> Automaton:
    """The automaton of a schema that a task keeps; `InvalidTask` if it cannot be used."""
    try:
        if schema.startswith("{"):
            return automaton_of(regular_expression(json.loads(schema)))
        return automaton_of(portable(schema))
    except InvalidTask as error:
        raise InvalidTask(f"the task's schema {error}") from None
    except RecursionError:
        raise InvalidTask(f"the task's schema {TOO_DEEP}") from None


def _json(schema: str | Mapping[str, object]) -> str:
    """A JSON schema as one line of JSON."""
    given = isinstance(schema, str)
    try:
        written = schema if isinstance(schema, str) else json.dumps(dict(schema), allow_nan=False)
        kept = json.dumps(json.loads(written, object_pairs_hook=_once), ensure_ascii=False, allow_nan=False)
        kept.encode()  # refuses half a surrogate pair
    except InvalidTask:
        raise
    except RecursionError:
        raise InvalidTask(f"the task's schema {TOO_DEEP}") from None
    except (TypeError, ValueError):
        trouble = "begins like a JSON schema and is not JSON" if given else "holds a value that JSON has not"
        raise InvalidTask(f"the task's schema {trouble}") from None
    return kept


def _once(members: list[tuple[str, object]]) -> dict[str, object]:
    """The members of an object, whose names differ: readers of JSON may take the first or the last."""
    found: dict[str, object] = {}
    for name, value in members:
        if name in found:
            raise InvalidTask(f"the task's schema has the key {name!r} twice in one object")
        found[name] = value
    return found


def regular_expression(schema: object) -> str:
    """The regular expression whose matches are JSON texts that are valid under a schema from `json.loads`.

    `InvalidTask` says where the schema is wrong, or has a keyword that is not supported.
    """
    return _Translation(schema).of(schema, "", ())


class _Translation:
    """Translates one schema. Every method takes the place in the schema, for messages."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._written = 0

    def of(self, schema: object, place: str, within: tuple[str, ...]) -> str:
        if not isinstance(schema, dict):
            raise _wrong(place, "is not a JSON object; a schema says its type, enum, const, anyOf or $ref")
        self._check_identifiers(schema, place)
        expression = self._of(schema, place, within)
        self._written += len(expression)
        if len(expression) > LONGEST or self._written > _MOST_WRITTEN:
            raise _wrong(place, TOO_LARGE)
        return expression

    def _of(self, schema: Mapping[str, Any], place: str, within: tuple[str, ...]) -> str:
        used = schema.keys() - _NOTES
        if "$ref" in used:
            _check_alone(used, "$ref", place)
            return self._referenced(schema["$ref"], place, within)
        if "anyOf" in used:
            _check_alone(used, "anyOf", place)
            return _either(
                self.of(each, f"{place}/anyOf/{number}", within)
                for number, each in enumerate(_list(schema, "anyOf", place))
            )
        for name in ("enum", "const"):
            if name in used:
                _check_alone(used - {"type"}, name, place)
                values = _list(schema, "enum", place) if name == "enum" else [schema["const"]]
                if "type" in used and not all(_has_type(value, _types(schema, place)) for value in values):
                    raise _wrong(place, f"has a value in {name!r} that is not of its type")
                return _either(escaped(_written(value)) for value in values)
        return self._typed(schema, used, place, within)

    def _typed(self, schema: Mapping[str, Any], used: Any, place: str, within: tuple[str, ...]) -> str:
        types = _types(schema, place)
        known = frozenset().union(*(_KEYWORDS[each] for each in types))
        if unknown := sorted(used - known - {"type"}):
            raise _wrong(
                place, f"has the keyword {unknown[0]!r}, which is not supported for {' and '.join(types)}"
            )
        constants = {"boolean": "(?:true|false)", "null": "null"}
        return _either(
            constants.get(each) or getattr(self, f"_{each}")(schema, place, within) for each in types
        )

    def _string(self, schema: Mapping[str, Any], place: str, _within: tuple[str, ...]) -> str:
        if len(schema.keys() & {"pattern", "format"}) + bool(schema.keys() & {"minLength", "maxLength"}) > 1:
            raise _wrong(place, "has two of pattern, format and a length: put the length into the pattern")
        if "format" in schema:
            if not isinstance(schema["format"], str) or schema["format"] not in _FORMATS:
                raise _wrong(place, f"has a format that is not one of {', '.join(_FORMATS)}: use a pattern")
            return f'"{_FORMATS[schema["format"]]}"'
        if "pattern" in schema:
            return f'"{_pattern(schema["pattern"], place)}"'
        least, most = _span(schema, "minLength", "maxLength", place)
        return f'"{_LETTER}{_times(least, most)}"'

    def _integer(self, schema: Mapping[str, Any], place: str, _within: tuple[str, ...]) -> str:
        return whole_numbers(*_limits(schema, place))

    def _number(self, schema: Mapping[str, Any], place: str, _within: tuple[str, ...]) -> str:
        least, most = _limits(schema, place)
        parts = [whole_numbers(least, most)]
        if least < most and least < 0:  # with a fraction, its whole part is below the bound
            parts.append(f"-{whole_numbers(max(-most, 0), -least - ('minimum' in schema))}{_FRACTION}")
        if least < most and most > 0:
            parts.append(f"{whole_numbers(max(least, 0), most - ('maximum' in schema))}{_FRACTION}")
        return _either(parts)

    def _object(self, schema: Mapping[str, Any], place: str, within: tuple[str, ...]) -> str:
        members, required = schema.get("properties", {}), schema.get("required", [])
        names = isinstance(required, list) and all(isinstance(name, str) for name in required)
        if not isinstance(schema.get("additionalProperties", True), (bool, dict)):
            raise _wrong(place, "needs true, false or a schema as additionalProperties")
        if not isinstance(members, dict) or not names or len(set(required)) < len(required):
            raise _wrong(place, "needs properties as an object and required as a list of different names")
        if missing := [name for name in required if name not in members]:
            raise _wrong(place, f"requires {missing[0]!r}, which is not among its properties")
        # From the last member to the first: what follows if a member stands before, and if none does.
        after, alone = "", ""
        for name, value in reversed(list(members.items())):
            member = f"{escaped(_written(name))}: {self.of(value, f'{place}/properties/{name}', within)}"
            if name in required:
                after, alone = f", {member}{after}", f"{member}{after}"
            else:
                after, alone = f"(?:, {member})?{after}", _either([f"{member}{after}", alone])
            if max(len(after), len(alone)) > LONGEST:  # before the next member doubles it
                raise _wrong(place, TOO_LARGE)
        return rf"\{{{alone}\}}"

    def _array(self, schema: Mapping[str, Any], place: str, within: tuple[str, ...]) -> str:
        if "items" not in schema:
            raise _wrong(place, "needs items: the schema of its elements")
        least, most = _span(schema, "minItems", "maxItems", place)
        if most == 0:
            return r"\[\]"
        item = self.of(schema["items"], f"{place}/items", within)
        further = "" if most == 1 else f"(?:, {item}){_times(max(least - 1, 0), most and most - 1)}"
        return rf"\[{item}{further}\]" if least else rf"\[(?:{item}{further})?\]"

    def _referenced(self, name: object, place: str, within: tuple[str, ...]) -> str:
        if not isinstance(name, str) or not name.startswith("#/"):
            raise _wrong(place, "has a $ref that does not begin with '#/': put what it names into $defs")
        if name in within:
            raise _wrong(place, f"is recursive: {name!r} contains itself")
        found = self._root
        for key in unquote(name[2:]).split("/"):
            inner = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or inner not in found:
                raise _wrong(place, f"has a $ref to {name!r}, which leads to no member of an object")
            self._check_identifiers(found, place)
            found = found[inner]
        return self.of(found, place, (*within, name))

    def _check_identifiers(self, schema: Mapping[str, Any], place: str) -> None:
        if schema is not self._root and (found := sorted(schema.keys() & _IDENTIFIERS)):
            raise _wrong(place, f"has {found[0]!r} below the root: put its definitions into the root's $defs")


def _pattern(pattern: object, place: str) -> str:
    """A pattern of a whole string, without what a JSON string escapes."""
    if not isinstance(pattern, str):
        raise _wrong(place, "has a pattern that is not a string")
    try:
        return f"(?:{portable(pattern, in_json=True)})"
    except InvalidTask as error:
        raise _wrong(place, f"has a pattern that {error}") from None


def _written(value: object) -> str:
    """A value as JSON on one line. JSON leaves some line breaks as they are."""
    written = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029]", lambda letter: rf"\u{ord(letter[0]):04x}", written)


def _types(schema: Mapping[str, Any], place: str) -> list[str]:
    told = schema.get("type")
    types: list[Any] = told if isinstance(told, list) else [told]
    known = all(isinstance(each, str) and each in _KEYWORDS for each in types)
    if not types or not known or len(set(types)) < len(types):
        raise _wrong(place, f"needs a type: one or several of {', '.join(_KEYWORDS)}")
    return types


def _has_type(value: object, types: Sequence[str]) -> bool:
    return any(type(value) in _VALUES[each] for each in types)


def _either(expressions: Any) -> str:
    return f"(?:{'|'.join(expressions)})"


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


def _times(least: int, most: int | None) -> str:
    """The repetition of an expression."""
    return f"{{{least},{'' if most is None else most}}}"


def _limits(schema: Mapping[str, Any], place: str) -> tuple[int, int]:
    told = schema.get("minimum", -_LARGEST), schema.get("maximum", _LARGEST)
    least, most = (int(each) if isinstance(each, float) and each.is_integer() else each for each in told)
    for value in (least, most):
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
            raise _wrong(place, "needs whole numbers of at most 15 digits as minimum and maximum")
    if most < least:
        raise _wrong(place, "has a minimum above its maximum")
    return least, most


def whole_numbers(least: int, most: int) -> str:
    """The expression of the whole numbers from `least` to `most`, and -0 never.

    Example:
        >>> whole_numbers(7, 42)
        '(?:[7-9]|[1-3][0-9]|4[0-2])'
    """
    if least < 0:
        below = f"-{whole_numbers(max(1, -most), -least)}"
        return below if most < 0 else f"(?:{below}|{whole_numbers(0, most)})"
    parts: list[str] = []
    while least <= most:
        free = 0  # the last digits that may be any
        while least % 10 ** (free + 1) == 0 < least and least + 10 ** (free + 1) <= most + 1:
            free += 1
        rest, digit = divmod(least // 10**free, 10)
        last = min(9, digit + (most + 1 - least) // 10**free - 1)
        longest = len(str(most + 1)) - 2
        if (rest, digit) == (0, 1) and free < longest:  # all numbers of several lengths
            parts.append(f"[1-9][0-9]{{{free},{longest}}}")
            least = 10 ** (longest + 1)
        else:
            digits = str(digit) if digit == last else f"[{digit}-{last}]"
            parts.append(f"{rest or ''}{digits}{'[0-9]' * free}")
            least += (last - digit + 1) * 10**free
    return f"(?:{'|'.join(parts)})"
