"""A model's chat template, as its file holds it: a Jinja template that writes a conversation as one text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NoReturn

from dpfewshot.errors import BackendError, MissingExtra

_ROLES: Final = ("user", "assistant")
_LONGEST_REASON: Final = 200


def messages_of(contents: Sequence[str]) -> list[dict[str, str]]:
    """Return the messages of a conversation; the first is the user's, the next the model's, and so on."""
    return [{"role": _ROLES[place % 2], "content": content} for place, content in enumerate(contents)]


def conversation(template: str | None, contents: Sequence[str], *, bos: str, eos: str) -> str:
    """Return the text of a conversation, up to where the model's next answer begins.

    The template runs in Jinja's sandbox. It does not learn today's date.

    Args:
        template: of the model; None if it has none.
        contents: of the messages, all of them public.
        bos: the text of the token that begins a sequence, or empty.
        eos: the text of the token that ends one, or empty.

    Raises:
        BackendError: the model has no template, or its template refuses the conversation.
        MissingExtra: Jinja is not installed.
    """
    if not template:
        raise no_template()
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtra("a chat template", "llama-cpp") from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _json
    told = {"bos_token": bos, "eos_token": eos, "tools": None, "documents": None}  # as transformers tells
    try:
        return environment.from_string(template).render(
            messages=messages_of(contents), add_generation_prompt=True, **told
        )
    except Exception as error:  # a template may raise anything
        raise template_failed(str(error)) from error


def no_template() -> BackendError:
    """Return the error for a model without a template."""
    return BackendError("the model has no chat template: use a chat model, or chat=False")


def template_failed(reason: str) -> BackendError:
    """Return the error for a template that refuses a conversation of public texts."""
    said = "".join(letter if letter.isprintable() else " " for letter in reason[:_LONGEST_REASON])
    return BackendError(f"the model's chat template refuses turns that alternate: {said}; use chat=False")


def _json(value: object, indent: int | None = None) -> str:
    """Write JSON as transformers' templates expect: letters and markup stay as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _Refused(Exception):
    """What a template raises."""


def _refuse(message: object = "") -> NoReturn:
    raise _Refused(str(message))
