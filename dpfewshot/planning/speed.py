"""How long a plan takes: the speed of a backend on public prompts, and the work of a plan.

A demonstration of T tokens makes D = ⌈T/R⌉ draws of M prompts. With F(L) = prompt + token·L, the seconds of
a first answer to a prompt of L tokens after the prefix, and S those of every further answer, it takes

    public prompt + M·(D·F(L) + (T - D)·S)

where L is the mean over the draws, for records that fill their caps. docs/results/scale.md has the fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle, islice

from dpfewshot.backends.protocol import LogprobBackend, PromptBlock, Tokens, closing_block
from dpfewshot.planning.settings import PlanSettings

SUPPORT = 100
"""Tokens of the vocabulary that a private prompt is asked for, as a mechanism's K is by default."""

_MOST_STEPS = 8
"""Steps of one measured block at most."""

_FEWEST_STEPPING = 16
"""Prompts that take a step together at least: of fewer, padding to a fixed size would be measured."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of a plan's longest prompts, from caps and public texts.

    Attributes:
        prefix: what all prompts begin with.
        opening: what follows it in the public prompt.
        suffix: what follows it in a private prompt, released tokens not counted.
    """

    prefix: int
    opening: int
    suffix: int

    def at_draws(self, settings: PlanSettings) -> float:
        """The mean length of a private prompt after the prefix when its records are drawn."""
        return self.suffix + settings.tokens_per_draw * (settings.draws_per_demonstration - 1) / 2


@dataclass(frozen=True)
class Speed:
    """The seconds that a backend takes for one of several prompts, the prefix evaluated before.

    A backend that keeps no prompts evaluates the prefix with each of them: `prompt` includes it.

    Attributes:
        prompt: for the first answer, whatever the prompt's length.
        token: for each of its tokens after the prefix, in addition.
        step: for each further answer; None if the backend keeps no prompts.
        public_step: for each further answer to the public prompt; None likewise.
        kept_prompts: how many prompts of a draw are kept; None if the backend does not say.
    """

    prompt: float
    token: float
    step: float | None = None
    public_step: float | None = None
    kept_prompts: int | None = None

    def first(self, length: float) -> float:
        """Seconds for the first answer to a prompt of so many tokens after the prefix."""
        return self.prompt + self.token * length

    def demonstration(self, lengths: Lengths, settings: PlanSettings) -> float:
        """Seconds for one demonstration of `max_tokens` tokens whose records fill their caps.

        Completing a text that is cut off, at most 24 answers to the public prompt, is not counted.
        """
        tokens, prompts = settings.max_tokens, settings.prompts_per_draw
        draws = settings.draws_per_demonstration
        drawn = lengths.at_draws(settings)
        step = afresh = self.first(drawn + settings.tokens_per_draw / 2)
        if self.step is not None:
            kept = 1.0 if self.kept_prompts is None else min(1.0, self.kept_prompts / prompts)
            step = kept * self.step + (1 - kept) * afresh
        return self.public_text(lengths, settings) + prompts * (
            draws * self.first(drawn) + (tokens - draws) * step
        )

    def public_text(self, lengths: Lengths, settings: PlanSettings) -> float:
        """Seconds for one text of `max_tokens` tokens from the public prompt alone."""
        tokens = settings.max_tokens
        if self.public_step is None:
            return tokens * self.first(lengths.opening + tokens / 2)
        return self.first(lengths.prefix + lengths.opening) + (tokens - 1) * self.public_step


@dataclass(frozen=True)
class SpeedProbe:
    """Measures a backend on public prompts of a plan's lengths. It reads no record and spends nothing."""

    backend: LogprobBackend
    prefix: Tokens
    lengths: Lengths
    settings: PlanSettings

    def measure(self, seconds: float) -> Speed:
        """Return the speed, measured for about so many seconds, and at least once."""
        prompts, each = self.settings.prompts_per_draw, seconds / 4
        short = max(1, self.lengths.opening)
        long = max(short + 1, round(self.lengths.at_draws(self.settings)))
        self._first_answers(short, 1)  # evaluates the prefix, and allocates memory
        at_short = _of_one(lambda number: self._first_answers(short, number), prompts, each)
        at_long = _of_one(lambda number: self._first_answers(long, number), prompts, each)
        token = max(0.0, (at_long - at_short) / (long - short))
        prompt = max(0.0, at_long - token * long)
        kept = self.backend.kept_prompts
        if self.settings.max_tokens == 1 or kept == 0:
            return Speed(prompt, token)
        affordable = max(_FEWEST_STEPPING, int(each / max(at_short, 1e-9)))
        together = min(prompts, affordable, prompts if kept is None else kept)
        self._steps(1, 0.0)  # allocates memory, and evaluates dummies
        return Speed(
            prompt,
            token,
            step=self._steps(together, each) / together,
            public_step=self._steps(1, each, public=True),
            kept_prompts=kept,
        )

    def _first_answers(self, length: int, number: int) -> float:
        """Seconds for the first answers to so many prompts of this length."""
        started = time.perf_counter()
        with self._block(length, number, self.settings.tokens_per_draw) as block:
            block.next_token_logprobs(self._support)
        return time.perf_counter() - started

    def _steps(self, number: int, seconds: float, *, public: bool = False) -> float:
        """Seconds for a further answer to so many prompts together."""
        most = min(_MOST_STEPS, self.settings.max_tokens - 1)
        support = None if public else self._support
        length = max(1, self.lengths.opening) if public else 1
        with self._block(length, number, most + 1, public=public) as block:
            block.next_token_logprobs(support)
            steps, started = 0, time.perf_counter()
            while True:
                block.append(self.prefix[0])
                block.next_token_logprobs(support)
                steps, elapsed = steps + 1, time.perf_counter() - started
                if steps == most or elapsed >= seconds:
                    return elapsed / steps

    def _block(
        self, length: int, number: int, tokens: int, *, public: bool = False
    ) -> AbstractContextManager[PromptBlock]:
        suffixes = [list(islice(cycle(self.prefix), start, start + length)) for start in range(number)]
        return closing_block(self.backend, self.prefix, suffixes, tokens, public=public)

    @property
    def _support(self) -> range:
        return range(min(SUPPORT, self.backend.vocabulary_size))


def _of_one(work: Callable[[int], float], most: int, seconds: float) -> float:
    """Seconds for one of the prompts that a backend is asked for together.

    Asks for 1, 2, 4, ... prompts, at most `most`, until the time is up. The largest number counts.
    """
    number, spent, asked, total = 1, 0.0, 0, 0.0
    while total < seconds or not asked:
        if number < most and asked:
            number, spent, asked = min(2 * number, most), 0.0, 0
        took = work(number)
        spent, asked, total = spent + took, asked + number, total + took
    return spent / asked
