"""One draw of a reservation, as whoever charges and makes it holds it."""

from __future__ import annotations

from dataclasses import dataclass

from dpfewshot.budget.account import Account, draws_ahead
from dpfewshot.budget.permit import Permit


@dataclass(frozen=True, repr=False)
class DelegatedDraw:
    """One draw of a reservation, for a thread, process or host that charges it and makes it.

    It pickles where its account does. A copy charges a draw of its own, so a task that an executor runs twice
    is paid for twice, and never exceeds the reservation.

    Attributes:
        account: the account to charge; None for runs without a guarantee.
        entry: the account's number for the plan.
        lease: names the run to the account.
        part: the disjoint part to draw from.
        tokens_per_draw: R ≥ 1.
        noise_multiplier: the σ that the cost was computed for.
    """

    account: Account | None
    entry: int
    lease: str
    part: int
    tokens_per_draw: int
    noise_multiplier: float

    def charge(self) -> Permit:
        """Charge the draw and return the permit for its tokens.

        Raises:
            BudgetExceeded: no draw is left.
            LedgerError: the account could not record the charge; nothing may be drawn.
        """
        self.charge_ahead(1)
        return Permit(self.tokens_per_draw, self.noise_multiplier)

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
