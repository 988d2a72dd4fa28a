"""The certificates of a generation's demonstrations, and the ledger's record of what was released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from dpfewshot import __version__
from dpfewshot.budget.account import Receipt
from dpfewshot.budget.reservation import Accountant
from dpfewshot.certificates import Certificate, line_hash, plan_hash
from dpfewshot.errors import LedgerError
from dpfewshot.generation.strata import StratumRun
from dpfewshot.values import Demonstration


class Certificates:
    """Makes the certificate of each stratum, and asks the account once for each reservation.

    Args:
        accountant: of the generation.
    """

    def __init__(self, accountant: Accountant) -> None:
        self._accountant = accountant
        self._receipts: dict[int, Receipt] = {}
        self._released: Counter[str] = Counter()

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
            reservation=receipt.reservation,
            **asdict(run.set_up.provenance.short()),
        )

    def resumed(self, finished: Iterable[Demonstration]) -> None:
        """Count what a checkpoint's earlier runs recorded, so that a record is not made twice."""
        self._released |= Counter(line_hash(one.as_line()) for one in finished)

    def record(self, run: StratumRun, demonstration: Demonstration) -> None:
        """Record a demonstration in the ledger, if it has one. Nobody may get a text before this returns.

        Raises:
            LedgerError: it could not be recorded. The call may be repeated.
        """
        made = demonstration.certificate
        if made is None or made.reservation is None or run.reservation is None:
            return
        digest = line_hash(demonstration.as_line())
        try:
            run.reservation.record_release(digest, self._released[digest] + 1)
        except LedgerError as error:
            raise LedgerError(
                f"{error}. What was released is kept until the ledger has its hash: ask for it again, which "
                "draws nothing"
            ) from None
        self._released[digest] += 1
