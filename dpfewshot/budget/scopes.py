"""Which stratum of a data set a plan draws from, and what plans over several strata cost together.

A scope is a text such as "trec#5f0c…: Location": a partition and a stratum of it. The partition names the
rule that puts every unit in exactly one stratum: the task's name, and a fingerprint (SHA-256) of the label
column's name and the task's whole label set. Tasks of one name with different labels, or different label
columns, divide the data set differently, so they are different partitions.
Accounts older than the fingerprint have partitions without one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from dpfewshot.budget.amounts import NOTHING, Amount
from dpfewshot.errors import LedgerError
from dpfewshot.values import LABEL_COLUMN

_ESCAPED: Final = {"%": "%25", ":": "%3A", "#": "%23"}
_WITH_LABELS: Final = re.compile(r"([^:#]*)#[0-9a-f]{64}")


def scope_name(task: str, labels: Iterable[str], part: str, column: str = LABEL_COLUMN) -> str:
    """The scope of a plan that draws from the units of one label only.

    Args:
        task: its name.
        labels: every label of the task, in any order: they decide which stratum a unit is in.
        part: the label.
        column: the name of the label column.
    """
    listed = json.dumps([column, sorted(labels)]).encode()
    name = "".join(_ESCAPED.get(character, character) for character in task)
    return f"{name}#{hashlib.sha256(listed).hexdigest()}: {part}"


def partition_of(scope: str) -> str:
    """The partition that a scope belongs to; "" for a scope that names none."""
    partition, colon, _ = scope.partition(": ")
    return partition if colon else ""


def partition_after(kept: str | None, scope: str) -> str:
    """The partition that an account records once a plan over a scope is reserved.

    The first one stays. One without a fingerprint is replaced by one with it for the task of the same name:
    what was spent under the old one then adds to what is spent from now on.

    Args:
        kept: the recorded partition; None for none.
        scope: of the plan.
    """
    new = partition_of(scope)
    return new if kept is None or _came_before(kept, new) else kept


def check_partition(kept: str | None, scope: str) -> None:
    """Refuse a scope of another partition than the account's.

    Raises:
        LedgerError: it divides the data set in another way.
    """
    new = partition_of(scope)
    if partition_after(kept, scope) != new:
        raise LedgerError(
            f"the account's plans compose in parallel over the strata of {kept!r}, a task and a fingerprint "
            f"of its label column and labels; {new!r} divides the data set in another way, so that their "
            "costs would add: give it an account of its own with a share of the budget, or keep both in an "
            "account where every plan counts for the whole data set (dpfewshot ledger create --sequential)"
        )


def _came_before(kept: str, new: str) -> bool:
    """Whether `kept` is the partition of the same task without a fingerprint."""
    named = _WITH_LABELS.fullmatch(new)
    if named is None or _WITH_LABELS.fullmatch(kept):
        return False
    name = named[1]
    for character, escaped in reversed(_ESCAPED.items()):
        name = name.replace(escaped, character)
    return kept == name.replace(":", " ")  # the old spelling of names


def total_over_scopes(costs: Mapping[str | None, Amount]) -> Amount:
    """What all scopes cost together (docs/proofs/composition.md).

    A unit is in exactly one stratum of a partition, so the strata of one partition compose in parallel: the
    greatest sum counts. It is in a stratum of every partition and in the whole data set, so those add.

    Args:
        costs: the sum of each scope (`scope_name`); the key None is the whole data set.
    """
    greatest: dict[str, Amount] = {}
    for scope, amount in costs.items():
        if scope is not None:
            partition = partition_of(scope)
            greatest[partition] = greatest.get(partition, NOTHING).at_least(amount)
    total = costs.get(None, NOTHING)
    for amount in greatest.values():
        total = total.plus(amount)
    return total
