"""The settings that a user may leave open, and the papers' by name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import AdaDPSyn, Gaussian, Mechanism
from dpfewshot.mechanisms.adadpsyn_presets import EPSILONS, TASKS, published
from dpfewshot.planning.settings import Settings
from dpfewshot.tasks import Task
from dpfewshot.values import PrivacyBudget

TANG, ADADPSYN = "tang", "adadpsyn"
PRESETS: Final = (TANG, ADADPSYN)
"""The papers whose settings have a name."""

TOP_K = 100
"""K of a mechanism that the user does not name: candidate tokens, or all if there are fewer."""

_TANG: Final = {"agnews": (10, 2), "dbpedia": (40, 2), "trec": (80, 1), "mit-g": (20, 4), "mit-d": (20, 4)}
_TANG_ELSEWHERE: Final = (20, 1)
"""M and N of each task in Tang et al. (ICLR 2024), Table 9, and of a task that the paper does not have."""

_ADADPSYN_ROW: Final = ("trec", 4.0)
"""The row of Gao et al. (ICLR 2025) for a task or an ε that the paper does not have."""


@dataclass(frozen=True)
class Choices:
    """Settings that a user may leave open: None leaves one to the planner.

    Attributes:
        mechanism: turns private numbers into a token.
        prompts_per_draw: M ≥ 1.
        records_per_prompt: N ≥ 1.
        tokens_per_draw: R ≥ 1.
    """

    mechanism: Mechanism | None = None
    prompts_per_draw: int | None = None
    records_per_prompt: int | None = None
    tokens_per_draw: int | None = None

    def settings(self, **others: Any) -> Settings:
        """Settings with these and other values, and 1 for each of M, N and R that is open.

        Raises:
            InvalidPlan: a value outside its range, or values that do not go together.
        """
        numbers = self.filled(Choices(prompts_per_draw=1, records_per_prompt=1, tokens_per_draw=1))
        values = {field.name: getattr(numbers, field.name) for field in fields(self)}
        del values["mechanism"]
        return Settings(**values, **others)

    def filled(self, others: Choices) -> Choices:
        """These choices, and the others where these are open."""
        missing = {
            field.name: getattr(others, field.name)
            for field in fields(self)
            if getattr(self, field.name) is None
        }
        return replace(self, **missing)


def preset(name: str, task: Task, budget: PrivacyBudget | None, vocabulary_size: int) -> Choices:
    """A paper's mechanism, M, N and R = 1.

    "tang" is Algorithm 1 with Gaussian noise on the 100 likeliest public tokens; M and N follow Table 9, or
    are 20 and 1 for a task of your own. "adadpsyn" follows Tables 13 to 17; for a task or an ε that they do
    not have, it is their row of TREC at ε = 4. Draws stay Poisson and the accounting certified.

    Args:
        name: "tang" or "adadpsyn".
        task: one of the papers' has its own M and N.
        budget: its ε selects a row of AdaDPSyn; None for σ = 0.
        vocabulary_size: V, which limits the candidate tokens.

    Raises:
        InvalidPlan: there is no such preset.
    """
    top_k, known = min(TOP_K, vocabulary_size), task.name.lower().replace("_", "-")
    if name == TANG:
        return Choices(Gaussian(top_k=top_k), *_TANG.get(known, _TANG_ELSEWHERE), tokens_per_draw=1)
    if name == ADADPSYN:
        row_of = (known, 0.0 if budget is None else budget.epsilon)
        if known not in TASKS or row_of[1] not in EPSILONS:
            row_of = _ADADPSYN_ROW
        row = published(row_of[0], epsilon=row_of[1])
        mechanism = replace(AdaDPSyn.preset(row_of[0], epsilon=row_of[1]), top_k=top_k)
        return Choices(mechanism, row.prompts, row.records_per_prompt, tokens_per_draw=1)
    raise InvalidPlan(f"the preset must be one of {', '.join(PRESETS)}, not {name!r}")
