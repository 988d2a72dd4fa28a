r"""The turns of a chat model's own template, as public tokens around texts.

The template writes a conversation of public words, once. What it puts around them is cut out and tokenised
with its special tokens. A text is tokenised apart from it, so it cannot hold what ends its turn.

    <|im_start|>user\n          head
    ...
    <|im_end|>\n<|im_start|>assistant\n         answer
    ...
    <|im_end|>\n<|im_start|>user\n              following
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dpfewshot.backends.protocol import LogprobBackend, not_a_backend
from dpfewshot.errors import BackendError
from dpfewshot.tasks import Task

_CONVERSATIONS: Final = (
    ("quince",),
    ("Hazel and rowan", "Larch.", "alder"),
    ("Yew", "Is it birch?", "maple, oak", "elm 7", "Juniper!"),
    tuple(f"{number} 'firs' \"and\" <pines> & {'cedars ' * 40}\nor {number}" for number in range(101, 122)),
)
"""Public words that a template does not hold: each time others, and more; the last ones are long and odd."""


@dataclass(frozen=True, slots=True)
class ChatTurns:
    """Public tokens around the turns of a conversation.

    Attributes:
        head: before the user's first turn, without the token that the backend puts in front of every prompt.
        answer: between a turn of the user and the model's answer.
        following: between an answer and the user's next turn. It holds a token that ends a text.
    """

    head: tuple[int, ...]
    answer: tuple[int, ...]
    following: tuple[int, ...]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the tokens."""
        return hashlib.sha256(repr((self.head, self.answer, self.following)).encode()).hexdigest()


def chat_turns(backend: object) -> ChatTurns:
    """Return the turns of a backend's model, found once: a template may write the time of day.

    Raises:
        BackendError: the backend gives no template, or one whose turns depend on their place or their text,
            or that texts could write themselves.
    """
    if not isinstance(backend, LogprobBackend):
        raise not_a_backend("the backend", backend)
    return backend.known("chat turns", lambda: _turns(backend))


def in_chat(task: Task, backend: LogprobBackend) -> Task:
    """Return the task with `chat=True` if the model has a template that can be used, else as it is.

    Raises:
        BackendError: the model could not be asked.
    """
    try:
        chat_turns(backend)
    except BackendError as error:
        if error.retryable:  # a resumed run would else have other prompts
            raise
        return task
    return replace(task, chat=True)


def _turns(backend: LogprobBackend) -> ChatTurns:
    around = [_around(backend.chat_text(contents), contents) for contents in _CONVERSATIONS]
    heads = {pieces[0] for pieces in around}
    answers = {piece for pieces in around for piece in pieces[1::2]}
    followings = {piece for pieces in around for piece in pieces[2::2]}
    if any(len(each) != 1 for each in (heads, answers, followings)):
        raise BackendError(
            "the model's chat template writes a turn differently by its place or its text: use chat=False"
        )
    (before,), (between,), (behind,) = heads, answers, followings
    head, answer, following = (tuple(backend.chat_tokens(piece)) for piece in (before, between, behind))
    ending = _special(backend, behind, following)[:1]
    if not _special(backend, between, answer) or not backend.end_token_ids.issuperset(ending or {-1}):
        raise BackendError(
            "the model's chat template separates turns without special tokens, so a text could write a turn: "
            "use chat=False"
        )
    return ChatTurns(head, answer, following)


def _around(text: str, contents: Sequence[str]) -> list[str]:
    """Return what stands before, between and after the contents, which must stand there once, in order."""
    pieces = []
    for content in contents:
        before, found, text = text.partition(content)
        if not found or content in text:
            raise BackendError("the model's chat template changes or repeats a turn's text: use chat=False")
        pieces.append(before)
    return [*pieces, text]


def _special(backend: LogprobBackend, piece: str, tokens: Sequence[int]) -> list[int]:
    """The tokens of a piece that neither the piece becomes as a text, nor the token's spelling."""
    ordinary = set(backend.tokenize(piece))
    return [
        token
        for token in tokens
        if token not in ordinary and token not in backend.tokenize(backend.detokenize([token]))
    ]
