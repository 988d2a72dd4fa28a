"""What a released noisy sum says of the records' words. All of it is post-processing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.mechanisms.word_histogram import (
    END,
    ENDINGS,
    ENDS,
    EXPECTED_FIRST,
    FIRST,
    GRID,
    LENGTH,
    LENGTHS,
    NAME,
    WORDS,
    Expected,
    Features,
    is_word,
)

_AROUND: Final = 1, 2, 1
"""Weights of a length and its neighbours, by which the commonest is found: one alone is noisier."""

CLEAR: Final = 5.5
"""Standard deviations of the noise above which a coordinate is kept: of 300,000, 0.006 are noise alone."""

CLEAR_EXPECTED: Final = 2.5
"""The same for what is expected: of 100 words, 0.6 are noise alone, and the model would write them anyway."""

CLEAR_LIKELY: Final = 3.75
"""The same for a common word that the model knows as a first one: of 400, 0.04 are noise alone."""

_MOST_RATIO: Final = 3.0
"""The most nats of a word's log ratio."""

_OFTENER: Final = 0.03
"""What a nat of a word's log ratio counts beside the likeness of a row."""


@dataclass(frozen=True)
class Histogram:
    """A released histogram. Public: the shares of units, noisy; what noise alone may have made is left out.

    By default it tells nothing.

    Attributes:
        words: of a word's token, weighted as in a row.
        firsts: of a first word's token, likewise.
        lengths: of each of the `LENGTHS`, likewise; all 0 where none stands out.
        ends: of each of `ENDS`, and of another end, likewise.
        log_ratios: of words, the log of their share over that in the model's own texts, within ±3;
            not of those where noise may have made the difference.
        in_lower_case: whether most texts have no capital letter, as far as is known.
        named: the share of texts that have a name, if it is clear that some have; else 0.
        habits: as `log_ratios`, of first words that the model writes oftener than the records.
    """

    words: Mapping[int, float] = field(default_factory=dict)
    firsts: Mapping[int, float] = field(default_factory=dict)
    lengths: Sequence[float] = (0.0,) * LENGTHS
    ends: Sequence[float] = (0.0,) * (len(ENDS) + 1)
    log_ratios: Mapping[int, float] = field(default_factory=dict)
    in_lower_case: bool = False
    named: float = 0.0
    habits: Mapping[int, float] = field(default_factory=dict)

    def spelled(self, backend: LogprobBackend) -> Histogram:
        """The histogram without tokens that no word is counted by: they are noise."""
        words = {word: share for word, share in self.words.items() if is_word(word, backend, subject=True)}
        firsts = {
            word: share
            for word, share in self.firsts.items()
            if is_word(word, backend, subject=False, lower=self.in_lower_case)
        }
        noise = self.words.keys() - words.keys()
        log_ratios = {word: ratio for word, ratio in self.log_ratios.items() if word not in noise}
        return replace(self, words=words, firsts=firsts, log_ratios=log_ratios)

    def likeness(self, found: Features) -> float:
        """How much a text is like the records.

        It is the product of its row and the noisy mean of the units' rows, names left out, at most that of a
        record in the mean: what has more is only more common. Words that the records have oftener than the
        model count too.
        """
        each = 1 / math.sqrt(max(1, len(found.words)))
        product = (
            math.sqrt(WORDS) * each * sum(self.words.get(word, 0.0) for word in found.words)
            + math.sqrt(FIRST) * self.firsts.get(-1 if found.first is None else found.first, 0.0)
            + math.sqrt(LENGTH) * self.lengths[found.length]
            + math.sqrt(END) * self.ends[min(found.end, len(ENDS))]
        )
        log_ratios = each * sum(self.log_ratios.get(word, 0.0) for word in found.words)
        # The mean product of a record's row and the mean of all is the square of this mean.
        parts = self.words.values(), self.firsts.values(), self.lengths, self.ends
        of_a_record = sum(share**2 for part in parts for share in part)
        return min(product, of_a_record) + _OFTENER * log_ratios

    @property
    def usual_lengths(self) -> dict[int, float]:
        """Lengths in words more than half as common as the commonest, and how common; {} if that is noise.

        They lie beside each other: one that stands apart is most likely noise.
        """
        around = np.convolve(self.lengths, _AROUND, "same")
        common = np.flatnonzero(around > around.max() / 2)
        beside_each_other = np.split(common, np.flatnonzero(np.diff(common) > 1) + 1)
        usual = max(beside_each_other, key=lambda some: around[some].max(initial=0))
        return {round(2 ** (int(at) / 2)): float(around[at]) for at in usual}

    @property
    def ends_with_marks(self) -> bool:
        """Whether at least half of the texts end with one of `ENDS`, as far as is known."""
        return 2 * self.ends[-1] <= sum(self.ends)

    def as_dict(self) -> dict[str, object]:
        """The histogram as JSON, whose keys are text; `from_dict` reads it back."""
        return vars(self) | {
            name: {str(key): each for key, each in vars(self)[name].items()} for name in _MAPS
        }

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Histogram:
        """The histogram that `as_dict` made this from."""
        maps = {name: {int(key): each for key, each in told[name].items()} for name in _MAPS if name in told}
        return cls(**{**told, **maps})


_MAPS: Final = "words", "firsts", "log_ratios", "habits"
"""The histogram's fields that are maps from tokens."""


def of_noisy_sum(total: NDArray[np.int64], scale: int, units: int, expected: Expected) -> Histogram:
    """The histogram of a noisy sum over so many units, without words that noise alone may have made."""
    steps = float(GRID) * units
    mean, named = total[:-1] / steps, float(total[-1] / steps)
    vocabulary_size = (len(mean) - LENGTHS - ENDINGS) // 2
    bounds = (0, vocabulary_size, 2 * vocabulary_size, 2 * vocabulary_size + LENGTHS, len(mean))
    words, firsts, lengths, endings = (mean[start:end] for start, end in pairwise(bounds))
    noise = scale / steps
    clear_expected = CLEAR_EXPECTED * noise
    least = np.full((2, vocabulary_size), CLEAR * noise)
    begun = [*expected.firsts]
    least[0, [*expected.words]] = least[1, begun[:EXPECTED_FIRST]] = clear_expected
    least[1, begun[EXPECTED_FIRST:]] = CLEAR_LIKELY * noise
    kept = [
        {int(at): float(part[at]) for at in np.flatnonzero(part > some)}
        for part, some in zip((words, firsts), least, strict=True)
    ]
    if np.convolve(lengths, _AROUND, "same").max() <= clear_expected * np.linalg.norm(_AROUND):
        lengths = np.zeros_like(lengths)
    models = {word: math.sqrt(FIRST) * expected.firsts[word] for word in begun[:EXPECTED_FIRST]}
    of_firsts = _log_ratios(kept[1], models, clear_expected)
    *marks, capitals, lower = endings.tolist()
    marked, unmarked = sum(marks), capitals + lower
    if unmarked - marked <= clear_expected * math.sqrt(ENDINGS):
        unmarked = min(unmarked, max(marked, 0.0))  # that most have no mark may be noise
    return Histogram(
        kept[0],
        kept[1],
        np.maximum(lengths, 0).tolist(),
        np.maximum([*marks, unmarked], 0).tolist(),
        _log_ratios(kept[0], expected.shares(), clear_expected),
        in_lower_case=lower - marked > clear_expected * math.sqrt(1 + len(marks))
        and lower - capitals > clear_expected * math.sqrt(2),
        named=min(1.0, named / math.sqrt(NAME)) if named > clear_expected else 0.0,
        habits={word: ratio for word, ratio in of_firsts.items() if ratio < 0},
    )


def _log_ratios(records: Mapping[int, float], model: Mapping[int, float], clear: float) -> dict[int, float]:
    """`Histogram.log_ratios`, from the shares of words; one that is not clear may have the share `clear`."""
    rarest, limit = min(model.values(), default=0.0), math.exp(_MOST_RATIO)
    log_ratios = {}
    for word in records.keys() | model.keys():
        usual = model.get(word, rarest)
        share = records.get(word, min(clear, usual))
        ratio = share / max(usual, share / limit)
        log_ratios[word] = math.log(max(ratio, 1 / limit))
    return {word: ratio for word, ratio in log_ratios.items() if ratio}
