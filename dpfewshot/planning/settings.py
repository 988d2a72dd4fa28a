"""What a user chooses for a generation: public numbers, checked once, or a paper's by name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Gaussian, Mechanism, RowChange
from dpfewshot.mechanisms.adadpsyn import EPSILONS, TASKS, published
from dpfewshot.sampling import Holdout
from dpfewshot.tasks import Task
from dpfewshot.values import PrivacyBudget, as_float, check_whole

POISSON = "poisson"
FIXED_SIZE = "fixed-size"
SAMPLINGS = (POISSON, FIXED_SIZE)
"""How units are drawn. Fixed-size draws exist to reproduce papers."""

CERTIFIED = "certified"
PUBLISHED = "published"
ACCOUNTINGS = (CERTIFIED, PUBLISHED)
"""What sets the noise: the certified accountant, or a paper's own accounting of fixed-size draws."""

PROMPT_TOKEN_LIMIT = 20_000
"""The default limit of the tokens that the language model evaluates for one demonstration."""

MOST_SHOTS: Final = 10**6
"""Demonstrations of a label, each of which a run keeps account of in memory."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options that only experts set. All are public; None leaves a number to the planner.

    Attributes:
        prompts_per_draw: M ≥ 1, the prompts (subsets) of a draw.
        records_per_prompt: N ≥ 1, the records in a prompt, on average; None is 1.
        tokens_per_draw: R ≥ 1, the tokens that share one draw of records.
        preset: a paper's mechanism, M, N and R where none is given: "tang" or "adadpsyn"
            (`preset`). `accounting="published"` implies "tang".
        prompt_token_limit: the most tokens that the model may have to evaluate for one demonstration, ≥ 1. It
            limits what the planner decides.
        sampling: "poisson", or "fixed-size" to reproduce papers: M·N units without replacement, neighbours
            replace one unit by another of the same label, and n is public.
        accounting: "certified", or "published" for the noise of a paper's own accounting of fixed-size draws:
            results then say `certified=False`.
        holdout: f in [0, 1), the share of units that are kept for choosing (`dpf.choose`) and never generate.
            Each unit's own digest decides. Choosing and generating then cost the greater of both, not their
            sum.
        disjoint_parts: P ≥ 1. Each unit of a label is in one of P parts, chosen from that unit alone. Every
            part serves its own demonstrations at the full (ε, δ): parallel composition, for many
            demonstrations.
        record_token_cap: ≥ 1, the most tokens of one record's text that enter a prompt.
        allow_batch_variance: accept a backend whose answers depend on the rest of the batch. No guarantee
            then holds: results say `certified=False`.
    """

    prompts_per_draw: int | None = None
    records_per_prompt: int | None = None
    tokens_per_draw: int | None = None
    preset: str | None = None
    prompt_token_limit: int = PROMPT_TOKEN_LIMIT
    sampling: str = POISSON
    accounting: str = CERTIFIED
    holdout: float = 0.0
    disjoint_parts: int = 1
    record_token_cap: int = 100
    allow_batch_variance: bool = False

    def filled(self, others: Settings) -> Settings:
        """These settings, with M, N and R of the others where these leave them open."""
        open_numbers = {name: getattr(others, name) for name in _NUMBERS if getattr(self, name) is None}
        return replace(self, **open_numbers)

    def decided(self, *, max_tokens: int, shots_per_label: int) -> PlanSettings:
        """The settings of a plan, with 1 for each of M, N and R that is open."""
        check_whole("prompt_token_limit", self.prompt_token_limit)
        shared = {field.name for field in fields(self)} & {field.name for field in fields(PlanSettings)}
        values = {name: getattr(self, name) for name in shared}
        values |= {name: 1 for name in _NUMBERS if values[name] is None}
        return PlanSettings(max_tokens=max_tokens, shots_per_label=shots_per_label, **values)


_NUMBERS = ("prompts_per_draw", "records_per_prompt", "tokens_per_draw")


@dataclass(frozen=True)
class PlanSettings:
    """The settings of a plan, all decided: public, and the same for every stratum but for M. See `Settings`.

    Attributes:
        prompts_per_draw: M ≥ 1. A stratum with fewer units has fewer (`within`).
        max_tokens: T_max ≥ 1, the most tokens of one demonstration.
        shots_per_label: demonstrations of each label, 1 to `MOST_SHOTS`.
        tokens_per_draw: R in 1..T_max.
    """

    prompts_per_draw: int
    records_per_prompt: int
    max_tokens: int
    shots_per_label: int
    tokens_per_draw: int
    record_token_cap: int
    sampling: str = POISSON
    disjoint_parts: int = 1
    accounting: str = CERTIFIED
    holdout: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in (("sampling", SAMPLINGS), ("accounting", ACCOUNTINGS)):
            if getattr(self, name) not in allowed:
                raise InvalidPlan(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        for name in self.__dataclass_fields__.keys() - {"sampling", "accounting", "holdout"}:
            check_whole(name, getattr(self, name))
        if self.shots_per_label > MOST_SHOTS:
            raise InvalidPlan(f"shots_per_label must be at most {MOST_SHOTS}, not {self.shots_per_label}")
        object.__setattr__(self, "holdout", as_float("holdout", self.holdout))
        held_out = self.division.fraction > 0  # checks its range
        if self.tokens_per_draw > self.max_tokens:
            raise InvalidPlan(
                f"tokens_per_draw={self.tokens_per_draw} is more than max_tokens={self.max_tokens}: "
                "a draw serves the tokens of one demonstration at most"
            )
        if self.sampling == FIXED_SIZE and self.disjoint_parts > 1:
            raise InvalidPlan("disjoint_parts needs Poisson draws: the number of units in a part is private")
        if self.sampling == FIXED_SIZE and held_out:
            raise InvalidPlan("holdout needs Poisson draws: the number of units that generate is private")
        if self.accounting == PUBLISHED and (self.sampling != FIXED_SIZE or self.tokens_per_draw > 1):
            raise InvalidPlan(
                "accounting='published' reproduces papers: it needs sampling='fixed-size', tokens_per_draw=1"
            )

    @property
    def division(self) -> Holdout:
        """Which units generate, and which are kept for choosing."""
        return Holdout(self.holdout)

    @property
    def draws_per_demonstration(self) -> int:
        """⌈T/R⌉, the draws of one demonstration."""
        return -(-self.max_tokens // self.tokens_per_draw)

    @property
    def units_per_draw(self) -> int:
        """M·N, on average if draws are Poisson."""
        return self.prompts_per_draw * self.records_per_prompt

    @property
    def units_wanted(self) -> int:
        """M·N·P, the units that a stratum needs at least."""
        return self.units_per_draw * self.disjoint_parts

    def most_prompts(self, population: int) -> int:
        """The largest M that a stratum of n units allows; 0 if it allows none."""
        generating = int(self.division.generating_share * population)
        return generating // (self.records_per_prompt * self.disjoint_parts)

    def within(self, population: int) -> PlanSettings:
        """The settings of a stratum of n units: M is at most what it allows, and 1 if it allows none."""
        most = max(1, self.most_prompts(population))
        return self if self.prompts_per_draw <= most else replace(self, prompts_per_draw=most)

    @property
    def row_change(self) -> RowChange:
        """What one unit can do to the rows of a draw."""
        alone = self.records_per_prompt == 1 and self.sampling == POISSON
        return RowChange.ADDED if alone else RowChange.REPLACED


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
    """
    top_k, known = min(TOP_K, vocabulary_size), task.name.lower().replace("_", "-")
    if name == TANG:
        prompts, records = _TANG.get(known, _TANG_ELSEWHERE)
        mechanism: Mechanism = Gaussian(top_k=top_k)
    elif name == ADADPSYN:
        row_of = (known, 0.0 if budget is None else budget.epsilon)
        if known not in TASKS or row_of[1] not in EPSILONS:
            row_of = _ADADPSYN_ROW
        row = published(row_of[0], epsilon=row_of[1])
        prompts, records = row.prompts, row.records_per_prompt
        mechanism = replace(row.mechanism, top_k=top_k)
    else:
        raise InvalidPlan(f"the preset must be one of {', '.join(PRESETS)}, not {name!r}")
    return mechanism, Settings(prompts_per_draw=prompts, records_per_prompt=records, tokens_per_draw=1)
