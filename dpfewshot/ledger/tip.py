"""Whether an account agrees with its history: checked under the lock before anything is spent.

A short history is verified as a whole. For a longer one the hash of the last event, its link to the event
before, and the seal over the account's row and its running totals are recomputed, in a time that does not
grow with the history. Without the right seal the whole history is verified, and its totals count.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

from dpfewshot.budget.totals import Totals
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import VERIFY
from dpfewshot.ledger.rows import last_events
from dpfewshot.ledger.totals import snapshot_of, totals_of
from dpfewshot.ledger.verification import examined, hash_if_readable

WHOLE: Final = 100
"""Histories of up to this many events are verified as a whole."""


def check_tip(connection: Connection, account: int) -> Totals:
    """The running totals of an account; refuses one that was changed behind the ledger's back.

    Args:
        connection: in a transaction that holds the account's lock.
        account: its number.

    Raises:
        LedgerError: it does not agree with its history; nothing may be spent.
    """
    sealed = totals_of(connection, account)
    if sealed is not None and _is_long_and_linked(connection, account):
        return sealed
    snapshot = snapshot_of(connection, account)
    problems, totals = examined(snapshot)
    if problems:
        raise LedgerError(
            f"the account of {snapshot.account['dataset']!r} does not agree with its history "
            f"({problems[0]}), so nothing is reserved: {VERIFY}"
        )
    return totals


def _is_long_and_linked(connection: Connection, account: int) -> bool:
    """Whether it has more than `WHOLE` events, of which the last is unchanged and follows the one before."""
    last, before = [*last_events(connection, account, 2), None, None][:2]
    if last is None or before is None or last["number"] <= WHOLE:
        return False
    linked = (before["number"] + 1, before["hash"]) == (last["number"], last["previous"])
    return linked and hash_if_readable(last) == last["hash"]
