"""The right to release tokens: handed out by the accountant after it charged, used up by the mechanism."""

from __future__ import annotations

import threading
from typing import Self

from dpfewshot.errors import BudgetExceeded


class Permit:
    """Leave to release up to `tokens` tokens on one draw of records.

    Only the accountant calls the constructor, after it charged; a mechanism uses one token of the permit
    before it looks at a private number. So nothing is drawn that was not charged, nor with less noise than
    was charged for. `unpaid` is for audits. tests/unit/test_house.py holds who calls which.

    Args:
        tokens: that the draw was charged for.
        noise_multiplier: σ that it was charged for.
    """

    def __init__(self, tokens: int, noise_multiplier: float) -> None:
        self._noise_multiplier = noise_multiplier
        self._tokens = self._left = tokens
        self._used = 0
        self._lock = threading.Lock()

    @classmethod
    def unpaid(cls, tokens: int, noise_multiplier: float) -> Self:
        """Leave that nobody paid for: to measure a mechanism, where no token is released to anybody."""
        return cls(tokens, noise_multiplier)

    @property
    def tokens(self) -> int:
        """R, the tokens that the draw was charged for. The loop draws again when they are used up."""
        return self._tokens

    def use(self, noise_multiplier: float) -> None:
        """Use up one token.

        Args:
            noise_multiplier: what the token is about to be released with.

        Raises:
            BudgetExceeded: the block's tokens are all used, or were charged for another noise.
        """
        if noise_multiplier != self._noise_multiplier:
            raise BudgetExceeded("this block of tokens was charged for another noise multiplier")
        with self._lock:
            if self._left < 1:
                raise BudgetExceeded("this block of tokens is used up: a new one must be charged first")
            self._left -= 1
            self._used += 1

    def pass_on(self) -> Permit:
        """Leave for another mechanism to release a token that was used up here, once for each.

        Raises:
            BudgetExceeded: no token was used up that was not passed on.
        """
        with self._lock:
            if self._used < 1:
                raise BudgetExceeded("no token of this block was used up that could be passed on")
            self._used -= 1
        return Permit(1, self._noise_multiplier)
