"""The permit to release tokens: the account issues it after charging, and the mechanism uses it up."""

from __future__ import annotations

import threading
from typing import NoReturn, SupportsIndex

from dpfewshot.errors import BudgetExceeded
from dpfewshot.runtime.forking import Home


class Permit:
    """Permission to release up to `tokens` tokens on one draw of records.

    Only a reservation calls the constructor, after charging. A mechanism uses up one token of the permit
    before it draws noise. So nothing is released without a charge, or with less noise than was charged for.
    tests/unit/test_house.py checks who calls what.

    Args:
        tokens: R ≥ 1, the tokens that the draw was charged for.
        noise_multiplier: the σ that it was charged for.
        passed_on: whether it is for a release alone, and not passed on once more.
    """

    def __init__(self, tokens: int, noise_multiplier: float, *, passed_on: bool = False) -> None:
        self._noise_multiplier = noise_multiplier
        self._tokens = self._left = tokens
        self._used = -tokens if passed_on else 0
        self._lock = threading.Lock()
        self._home = Home()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: each copy would release the same tokens again."""
        raise BudgetExceeded("a permit is for one release of its tokens, and cannot be copied")

    @property
    def tokens(self) -> int:
        """R, the tokens that the draw was charged for. Further tokens need a new draw."""
        return self._tokens

    def use(self, noise_multiplier: float) -> None:
        """Use up one token of those that this process was charged for, at this σ."""
        self._check_process()
        if noise_multiplier != self._noise_multiplier:
            raise BudgetExceeded("this draw was charged for another noise multiplier")
        with self._lock:
            if self._left < 1:
                raise BudgetExceeded("this draw's tokens are used up: charge a new draw first")
            self._left -= 1
            self._used += 1

    def pass_on(self) -> Permit:
        """A permit for another mechanism to release one token that was used up here; each serves once."""
        self._check_process()
        with self._lock:
            if self._used < 1:
                raise BudgetExceeded("every used-up token of this draw was passed on already")
            self._used -= 1
        return Permit(1, self._noise_multiplier, passed_on=True)

    def _check_process(self) -> None:
        if not self._home.is_here:
            raise BudgetExceeded("this draw was charged by the parent process, which releases its tokens")
