"""How long a plan takes: the seconds of a backend for public prompts of the plan's lengths.

A demonstration of T tokens makes D = ⌈T/R⌉ draws of M prompts. It takes

    public text + M·(D·F + (T - D)·S)

F are the seconds of a first answer to a prompt of the mean length over the draws, for records that fill their
caps, and S those of a further answer. A prompt that the backend does not keep is evaluated afresh for each.
Completing a text that is cut off, at most 24 answers to the public prompt, is not counted.

Where words are counted, texts are written side by side after one public prompt, and no prompt is private.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import cycle, islice

from dpfewshot.backends.protocol import LogprobBackend, Tokens, closing_block
from dpfewshot.mechanisms.word_histogram import CANDIDATES, EXPECTING, MOST_HINT
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.planning.planner import Planner

_SUPPORT = 100
"""Tokens of the vocabulary that a private prompt is asked for, as a mechanism's K is by default."""

_MOST_STEPS = 8
"""Steps of one measured block at most."""

_FEWEST_STEPPING = 16
"""Prompts that take a step together at least: of fewer, padding to a fixed size would be measured."""


def estimated_seconds(
    planner: Planner, plan: GenerationPlan, seconds: float, *, writes: bool = True
) -> float:
    """The seconds of all demonstrations of a plan of this planner, measured for about so many seconds.

    Everything is measured once at least. No record is read. `writes` says whether the model writes the texts
    of counted words, and no text writer.
    """
    settings, backend, counts_words = plan.settings, planner.backend, planner.mechanism.draws_once
    opening = max(1, planner.longest_opening + MOST_HINT * counts_words)
    tokens, draws, shared = settings.max_tokens, settings.draws_per_demonstration, settings.tokens_per_draw
    prefix = planner.writer.for_label(planner.labels[0]).prefix
    probe = _Probe(backend, prefix, shared, min(_MOST_STEPS, tokens - 1), seconds / 4, counts_words)
    most = settings.prompts_per_draw
    kept = most if backend.kept_prompts is None else backend.kept_prompts
    probe.answered(1, 1)  # evaluates the prefix, and allocates memory
    if kept and tokens > 1:
        replace(probe, seconds=0.0).step(1, 1, public=counts_words or tokens == draws)  # likewise
        whole = probe.first(opening + len(prefix) * counts_words, 1)
        # candidates follow one prompt, so that only their own tokens are measured
        each, length = (CANDIDATES, 1) if counts_words else (1, opening)
        further = (tokens - 1) * probe.step(length, each, public=True)
    else:
        whole, further = 0.0, tokens * probe.first(opening + tokens // 2, 1)
    if counts_words:
        texts, labels = plan.demonstrations * writes, len(plan.labels)
        return (texts + labels) * whole + (texts * CANDIDATES + labels * EXPECTING) * further
    public = whole + further
    drawn = planner.longest_suffix - tokens + shared * (draws - 1) // 2
    first, step, afresh = probe.first(drawn, most), 0.0, 0.0
    if kept and tokens > draws:
        affordable = max(_FEWEST_STEPPING, int(probe.seconds / max(first, 1e-9)))
        step = probe.step(1, min(most, kept, affordable))
    if kept < most and tokens > draws:
        afresh = probe.first(drawn + shared // 2, most)
    total = 0.0
    for stratum in plan.strata:
        prompts = stratum.draws.prompts
        further = min(prompts, kept) * step + max(0, prompts - kept) * afresh
        total += len(stratum.labels) * (public + draws * prompts * first + (tokens - draws) * further)
    return settings.shots_per_label * total


@dataclass(frozen=True)
class _Probe:
    """Measures a backend on public prompts.

    Attributes:
        prefix: what all prompts begin with.
        steps: the most further answers of a block that are measured.
        seconds: for about how long each measurement may take.
        public: whether a generation asks for public answers alone.
    """

    backend: LogprobBackend
    prefix: Tokens
    tokens_per_draw: int
    steps: int
    seconds: float
    public: bool

    def first(self, length: int, most: int) -> float:
        """Seconds for a first answer to one of several prompts of so many tokens after the prefix.

        Asks for 1, 2, 4, ... prompts, at most `most`, until the time is up. The largest number counts.
        """
        number, spent, asked, total = 1, 0.0, 0, 0.0
        while total < self.seconds or not asked:
            if number < most and asked:
                number, spent, asked = min(2 * number, most), 0.0, 0
            took = self.answered(length, number)
            spent, asked, total = spent + took, asked + number, total + took
        return spent / asked

    def answered(self, length: int, number: int) -> float:
        """Seconds for the first answers to so many prompts together."""
        started = time.perf_counter()
        suffixes, tokens = self._suffixes(length, number), self.tokens_per_draw
        with closing_block(self.backend, self.prefix, suffixes, tokens, public=self.public) as block:
            block.next_token_logprobs(self._support)
        return time.perf_counter() - started

    def step(self, length: int, number: int, *, public: bool = False) -> float:
        """Seconds for a further answer to one of so many prompts together."""
        support, suffixes = None if public else self._support, self._suffixes(length, number)
        with closing_block(self.backend, self.prefix, suffixes, self.steps + 1, public=public) as block:
            block.next_token_logprobs(support)
            steps, elapsed, started = 0, 0.0, time.perf_counter()
            while steps < self.steps and (not steps or elapsed < self.seconds):
                block.append(self.prefix[0])
                block.next_token_logprobs(support)
                steps, elapsed = steps + 1, time.perf_counter() - started
        return elapsed / steps / number

    def _suffixes(self, length: int, number: int) -> list[Tokens]:
        return [list(islice(cycle(self.prefix), start, start + length)) for start in range(number)]

    @property
    def _support(self) -> range:
        return range(min(_SUPPORT, self.backend.vocabulary_size))
