"""What is public of a text that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dpfewshot.prompts.writer import LabelPrompts
from dpfewshot.runtime.stopping import StopSignal


@dataclass(frozen=True, kw_only=True)
class PublicRequest:
    """One text to write, as far as it is public: no record is among it.

    Attributes:
        prompts: of the label, with all its subjects.
        topic: what the text is about, in words, for a text writer.
        earlier: texts of the label that were released before, from which this one differs.
        subject: prompts of the one subject of this text, if no record is in them; None: `prompts`.
        fits: whether the model itself gives a text its label; asked where texts are written without records.
        stop: checked before each draw and after each token.
    """

    prompts: LabelPrompts
    max_tokens: int
    topic: str = ""
    earlier: Sequence[str] = ()
    subject: LabelPrompts | None = None
    fits: Callable[[str], bool] = lambda _text: True
    stop: StopSignal = field(default_factory=StopSignal)
