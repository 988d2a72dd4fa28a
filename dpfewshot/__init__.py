"""Differentially private few-shot demonstrations from private labelled text."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfewshot import accounting, audit, backends, icl, mechanisms, tasks
    from dpfewshot.baselines import random_private_demonstrations, zero_private_demonstrations
    from dpfewshot.budget.memory import MemoryAccount
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.errors import (
        AccountingError,
        BackendError,
        BackendNotBatchInvariant,
        BudgetExceeded,
        DPFewShotError,
        InvalidPlan,
        InvalidRecords,
        InvalidReport,
        InvalidTask,
        LedgerError,
        MissingExtra,
    )
    from dpfewshot.labels import LabelRelease, release_labels
    from dpfewshot.ledger import BudgetLedger
    from dpfewshot.planning.plan import GenerationPlan
    from dpfewshot.records import as_records, read_records
    from dpfewshot.synthesizer import Synthesizer
    from dpfewshot.tasks import Task
    from dpfewshot.values import NO_PRIVACY, Demonstration, PrivacyBudget, PrivacySpend, Record

__version__ = "0.1.0"

__all__ = [
    "NO_PRIVACY",
    "AccountingError",
    "BackendError",
    "BackendNotBatchInvariant",
    "BudgetExceeded",
    "BudgetLedger",
    "DPFewShotError",
    "Demonstration",
    "Demonstrations",
    "GenerationPlan",
    "InvalidPlan",
    "InvalidRecords",
    "InvalidReport",
    "InvalidTask",
    "LabelRelease",
    "LedgerError",
    "MemoryAccount",
    "MissingExtra",
    "PrivacyBudget",
    "PrivacySpend",
    "Record",
    "Synthesizer",
    "Task",
    "accounting",
    "as_records",
    "audit",
    "backends",
    "icl",
    "mechanisms",
    "random_private_demonstrations",
    "read_records",
    "release_labels",
    "tasks",
    "zero_private_demonstrations",
]

# Names are imported when they are first used: `import dpfewshot` loads neither NumPy nor SciPy.
_MODULES = frozenset({"accounting", "audit", "backends", "icl", "mechanisms", "tasks"})
_HOMES = {
    "NO_PRIVACY": "values",
    "BudgetLedger": "ledger",
    "Demonstration": "values",
    "Demonstrations": "demonstrations",
    "GenerationPlan": "planning.plan",
    "LabelRelease": "labels",
    "MemoryAccount": "budget.memory",
    "PrivacyBudget": "values",
    "PrivacySpend": "values",
    "Record": "values",
    "Synthesizer": "synthesizer",
    "Task": "tasks",
    "as_records": "records",
    "random_private_demonstrations": "baselines",
    "read_records": "records",
    "release_labels": "labels",
    "zero_private_demonstrations": "baselines",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
