"""The durable budget: one account for each data set, shared by processes (SQLite) or hosts (PostgreSQL).

Importing this needs no database library; `BudgetLedger.open` does (the extra `ledger`).
"""

from dpfewshot.ledger.ledger import BudgetLedger
from dpfewshot.ledger.ledger_account import LedgerAccount

__all__ = ["BudgetLedger", "LedgerAccount"]
