"""Counts the records' words once, with noise; all texts of a label are written from what was released.

Before the count the model, and a text writer if there is one, write texts without any record: their words are
expected. Then one draw of records is charged and counted. `writing/` does the rest, and reads no record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from dpfewshot.generation.token_loop import TextRequest, TokenLoop
from dpfewshot.mechanisms.word_histogram import Expected, Features, HistogramRelease, features, row_sum
from dpfewshot.prompts.writer import none_if_unusable
from dpfewshot.writing.histogram import Histogram, of_noisy_sum
from dpfewshot.writing.request import PublicRequest
from dpfewshot.writing.writer import HistogramWriter

_RECORDS_AT_ONCE: Final = 1000


@dataclass(frozen=True, kw_only=True)
class HistogramLoop(TokenLoop):
    """Generates from one histogram a label. See `TokenLoop`.

    Attributes:
        writer: writes the texts.
    """

    writer: HistogramWriter

    def tokens(self, request: TextRequest) -> Generator[int]:
        """Release the tokens of one demonstration, all of them or none. See `TokenLoop.tokens`.

        The first one of a reservation charges its draw; later ones read the histogram that it keeps.
        """
        if request.released:  # the text was taken, and not recorded
            return
        kept = request.reservation.histogram
        if kept is None:
            expected = self.writer.expected(request.public)  # finds a dead model before anything is charged
            request.units.check()
            kept = of_noisy_sum(*self.noisy_sum(request, expected), expected).as_dict()
            request.reservation.keep(kept)
        counted = Histogram.from_dict(kept).spelled(self.backend)
        released = self.writer.text(counted, request.public)
        request.released.extend(released)
        yield from released

    def without_records(self, request: PublicRequest) -> list[int]:
        """The tokens of a text from a histogram that tells nothing."""
        return self.writer.without_records(request)

    def noisy_sum(self, request: TextRequest, expected: Expected) -> tuple[NDArray[np.int64], int, int]:
        """Charge, count the rows of a draw and release their sum. See `HistogramRelease.noisy_sum`."""
        none_if_unusable(self._works, public=self._works)  # whether it fails is no matter of the records
        request.stop.check()
        request.reservation.charge()  # not later: whether it is charged would tell how long the count takes
        # the draw is made after the count, since that may fail: nothing leaves, and no noise is drawn
        total = row_sum(self._counted(request), self.backend.vocabulary_size, expected)
        release = cast("HistogramRelease", request.release)
        return release.noisy_sum(total, request.reservation.draw())

    def _counted(self, request: TextRequest) -> Iterator[Features]:
        """What is counted of the drawn records, each by itself; one that cannot be read counts nothing."""
        drawn = [record for subset in request.sampler.draw(request.units.sizes) for record in subset]
        # each word once, since a server is slow; a tuple, which no later answer can change
        tokenize = lru_cache(maxsize=None)(lambda word: tuple(self.backend.tokenize(word)))
        for start in range(0, len(drawn), _RECORDS_AT_ONCE):
            [bodies] = request.units.of([drawn[start : start + _RECORDS_AT_ONCE]])
            for body in bodies:
                if body is None:
                    continue
                found = none_if_unusable(partial(self._features, body, tokenize), public=self._works)
                if found is not None:
                    yield found

    def _features(self, tokens: Sequence[int], tokenize: Callable[[str], Sequence[int]]) -> Features:
        return features(self.backend.detokenize(tokens), tokenize)

    def _works(self) -> object:
        return self._features(self.backend.tokenize(" public"), self.backend.tokenize)
