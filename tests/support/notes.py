"""A scripted language model that reads few-shot prompts of notes and their moods, for attacks on prompts."""

from collections.abc import Callable, Sequence

from dpfewshot.backends import Scripted
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.values import Demonstration, PrivacySpend, Record, Relation
from tests.support import factory

FORMAT = PromptFormat("", "Note", "Mood", ("Glad", "Sad"))
NOTES = 60
WORDS = ("Note:", "Mood:", " Glad", " Sad", "\n", *(f" note{i:02}" for i in range(NOTES)))
NOTE, MOOD, GLAD, SAD, LINE, FIRST = range(6)

Moods = Callable[[list[int], list[int], int], float]
"""The notes and the moods that a prompt shows, and the note that it asks about, to p(Glad)."""


class Reader(Scripted):
    """Tells moods by a rule; expects the notes that it was shown with `remembered` in all, others alike."""

    def __init__(self, moods: Moods, remembered: float = 0.0) -> None:
        self.moods = moods
        self.remembered = remembered
        super().__init__(WORDS, self.answer)

    def answer(self, prompt: list[int]) -> Sequence[float]:
        shown = [token for token in prompt if token >= FIRST]
        if prompt[-1] == MOOD:
            moods = [token for token in prompt if token in (GLAD, SAD)]
            asked = shown[len(moods)] if len(shown) > len(moods) else -1
            glad = self.moods(shown[: len(moods)], moods, asked)
            return [0, 0, glad, 1 - glad, 0, *[0.0] * NOTES]
        if prompt[-1] == NOTE:
            known = self.remembered if shown else 0.0
            return [0] * FIRST + [
                (1 - known) / NOTES + (known / len(shown) if token in shown else 0.0)
                for token in range(FIRST, len(WORDS))
            ]
        follows = NOTE if prompt[-2:] == [LINE, LINE] else MOOD if prompt[-1] == LINE else LINE
        return [float(token == follows) for token in range(len(WORDS))]


def note(number: int, mood: str = "Glad") -> Record:
    return Record(f"note{number:02}", mood)


def demonstration(number: int, mood: str = "Glad", epsilon: float | None = None) -> Demonstration:
    spent = None if epsilon is None else PrivacySpend(epsilon, 1e-5)
    return factory.demonstration(f"note{number:02}", mood, spent=spent, relation=Relation.ADD_REMOVE)
