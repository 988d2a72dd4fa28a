"""The right to release tokens: handed out by the accountant after it charged, used up by the mechanism."""

from __future__ import annotations

import threading

from dpfewshot.errors import BudgetExceeded


class Permit:
    """Leave to release up to `tokens` tokens on one draw of records.

    Only the accountant makes permits, after it charged for them; a mechanism uses one token of the
    permit before it looks at a private number. So nothing is drawn that was not charged, nor with less
    noise than was charged for.
    """

    def __init__(self, tokens: int, noise_multiplier: float) -> None:
        self._noise_multiplier = noise_multiplier
        self._tokens = self._left = tokens
        self._lock = threading.Lock()

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
