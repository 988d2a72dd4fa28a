"""The certificates of a generation's demonstrations."""

from __future__ import annotations

from dpfewshot import __version__
from dpfewshot.budget.account import Receipt
from dpfewshot.budget.reservation import Accountant
from dpfewshot.certificates import Certificate, plan_hash
from dpfewshot.generation.strata import StratumRun


class Certificates:
    """Makes the certificate of each stratum, and asks the account once for each reservation.

    Args:
        accountant: of the generation.
    """

    def __init__(self, accountant: Accountant) -> None:
        self._accountant = accountant
        self._receipts: dict[int, Receipt] = {}

    def of(self, run: StratumRun) -> Certificate | None:
        """The certificate of what a run releases under its reservation; None without a guarantee.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        cost, reservation = run.cost, run.reservation
        if cost is None or reservation is None:
            return None
        entry = reservation.entry
        if entry not in self._receipts:
            self._receipts[entry] = self._accountant.receipt(entry)
        receipt = self._receipts[entry]
        return Certificate(
            plan=plan_hash(*cost, run.set_up.account_details(run.plan)),
            unit=receipt.unit,
            version=__version__,
            dataset=receipt.dataset,
            entry=entry if receipt.event else None,
            event=receipt.event,
        )
