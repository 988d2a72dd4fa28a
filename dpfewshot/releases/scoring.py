"""Asks a model to label private records. No answer, and no failure on one record, raises or is shown.

`Classifier` and `Extractor` name the text that they cannot label. Here a record that cannot be read, cannot
be tokenised or gets no answer counts for nothing, by a rule of that record alone (docs/proofs/choice.md,
Lemma 1). Each prompt is evaluated by itself. Only a cause that is no record's, such as a dead server, raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpfewshot.backends.protocol import LogprobBackend, failing_as_backend, states_invariance
from dpfewshot.backends.text import first_tokens
from dpfewshot.errors import BackendNotBatchInvariant, InvalidPlan
from dpfewshot.icl.classifier import Classifier
from dpfewshot.icl.extractor import Extractor, same_label
from dpfewshot.icl.prompt import BATCH, FewShotPrompt
from dpfewshot.prompts.writer import none_if_unusable
from dpfewshot.runtime import progress_bar
from dpfewshot.values import Record, check_whole

RECORD_TOKEN_CAP: Final = 100
"""The default cap on a record's text, in tokens: `Synthesizer`'s."""

EXTRACTED_TOKENS: Final = 12
"""The most tokens of an extracted label."""

_PUBLIC_TEXT: Final = "a public text"

Progress = Callable[[int, int], object]
"""Called with the number of public steps that are done, and of all steps. A release is charged after them."""


@contextmanager
def scoring_progress(steps: int, on_progress: Progress | None) -> Iterator[Callable[[], None]]:
    """Show a bar, and give the function that advances it by one step: public, unlike a sample's size."""
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        bar.update()
        if on_progress is not None:
            on_progress(done, steps)

    with progress_bar(total=steps, desc="scoring", unit="step") as bar:
        yield advance


class Scorer(ABC):
    """Labels private records as one `icl.Classifier` or `icl.Extractor` does.

    At most `record_token_cap` tokens of a record's text are kept, text by text; no character is cut.

    Raises:
        BackendNotBatchInvariant: the backend does not state batch invariance.
        InvalidPlan: a text at the cap, with a label of `label_tokens`, exceeds the backend's context.
    """

    def __init__(self, prompt: FewShotPrompt, record_token_cap: int, label_tokens: int) -> None:
        _require_batch_invariance(prompt.backend)
        check_whole("record_token_cap", record_token_cap)
        self.prompt = prompt
        self._cap = record_token_cap
        prefix, ending = prompt.prefix, prompt.ending
        prompt.backend.detokenize(ending[-1:])  # a server's vocabulary is read now, for no record
        longest = len(prefix) + self._cap + len(ending) + label_tokens
        context = prompt.backend.context_tokens
        if context is not None and longest > context:
            raise InvalidPlan(
                f"a prompt takes up to {longest} tokens: {len(prefix)} of instruction and demonstrations, "
                f"{self._cap} of a record (record_token_cap) and a label; the backend has "
                f"context_tokens={context}"
            )

    @abstractmethod
    def outcomes(self, records: Sequence[Record | None]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        """Return what the model makes of each record's label. None, which cannot be read, has no answer.

        Two arrays of shape (records,): 1 if the label is right, 0 if not, -1 without an answer; and the
        label's probability, 0..1, and 0 without an answer.
        """

    def check_backend(self) -> None:
        """Ask the model for a public answer: if it gives none, what it made of records may be noise alone."""
        with failing_as_backend():
            question = self.prompt.question(_PUBLIC_TEXT)
        with self.prompt.block([question], 1) as block:
            self.prompt.answers(block, 1)
        _require_batch_invariance(self.prompt.backend)

    def _batches(self, records: Sequence[Record | None]) -> Iterator[tuple[list[int], list[list[int]]]]:
        """Yield the positions of some records that can be tokenised, and their questions."""
        for start in range(0, len(records), BATCH):
            batch = records[start : start + BATCH]
            questions = [None if record is None else self._question(record.text) for record in batch]
            usable = {start + place: each for place, each in enumerate(questions) if each is not None}
            yield [*usable], [*usable.values()]

    def _question(self, text: str) -> list[int] | None:
        """A text's tokens up to where its label follows; None if it cannot be tokenised."""
        return none_if_unusable(lambda: self._tokens(text), public=lambda: self._tokens(_PUBLIC_TEXT))

    def _tokens(self, text: str) -> list[int]:
        # A huge text is not tokenised whole: few tokens cover more than 16 characters.
        whole, ending = self.prompt.question(text, longest=16 * self._cap), self.prompt.ending
        if len(whole) <= self._cap + len(ending):
            return whole
        return [*first_tokens(self.prompt.backend, whole, self._cap), *ending]


def _require_batch_invariance(backend: LogprobBackend) -> None:
    """Refuse a backend whose answers to one record may depend on the others."""
    if not states_invariance(backend):
        raise BackendNotBatchInvariant(
            "the backend does not state that a prompt's answer is independent of its neighbours, which a "
            "release from private records needs: see dpfewshot doctor"
        )


class LabelScorer(Scorer):
    """Gives private texts the probability of each label, as a classifier does."""

    def __init__(self, classifier: Classifier, record_token_cap: int = RECORD_TOKEN_CAP) -> None:
        longest = max(map(len, classifier.tree.beginnings))
        super().__init__(classifier.prompt, record_token_cap, longest)
        self._classifier = classifier

    def probabilities(self, records: Sequence[Record | None]) -> NDArray[np.float64]:
        """Return the probability of each label, shape (records, labels); 0 where the model has no answer."""
        tree, bias = self._classifier.tree, self._classifier.bias
        rows = np.zeros((len(records), len(bias)))
        for positions, asked in self._batches(records):
            with np.errstate(all="ignore"):  # a warning would reveal that a record has no answer
                rows[positions] = _normalised(self.prompt.label_logprobs(tree, asked, private=True) - bias)
        return rows

    def outcomes(self, records: Sequence[Record | None]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        """See `Scorer.outcomes`."""
        rows = self.probabilities(records)
        place = {label: number for number, label in enumerate(self._classifier.labels)}
        truth = np.array([-1 if one is None else place.get(one.label, -1) for one in records], dtype=np.intp)
        answered = rows.any(axis=1) & (truth >= 0)
        right = np.where(answered, rows.argmax(axis=1) == truth, -1)
        return right.astype(np.int8), np.where(answered, rows[np.arange(len(records)), truth], 0.0)


class ExtractionScorer(Scorer):
    """Writes the label of private texts by greedy decoding, as an extractor does.

    A label is right if it is the record's up to case and white space. Its probability is 1 or 0.
    """

    def __init__(self, extractor: Extractor, record_token_cap: int = RECORD_TOKEN_CAP) -> None:
        super().__init__(extractor.prompt, record_token_cap, extractor.max_tokens)
        self._extractor = extractor

    def outcomes(self, records: Sequence[Record | None]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        """See `Scorer.outcomes`."""
        right = np.full(len(records), -1, dtype=np.int8)
        for positions, asked in self._batches(records):
            for position, written in zip(positions, self._extractor.greedy(asked), strict=True):
                found = self._is_right(written, records[position])
                right[position] = -1 if found is None else found
        return right, (right == 1).astype(np.float64)

    def _is_right(self, written: list[int] | None, record: Record | None) -> bool | None:
        """Whether a record's label was written; None without an answer."""
        if written is None or record is None:
            return None
        return none_if_unusable(
            lambda: same_label(self._extractor.text(written), record.label),
            public=lambda: self.prompt.backend.tokenize(_PUBLIC_TEXT),
        )


def _normalised(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities, shape (texts, labels); zeros where no label has one, or one is NaN."""
    answered = np.isfinite(logprobs.max(axis=1, keepdims=True))
    return np.where(answered, softmax(logprobs, axis=1), 0.0)
