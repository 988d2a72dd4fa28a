"""A task's schema: a JSON schema or a regular expression, kept as a string."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks.automaton import Automaton, automaton_of
from dpfewshot.tasks.expressions import portable
from dpfewshot.tasks.json_schema import regular_expression

_JSON: Final = re.compile(r"\s*\{(?!\d)")
"""How a JSON schema begins. An expression begins with a brace only as the repetition of a space."""

_TOO_DEEP: Final = "the task's schema is nested too deeply"


def checked(schema: object) -> str:
    """A schema as a task keeps it: JSON, or a regular expression; "" for none.

    Args:
        schema: a mapping is a JSON schema, and so is a string that begins with a brace, which no regular
            expression does. Any other string is a regular expression.

    Raises:
        InvalidTask: it cannot be used.
        MissingExtra: outlines-core is not installed.
    """
    if schema == "":
        return ""
    if not isinstance(schema, (str, Mapping)):
        raise InvalidTask(f"the task's schema must be a mapping or a string, not {type(schema).__name__}")
    kept = schema if isinstance(schema, str) and not _JSON.match(schema) else _json(schema)
    automaton(kept)
    return kept


@lru_cache(maxsize=8)
def automaton(schema: str) -> Automaton:
    """The automaton of a schema that a task keeps.

    Raises:
        InvalidTask: it cannot be used.
        MissingExtra: outlines-core is not installed.
    """
    try:
        if schema.startswith("{"):
            return automaton_of(regular_expression(json.loads(schema)))
        return automaton_of(portable(schema))
    except InvalidTask as error:
        raise InvalidTask(f"the task's schema {error}") from None
    except RecursionError:
        raise InvalidTask(_TOO_DEEP) from None


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
        raise InvalidTask(_TOO_DEEP) from None
    except (TypeError, ValueError):
        trouble = "begins like a JSON schema and is not JSON" if given else "holds a value that JSON has not"
        raise InvalidTask(f"the task's schema {trouble}") from None
    return kept


def _once(members: list[tuple[str, object]]) -> dict[str, object]:
    """The members of an object, whose names differ: readers of JSON may take the first or the last."""
    found = dict(members)
    if len(found) < len(members):
        raise InvalidTask(f"the task's schema has the key {_repeated(members)!r} twice in one object")
    return found


def _repeated(members: list[tuple[str, object]]) -> str:
    names = [name for name, _ in members]
    return next(name for name in names if names.count(name) > 1)
