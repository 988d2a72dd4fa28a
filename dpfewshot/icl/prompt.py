"""A few-shot prompt in one backend's tokens, and the probability of labels of one or several tokens."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Final, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend, PromptBlock, Tokens, closing_block
from dpfewshot.errors import BackendError, InvalidPlan, InvalidRecords, InvalidTask
from dpfewshot.prompts.chat import ChatTurns, chat_turns
from dpfewshot.prompts.few_shot import PromptFormat, Text, prompt_format
from dpfewshot.runtime.redaction import none_if_it_fails, redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration

BATCH: Final = 30
"""Texts that are evaluated together: two groups of parallel streams, and enough to keep a server busy."""

_NEVER_NOTHING = np.finfo(np.float64).tiny

Answer = TypeVar("Answer")

Question = tuple[int, list[int]]
"""The position of a text, and its tokens up to where its label follows."""


class LabelTree:
    """The prefixes and next tokens that are needed to score every label, given as its tokens, as a whole.

    A label's probability is that its tokens come next, and not a longer label that starts with them. So
    labels exclude each other, and need no end token: whatever follows "Number" counts for "Number", except "
    of people" if "Number of people" is a label too.

    Attributes:
        beginnings: the proper prefixes of labels, the empty one first; the model is asked what follows each.
        longest_beginnings: those with which no other one begins.
        is_path: whether it has one label alone.
        support: the tokens of all labels, ascending.

    Raises:
        InvalidTask: a label has no tokens, those of another label, or one outside the vocabulary.
    """

    def __init__(self, labels: Sequence[Sequence[int]], vocabulary_size: int) -> None:
        paths = self._paths = [tuple(label) for label in labels]
        following = self._following = dict[tuple[int, ...], set[int]]()
        for number, path in enumerate(paths, start=1):
            if not path or path in paths[: number - 1] or max(path) >= vocabulary_size:
                raise InvalidTask(
                    f"label {number} has no tokens of its own in this backend's vocabulary: "
                    "choose other words for it (label_words)"
                )
            for end, token in enumerate(path):
                following.setdefault(path[:end], set()).add(token)
        self.beginnings = sorted(following)
        inner = {beginning[:-1] for beginning in self.beginnings if beginning}
        self.is_path = len(paths) == 1
        self.longest_beginnings = [each for each in self.beginnings if each not in inner]
        self.support = sorted(set().union(*following.values()))
        row = {beginning: index for index, beginning in enumerate(self.beginnings)}
        column = {token: index for index, token in enumerate(self.support)}
        self._steps = [[(row[path[:end]], column[token]) for end, token in enumerate(path)] for path in paths]
        self._longer = [
            (row[path], [column[token] for token in sorted(following[path])]) if path in following else None
            for path in paths
        ]

    def path(self, label: int) -> list[tuple[int, list[int]]]:
        """Return a label's tokens, each with all labels' in its place, up to the last that has others."""
        whole = self._paths[label]
        path = [(token, sorted(self._following[whole[:end]])) for end, token in enumerate(whole)]
        while path and len(path[-1][1]) == 1:
            path.pop()
        return path

    def logprobs(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-probability of each label, shape (texts, labels).

        `rows` are those of the support after each beginning, in nats, shape (texts, beginnings, support).
        """
        scores = np.empty((len(rows), len(self._steps)))
        for label, (steps, longer) in enumerate(zip(self._steps, self._longer, strict=True)):
            scores[:, label] = sum(rows[:, row, column] for row, column in steps)
            if longer is not None:
                row, columns = longer
                left = 1 - np.exp(rows[:, row, columns]).sum(axis=1)
                scores[:, label] += np.log(np.maximum(left, _NEVER_NOTHING))
        return scores


class FewShotPrompt:
    """The public prefix of a prompt, and the tokens of the texts and labels that follow.

    Texts and labels are tokenised behind the words that precede them, so their tokens are the same as if the
    whole prompt were tokenised at once.

    Attributes:
        prefix: the public tokens at the start of every prompt.
        ending: the public tokens between a text and its label.

    Raises:
        InvalidTask: a demonstration has an unknown label, or other fields.
        BackendError: the format has `chat=True`, and the backend gives no template that can be used.
        InvalidPlan: the demonstrations exceed the backend's context.
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
        self._text_field = self.format.text_opening
        self._label_field = f"{self.format.label_field}:"
        self._turns = chat_turns(backend) if self.format.chat else None
        if self._turns is None:
            self.prefix = backend.tokenize(self.format.opening(shown))
            self.ending = backend.tokenize(self.format.label_opening)
        else:
            self.prefix = self._conversation(self._turns, shown)
            self.ending = [*self._turns.answer, *backend.tokenize(self._label_field)]
        self._fields = {field: backend.tokenize(field) for field in (self._text_field, self._label_field)}
        context = backend.context_tokens
        if context is not None and len(self.prefix) >= context:
            raise InvalidPlan(
                f"the instruction and {len(shown)} demonstrations take {len(self.prefix)} tokens, but the "
                f"backend has context_tokens={context}: use fewer or shorter ones, or a larger context"
            )

    def fingerprint(self) -> str:
        """Return the SHA-256 of what is public in a prompt: instruction, demonstrations, fields, labels."""
        labels = [self.label(word) for word in self.format.words]
        layout, turns = self.format.layout, self._turns
        told = [
            *(self.prefix, *self._fields.values(), labels, layout.fields, layout.multiline),
            None if turns is None else turns.fingerprint(),
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def questions(self, texts: Iterable[Text]) -> Iterator[Question]:
        """Lazily yield each text's position and its tokens (see `question`).

        Raises:
            InvalidRecords, BackendError: as `Labeller.predict`; or `texts` is a single string.
        """
        if isinstance(texts, str):
            raise InvalidRecords(
                "texts is a single string, which would be read letter by letter: pass a list"
            )
        for position, given in enumerate(texts):
            text = self.format.text_of(given, f"texts[{position}]")
            if not any(value.strip() for value in self.format.layout.values(text)):
                raise InvalidRecords(f"texts[{position}] is blank: there is nothing to label")
            tokens = none_if_it_fails(partial(self.question, text), for_good=True)
            if tokens is None:
                raise BackendError(f"the backend cannot tokenise texts[{position}]")
            yield position, tokens

    def question(self, text: str, longest: int | None = None) -> list[int]:
        """Return the tokens of a text and of the label's field, as they follow the prefix."""
        if self._turns is None:
            return self._following(self._text_field, self.format.question(text, longest))
        asked = f"{self._text_field} {self.format.written(text, longest)}"
        return [*self._following(self._text_field, asked), *self.ending]

    def label(self, word: str) -> list[int]:
        """Return the tokens of a label's word, as they follow its field."""
        return self._following(self._label_field, f"{self._label_field} {word}")

    def label_tree(self) -> LabelTree:
        """Return the tree of all labels."""
        return LabelTree([self.label(word) for word in self.format.words], self.backend.vocabulary_size)

    def block(
        self, suffixes: Sequence[Tokens], tokens: int, *, private: bool = False
    ) -> AbstractContextManager[PromptBlock]:
        """Open a block of the prompts with these suffixes, whose errors reveal nothing of them.

        With `private`, each prompt is evaluated by itself, so that its answers do not depend on the others.
        """
        return closing_block(self.backend, self.prefix, suffixes, tokens, public=not private)

    def label_logprobs(
        self, tree: LabelTree, questions: Sequence[Tokens], *, private: bool = False
    ) -> NDArray[np.float64]:
        """Return the log-probability of each label after each question, in nats, shape (questions, labels).

        It is NaN or -inf where the backend has no answer. With `private`, each prompt is evaluated by itself,
        as the guarantee needs for private records.
        """
        if private or (tree.is_path and self.backend.kept_prompts != 0):  # such as a whole record's text
            return tree.logprobs(self._rows_by_steps(tree, questions, private=private))
        suffixes = [[*question, *beginning] for question in questions for beginning in tree.beginnings]
        with self.block(suffixes, 1) as block:
            rows = self.answers(block, len(suffixes), tree.support)
        return tree.logprobs(rows.reshape(len(questions), len(tree.beginnings), len(tree.support)))

    def _rows_by_steps(
        self, tree: LabelTree, questions: Sequence[Tokens], *, private: bool
    ) -> NDArray[np.float64]:
        """Return what `LabelTree.logprobs` takes, from blocks of prompts that walk down the tree.

        A private prompt may continue no other, but all of a block may take the same public token, and take it
        back. So a backend that keeps the prompt evaluates a question once, and takes one step for every
        further token. Any other one is asked once for every beginning.
        """
        rows = np.empty((len(questions), len(tree.beginnings), len(tree.support)))
        index = {beginning: number for number, beginning in enumerate(tree.beginnings)}
        tokens = max(map(len, tree.longest_beginnings)) + 1
        with self.block(questions, tokens, private=private) as block:
            for place, longest in enumerate(tree.longest_beginnings):
                if place:
                    block.rewind()
                for length in range(len(longest) + 1):
                    if length:
                        block.append(longest[length - 1])
                    if (number := index.pop(longest[:length], None)) is not None:
                        rows[:, number] = self.answers(block, len(questions), tree.support)
        return rows

    def answers(self, block: PromptBlock, rows: int, support: Tokens | None = None) -> NDArray[np.float64]:
        """Return a block's answers in double precision, shape (rows, tokens of the support or V)."""
        with np.errstate(all="ignore"):  # a warning would tell of one record
            logprobs = np.asarray(block.next_token_logprobs(support), dtype=np.float64)
        columns = self.backend.vocabulary_size if support is None else len(support)
        if logprobs.shape != (rows, columns):
            raise BackendError("the backend answered with an array of the wrong shape")
        return logprobs

    def _conversation(self, turns: ChatTurns, shown: Iterable[Demonstration]) -> list[int]:
        """Return a chat's prefix: a demonstration's text is the user's turn, and its label the answer."""
        tokens = self.backend.tokenize
        instruction = self.format.instruction
        prefix = [*turns.head, *(tokens(f"{instruction}\n\n") if instruction else ())]
        for text, word in map(self.format.pair, shown):
            asked, answered = f"{self._text_field} {text}", f"{self._label_field} {word}"
            prefix += [*tokens(asked), *turns.answer, *tokens(answered), *turns.following]
        return [*prefix, *tokens(self._text_field)]

    def _following(self, field: str, whole: str) -> list[int]:
        """Return the tokens of `whole` after those of the field at its start."""
        before, tokens = self._fields[field], self.backend.tokenize(whole)
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        return self.backend.tokenize(whole.removeprefix(field))  # the tokenizer merges over the boundary


class Labeller(ABC, Generic[Answer]):
    """Answers texts after one few-shot prompt. Immutable, so threads may share it."""

    def __init__(self, prompt: FewShotPrompt) -> None:
        self.prompt, self.format = prompt, prompt.format

    @overload
    def predict(self, texts: Text) -> str: ...  # type: ignore[overload-overlap]  # a str is an iterable of str
    @overload
    def predict(self, texts: Iterable[Text]) -> list[str]: ...
    @redacts_errors(None)
    def predict(self, texts: Text | Iterable[Text]) -> str | list[str]:
        """Return the label of one text, or a list for several. The label that a model writes may be empty.

        A text of several fields is a mapping of each field's name to its value, or a demonstration's text.

        Raises:
            InvalidRecords: a text is blank, not a string, or lacks a field. The message names its position,
                never the text.
            BackendError: the model failed, or cannot evaluate a text; the message names its position.
        """
        if isinstance(texts, (str, Mapping)):
            return self._label(next(self.stream([texts])))
        return [self._label(answer) for answer in self.stream(texts, batch_size=BATCH)]

    @redacts_errors(None)
    def stream(self, texts: Iterable[Text], *, batch_size: int = 1) -> Iterator[Answer]:
        """Yield answers in the order of the texts, which are read lazily; errors are those of `predict`.

        Args:
            batch_size: the number of texts to read ahead and evaluate together, at least 1. Each is answered
                as if alone, but an error in one text precedes all answers of its batch.
        """
        if batch_size < 1:
            raise InvalidPlan(f"batch_size must be at least 1, not {batch_size}")
        items = self.prompt.questions(texts)
        while batch := list(islice(items, batch_size)):
            yield from self._answers(batch)

    @abstractmethod
    def _answers(self, batch: Sequence[Question]) -> Iterator[Answer]: ...

    @abstractmethod
    def _label(self, answer: Answer) -> str: ...


def no_answer(position: int | None) -> BackendError:
    """Return the error for a text that the backend cannot evaluate; None is a content-free one."""
    which = "a content-free text" if position is None else f"texts[{position}]"
    return BackendError(
        f"the backend has no answer for {which}: with the instruction and the demonstrations, "
        "it may exceed the backend's context"
    )
