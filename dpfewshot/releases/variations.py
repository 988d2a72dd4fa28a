"""Proposes prompts for a search: small changes of the one that won."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dpfewshot.releases.choice import Candidate
from dpfewshot.values import Demonstration, by_label, check_whole


@dataclass(frozen=True)
class Variations:
    """A proposer for `dpf.search` that changes one thing at a time.

    The first round tries no demonstrations and one text a label, as often as there are other texts, then
    the last order reversed and labels that are not calibrated. Each further round tries the winner with one
    label's text exchanged or left out, and the two changes above.

    Args:
        demonstrations: released; with several texts a label there is more to try.
        most: candidates of a round, at least 1. If there are more, they are taken evenly from all.
    """

    demonstrations: Sequence[Demonstration] = field(repr=False)
    most: int = 12

    def __post_init__(self) -> None:
        check_whole("most", self.most)

    def __call__(self, winners: Sequence[Candidate]) -> list[Candidate]:
        """The candidates of the next round."""
        found = [*self._changed(winners[-1])] if winners else [*self._first()]
        step = max(1.0, len(found) / self.most)
        return [found[int(number * step)] for number in range(min(self.most, len(found)))]

    def _first(self) -> Iterator[Candidate]:
        yield Candidate()
        texts = [*by_label(self.demonstrations).values()]
        for number in range(max(map(len, texts), default=0)):
            shown = [each[number % len(each)] for each in texts]
            yield Candidate(shown, name=f"text {number + 1} of each label")
            if not number:
                yield from _presented(Candidate(shown, name="text 1 of each label"))

    def _changed(self, winner: Candidate) -> Iterator[Candidate]:
        shown = [*winner.demonstrations]
        yield from _presented(winner)
        for place, old in enumerate(shown):
            rest = shown[:place], shown[place + 1 :]
            for number, new in enumerate(by_label(self.demonstrations).get(old.label, [])):
                if new not in shown:
                    name = f"{winner.name}, {old.label}: text {number + 1}"
                    yield replace(winner, demonstrations=[*rest[0], new, *rest[1]], name=name)
            if len(shown) > 1:
                name = f"{winner.name}, without demonstration {place + 1}"
                yield replace(winner, demonstrations=[*rest[0], *rest[1]], name=name)


def _presented(prompt: Candidate) -> Iterator[Candidate]:
    """The same demonstrations, presented in another way."""
    if len(prompt.demonstrations) > 1:
        yield replace(prompt, demonstrations=prompt.demonstrations[::-1], name=f"{prompt.name}, reversed")
    calibrated = "not calibrated" if prompt.calibrated else "calibrated"
    yield replace(
        prompt, calibrated=not prompt.calibrated, calibration=None, name=f"{prompt.name}, {calibrated}"
    )
