"""The certificates of a generation's demonstrations, and the ledger's record of what was released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from dpfewshot import __version__
from dpfewshot.account.account import Account
from dpfewshot.certificates import Certificate, line_hash, plan_hash
from dpfewshot.errors import LedgerError
from dpfewshot.generation.strata import StratumRun
from dpfewshot.values import Demonstration


class Certificates:
    """Makes the certificate of each stratum.

    Args:
        account: of the generation; None without a guarantee.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._released: Counter[str] = Counter()

    def of(self, run: StratumRun) -> Certificate | None:
        """The certificate of what a run releases under its reservation; None without a guarantee."""
        cost, reservation = run.cost, run.reservation
        if cost is None or reservation is None or self._account is None:
            return None
        return Certificate(
            plan=plan_hash(*cost, run.set_up.account_details(run.plan)),
            unit=self._account.unit,
            version=__version__,
            dataset=self._account.dataset,
            reservation=reservation.identifier,
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
