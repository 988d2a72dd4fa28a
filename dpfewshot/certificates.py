"""What a demonstration was generated under: public facts that lead to its plan, and to the ledger's entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a demonstration was generated under. ε, δ, relation and mechanism are the demonstration's own.

    Attributes:
        plan: `plan_hash` of its plan.
        unit: the column that names whom a record belongs to; None where each record is a unit of its own.
        version: of dpfewshot.
        dataset: the ledger account that paid; None without a ledger, as are the next two.
        entry: the ledger's number for the plan.
        event: the hash of the ledger's event that reserved the plan. It covers the plan, its cost, the time
            and all earlier events of the account, so no other ledger has it.
    """

    plan: str
    unit: str | None
    version: str
    dataset: str | None = None
    entry: int | None = None
    event: str | None = None

    def as_dict(self) -> dict[str, object]:
        """As a line of demonstrations keeps it; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Read what `as_dict` made. Members of newer versions are ignored.

        Raises:
            ValueError: a member is missing or has the wrong type.
        """
        try:
            read = cls(**{name: told[name] for name in cls.__slots__})
        except (KeyError, TypeError):
            raise ValueError("a certificate lacks a member") from None
        ledger = (read.dataset, read.entry, read.event)
        words = all(isinstance(word, str) for word in (read.plan, read.version))
        named = isinstance(read.unit, str | None)
        paid = type(read.entry) is int and isinstance(read.dataset, str) and isinstance(read.event, str)
        if not (words and named and (paid or ledger == (None, None, None))):
            raise ValueError("a certificate's member has the wrong type")
        return read


def plan_hash(epsilon: int, delta: int, details: Mapping[str, object]) -> str:
    """The SHA-256 of a stratum's plan, as a ledger records plans.

    Args:
        epsilon: of the plan's certified cost, in 10⁻¹².
        delta: of it, in 10⁻¹⁸.
        details: the plan's public facts: mechanism, σ, q, steps, labels of the task.
    """
    plan = {"epsilon": epsilon, "delta": delta, "details": dict(details)}
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
