"""Texts by a text writer: a chat model that is told what a released histogram says, and no record.

The prompt and the answer are public: post-processing of the histogram.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Final

from dpfewshot.backends.chat_writer import TextWriter
from dpfewshot.errors import BackendError
from dpfewshot.runtime.background import in_background
from dpfewshot.runtime.stopping import POLL, StopSignal
from dpfewshot.tasks.layout import BLANK_LINE, on_lines, on_one_line

ASKED: Final = 6
"""Texts that a text writer is asked for at a time, of which one is released: the first without a flaw."""

_WORDS, _EARLIER = 40, 20
"""The most words and earlier texts that it is told."""

_COMMON: Final = 0.2
"""The share from which a first word is told: of 60 records, less may be noise, and each text begins so."""

_THOUGHTS: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
"""What a reasoning model may say before its answer."""

_ASIDE: Final = re.compile(
    r"</think>|<[|\uff5c][^<>\n]{0,40}[|\uff5c]>|</?s>|\[/?INST\]|^```[^\n]*", re.MULTILINE
)
"""How chat models mark turns, and fences."""

_LONGEST: Final = 20_000
"""The characters of an answer that are read."""

_KEPT: Final = "\n\u200c\u200d"
"""What is kept of what cannot be seen: line breaks, and what joins letters or parts them."""

_MARK: Final = re.compile(r"(?:[*]{0,2}\(?\d{1,2}[.):]\s?[*]{0,2}\s+|[-*\u2022]\s+)")
"""What stands before the lines of a list."""

_QUOTES: Final = frozenset('"\u201c\u201d\u201e')


@dataclass(frozen=True)
class Brief:
    """What a text writer is told. Public.

    Attributes:
        preamble: `Task.preamble`.
        topic: the label's field and name, with what the label's text is about.
        words: how many a text shall have; None if that is not known.
        most_words: how many fit.
        firsts: the share of the records that begin with each first word, the commonest first.
        known: words of the records, likewise.
        marks, lower: whether the records' sentences end with a mark; have no capital letters.
        earlier: texts that are released already.
        multiline: whether a text has line breaks, but no blank line.
        asked: how many texts it shall write.
    """

    preamble: str
    topic: str
    words: int | None
    most_words: int
    firsts: Mapping[str, float]
    known: Sequence[str]
    marks: bool
    lower: bool
    earlier: Sequence[str]
    multiline: bool
    asked: int = ASKED

    def __str__(self) -> str:
        each = "with a blank line between them" if self.multiline else "each on a line of its own"
        length = f"At most {self.most_words}"
        if self.words is not None and self.words < self.most_words:
            length = f"About {self.words}, and at most {self.most_words},"
        lines = [
            f"{self.preamble}{self.topic}\n",
            f"Write {self.asked} texts, as {self.asked} people would who know nothing of each other,",
            f"{each}, without a number and without anything else.",
            f"{length} words each.",
        ]
        if begin := [
            f"{word} ({100 * share:.0f} %)" for word, share in self.firsts.items() if share >= _COMMON
        ]:
            lines.append(f"First words of real ones: {', '.join(begin)}.")
        if self.known:
            lines.append(
                f"Words of real ones, the commonest first, some by chance: {', '.join(self.known[:_WORDS])}. "
                "Use them where they fit, a few in each, and none for its own sake."
            )
        if self.lower:
            lines.append("Real ones have no capital letters and no marks.")
        elif not self.marks:
            lines.append("Real ones end without a mark.")
        if self.earlier:
            lines += ["Yours differ from these, which are there already:", *self.earlier[-_EARLIER:]]
        return "\n".join(lines)

    def texts(self, writer: TextWriter, stop: StopSignal) -> list[str]:
        """What the writer makes of it, in its order.

        Raises:
            BackendError: it fails, or writes nothing.
            Stopped: the generation was stopped; the call goes on by itself, and nobody waits for it.
        """
        answer, failure = None, None
        try:
            answer = _asked(writer, str(self), stop)
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001 - its message may hold a key
            failure = type(error).__name__
        if failure is not None:
            raise BackendError(f"the text writer failed with {failure}", retryable=True)
        if not isinstance(answer, str):
            raise BackendError(f"the text writer must return text, not {type(answer).__name__}")
        if texts := self._texts_in(answer):
            return texts
        raise BackendError("the text writer wrote no text", retryable=True)

    def _texts_in(self, answer: str) -> list[str]:
        said, times = _THOUGHTS.sub("", answer)[:_LONGEST], 1
        while times:  # what is left may make another mark
            said, times = _ASIDE.subn("", said)
        shown = "".join(one if one.isprintable() or one in _KEPT else " " for one in said)
        parts = BLANK_LINE.split(shown) if self.multiline else shown.split("\n")
        lines = [line for line in map(str.strip, parts) if line]
        marked = [line for line in lines if _MARK.match(line)]
        if 1 < len(marked) >= len(lines) / 2:  # a list, and what is said around it
            lines = [_MARK.sub("", line, count=1) for line in marked]
        elif lines and lines[0].endswith(":"):
            del lines[0]
        fold = on_lines if self.multiline else on_one_line
        return [text for line in lines if (text := fold(_unquoted(line)))]


def _asked(writer: TextWriter, prompt: str, stop: StopSignal) -> object:
    """The writer's answer, from a thread of its own: one that hangs holds up nobody who was cancelled."""
    answer = in_background(lambda: writer(prompt))
    while not answer.done():
        stop.check()
        wait([answer], timeout=POLL)
    return answer.result()


def _unquoted(text: str) -> str:
    """A text without quotation marks around the whole of it."""
    inner = text[1:-1]
    quoted = text[:1] in _QUOTES and text[-1:] in _QUOTES and not _QUOTES.intersection(inner)
    return inner.strip() if quoted else text
