"""Differentially private few-shot demonstrations from private labelled text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfewshot.runtime import lazy_names

if TYPE_CHECKING:
    # isort: off
    from dpfewshot import (
        accounting as accounting,
        audit as audit,
        backends as backends,
        icl as icl,
        mechanisms as mechanisms,
        tasks as tasks,
    )
    from dpfewshot.cli.project_file import load as load
    from dpfewshot.baselines import (
        instruction_only_demonstrations as instruction_only_demonstrations,
        non_private_sample as non_private_sample,
    )
    from dpfewshot.account.account import Account as Account
    from dpfewshot.demonstrations import Demonstrations as Demonstrations
    from dpfewshot.errors import (
        AccountingError as AccountingError,
        BackendError as BackendError,
        BackendNotBatchInvariant as BackendNotBatchInvariant,
        BudgetExceeded as BudgetExceeded,
        DPFewShotError as DPFewShotError,
        InvalidPlan as InvalidPlan,
        InvalidRecords as InvalidRecords,
        InvalidReport as InvalidReport,
        InvalidTask as InvalidTask,
        LedgerError as LedgerError,
        MissingExtra as MissingExtra,
        RunTakenOver as RunTakenOver,
    )
    from dpfewshot.generation.ray_executor import RayExecutor as RayExecutor
    from dpfewshot.account.ledger import BudgetLedger as BudgetLedger, open_account as open_account
    from dpfewshot.planning.plan import GenerationPlan as GenerationPlan
    from dpfewshot.planning.settings import Settings as Settings
    from dpfewshot.records import (
        as_records as as_records,
        index_records as index_records,
        mask_identifiers as mask_identifiers,
        read_records as read_records,
    )
    from dpfewshot.releases.calibration import release_calibration as release_calibration
    from dpfewshot.releases.choice import Candidate as Candidate
    from dpfewshot.releases.choice import Choice as Choice
    from dpfewshot.releases.choosing import choose as choose, search as search
    from dpfewshot.releases.labels import LabelRelease as LabelRelease, release_labels as release_labels
    from dpfewshot.releases.choosing import Variations as Variations
    from dpfewshot.synthesizer import Synthesizer as Synthesizer
    from dpfewshot.tasks import Task as Task
    from dpfewshot.values import (
        NO_PRIVACY as NO_PRIVACY,
        Demonstration as Demonstration,
        PrivacyBudget as PrivacyBudget,
        PrivacySpend as PrivacySpend,
        Record as Record,
    )

__version__ = "0.1.0"

# The public names. Each is imported on first use, so `import dpfewshot` loads neither NumPy nor SciPy.
# tests/unit/test_house.py checks the imports above, which type checkers read, against this table.
_HOMES = {
    "NO_PRIVACY": "dpfewshot.values",
    "Account": "dpfewshot.account.account",
    "AccountingError": "dpfewshot.errors",
    "BackendError": "dpfewshot.errors",
    "BackendNotBatchInvariant": "dpfewshot.errors",
    "BudgetExceeded": "dpfewshot.errors",
    "BudgetLedger": "dpfewshot.account.ledger",
    "Candidate": "dpfewshot.releases.choice",
    "Choice": "dpfewshot.releases.choice",
    "DPFewShotError": "dpfewshot.errors",
    "Demonstration": "dpfewshot.values",
    "Demonstrations": "dpfewshot.demonstrations",
    "GenerationPlan": "dpfewshot.planning.plan",
    "InvalidPlan": "dpfewshot.errors",
    "InvalidRecords": "dpfewshot.errors",
    "InvalidReport": "dpfewshot.errors",
    "InvalidTask": "dpfewshot.errors",
    "LabelRelease": "dpfewshot.releases.labels",
    "LedgerError": "dpfewshot.errors",
    "MissingExtra": "dpfewshot.errors",
    "PrivacyBudget": "dpfewshot.values",
    "PrivacySpend": "dpfewshot.values",
    "RayExecutor": "dpfewshot.generation.ray_executor",
    "Record": "dpfewshot.values",
    "RunTakenOver": "dpfewshot.errors",
    "Settings": "dpfewshot.planning.settings",
    "Synthesizer": "dpfewshot.synthesizer",
    "Task": "dpfewshot.tasks",
    "Variations": "dpfewshot.releases.choosing",
    "accounting": "dpfewshot",
    "as_records": "dpfewshot.records",
    "audit": "dpfewshot",
    "backends": "dpfewshot",
    "choose": "dpfewshot.releases.choosing",
    "icl": "dpfewshot",
    "index_records": "dpfewshot.records",
    "instruction_only_demonstrations": "dpfewshot.baselines",
    "load": "dpfewshot.cli.project_file",
    "mask_identifiers": "dpfewshot.records",
    "mechanisms": "dpfewshot",
    "non_private_sample": "dpfewshot.baselines",
    "open_account": "dpfewshot.account.ledger",
    "read_records": "dpfewshot.records",
    "release_calibration": "dpfewshot.releases.calibration",
    "release_labels": "dpfewshot.releases.labels",
    "search": "dpfewshot.releases.choosing",
    "tasks": "dpfewshot",
}
if not TYPE_CHECKING:  # type checkers re-export the imports above, and cannot read this list
    __all__ = [*_HOMES]  # noqa: PLE0604 - the table's keys are strings
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
