"""Differentially private few-shot demonstrations from private labelled text."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from dpfewshot.runtime import lazy_names

if find_spec("dpfewshot._core") is None:
    raise ImportError(
        "this is the source of dpfewshot, which is not compiled and hides an installed package: start Python "
        "in another folder, or run `pip install -e .` in this one"
    )

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
    from dpfewshot.releases.candidates import Candidate as Candidate, Choice as Choice
    from dpfewshot.releases.choosing import Variations as Variations, choose as choose, search as search
    from dpfewshot.releases.labels import LabelRelease as LabelRelease, release_labels as release_labels
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

# The public names, by module. Each is imported on first use, so `import dpfewshot` loads no NumPy and SciPy.
# tests/unit/test_house.py checks the imports above, which type checkers read, against this table.
_NAMES = {
    "dpfewshot": "accounting audit backends icl mechanisms tasks",
    "dpfewshot.account.account": "Account",
    "dpfewshot.account.ledger": "BudgetLedger open_account",
    "dpfewshot.baselines": "instruction_only_demonstrations non_private_sample",
    "dpfewshot.cli.project_file": "load",
    "dpfewshot.demonstrations": "Demonstrations",
    "dpfewshot.errors": "AccountingError BackendError BackendNotBatchInvariant BudgetExceeded DPFewShotError "
    "InvalidPlan InvalidRecords InvalidReport InvalidTask LedgerError MissingExtra RunTakenOver",
    "dpfewshot.generation.ray_executor": "RayExecutor",
    "dpfewshot.planning.plan": "GenerationPlan",
    "dpfewshot.planning.settings": "Settings",
    "dpfewshot.records": "as_records index_records mask_identifiers read_records",
    "dpfewshot.releases.calibration": "release_calibration",
    "dpfewshot.releases.candidates": "Candidate Choice",
    "dpfewshot.releases.choosing": "Variations choose search",
    "dpfewshot.releases.labels": "LabelRelease release_labels",
    "dpfewshot.synthesizer": "Synthesizer",
    "dpfewshot.tasks": "Task",
    "dpfewshot.values": "NO_PRIVACY Demonstration PrivacyBudget PrivacySpend Record",
}
_HOMES = dict(sorted((name, home) for home, names in _NAMES.items() for name in names.split()))
if not TYPE_CHECKING:  # type checkers re-export the imports above, and cannot read this list
    __all__ = [*_HOMES]  # noqa: PLE0604 - the table's keys are strings
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
