"""Findings of checks, and the errors for those that failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dpfewshot.backends.protocol import Logprobs
from dpfewshot.errors import BackendError, BackendNotBatchInvariant


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the check's name.
        passed: whether the backend passes.
        detail: what was compared, and by how much it differed.
        about_invariance: whether a failure means that answers depend on other prompts.
    """

    check: str
    passed: bool
    detail: str
    about_invariance: bool = False


class Comparison:
    """Compares rows bit for bit and records the largest difference."""

    def __init__(self) -> None:
        self.rows = 0
        self.different = 0
        self.worst = 0.0

    def add(self, expected: Logprobs, found: Logprobs) -> None:
        """Compare two answers of the same shape, row by row; NaN equals NaN of the same bits."""
        for one, other in zip(expected, found, strict=True):
            self.rows += 1
            if one.tobytes() != other.tobytes():
                self.different += 1
                with np.errstate(invalid="ignore"):
                    change = np.abs(one.astype(np.float64) - other)
                self.worst = max(self.worst, float(np.nan_to_num(change, nan=np.inf).max()))

    @property
    def detail(self) -> str:
        """How many rows differ, and the largest difference."""
        return f"{self.different} of {self.rows} rows differ, the worst by {self.worst:.3g} nats"

    def finding(self, check: str) -> Finding:
        """Return a finding that passes if every row is the same, bit for bit."""
        return Finding(check, self.different == 0, self.detail, about_invariance=True)


def require(findings: Iterable[Finding]) -> None:
    """Raise an error for failed findings.

    Raises:
        BackendNotBatchInvariant: answers depend on other prompts.
        BackendError: the backend violates `LogprobBackend` in another way.
    """
    failed = [finding for finding in findings if not finding.passed]
    if not failed:
        return
    message = "; ".join(f"{finding.check}: {finding.detail}" for finding in failed)
    if any(finding.about_invariance for finding in failed):
        raise BackendNotBatchInvariant(f"the backend is not batch invariant: {message}")
    raise BackendError(f"the backend does not conform: {message}")
