"""A run's progress bar, shown on terminals only: tokens, the time left, and the budget used."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from tqdm import tqdm

from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.values import Demonstration, epsilon_text


class ProgressBar:
    """A bar on standard error, shown only if that is a terminal. Threads may count at the same time.

    Args:
        plan: of the run.
        done: demonstrations of earlier runs.
    """

    def __init__(self, plan: GenerationPlan, done: Sequence[Demonstration]) -> None:
        self._lock = threading.Lock()
        self._plan = plan
        self._done = list(done)
        to_come = (plan.demonstrations - len(done)) * plan.settings.max_tokens
        self._bar = tqdm(total=to_come, desc="generating", unit="token", disable=None, leave=False)
        self._show()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def token(self) -> None:
        """Count one more token."""
        with self._lock:
            self._bar.update()

    @contextmanager
    def demonstration(self, demonstration: Demonstration) -> Iterator[None]:
        """Count one more demonstration; within the context the bar is cleared, so that callers may print."""
        self._done.append(demonstration)
        if self._bar.total is not None:  # unused tokens take no time
            self._bar.total = self._bar.n + self._left * self._plan.settings.max_tokens
        self._bar.clear()
        yield
        self._show()

    @property
    def _left(self) -> int:
        return self._plan.demonstrations - len(self._done)

    def _show(self) -> None:
        used = f"{len(self._done)} of {self._plan.demonstrations} demonstrations"
        spends = [one.spent.epsilon for one in self._done if one.spent is not None]
        if self._plan.epsilon is not None:
            # labels are disjoint, so the greatest counts; a plan counts as a whole
            budget = epsilon_text(self._plan.epsilon)
            used += f", epsilon {epsilon_text(max(spends, default=0.0))} of {budget} used"
        self._bar.set_postfix_str(used)
