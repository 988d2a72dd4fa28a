"""Which part of a data set a plan draws from, and what plans over several parts cost together.

A scope is a text, as in "trec#5f0c…: Location": a partition and a part of it. The partition names the rule
that puts every unit in exactly one part: the task's name, and a fingerprint (SHA-256) of the column of labels
and the task's whole label set. Two tasks of one name with different labels, or two columns of labels, cut the
data set in two ways, so they are two partitions.
Accounts from before label sets were recorded have partitions without a fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from dpfewshot.budget.amounts import Units
from dpfewshot.errors import LedgerError
from dpfewshot.values import LABEL_COLUMN

_ESCAPED: Final = {"%": "%25", ":": "%3A", "#": "%23"}
_WITH_LABELS: Final = re.compile(r"([^:#]*)#[0-9a-f]{64}")


def scope_name(task: str, labels: Iterable[str], part: str, column: str = LABEL_COLUMN) -> str:
    """The scope of a plan that draws from the units of one label alone.

    Args:
        task: its name.
        labels: every label of the task, in any order: they decide which part a unit is in.
        part: the label.
        column: the name of the column that the labels are of.
    """
    listed = json.dumps([column, sorted(labels)]).encode()
    name = "".join(_ESCAPED.get(character, character) for character in task)
    return f"{name}#{hashlib.sha256(listed).hexdigest()}: {part}"


def partition_of(scope: str) -> str:
    """The partition that a scope is a part of; "" for a scope that names none."""
    partition, colon, _ = scope.partition(": ")
    return partition if colon else ""


def partition_after(kept: str | None, scope: str) -> str:
    """The partition that an account records once a plan over a scope is reserved.

    The first one stays. One from before label sets were recorded gives way to the task of the same name: what
    was spent under it then adds to what is spent from now on.

    Args:
        kept: what is recorded; None for nothing.
        scope: of the plan.
    """
    new = partition_of(scope)
    return new if kept is None or _came_before(kept, new) else kept


def check_partition(kept: str | None, scope: str) -> None:
    """Refuse a scope of another partition than the account's one.

    Raises:
        LedgerError: it cuts the data set in another way.
    """
    new = partition_of(scope)
    if partition_after(kept, scope) != new:
        raise LedgerError(
            f"the account's plans run side by side over the parts of {kept!r}, a task and a fingerprint of "
            f"its label column and labels; {new!r} cuts the data set in another way, so that their costs "
            "would add: give it an account of its own with a share of the budget, or keep both in an account "
            "where every plan counts for the whole data set (dpfewshot ledger create --sequential)"
        )


def _came_before(kept: str, new: str) -> bool:
    """Whether a partition without a fingerprint is of the same task as one with it."""
    named = _WITH_LABELS.fullmatch(new)
    if named is None or _WITH_LABELS.fullmatch(kept):
        return False
    name = named[1]
    for character, escaped in reversed(_ESCAPED.items()):
        name = name.replace(escaped, character)
    return kept == name.replace(":", " ")  # as names were written then


def total_over_scopes(costs: Mapping[str | None, Units]) -> Units:
    """What is spent in all (docs/proofs/composition.md).

    A unit is in exactly one part of a partition, so the parts of one partition compose in parallel:
    the greatest sum counts. It is in a part of every partition and in the whole data set, so those add.

    Args:
        costs: the sum for each scope (`scope_name`); the key None is the whole data set.
    """
    greatest: dict[str, Units] = {}
    for scope, units in costs.items():
        if scope is not None:
            partition = partition_of(scope)
            greatest[partition] = greatest.get(partition, Units(0, 0)).at_least(units)
    total = costs.get(None, Units(0, 0))
    for units in greatest.values():
        total = total.plus(units)
    return total
