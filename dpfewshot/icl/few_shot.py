"""A few-shot prompt in the tokens of one backend: what stands before every text, evaluated once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend, PromptBlock, Tokens, closing_block
from dpfewshot.errors import BackendError, InvalidPlan, InvalidRecords, InvalidTask
from dpfewshot.icl.label_tree import LabelTree
from dpfewshot.prompts.few_shot import PromptFormat, prompt_format
from dpfewshot.runtime.redaction import is_failure, may_pass
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration


class FewShotPrompt:
    """Everything before a text, and how texts and labels follow it.

    A text's tokens follow the prefix, and a label's tokens follow the text's, as they do where the whole
    prompt is tokenised at once: each is tokenised behind the words that it follows.

    Args:
        task: a task, or the format itself.
        backend: any language model.
        demonstrations: what stands between instruction and text.

    Attributes:
        format: the words.
        backend: as above.
        prefix: the public tokens that every prompt begins with.

    Raises:
        InvalidTask: a demonstration's label is none of the task's.
        InvalidPlan: the demonstrations are longer than the backend's context.
    """

    def __init__(
        self,
        task: Task | PromptFormat,
        backend: LogprobBackend,
        demonstrations: Iterable[Demonstration],
    ) -> None:
        self.format = task if isinstance(task, PromptFormat) else prompt_format(task)
        self.backend = backend
        shown = tuple(demonstrations)
        self.prefix = backend.tokenize(self._opening(shown))
        self._text_field = f"{self.format.text_field}:"
        self._label_field = f"{self.format.label_field}:"
        self._fields = {field: backend.tokenize(field) for field in (self._text_field, self._label_field)}
        context = getattr(backend, "context_tokens", None)
        if context is not None and len(self.prefix) >= context:
            raise InvalidPlan(
                f"the instruction and {len(shown)} demonstrations take {len(self.prefix)} tokens, and the "
                f"backend has context_tokens={context}: take fewer or shorter ones, or a larger context"
            )

    def questions(self, texts: Iterable[str]) -> Iterator[tuple[int, list[int]]]:
        """The position of each text and its tokens, see `question`; read as they are asked for.

        Raises:
            InvalidRecords: a text is no string, or blank; or all of them are one string.
            BackendError: the backend cannot tokenise a text. Each names the position, never the text.
        """
        if isinstance(texts, str):
            raise InvalidRecords(
                "texts is one string, which would be read letter by letter: give a list of it"
            )
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidRecords(f"texts[{position}] is {type(text).__name__}, not a string")
            if not text.strip():
                raise InvalidRecords(f"texts[{position}] is blank: there is nothing to label")
            try:
                tokens = self.question(text)
            except BaseException as error:  # whatever it says may quote the text
                if not is_failure(error) or may_pass(error):
                    raise
                raise BackendError(f"the backend cannot tokenise texts[{position}]") from None
            yield position, tokens

    def question(self, text: str) -> list[int]:
        """The tokens of a text and of the label's field, as they follow the prefix."""
        return self._following(self._text_field, self.format.question(text))

    def label(self, word: str) -> list[int]:
        """The tokens of a label, as they follow its field."""
        return self._following(self._label_field, f"{self._label_field} {word}")

    def label_tree(self) -> LabelTree:
        """The labels, each in the tokens in which it is written.

        Raises:
            InvalidTask: two of them cannot be told apart in the backend's tokens.
        """
        return LabelTree([self.label(word) for word in self.format.words], self.backend.vocabulary_size)

    def block(self, suffixes: Sequence[Tokens], tokens: int) -> AbstractContextManager[PromptBlock]:
        """The prompts that go on with these suffixes, whose failures say nothing of what was in them.

        Prompts that take several tokens are no `public` ones: those a backend steps one by one.
        """
        return closing_block(self.backend, self.prefix, suffixes, tokens, public=tokens == 1)

    def answers(self, block: PromptBlock, rows: int, support: Tokens | None = None) -> NDArray[np.float64]:
        """What a block answers, shape (rows, tokens of the support or V), in double precision.

        Raises:
            BackendError: it is of another shape.
        """
        logprobs = np.asarray(block.next_token_logprobs(support), dtype=np.float64)
        columns = self.backend.vocabulary_size if support is None else len(support)
        if logprobs.shape != (rows, columns):
            raise BackendError("the backend answered with an array of another shape than was asked for")
        return logprobs

    def _opening(self, shown: Sequence[Demonstration]) -> str:
        try:
            return self.format.opening(shown)
        except InvalidTask as error:
            raise InvalidTask(f"a demonstration's label: {error}") from None

    def _following(self, field: str, whole: str) -> list[int]:
        """The tokens of `whole` after those of the field that it begins with."""
        before, tokens = self._fields[field], self.backend.tokenize(whole)
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        return self.backend.tokenize(whole.removeprefix(field))  # the tokenizer merges over the boundary


def no_answer(position: int | None) -> BackendError:
    """The error of a text that the backend cannot evaluate; None is one that says nothing."""
    which = "a text that says nothing" if position is None else f"texts[{position}]"
    return BackendError(
        f"the backend has no answer for {which}: with the instruction and the demonstrations "
        "it may be longer than the backend's context"
    )
