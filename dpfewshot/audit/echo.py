"""Canaries for an attacker who sees released texts alone (Meeus et al. 2025, "The Canary's Echo").

A canary begins as demonstrations do, so that the model comes to continue it, and ends in rare candidates. The
attacker fits a bigram model to the released texts, and scores the rare ending by it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend, closing_block
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.values import Record


@dataclass(frozen=True, slots=True)
class EchoCanary:
    """A canary whose ending has `rare` tokens, and the attacker's score of it by the public tokenizer.

    Its beginning is private: it was released without a charge.
    """

    record: Record = field(repr=False)
    backend: LogprobBackend = field(repr=False)
    rare: int

    @classmethod
    def following(cls, beginning: Sequence[int], set_up: SetUp, label: str) -> EchoCanary:
        """Continue the beginning of a demonstration, to the plan's length, by the least likely candidates."""
        prompts, left = set_up.writer.for_label(label), set_up.plan.settings.max_tokens - len(beginning)
        draft = set_up.loop.draft(beginning, prompts.further)
        suffix, kept = [*prompts.public_suffix, *draft.context], left + draft.written_left(left)
        rule = partial(likeliest, top_k=set_up.mechanism.top_k)
        rare = 0
        with closing_block(set_up.backend, prompts.prefix, [suffix], kept, public=True) as block:
            while rare < left and not draft.finished:
                row = np.asarray(block.next_token_logprobs(), dtype=np.float32)[0]
                candidates = sorted(draft.support(rule, row, left - rare), key=row.__getitem__)
                rare += 1
                for token in draft.add(_legible(candidates, set_up)):
                    block.append(token)
        return cls(Record(draft.text(), label), set_up.backend, rare)

    def echo(self, texts: Iterable[str]) -> float:
        """Return the log-likelihood of the ending by bigrams of these texts, with Laplace's smoothing."""
        pairs: Counter[tuple[int, int]] = Counter()
        for text in texts:
            pairs.update(itertools.pairwise(self._tokens(text)))
        before: Counter[int] = Counter()
        for (first, _), count in pairs.items():
            before[first] += count
        ending = itertools.pairwise(self._tokens(self.record.text)[-1 - self.rare :])
        size = self.backend.vocabulary_size
        return sum(math.log((pairs[pair] + 1) / (before[pair[0]] + size)) for pair in ending)

    def _tokens(self, text: str) -> list[int]:
        return [-1, *self.backend.tokenize(f" {text}")]  # -1 stands for the beginning of a text


def _legible(candidates: Sequence[int], set_up: SetUp) -> int:
    """The first that ends nothing and that a tokenizer reads as it was written; else the first."""
    tokenizer, ends = set_up.backend, set_up.loop.ends
    legible = (
        token
        for token in candidates
        if token not in ends and tokenizer.tokenize(tokenizer.detokenize([token])) == [token]
    )
    return next(legible, candidates[0])
