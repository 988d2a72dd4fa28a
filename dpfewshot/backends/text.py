"""Tokens as text: whole characters, the tokens that end a text, and chat templates.

A character is a Unicode code point. Byte-level tokenizers spread many of them over two to four tokens. No cap
cuts one, and no released text ends in a part of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Final, NoReturn

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, needs_extra

BROKEN: Final = "\ufffd"
"""What `detokenize` returns for bytes that are no character."""

END_NAMES = (
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|endofprompt|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<turn|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""The texts of common end tokens. A model's configuration often names one; a server names none."""


# ---- characters ------------------------------------------------------------------------------------------


def readable(text: str) -> str:
    """Return the text without lone surrogates: whether a call fails must not depend on a record's text."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def whole_text(backend: LogprobBackend, tokens: Sequence[int]) -> str:
    """Return the text of tokens, without the characters that they hold only in part."""
    return backend.detokenize(tokens).replace(BROKEN, "")


def first_tokens(backend: LogprobBackend, tokens: Sequence[int], count: int) -> list[int]:
    """Return the first `count` tokens of a text, without those of a character that ends after them."""
    kept = list(tokens[:count])
    while len(kept) < len(tokens) and _ends_within_a_character(backend, kept, tokens):
        kept.pop()
    return kept


def _ends_within_a_character(backend: LogprobBackend, kept: Sequence[int], tokens: Sequence[int]) -> bool:
    # The last token alone answers for most cuts, without the rest of the text.
    if not backend.detokenize(kept[-1:]).endswith(BROKEN):
        return False
    beginning = backend.detokenize(kept)
    return beginning.endswith(BROKEN) and not backend.detokenize(tokens).startswith(beginning)


# ---- ends ------------------------------------------------------------------------------------------------


def ending_tokens(backend: LogprobBackend) -> frozenset[int]:
    """Return the tokens that end a demonstration: the model's end tokens, and all that hold a newline."""

    def find() -> frozenset[int]:  # reads the text of every token, 0.2 s for a vocabulary of 50,000
        newlines = (t for t, text in enumerate(backend.token_texts()) if "\n" in text)
        return frozenset(backend.end_token_ids).union(newlines)

    return backend.known("ending tokens", find)


_MAY_BEGIN_A_WORD: Final = re.compile(r"[^\W\d_]|\ufffd")


def wordless_tokens(backend: LogprobBackend) -> frozenset[int]:
    """Return the tokens of figures and signs alone; blanks and parts of characters are none of them."""

    def find() -> frozenset[int]:
        texts = enumerate(backend.token_texts())
        return frozenset(t for t, text in texts if text.strip() and not _MAY_BEGIN_A_WORD.search(text))

    return backend.known("wordless tokens", find)


# ---- chat templates --------------------------------------------------------------------------------------


def messages_of(contents: Sequence[str]) -> list[dict[str, str]]:
    """Return the messages of a conversation; the first is the user's, the next the model's, and so on."""
    return [
        {"role": "assistant" if place % 2 else "user", "content": content}
        for place, content in enumerate(contents)
    ]


def conversation(template: str | None, contents: Sequence[str], *, bos: str, eos: str) -> str:
    """Return the text of a conversation, up to where the model's next answer begins.

    The template runs in Jinja's sandbox. It does not learn today's date.

    Args:
        template: a Jinja template, as the model's file holds it; None if it has none. Transformers' tag
            `generation`, which marks an answer for training, has no effect.
        contents: of the messages, all of them public.
        bos, eos: the texts of the tokens that begin and end a sequence, or empty.
    """
    if not template:
        raise BackendError("the model has no chat template: use a chat model, or chat=False")
    with needs_extra("a chat template", "demo"):
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    # as transformers' templates expect: letters and markup stay as they are
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    told = {"bos_token": bos, "eos_token": eos, "tools": None, "documents": None}  # as transformers tells
    try:
        opened = re.sub(r"(\{%[-+]?\s*)generation\b", r"\1if true", template)
        plain = re.sub(r"(\{%[-+]?\s*)endgeneration\b", r"\1endif", opened)
        return environment.from_string(plain).render(
            messages=messages_of(contents), add_generation_prompt=True, **told
        )
    except Exception as error:  # a template may raise anything
        raise template_failed(str(error)) from error


def template_failed(reason: str) -> BackendError:
    """Return the error for a template that refuses a conversation of public texts."""
    said = "".join(letter if letter.isprintable() else " " for letter in reason[:200])
    return BackendError(f"the model's chat template refuses turns that alternate: {said}; use chat=False")


def _refuse(message: object = "") -> NoReturn:
    raise ValueError(str(message))
