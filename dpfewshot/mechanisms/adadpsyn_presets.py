"""The settings in Gao et al. (ICLR 2025), by task and ε: Tables 13 to 17, and those of their runs.

The multipliers are for the paper's own accounting (`reference.published.fixed_size_renyi_multiplier`) and
fixed-size draws. A plan scales them to its own budget, so only their ratios matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dpfewshot.errors import InvalidPlan


@dataclass(frozen=True)
class Preset:
    """One row of a table, with the settings of its task.

    Attributes:
        mean_multiplier: σ₁.
        rounds: T̂.
        radius_multiplier: σ₀.
        coverage_multiplier: σ₂.
        noise_margin: λ.
        prompts: M.
        records_per_prompt: N.
    """

    mean_multiplier: float
    rounds: int
    radius_multiplier: float
    coverage_multiplier: float
    noise_margin: float
    prompts: int
    records_per_prompt: int


EPSILONS: Final = (1, 2, 4, 8)

_SETTINGS: Final[dict[str, tuple[float, int, int]]] = {
    "agnews": (0.2, 10, 2),
    "dbpedia": (0.2, 10, 2),
    "trec": (0.25, 20, 2),
    "mit-g": (0.2, 40, 1),
    "mit-d": (0.15, 40, 1),
}
"""λ, M and N of each task."""

TASKS: Final = tuple(_SETTINGS)

_TABLES: Final[dict[str, tuple[tuple[float, int, float, float], ...]]] = {
    "agnews": ((1.23, 1, 10, 3), (0.92, 1, 10, 3), (0.71, 1, 10, 3), (0.58, 1, 10, 3)),
    "dbpedia": ((1.54, 1, 10, 3), (1.14, 1, 10, 3), (0.89, 1, 10, 3), (0.73, 1, 10, 3)),
    "trec": ((2.52, 1, 17.5, 6), (1.95, 1, 15, 5), (1.15, 1, 10, 5), (1.09, 2, 15, 5)),
    "mit-g": ((1.59, 1, 15, 6), (1.17, 1, 10, 6), (1.12, 2, 10, 6), (0.90, 2, 10, 5)),
    "mit-d": ((2.57, 1, 17.5, 6), (1.49, 1, 17.5, 6), (1.07, 1, 15, 6), (0.83, 1, 15, 5)),
}
"""Tables 13, 14, 15, 16 and 17: σ₁, T̂, σ₀ and σ₂ at each of the four ε."""


def published(task: str, *, epsilon: float) -> Preset:
    """The paper's settings for a task at an ε.

    Args:
        task: its name, as in `tasks.by_name`.
        epsilon: 1, 2, 4 or 8.

    Raises:
        InvalidPlan: the paper has no such row. Lists the rows it has.
    """
    name = task.lower().replace("_", "-")
    if name not in _TABLES or epsilon not in EPSILONS:
        raise InvalidPlan(
            f"AdaDPSyn has no preset for task {task!r} at epsilon={epsilon}: "
            f"the presets are {', '.join(_TABLES)}, each at epsilon={', '.join(map(str, EPSILONS))}"
        )
    return Preset(*_TABLES[name][EPSILONS.index(int(epsilon))], *_SETTINGS[name])
