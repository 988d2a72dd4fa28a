"""Which stratum of a data set a plan draws from, and what plans over several strata cost together.

A scope is a text such as "trec#5f0c…: Location": a partition and a stratum of it. The partition names the
rule that puts every unit in exactly one stratum: the task's name, and a fingerprint (SHA-256) of the label
column's name, the task's whole label set and the holdout's rule. Tasks of one name with different labels,
label columns or holdouts divide the data set differently, so they are different partitions.
With a holdout the strata are "…: generates: Location" for each label ("…: generates" if labels are free) and
"…: chooses".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dpfewshot.account.amounts import NOTHING, Amount
from dpfewshot.errors import LedgerError
from dpfewshot.values import LABEL_COLUMN

_ESCAPED: Final = {"%": "%25", ":": "%3A", "#": "%23"}


@dataclass(frozen=True)
class Partition:
    """The rule that puts every unit of a data set in exactly one stratum.

    Attributes:
        task: its name.
        labels: every label of the task, in any order; none if labels are free.
        column: the name of the label column.
        holdout: the public facts that decide whether a unit generates or chooses (`sampling.Holdout.rule`);
            none if all units generate.
    """

    task: str
    labels: tuple[str, ...]
    column: str = LABEL_COLUMN
    holdout: tuple[str, ...] = ()

    def generating(self, label: str | None) -> str | None:
        """The scope of the units that generate a label, or, for None, every label; None: all units."""
        if label is None:
            return self._scope("generates") if self.holdout else None
        return self._scope(f"generates: {label}" if self.holdout else label)

    @property
    def choosing(self) -> str | None:
        """The scope of the units that are held out; None without a holdout."""
        return self._scope("chooses") if self.holdout else None

    def _scope(self, stratum: str) -> str:
        return scope_name(self.task, self.labels, stratum, self.column, self.holdout)


def scope_name(
    task: str, labels: Iterable[str], part: str, column: str = LABEL_COLUMN, holdout: Sequence[str] = ()
) -> str:
    """The scope of a plan that draws from the units of one stratum only.

    Args:
        task: its name.
        labels: every label of the task, in any order: they decide which stratum a unit is in.
        part: the stratum: without a holdout a label.
        column: the name of the label column.
        holdout: as in `Partition`.
    """
    listed = json.dumps([column, sorted(labels), *holdout]).encode()
    name = "".join(_ESCAPED.get(character, character) for character in task)
    return f"{name}#{hashlib.sha256(listed).hexdigest()}: {part}"


def partition_of(scope: str) -> str:
    """The partition that a scope belongs to; "" for a scope that names none."""
    partition, colon, _ = scope.partition(": ")
    return partition if colon else ""


def stratum_of(scope: str | None) -> str:
    """A scope in a message: its stratum without the partition, quoted."""
    return "the whole data set" if scope is None else repr(scope.partition(": ")[2] or scope)


def unspent_of(scope: str) -> str:
    """A scope of the same partition that no plan has: a stratum's name is never empty."""
    partition = partition_of(scope)
    return f"{partition}: " if partition else ""


def are_apart(one: str | None, other: str | None) -> bool:
    """Whether two scopes are different strata of one partition, so that no unit is in both."""
    return None not in (one, other) and one != other and partition_of(str(one)) == partition_of(str(other))


def scope_text(scope: str | None) -> str:
    """A scope for people: without most of its fingerprint."""
    return (
        "whole data set"
        if scope is None
        else re.sub(r"(#[0-9a-f]{8})[0-9a-f]{56}(?=: )", r"\1", scope, count=1)
    )


def check_partition(kept: str | None, scope: str) -> None:
    """Refuse a scope of another partition than the one that the account recorded; None for none.

    Raises:
        LedgerError: it divides the data set in another way.
    """
    new = partition_of(scope)
    if kept not in (None, new):
        raise LedgerError(
            f"the account's plans compose in parallel over the strata of {kept!r}, a task and a fingerprint "
            f"of its label column, labels and holdout; {new!r} divides the data set in another way, so that "
            "their costs would add. If only the holdouts differ, give both the same: --holdout on the "
            "command line, where the default is 0.2; Settings(holdout=) in Python, where it is 0. Else give "
            "it an account of its own with a share of the budget, or keep both in one where every plan "
            "counts for the whole data set (dpfewshot ledger create --sequential)"
        )


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
