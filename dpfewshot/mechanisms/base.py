"""What the package's mechanisms have in common: a new one states an event and a `choose`.

`BaseRelease.token` uses up the permit before a private number is touched, so no mechanism can forget to.
A mechanism may also implement the protocols in `protocol` without these classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpfewshot.account.permit import Permit
from dpfewshot.accounting.events import Event, PublishedAccounting
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms.protocol import Draws, Release
from dpfewshot.mechanisms.vocabulary import check_top_k, likeliest


class BaseMechanism(ABC):
    """A mechanism whose support is the top K tokens, without noise on probabilities.

    Subclasses are frozen dataclasses.

    Attributes:
        name: what output lines, plans and the command line call it.
        top_k: K, how many of the likeliest public tokens are candidates; None is the whole vocabulary.
        published_accounting: how the mechanism's paper accounts for its fixed-size draws, for reproduction;
            None where the paper has no such accounting.
        refused_settings: settings that other mechanisms have and this one cannot, each with the reason.
    """

    name: ClassVar[str]
    published_accounting: ClassVar[PublishedAccounting | None] = None
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType({})
    top_k: int | None

    @classmethod
    def from_settings(cls, **settings: object) -> Self:
        """The mechanism with these of its fields set, and defaults for the rest."""
        return cls(**settings)

    def check(self, vocabulary_size: int) -> None:
        """Refuse a K outside 1 to V."""
        check_top_k(self.top_k, vocabulary_size)

    @abstractmethod
    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """See `Mechanism.event`."""

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float | None:  # noqa: B027 - None is the answer
        """None: no noise is added to probabilities."""

    @abstractmethod
    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""


class Predictions(NamedTuple):
    """The language model's next-token log-probabilities on the support.

    Attributes:
        private: one row a prompt, shape (prompts, support). A row of NaN is an absent prompt.
        public: of the prompt without records, shape (support,).
    """

    private: NDArray[np.float32]
    public: NDArray[np.float32]


class BaseRelease(ABC):
    """A release from the likeliest public tokens. Subclasses are dataclasses.

    Attributes:
        top_k: K of the reduced vocabulary; None is the whole vocabulary.
        noise_multiplier: σ that every permit must have been charged for.
    """

    top_k: int | None
    noise_multiplier: float

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        """The K likeliest public tokens. See `Release.support`."""
        return likeliest(public_logprobs, excluded, self.top_k)

    def token(
        self, logprobs: NDArray[np.float32], public_logprobs: NDArray[np.float32], permit: Permit
    ) -> int:
        """Use up one token of the permit, then choose. See `Release.token`."""
        permit.use(self.noise_multiplier)
        return self.choose(Predictions(logprobs, public_logprobs))

    @abstractmethod
    def choose(self, predictions: Predictions) -> int:
        """The index in the support of the released token: the mechanism's algorithm for one token."""
