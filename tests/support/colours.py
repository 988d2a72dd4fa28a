"""A scripted model that names the colours of things, with a bias towards red."""

from collections.abc import Sequence

import dpfewshot as dpf
from dpfewshot.backends import Scripted
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.icl import PromptFormat
from tests.support.factory import demonstration

COLOURS = PromptFormat("Name the colour.", "Thing", "Colour", ("red", "blue", "light blue"))

WORDS = ("Name the colour.", "\n\n", "Thing:", "\nColour:", " ", " N/A", " [MASK]")
WORDS += (" red", " blue", " light", " rose", " sky", " sea", " void", "\n")

CONTENT_FREE = {" red": 0.7, " blue": 0.1, " light": 0.1}
"""Its answers to content-free text."""

THINGS = {
    " rose": {" red": 0.8, " blue": 0.05, " light": 0.05},
    " sky": {" red": 0.5, " blue": 0.1, " light": 0.3},
    " sea": {" red": 0.5, " blue": 0.3, " light": 0.1},
}


def shown(text: str, label: str) -> dpf.Demonstration:
    free = dpf.PrivacySpend(0.0, 0.0)
    return demonstration(text, label, spent=free, relation="add-remove", mechanism="instruction-only")


class Colours(Scripted):
    """Answers from the last thing of the prompt. " light" goes on to " blue" half of the time.

    Attributes:
        prompts: every prompt that it was asked.
        calls: how many prompts each call had.
        supports: the supports asked for.
    """

    def __init__(self) -> None:
        super().__init__(WORDS, self.answer)
        self.prompts: list[str] = []
        self.calls: list[int] = []
        self.supports: list[Tokens | None] = []

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        self.calls.append(len(prompts))
        self.supports.append(support)
        return super().next_token_logprobs(prompts, support)

    def answer(self, prompt: list[int]) -> list[float]:
        text = self.detokenize(prompt)
        self.prompts.append(text)
        said = text.rsplit("\nColour:", 1)[-1]
        thing = next((name for name in THINGS if name in text.rsplit("Thing:", 1)[-1]), None)
        chances = THINGS[thing] if thing else CONTENT_FREE
        if said:
            chances = {" blue": 0.5} if said == " light" else {"\n": 0.9}
        rest = (1 - sum(chances.values())) / (len(WORDS) - len(chances))
        return [chances.get(word, rest) for word in WORDS]
