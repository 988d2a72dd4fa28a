"""Classification and extraction against whole prompts, and three ways to score labels: docs/results/icl.md.

    python -m bench.icl speed FOLDER [MODEL.gguf] > docs/results/icl.md
    python -m bench.icl scores FOLDER [MODEL.gguf] >> docs/results/icl.md

FOLDER holds agnews.train_subset.jsonl.gz and the like; the model is the packaged one unless another is named.
Some minutes each on an idle core; progress goes to standard error.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.icl.classifier import CONTENT_FREE
from dpfewshot.icl.prompt import FewShotPrompt

ROUNDS = 3
TEXTS = 3
SCORED_TEXTS = 100
EXTRACTED_TOKENS = 12
AGNEWS, TREC, DIRECTOR, GENRE = (
    icl.prompt_format(task) for task in (dpf.tasks.AGNEWS, dpf.tasks.TREC, dpf.tasks.MIT_D, dpf.tasks.MIT_G)
)

Scores = NDArray[np.float64]


class WholePrompts:
    """The same model without blocks: every token sends the whole prompt."""

    def __init__(self, backend: LlamaCpp) -> None:
        self._backend = backend
        self.vocabulary_size = backend.vocabulary_size
        self.end_token_ids = backend.end_token_ids
        self.batch_invariant = backend.batch_invariant
        self.tokenize = backend.tokenize
        self.detokenize = backend.detokenize
        self.next_token_logprobs = backend.next_token_logprobs


@dataclass(frozen=True)
class Shape:
    """A kind of prompt: its data and its number of demonstrations."""

    name: str
    words: icl.PromptFormat
    data: tuple[str, str]
    shots: int
    longest: bool = False


NEWS = ("agnews.train_subset", "agnews.test")
QUESTIONS = ("trec.train", "trec.test")
TREC_IN_TOKENS = replace(TREC, label_words=(*TREC.words[:-1], "Ab"))
SHAPES = (
    Shape("AG News", AGNEWS, NEWS, 4),
    Shape("TREC", TREC, QUESTIONS, 4),
    Shape("TREC, Abbreviation written Ab", TREC_IN_TOKENS, QUESTIONS, 4),
    Shape("AG News", AGNEWS, NEWS, 8),
    Shape("AG News, its longest texts", AGNEWS, NEWS, 4, longest=True),
    Shape("MIT-D, extraction", DIRECTOR, ("mit_d.train", "mit_d.test"), 4),
    Shape("MIT-G, extraction", GENRE, ("mit_g.train", "mit_g.test"), 4),
)


def records(folder: Path, name: str) -> list[dpf.Record]:
    """A data set of the folder."""
    return list(dpf.read_records(folder / f"{name}.jsonl.gz"))


def demonstrations(
    words: icl.PromptFormat, rows: Sequence[dpf.Record], shots: int
) -> list[dpf.Demonstration]:
    """The first records, one of each label in turn; free labels in the order of the data."""
    labels = words.labels or tuple(dict.fromkeys(row.label for row in rows))
    by_label = {label: [row for row in rows if row.label == label] for label in labels}
    chosen = [by_label[labels[n % len(labels)]][n // len(labels)] for n in range(shots)]
    return [dpf.Demonstration(row.text, row.label, 0, False, None, "add-remove", "none") for row in chosen]


def compared(shape: Shape, folder: Path, backend: LlamaCpp) -> str:
    """A row of the table: the ratio of whole prompts' time to ours, and of their tokens."""
    train, test = (records(folder, name) for name in shape.data)
    shown = demonstrations(shape.words, train, shape.shots)
    texts = [row.text for row in test]
    # Evenly spaced in the order of length: the few timed texts are as long on average as all.
    ordered = sorted(texts, key=len)
    step = len(ordered) // TEXTS
    texts = ordered[-TEXTS:] if shape.longest else ordered[step // 2 :: step][:TEXTS]
    ours, theirs = (Way(shape, way, shown, backend) for way in (backend, WholePrompts(backend)))
    ours.label(texts[:1])  # keeps the prefix from here on
    rounds = []
    for number in range(ROUNDS):
        for way in (ours, theirs) if number % 2 else (theirs, ours):
            way.label(texts)
        rounds.append(theirs.seconds / ours.seconds)
    ratio = statistics.median(rounds)
    prompt = FewShotPrompt(shape.words, backend, shown)
    lengths = [len(prompt.question(text)) for text in texts]
    agree = "yes" if ours.labels == theirs.labels else "no"
    print(f"{shape.name}: {ratio:.2f}", file=sys.stderr)
    return (
        f"| {shape.name} | {shape.shots} | {len(prompt.prefix)} | {statistics.mean(lengths):.0f} "
        f"| {theirs.tokens / ours.tokens:.1f} | **{ratio:.1f}** ({min(rounds):.1f} to {max(rounds):.1f}) | {agree} |"
    )


class Way:
    """One of the two ways to label texts, and what its last call took.

    Attributes:
        labels: its answers.
        seconds: processor time, which other load changes little.
        tokens: tokens evaluated.
    """

    def __init__(
        self,
        shape: Shape,
        asked: LlamaCpp | WholePrompts,
        shown: list[dpf.Demonstration],
        backend: LlamaCpp,
    ) -> None:
        self._model: icl.Classifier | icl.Extractor = (
            icl.Classifier(shape.words, asked, shown, calibrated=False)
            if shape.words.labels
            else icl.Extractor(shape.words, asked, shown, max_tokens=EXTRACTED_TOKENS)
        )
        self._backend = backend
        self.labels: list[str] = []
        self.seconds = 0.0
        self.tokens = 0

    def label(self, texts: list[str]) -> None:
        """Labels the texts once more."""
        started, before = time.process_time(), self._backend.tokens_evaluated
        self.labels = self._model.predict(texts)
        self.seconds = time.process_time() - started
        self.tokens = self._backend.tokens_evaluated - before


RULES = (
    (AGNEWS, NEWS, ("World", "World sports", "World business", "World technology")),
    (AGNEWS, NEWS, ("News", "News about sports", "News about business", "News about technology")),
    (AGNEWS, NEWS, AGNEWS.words),
    (TREC, QUESTIONS, TREC.words),
)


def scored(words: icl.PromptFormat, data: tuple[str, str], folder: Path, backend: LlamaCpp) -> Iterator[str]:
    """A row of the table for each way to score the labels."""
    train, test = (records(folder, name) for name in data)
    prompt = FewShotPrompt(words, backend, demonstrations(words, train, 4))
    test = test[:SCORED_TEXTS]
    found = by_rule(prompt, [row.text for row in test])
    nothing = by_rule(prompt, list(CONTENT_FREE))
    labels = words.labels or ()
    truth = np.array([labels.index(row.label) for row in test])
    for rule, scores in found.items():
        bias = np.logaddexp.reduce(among_labels(nothing[rule]))
        shares = [
            float((each.argmax(axis=1) == truth).mean())
            for each in (among_labels(scores), among_labels(scores) - bias)
        ]
        print(f"{words.words}, {rule}: {shares}", file=sys.stderr)
        yield f"| {', '.join(words.words)} | {rule} | {shares[0]:.2f} | {shares[1]:.2f} |"


def by_rule(prompt: FewShotPrompt, texts: list[str]) -> dict[str, Scores]:
    """The logarithms of the labels' scores by each rule, shape (texts, labels)."""
    labels = [tuple(prompt.label(word)) for word in prompt.format.words]
    (newline,) = prompt.backend.tokenize("\n")
    beginnings = sorted({label[:end] for label in labels for end in range(len(label) + 1)})
    support = sorted({newline}.union(*labels))
    suffixes = [[*prompt.question(text), *beginning] for text in texts for beginning in beginnings]
    with prompt.block(suffixes, 1) as block:
        rows = prompt.answers(block, len(suffixes), support).reshape(len(texts), len(beginnings), -1)

    def after(beginning: tuple[int, ...], token: int) -> Scores:
        column: Scores = rows[:, beginnings.index(beginning), support.index(token)]
        return column

    tokens = np.stack([sum(after(one[:end], one[end]) for end in range(len(one))) for one in labels], axis=1)
    newlines = np.stack([after(one, newline) for one in labels], axis=1)
    tree = prompt.label_tree()
    inner = [beginnings.index(beginning) for beginning in tree.beginnings]
    columns = [support.index(token) for token in tree.support]
    return {
        "the sum of its tokens": tokens,
        "with the newline that ends it": tokens + newlines,
        "less what goes on to a longer label (ours)": tree.logprobs(rows[:, inner][:, :, columns]),
    }


def among_labels(scores: Scores) -> Scores:
    """Normalised over the labels."""
    normalised: Scores = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return normalised


SPEED = """# In-context learning: cost and scores

    python -m bench.icl speed FOLDER > docs/results/icl.md
    python -m bench.icl scores FOLDER gemma-3-270m-Q4_K_M.gguf >> docs/results/icl.md

`icl.Classifier` and `icl.Extractor` over `LlamaCpp`, one thread, on a shared two-core machine: ratios of processor time.

## Beside sending each whole prompt

The same prompts to the same model: by blocks (instruction and demonstrations are kept, a text is evaluated once), and each sent whole to
`next_token_logprobs`. {texts} texts of low, medium and high length, {rounds} rounds in turn; the prefix is already evaluated. "Tokens" is the ratio of evaluated tokens, which
the speed ratio would equal if each token took the same time. Where labels have one token each it is (prefix + text)/text:
it grows with the demonstrations and falls with the length of the text. Where a label has several, as TREC's Abbreviation, a whole prompt is sent for
each of them; extraction sends one for each token that it writes.

### {model}

| prompts | shots | prefix | text, mean | tokens | speed (least to most) | same labels |
|---|---|---|---|---|---|---|"""

SCORES = """
## Which probability is a label's?

Accuracy on the first {texts} test items, 4 demonstrations, {model}; {texts} items show no difference below about 0.1. The first two sets of words
are chosen so that the first label begins the others: see [the decision](../decisions/label-scores.md).

| words | a label's score | uncalibrated | calibrated |
|---|---|---|---|"""


def main(part: str, folder: Path, path: Path) -> None:
    """One part of the page."""
    with LlamaCpp(path, context_tokens=1024, kept_prompts=15, threads=1) as backend:
        if part == "speed":
            print(SPEED.format(texts=TEXTS, rounds=ROUNDS, model=path.stem))
            for shape in SHAPES:
                print(compared(shape, folder, backend), flush=True)
        else:
            print(SCORES.format(texts=SCORED_TEXTS, model=path.stem))
            for words, data, label_words in RULES:
                rows = scored(replace(words, label_words=label_words), data, folder, backend)
                print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3] if sys.argv[3:] else packaged_model_path()))
