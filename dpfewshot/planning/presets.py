"""The papers' mechanisms and settings by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import AdaDPSyn, Gaussian, Mechanism
from dpfewshot.mechanisms.adadpsyn import EPSILONS, TASKS, published
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


def preset(
    name: str, task: Task, budget: PrivacyBudget | None, vocabulary_size: int
) -> tuple[Mechanism, Settings]:
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
        prompts, records = _TANG.get(known, _TANG_ELSEWHERE)
        return Gaussian(top_k=top_k), _fresh_draws(prompts, records)
    if name == ADADPSYN:
        row_of = (known, 0.0 if budget is None else budget.epsilon)
        if known not in TASKS or row_of[1] not in EPSILONS:
            row_of = _ADADPSYN_ROW
        row = published(row_of[0], epsilon=row_of[1])
        mechanism = replace(AdaDPSyn.preset(row_of[0], epsilon=row_of[1]), top_k=top_k)
        return mechanism, _fresh_draws(row.prompts, row.records_per_prompt)
    raise InvalidPlan(f"the preset must be one of {', '.join(PRESETS)}, not {name!r}")


def _fresh_draws(prompts: int, records: int) -> Settings:
    """M and N, with a fresh draw for each token."""
    return Settings(prompts_per_draw=prompts, records_per_prompt=records, tokens_per_draw=1)
