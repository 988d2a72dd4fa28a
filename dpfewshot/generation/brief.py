"""Texts by a text writer: a chat model that is told what a released histogram says, and no record.

The prompt and the answer are public: post-processing of the histogram.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpfewshot.backends.chat_writer import TextWriter
from dpfewshot.errors import BackendError, DPFewShotError
from dpfewshot.tasks.layout import BLANK_LINE, on_lines, on_one_line

ASKED: Final = 6
"""Texts that a text writer is asked for, of which one is released: the first without a flaw."""

_FIRSTS, _WORDS, _EARLIER = 12, 40, 20
"""The most first words, words and earlier texts that it is told."""

_THOUGHTS: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
"""What a reasoning model may say before its answer."""

_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What a terminal may take for a command, and line ends of other kinds."""

_MARK: Final = re.compile(r"\d{1,2}[.):]\s+|[-*\u2022]\s+")
"""What a model puts before the lines of a list, asked or not."""


@dataclass(frozen=True)
class Brief:
    """What a text writer is told. Public.

    Attributes:
        preamble: `Task.preamble`.
        topic: the label's field and name, with what the label's text is about.
        words: how many a text shall have; None if that is not known.
        most_words: how many fit.
        firsts, known: first words and words of the records, the commonest first.
        marks, lower: whether the records' sentences end with a mark; have no capital letters.
        earlier: texts that are released already.
        multiline: whether a text has line breaks, but no blank line.
    """

    preamble: str
    topic: str
    words: int | None
    most_words: int
    firsts: Sequence[str]
    known: Sequence[str]
    marks: bool
    lower: bool
    earlier: Sequence[str]
    multiline: bool

    def __str__(self) -> str:
        each = "with a blank line between them" if self.multiline else "each on a line of its own"
        length = f"At most {self.most_words}"
        if self.words is not None:
            length = f"About {min(self.words, self.most_words)}, and at most {self.most_words},"
        lines = [
            f"{self.preamble}{self.topic}\n",
            f"Write {ASKED} texts, as {ASKED} people would who know nothing of each other,",
            f"{each}, without a number and without anything else.",
            f"{length} words each.",
        ]
        if self.firsts:
            lines.append(f"Real ones often begin with: {', '.join(self.firsts[:_FIRSTS])}.")
        if self.known:
            lines.append(
                f"Words of real ones, the commonest first: {', '.join(self.known[:_WORDS])}. Use them where "
                "they fit, a few in each, and none for its own sake."
            )
        if self.lower:
            lines.append("Real ones have no capital letters and no marks.")
        elif not self.marks:
            lines.append("Real ones end without a mark.")
        if self.earlier:
            lines += ["Yours differ from these, which are there already:", *self.earlier[-_EARLIER:]]
        return "\n".join(lines)

    def texts(self, writer: TextWriter) -> list[str]:
        """What the writer makes of it, in its order.

        Raises:
            BackendError: it fails, or writes nothing.
        """
        try:
            answer: object = writer(str(self))
        except DPFewShotError:
            raise
        except Exception as error:
            raise BackendError(
                f"the text writer failed with {type(error).__name__}", retryable=True
            ) from error
        if not isinstance(answer, str):
            raise BackendError(f"the text writer must return text, not {type(answer).__name__}")
        said = _CONTROL.sub(" ", _THOUGHTS.sub("", answer))
        parts = (
            map(on_lines, BLANK_LINE.split(said)) if self.multiline else map(on_one_line, said.split("\n"))
        )
        found = [_bare(part) for part in parts]
        if texts := [
            each for each in found if each and not each.endswith(":") and not each.startswith("```")
        ]:
            return texts
        raise BackendError("the text writer wrote no text", retryable=True)


def _bare(text: str) -> str:
    """A text without what a list or a quotation puts around it."""
    bare = _MARK.sub("", text.strip(), count=1) if _MARK.match(text.strip()) else text.strip()
    quoted = len(bare) > 1 and bare[0] + bare[-1] in {'""', "\u201c\u201d"} and bare.count('"') in {0, 2}
    return bare[1:-1].strip() if quoted else bare
