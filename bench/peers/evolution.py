"""Private Evolution for text (Xie et al. 2024, Aug-PE), written from the paper.

The model writes candidates from the instruction alone. Each record votes for the candidate of the nearest embedding, and
a Gaussian histogram releases the votes. The leaders stay, variations of them join, and the records vote again. The
demonstrations are the last leaders. A record votes once a round, so the votes of a round have sensitivity 1 in L2, and
G rounds are G Gaussian releases. Records have labels, and vote among the candidates of theirs; where labels are free, among all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.peers.embedding import Embedder
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.backends.protocol import LogprobBackend, open_block
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.evaluation.conditions import Request
from dpfewshot.exact import normal
from dpfewshot.prompts.writer import LabelPrompts, PromptWriter
from dpfewshot.values import Demonstration, Record

GRID = 64
"""Steps of a vote."""

TOP_K = 100

Votes = NDArray[np.int64]


def multiplier(rounds: int, epsilon: float, delta: float) -> float:
    """σ of one round's votes, so that all rounds together are (ε, δ)."""
    return calibrate(lambda sigma: PoissonGaussian(1.0, sigma, rounds), epsilon=epsilon, delta=delta)


def nearest_votes(records: NDArray[np.float32], candidates: NDArray[np.float32]) -> Votes:
    """One vote of each record, for the candidate with the largest cosine; ties go to the first."""
    if not len(records):
        return np.zeros(len(candidates), dtype=np.int64)
    winners = np.argmax(records @ candidates.T, axis=1)
    return np.bincount(winners, minlength=len(candidates)).astype(np.int64)


def released(votes: Votes, sigma: float) -> Votes:
    """The votes with exact Gaussian noise, in steps of 1/GRID."""
    scale = 8 * math.ceil(sigma * GRID / 8)
    return np.array([GRID * count + normal.sample(scale) for count in votes.tolist()], dtype=np.int64)


def leaders(votes: Votes, count: int) -> list[int]:
    """The candidates with the most votes."""
    order = np.argsort(-votes, kind="stable")[:count]
    return [int(index) for index in order]


class Author:
    """Writes candidates and variations of one label; reads no record.

    Args:
        backend: the model.
        prompts: of the label.
        tokens: T.
    """

    def __init__(self, backend: LogprobBackend, prompts: LabelPrompts, tokens: int) -> None:
        self._backend = backend
        self._prompts = prompts
        self._most = tokens
        self._random = np.random.default_rng()  # candidates are public: no privacy rests on it

    def write(self, starts: Sequence[list[int]]) -> list[list[int]]:
        """A text for each start, drawn from the model's 100 likeliest tokens."""
        texts = [list(start) for start in starts]
        suffixes = [[*self._prompts.public_suffix, *start] for start in starts]
        going = [True] * len(texts)
        steps = self._most - min(map(len, starts))
        with closing(open_block(self._backend, self._prompts.prefix, suffixes, steps, public=True)) as block:
            for _ in range(steps):
                rows = block.next_token_logprobs(None)
                drawn = [self._draw(row) if alive else 0 for row, alive in zip(rows, going, strict=True)]
                for text, token, index in zip(texts, drawn, range(len(texts)), strict=True):
                    going[index] = going[index] and len(text) < self._most and not self._ends(token)
                    if going[index]:
                        text.append(token)
                if not any(going):
                    break
                end = next(iter(self._backend.end_token_ids))
                block.append_each([t if alive else end for t, alive in zip(drawn, going, strict=True)])
        return texts

    def vary(self, texts: Sequence[list[int]], count: int) -> list[list[int]]:
        """Variations that keep a text's first half and write the rest anew."""
        parents = [texts[index % len(texts)] for index in range(count)]
        return self.write([parent[: len(parent) // 2] for parent in parents])

    def text(self, tokens: list[int]) -> str:
        """A candidate as text."""
        return self._backend.detokenize(tokens).strip()

    def _draw(self, row: NDArray[np.float32]) -> int:
        likeliest = np.argpartition(-row, TOP_K)[:TOP_K]
        weights = np.exp(row[likeliest].astype(np.float64))
        return int(self._random.choice(likeliest, p=weights / weights.sum()))

    def _ends(self, token: int) -> bool:
        return token in self._backend.end_token_ids or "\n" in self._backend.detokenize([token])


@dataclass(frozen=True)
class PrivateEvolution:
    """The condition of an evaluation.

    Attributes:
        max_tokens: T.
        candidates: K of each label.
        kept: leaders that are varied.
        rounds: G.
        embedder: of texts.
        embedded: the records' embeddings by task, computed once.
    """

    max_tokens: int
    embedder: Embedder = field(repr=False)
    candidates: int = 32
    kept: int = 8
    rounds: int = 2
    name: str = "private-evolution"
    embedded: dict[str, NDArray[np.float32]] = field(default_factory=dict, repr=False)

    def demonstrations(self, request: Request) -> Demonstrations:
        """The leaders of the last vote."""
        if request.epsilon is None:
            raise ValueError("votes without noise are not implemented")
        sigma = multiplier(self.rounds, request.epsilon, request.delta)
        writer = PromptWriter(request.task, request.backend, record_token_cap=1)
        authors = {
            label: Author(request.backend, writer.for_label(label), self.max_tokens)
            for label in dict.fromkeys(request.labels)
        }
        texts = {label: author.write([[]] * self.candidates) for label, author in authors.items()}
        for turn in range(self.rounds):
            votes = self._votes(request, {a: [authors[a].text(t) for t in texts[a]] for a in texts})
            for label, author in authors.items():
                best = leaders(released(votes[label], sigma), self.candidates)
                texts[label] = [texts[label][index] for index in best]
                if turn + 1 < self.rounds:
                    few = texts[label][: self.kept]
                    texts[label] = [*few, *author.vary(few, self.candidates - self.kept)]
        return request.in_order(
            Demonstration(
                text=authors[label].text(texts[label][shot]),
                label=label,
                token_count=len(texts[label][shot]),
                certified=False,  # records were embedded many to a call
                spent=None,
                relation="zero-out",
                mechanism=self.name,
            )
            for shot in range(request.shots_per_label)
            for label in authors
        )

    def _votes(self, request: Request, texts: Mapping[str, Sequence[str]]) -> dict[str, Votes]:
        """Each label's votes."""
        rows = self._rows(request)
        candidates = {label: self.embedder.embed(of_label) for label, of_label in texts.items()}
        if request.task.labels is None:
            together = nearest_votes(rows, np.concatenate(list(candidates.values())))
            parts = np.split(together, np.cumsum([len(each) for each in candidates.values()])[:-1])
            return dict(zip(candidates, parts, strict=True))
        return {
            label: nearest_votes(rows[_of_label(request.records, label)], each)
            for label, each in candidates.items()
        }

    def _rows(self, request: Request) -> NDArray[np.float32]:
        name = request.task.name
        if name not in self.embedded:
            self.embedded[name] = self.embedder.embed([record.text for record in request.records])
        return self.embedded[name]


def _of_label(records: Sequence[Record], label: str) -> NDArray[np.bool_]:
    return np.array([record.label == label for record in records])
