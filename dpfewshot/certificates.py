"""What a demonstration was generated under: public facts that lead to its plan, and to the ledger's entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Self

WRITER: Final = "writer:"
"""What stands before the name of a text writer, which read no record, in place of a model's hash."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What wrote a demonstration: hashes of the model, its tokenizer and the public prompt.

    Attributes:
        model: "sha256:..." of the file of weights, "commit:..." of a model hub, or "claimed:..." as a server
            calls its model, which nobody checked; None if the backend does not say. Of a line, "writer:..."
            as a text writer calls itself.
        tokenizer: "sha256:..."; None likewise.
        prompt: "sha256:..." of the task and, for a chat task, of the turns of the model's template.
    """

    model: str | None = None
    tokenizer: str | None = None
    prompt: str | None = None

    def details(self) -> dict[str, str]:
        """What is known, as a ledger records it with the plan."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, details: Mapping[str, object]) -> Self:
        """Read it from a plan's details."""
        found = {name: details.get(name) for name in cls.__slots__}
        return cls(**{name: value for name, value in found.items() if isinstance(value, str)})

    def short(self) -> Provenance:
        """The same with 16 hexadecimal digits of each hash."""
        short = {}
        for name, told in self.details().items():
            kind, _, value = told.partition(":")
            short[name] = told if kind == "claimed" else f"{kind}:{value[:16]}"
        return Provenance(**short)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a demonstration was generated under. ε, δ, relation and mechanism are the demonstration's own.

    It is published, so nothing in it counts what was cancelled or covers a time.

    Attributes:
        plan: `plan_hash` of its plan.
        unit: the column that names whom a record belongs to; None where each record is a unit of its own.
        version: of dpfewshot.
        dataset: the ledger account that paid; None without a ledger.
        reservation: the random identifier that the ledger drew when it reserved the plan, 128 bits in
            hexadecimal; None without a ledger.
        model, tokenizer, prompt: of `Provenance.short`.
        run: a random identifier that all demonstrations of one run have, in every process that continues it.
            Its strata are disjoint, so together they cost what the greatest of them does.
    """

    plan: str
    unit: str | None
    version: str
    dataset: str | None = None
    reservation: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    prompt: str | None = None
    run: str | None = None

    def as_dict(self) -> dict[str, object]:
        """As a line of demonstrations keeps it; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: object) -> Self:
        """Read what `as_dict` made, and nothing else: what no hash covers is not read over.

        Raises:
            ValueError: a member is missing, unknown or has the wrong type.
        """
        if not isinstance(told, Mapping) or set(told) != set(cls.__slots__):
            raise ValueError("the members are not those of a certificate")
        read = cls(**dict(told))
        strings = all(isinstance(told[name], str) for name in ("plan", "version"))
        optional = all(isinstance(told[name], str | None) for name in cls.__slots__)
        if not (strings and optional and (read.dataset is None) == (read.reservation is None)):
            raise ValueError("a certificate's member has the wrong type")
        return read


def plan_hash(epsilon: int, delta: int, details: Mapping[str, object]) -> str:
    """The SHA-256 of a stratum's plan, as a ledger records plans.

    Its certified cost is in 10⁻¹² of ε and 10⁻¹⁸ of δ. The details are the plan's public facts: mechanism, σ,
    q, steps, labels of the task.
    """
    plan = {"epsilon": epsilon, "delta": delta, "details": dict(details)}
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def line_hash(line: Mapping[str, object]) -> str:
    """The SHA-256 of a demonstration's line, as a ledger records what was released.

    All members of `Demonstration.as_line` count. The line is public, and so is its hash.
    """
    text = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()  # as files keep lone surrogates
