"""A byte-level tokenizer with special tokens, and a chat template in its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dpfewshot.backends.protocol import Tokens
from tests.support.fields import Writer

SPECIAL = ("<|im_start|>", "<|im_end|>")
START, END = 256, 257
"""Their token ids, behind those of the bytes."""

Template = Callable[[Sequence[str]], str]


def chatml(contents: Sequence[str]) -> str:
    """The template of many models: a system turn, then turns between special tokens."""
    names = ("user", "assistant")
    turns = [f"{SPECIAL[0]}{names[place % 2]}\n{each}{SPECIAL[1]}\n" for place, each in enumerate(contents)]
    return f"{SPECIAL[0]}system\nBe brief.{SPECIAL[1]}\n{''.join(turns)}{SPECIAL[0]}assistant\n"


class Chat(Writer):
    """Writes " Late" and ends the line, or its turn.

    Args:
        template: writes a conversation.
        end: the token that it ends a text with.
    """

    vocabulary_size = 258
    end_token_ids = frozenset({END})

    def __init__(self, template: Template = chatml, end: int = ord("\n")) -> None:
        super().__init__({"Ticket": " Late\n"})
        self.template = template
        self.end = end

    def _next(self, text: str) -> int:
        token = super()._next(text)
        return self.end if token == ord("\n") else token

    def chat_text(self, contents: Sequence[str]) -> str:
        return self.template(contents)

    def chat_tokens(self, text: str) -> list[int]:
        """The bytes, and a token for each special one that is spelled."""
        pieces = re.split("|".join(f"({re.escape(name)})" for name in SPECIAL), text)
        return [
            token
            for piece in filter(None, pieces)
            for token in ([START + SPECIAL.index(piece)] if piece in SPECIAL else piece.encode())
        ]

    def detokenize(self, tokens: Tokens) -> str:
        """The bytes' text, with special tokens spelled out."""
        spelled = (bytes([token]) if token < START else SPECIAL[token - START].encode() for token in tokens)
        return b"".join(spelled).decode(errors="replace")


def special(tokens: Tokens) -> list[int]:
    return [token for token in tokens if token >= START]
