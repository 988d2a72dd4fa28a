"""One draw of a reservation, as whoever charges and makes it holds it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NoReturn, SupportsIndex

from dpfewshot.budget.account import Account, draws_ahead
from dpfewshot.budget.permit import Permit
from dpfewshot.errors import LedgerError


class OneCharge:
    """Lets a delegated draw be charged once. Its caller can take it back as long as it is not charged.

    Accounts without a ledger need it: a run that resumes goes by the checkpoint alone, so what became of a
    draw must be known.
    """

    def __init__(self) -> None:
        self._used = False
        self._lock = threading.Lock()

    def use(self) -> bool:
        """Use it up, and return whether that was left to do."""
        with self._lock:
            used, self._used = self._used, True
            return not used

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: each copy could be charged."""
        raise LedgerError(
            "workers of other processes need a ledger, which counts their draws: give the synthesizer a "
            'ledger="sqlite:///budget.db" and a dataset=NAME'
        )


@dataclass(frozen=True, repr=False)
class DelegatedDraw:
    """One draw of a reservation, for a thread, process or host that charges it and makes it.

    It pickles where its account does. With a ledger each copy charges a draw of its own, so a task that an
    executor runs twice is paid for twice, and never exceeds the reservation. Without one it is charged once.

    Attributes:
        account: the account to charge; None for runs without a guarantee.
        entry: the account's number for the plan.
        lease: names the run to the account.
        part: the disjoint part to draw from.
        tokens_per_draw: R ≥ 1.
        noise_multiplier: the σ that the cost was computed for.
        once: where no ledger counts the draws; else None.
    """

    account: Account | None
    entry: int
    lease: str
    part: int
    tokens_per_draw: int
    noise_multiplier: float
    once: OneCharge | None = None

    def charge(self) -> Permit:
        """Charge the draw and return the permit for its tokens.

        Raises:
            BudgetExceeded: no draw is left.
            LedgerError: the account could not record the charge, or it was charged or taken back before;
                nothing may be drawn.
        """
        if self.once is not None and not self.once.use():
            raise LedgerError("this draw was charged or taken back before: nothing is drawn")
        self.charge_ahead(1)
        return Permit(self.tokens_per_draw, self.noise_multiplier)

    def take_back(self) -> bool:
        """Prevent a charge that has not happened, and return whether the draw is left.

        With a ledger nothing is prevented, and the ledger's own count says what is left.
        """
        return self.once is None or self.once.use()

    def charge_ahead(self, count: int) -> int:
        """Charge several draws of the part in one commit, if the account can, and return how many.

        Raises:
            BudgetExceeded: no draw is left.
            LedgerError: the account could not record the charge; nothing may be drawn.
        """
        if count > 1 and (ahead := draws_ahead(self.account)):
            return ahead.draw_ahead(self.entry, self.lease, self.part, count)
        if self.account is not None:
            self.account.draw(self.entry, self.lease, self.part)
        return 1
