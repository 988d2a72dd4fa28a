"""Spies at the borders between rooms: everything that crosses one in a generation goes into a journal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpfewshot.account.account import Account, Reserved
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.mechanisms import Mechanism
from dpfewshot.values import PrivacyBudget, Record

VOCABULARY = 12
PUBLIC_TEXT, FIRST_RECORD = 500, 1000


def record(number: int, label: str, unit: str | None = None) -> Record:
    """A record that a witness knows again in a prompt."""
    return Record(f"r{number}", label, unit)


@dataclass(frozen=True)
class Asked:
    """What the language model was asked: every prompt, and which tokens."""

    prompts: tuple[tuple[int, ...], ...]
    support: tuple[int, ...] | None

    @property
    def private(self) -> bool:
        return any(token >= FIRST_RECORD for prompt in self.prompts for token in prompt)

    def records(self, released: Sequence[int] = ()) -> list[tuple[int, ...]]:
        """The numbers of the records in each prompt, which ends in exactly what was released."""
        for prompt in self.prompts:
            end = [token for token in prompt[len(prompt) - len(released) - 1 :] if token < VOCABULARY]
            assert end == list(released)
        return [
            tuple(token - FIRST_RECORD for token in prompt if token >= FIRST_RECORD)
            for prompt in self.prompts
        ]


class Witness(LogprobBackend):
    """A language model that writes down all it is asked. Records move its answers far away."""

    def __init__(self, journal: list[Any]) -> None:
        self.vocabulary_size = VOCABULARY
        self.end_token_ids = frozenset()
        self.batch_invariant = True
        self.journal = journal

    def tokenize(self, text: str) -> list[int]:
        word = text.strip()
        return [FIRST_RECORD + int(word[1:]) if word[:1] == "r" and word[1:].isdigit() else PUBLIC_TEXT]

    def detokenize(self, tokens: Tokens) -> str:
        return "".join("abcdefghijkl"[token] for token in tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        asked = tuple(tuple(prompt) for prompt in prompts)
        self.journal.append(Asked(asked, None if support is None else tuple(support)))
        rows = np.array([self._answer(prompt) for prompt in prompts])
        return rows if support is None else np.ascontiguousarray(rows[:, list(support)])

    def _answer(self, prompt: Tokens) -> Logprobs:
        """Each prompt favours tokens of its own: one half of them without records, the other with some."""
        records = [token for token in prompt if token >= FIRST_RECORD]
        half = VOCABULARY // 2
        favourite = (len(prompt) % half) + half if not records else sum(records) % half
        distance = (np.arange(VOCABULARY) - favourite) % VOCABULARY
        scores = -distance.astype(np.float64)
        return (scores - np.log(np.exp(scores).sum())).astype(np.float32)


@dataclass(frozen=True)
class Started:
    draws: Any
    noise_multiplier: float
    random_source: Any


@dataclass(frozen=True)
class Supported:
    public: bytes
    excluded: frozenset[int]
    support: tuple[int, ...]


@dataclass(frozen=True)
class Released:
    public: bytes
    rows: int = field(compare=False)
    permit: Any = field(compare=False)
    token: int


class SpyingMechanism:
    """A mechanism whose every argument is written down, and whose tokens no private number has a say in."""

    def __init__(self, mechanism: Mechanism, journal: list[Any]) -> None:
        self._mechanism = mechanism
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def start(self, draws: Any, noise_multiplier: float, random_source: Any = None) -> Any:
        self._journal.append(Started(draws, noise_multiplier, random_source))
        return SpyingRelease(self._mechanism.start(draws, noise_multiplier, random_source), self._journal)


class SpyingRelease:
    def __init__(self, release: Any, journal: list[Any]) -> None:
        self._release = release
        self._journal = journal
        self._tokens = 0

    def support(self, public_logprobs: Any, excluded: frozenset[int]) -> list[int]:
        support: list[int] = self._release.support(public_logprobs, excluded)
        self._journal.append(Supported(public_logprobs.tobytes(), excluded, tuple(support)))
        return support

    def token(self, logprobs: Any, public_logprobs: Any, permit: Any) -> int:
        self._release.token(logprobs, public_logprobs, permit)
        self._tokens += 1
        token = self._tokens % logprobs.shape[1]
        self._journal.append(Released(public_logprobs.tobytes(), len(logprobs), permit, token))
        return token


@dataclass(frozen=True)
class Told:
    act: str
    arguments: tuple[Any, ...]


class SpyingAccount(Account):
    """An account that writes down what it is told; the numbers of its entries are no matter."""

    def __init__(self, budget: PrivacyBudget, journal: list[Any]) -> None:
        super().__init__(Account.in_memory(budget)._store)  # noqa: SLF001 - of its own class
        self._journal = journal

    def reserve(self, scope: Any, cost: Any, details: Any, draws: Any = None) -> Reserved:
        self._journal.append(Told("reserve", (scope, cost, dict(details))))
        return super().reserve(scope, cost, details, draws)

    def draw(self, entry: int, lease: str, progress: str = "") -> None:
        self._journal.append(Told("charge", ()))
        super().draw(entry, lease, progress)


def draws_of(journal: Sequence[Any], tokens: int) -> Iterator[list[list[tuple[int, ...]]]]:
    """The records in each prompt, at each token, one demonstration after another.

    Args:
        journal: of demonstrations whose support the mechanism chose before each token.
        tokens: of each demonstration.
    """
    released: list[int] = []
    steps: list[list[tuple[int, ...]]] = []
    support: tuple[int, ...] = ()
    seen: list[tuple[int, ...]] = []
    for entry in journal:
        match entry:
            case Supported():
                support, seen = entry.support, []
            case Asked() if entry.private:
                seen = entry.records(released)
            case Released():
                released.append(support[entry.token])
                steps.append(seen)
                if len(steps) == tokens:
                    yield steps
                    released, steps = [], []
