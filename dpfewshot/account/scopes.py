"""Which stratum of a data set a plan draws from, and what plans over several strata cost together.

A scope is a text such as "trec#5f0c…: Location": a partition and a stratum of it. The partition names the
rule that puts every unit in exactly one stratum: the task's name, and a fingerprint (SHA-256) of the label
column's name, the task's whole label set, and the rules for units of several labels and of the holdout.
Tasks of one name with different labels, label columns or holdouts divide the data set differently, so they
are different partitions.
With a holdout the strata are "…: generates: Location" for each label ("…: generates" if labels are free) and
"…: chooses". A stratum may be divided further: "trec#5f0c…, part 2 of 4 by 09ab…: Location", where the last
hash names the rule that divides it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dpfewshot.account.amounts import NOTHING, Amount
from dpfewshot.errors import LedgerError
from dpfewshot.values import LABEL_COLUMN

_ESCAPED: Final = {"%": "%25", ":": "%3A", "#": "%23"}
_PART: Final = re.compile(r"(?<=#[0-9a-f]{64}), part ([1-9][0-9]*) of ([1-9][0-9]* by [0-9a-f]{64})\Z")
"""The part that a scope names behind its partition."""

_FINGERPRINTS: Final = re.compile(r"(#[0-9a-f]{8})[0-9a-f]{56}(, part \d+ of \d+)?( by [0-9a-f]{64})?(?=: )")


@dataclass(frozen=True)
class Partition:
    """The rule that puts every unit of a data set in exactly one stratum.

    Attributes:
        task: its name.
        labels: every label of the task, in any order; none if labels are free.
        column: the name of the label column.
        holdout: the public facts that decide whether a unit generates or chooses (`sampling.Holdout.rule`);
            none if all units generate.
        parts: names the disjoint parts that each stratum is divided into (`sampling.part_names`).
        label_rule: names the rule by which a unit of several labels belongs to one
            (`records.units.LABEL_RULE`); empty where no unit has several.
    """

    task: str
    labels: tuple[str, ...]
    column: str = LABEL_COLUMN
    holdout: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("",)
    label_rule: str = ""

    def generating(self, label: str | None, part: int = 0) -> str | None:
        """The scope of the units of a part that generate a label, or, for None, every label.

        None: all units of the data set.
        """
        stratum = ": ".join([*(["generates"] if self.holdout else []), *([label] if label else [])])
        if not stratum and not self.parts[part]:
            return None
        return self._scope(stratum or "all", self.parts[part])

    @property
    def choosing(self) -> str | None:
        """The scope of the units that are held out; None without a holdout."""
        return self._scope("chooses") if self.holdout else None

    def _scope(self, stratum: str, part: str = "") -> str:
        listed = json.dumps([self.column, sorted(self.labels), self.label_rule, *self.holdout]).encode()
        name = "".join(_ESCAPED.get(character, character) for character in self.task)
        return f"{name}#{hashlib.sha256(listed).hexdigest()}{part}: {stratum}"


def partition_of(scope: str) -> str:
    """The partition that a scope belongs to; "" for a scope that names none."""
    return _place(scope)[0]


def stratum_of(scope: str | None) -> str:
    """A scope in a message: its stratum without the partition, quoted."""
    if scope is None:
        return "the whole data set"
    _, stratum, family, part = _place(scope)
    return repr(stratum) + (f", part {part} of {family.partition(' ')[0]}" if family else "")


def _place(scope: str) -> tuple[str, str, str, str]:
    """Where a scope is: its partition, its stratum, the rule that divides the stratum, and its part."""
    partition, colon, stratum = scope.partition(": ")
    if not colon:
        return "", scope, "", ""
    divided = _PART.search(partition)
    if divided is None:
        return partition, stratum, "", ""
    return partition[: divided.start()], stratum, divided[2], divided[1]


def are_apart(one: str | None, other: str | None) -> bool:
    """Whether no unit is in both scopes: different strata of one partition, or parts of one stratum."""
    if one is None or other is None:
        return False
    (partition, stratum, family, part), (*of_other, other_part) = _place(one), _place(other)
    if partition != of_other[0]:
        return False
    return stratum != of_other[1] or (family == of_other[2] and part != other_part)


def scope_text(scope: str | None) -> str:
    """A scope for people: without most of its fingerprint."""
    return "whole data set" if scope is None else _FINGERPRINTS.sub(r"\1\2", scope, count=1)


def check_partition(kept: str | None, scope: str | None) -> None:
    """Refuse a scope of another partition than the one that the account recorded; None for none."""
    new = None if scope is None else partition_of(scope)
    if new is not None and kept not in (None, new):
        raise LedgerError(
            "this plan divides the data set in another way than the plans of its account, so that their "
            "costs would add: it has another task, label column, labels, holdout, or rule for units of "
            "several labels. No option of an earlier command is kept: repeat it, or write it into the "
            "project file. If only the holdouts differ, give both the same: holdout is 0.2 in a project "
            "file, and 0 in Python's Settings. Else give it an account of its own with a share of the "
            "budget, or keep both in one where every plan counts for the whole data set (dpfewshot ledger "
            "create --sequential). "
            f"The account has {kept}, this plan {new}"
        )


def total_over_scopes(costs: Mapping[str | None, Amount]) -> Amount:
    """What all scopes cost together (docs/proofs/composition.md).

    A unit is in exactly one stratum of a partition, so the strata of one partition compose in parallel: the
    greatest sum counts. So do the parts into which one rule divides a stratum. A unit is in a part of every
    such rule, in a stratum of every partition and in the whole data set, so those add.

    Args:
        costs: the sum of each scope; the key None is the whole data set.
    """
    level: list[tuple[tuple[str, ...], Amount]]
    level = [(_place(scope), amount) for scope, amount in costs.items() if scope is not None]
    # spellings of one part, the parts of a family, its families, the strata of a partition, the partitions
    joins = Amount.plus, Amount.at_least, Amount.plus, Amount.at_least, Amount.plus
    for depth, join in zip((4, 3, 2, 1, 0), joins, strict=True):
        joined: dict[tuple[str, ...], Amount] = {}
        for place, amount in level:
            joined[place[:depth]] = join(joined.get(place[:depth], NOTHING), amount)
        level = list(joined.items())
    return costs.get(None, NOTHING).plus(joined.get((), NOTHING))
