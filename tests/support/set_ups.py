"""Sound and broken set-ups for audits."""

from dataclasses import dataclass, field, replace

import numpy as np

from dpfewshot import PrivacyBudget
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import PoissonGaussian
from dpfewshot.backends import Scripted
from dpfewshot.generation import units as division
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms import Gaussian, Mechanism, Release, RowChange
from dpfewshot.mechanisms.gaussian import start_release
from dpfewshot.records.units import each_a_unit
from dpfewshot.sampling import PoissonSampler
from dpfewshot.tasks import Task
from dpfewshot.values import Record
from tests.support import factory
from tests.support.draws import sliced
from tests.support.notes import FIRST, MOOD, NOTES, Reader
from tests.support.scripts import TASK

SECRET = "swordfish"
TOKENS = 120


class Indifferent(Scripted):
    """Every token is as likely as any other, whatever the prompt, and ends a sentence: none is completed."""

    def __init__(self) -> None:
        super().__init__([f"<{i}>!" for i in range(TOKENS)], lambda _: [1 / TOKENS] * TOKENS)


class Mixing(Indifferent):
    """Claims batch invariance, and moves every answer a little with the number of prompts.

    Args:
        supports_alone: where it is asked for a support alone: as generations ask, and few checks.
    """

    def __init__(self, *, supports_alone=False):
        super().__init__()
        self.supports_alone = supports_alone

    def next_token_logprobs(self, prompts, support=None):
        answers = super().next_token_logprobs(prompts, support)
        sound = self.supports_alone and support is None
        return answers if sound else answers * np.float32(1 + 1e-6 * len(prompts))


@dataclass(frozen=True)
class LessNoise:
    """A mechanism whose event claims all of its noise, and whose releases have a share of it."""

    mechanism: Mechanism = field(default_factory=Gaussian)
    share: float = 0.5

    def __getattr__(self, name):
        return getattr(self.mechanism, name)

    def start(self, draws, noise_multiplier, random_source=None):
        less = noise_multiplier * self.share
        return LessNoisyRelease(self.mechanism.start(draws, less, random_source), noise_multiplier, less)


@dataclass(frozen=True)
class LessNoisyRelease:
    release: Release
    claimed: float
    noise_multiplier: float

    def support(self, *arguments):
        return self.release.support(*arguments)

    def token(self, logprobs, public_logprobs, permit):
        permit.use(self.claimed)
        return self.release.token(logprobs, public_logprobs, Permit(1, self.noise_multiplier))


class ForgetsBlocks(Gaussian):
    """Its event counts one token of each draw, however many there are."""

    def event(self, draws, noise_multiplier):
        return PoissonGaussian(draws.sampling_rate, noise_multiplier, draws.steps)


def slice_by_position(monkeypatch):
    """Cut every Poisson sample in the order of its records, as the published implementations do."""
    sound = PoissonSampler.draw

    def draw(sampler, sizes):
        drawn = sorted(member for subset in sound(sampler, sizes) for member in subset)
        return sliced(drawn, sampler.records_per_prompt)

    monkeypatch.setattr(PoissonSampler, "draw", draw)


def draw_once(monkeypatch):
    """Repeat the first draw of records in every step."""
    sound, kept = PoissonSampler.draw, {}

    def draw(sampler, sizes):
        return kept.setdefault(len(sizes), sound(sampler, sizes))

    monkeypatch.setattr(PoissonSampler, "draw", draw)


def set_up_of_customers(**settings):
    """A synthesizer of free labels for 20 customers with three records each."""
    return factory.synthesizer(
        Indifferent(),
        [Record(f"{SECRET} {i}", "any", f"customer {i % 20}") for i in range(60)],
        task=Task(name="films", instruction="Write a film.", label_field="Kind", text_field="Film"),
        mechanism=None,
        labels=["refund", "delivery"],
        prompts_per_draw=10,
        max_tokens=2,
        **settings,
    )


def set_up_of_unequal_labels():
    """A synthesizer for 20 units of the first label and 200 of the second."""
    records = [Record(f"{SECRET} {i}", TASK.labels[i >= 20]) for i in range(220)]
    return factory.synthesizer(Indifferent(), records, mechanism=None, prompts_per_draw=10, max_tokens=2)


def set_up(mechanism=None, *, units=10, prompts=10, backend=None, max_tokens=1, epsilon=4.0, **settings):
    records = [Record(f"{SECRET} {i}", TASK.labels[i % 2]) for i in range(2 * units)]
    return factory.synthesizer(
        backend or Indifferent(),
        records,
        budget=PrivacyBudget(epsilon, 1e-5),
        mechanism=mechanism or Gaussian(),
        prompts_per_draw=prompts,
        max_tokens=max_tokens,
        **settings,
    )


class Kept:
    """A sampler that draws once for a whole demonstration."""

    def __init__(self, sampler):
        self.sampler, self.drawn = sampler, None

    def draw(self, sizes):
        self.drawn = self.drawn or [self.sampler.draw(sizes)]
        return self.drawn[0]


def draw_once_a_demonstration(monkeypatch):
    """Account fresh draws, and use the first."""
    sound = SetUp.sampler
    monkeypatch.setattr(SetUp, "sampler", lambda self, part: Kept(sound(self, part)))


def draw_all_at_the_largest_rate(monkeypatch):
    """Draw every label as often as the one with the fewest units."""
    sound = SetUp.sampler

    def sampler(self, _part):
        return sound(self, max(self.plan.strata, key=lambda part: part.sampling_rate))

    monkeypatch.setattr(SetUp, "sampler", sampler)


def start_as_for_one_record(monkeypatch):
    """Give rows that change the noise of rows that come or go."""

    def release(self, part):
        return start_release(
            self.mechanism, replace(part.draws, row_change=RowChange.ADDED), part.noise_multiplier, None
        )

    monkeypatch.setattr(SetUp, "release", release)


def count_records_as_units(monkeypatch):
    """Draw each record by itself, whomever it belongs to."""
    monkeypatch.setattr(division, "units", each_a_unit)


def draw_twice_as_long(monkeypatch):
    """Serve more tokens with a draw than it was charged for."""
    sound = Permit.tokens.fget
    monkeypatch.setattr(Permit, "tokens", property(lambda self: 2 * sound(self)))
    monkeypatch.setattr(Permit, "use", lambda _self, _noise_multiplier: None)


class Knowing(Reader):
    """Surer of the mood of a note that its prompt showed before."""

    def __init__(self):
        super().__init__(lambda *_: 0.5)

    def answer(self, prompt):
        if prompt[-1] != MOOD:
            return super().answer(prompt)
        *shown, asked = [-1, *(token for token in prompt if token >= FIRST)]
        glad = 0.9 if asked in shown else 0.6
        return [0, 0, glad, 1 - glad, 0, *[0.0] * NOTES]


class Echoing(Scripted):
    """Copies what follows the last word in its prompt's record; else earlier words are likelier."""

    def __init__(self, words: int = 40) -> None:
        super().__init__([f" w{i}." for i in range(words)], self.answer)
        self._any = [2 * (words - i) / (words * (words + 1)) for i in range(words)]
        self._certain = [[float(i == word) for i in range(words)] for word in range(words)]

    def answer(self, prompt: list[int]) -> list[float]:
        stretches = "".join(chr(token) for token in prompt).split(chr(self.vocabulary_size))
        record, released = next(filter(None, stretches), ""), stretches[-1]
        place = record.find(released[-1]) + 1 if released else 0
        known = len(stretches) > len(released) + 1 and 0 < len(record) > place and (place or not released)
        return self._certain[ord(record[place])] if known else self._any


def set_up_of_echoes(mechanism=None, *, epsilon=1.0, max_tokens=4, **settings):
    """A synthesizer for 10 records of each label that begin alike, and of a model that copies them."""
    texts = [f"w0. w1. w{2 * i + 2}. w{2 * i + 3}." for i in range(10)]
    return factory.synthesizer(
        Echoing(),
        [Record(text, label) for text in texts for label in TASK.labels],
        budget=PrivacyBudget(epsilon, 1e-5),
        mechanism=mechanism or Gaussian(),
        prompts_per_draw=10,
        max_tokens=max_tokens,
        **({"tokens_per_draw": max_tokens} | settings),
    )
