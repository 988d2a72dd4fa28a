"""A plan, and what it is made for: everything that draws is made here, and from the plan alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dpfewshot.accounting import epsilon
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.budget.amounts import Amount
from dpfewshot.errors import BackendNotBatchInvariant, InvalidPlan
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.exact.rounding import rounded_up
from dpfewshot.generation.strata import Part, Share, divide
from dpfewshot.mechanisms import Mechanism, Release
from dpfewshot.mechanisms.noiseless import start_release
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from dpfewshot.planning.settings import FIXED_SIZE
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.sampling import FixedSizeSampler, PoissonSampler, Sampler
from dpfewshot.tasks import Task
from dpfewshot.values import LABEL_COLUMN, Record


@dataclass(frozen=True)
class SetUp:
    """What `Synthesizer` generates from, to read: nothing that is done with it changes a generation.

    Attributes:
        task: its name names the partition.
        backend: the trusted language model.
        mechanism: the only one who turns private numbers into a token.
        plan: fixed beforehand.
        shares: who serves which labels, in the order of the plan's parts; private.
        certified: whether the guarantee holds.
        source: for tests alone.
        label_column: what the records' labels are of: it names the partition too.

    Raises:
        InvalidPlan: it is certified, and the plan does not state what it draws.
    """

    task: Task
    backend: LogprobBackend = field(repr=False)
    mechanism: Mechanism
    plan: GenerationPlan
    shares: tuple[Share, ...]
    certified: bool
    source: RandomSource | None = field(default=None, repr=False)
    label_column: str = LABEL_COLUMN

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(self.shares))
        if not self.certified:
            return
        if not all(self._states(part) for part in self.plan.strata):
            raise InvalidPlan("the plan's epsilon is that of other draws, or of other noise")
        if not all(_pays(part) for part in self.plan.strata):
            raise InvalidPlan("the plan's epsilon is less than its draws cost")
        served = [(share.scope, share.labels) for share in self.shares]
        if served != [(part.scope, part.labels) for part in self.plan.strata]:
            raise InvalidPlan("the plan's parts are those of other units")

    def check_invariance(self) -> None:
        """Refuse to draw where the backend no longer states what the guarantee needs: asked before each draw.

        Raises:
            BackendNotBatchInvariant: the set-up is certified, and the backend found out otherwise meanwhile.
        """
        if self.certified and not self.backend.batch_invariant:
            raise BackendNotBatchInvariant(
                "the backend no longer states that a prompt's answer is independent of its neighbours: "
                "nothing is drawn"
            )

    @cached_property
    def writer(self) -> PromptWriter:
        """Writes the prompts."""
        return PromptWriter(self.task, self.backend, self.plan.settings.record_token_cap)

    def parts(self) -> list[Part]:
        """New ones, in the plan's order: nothing is reserved or drawn from them."""
        disjoint = self.plan.settings.disjoint_parts
        return [
            Part(share, part, disjoint, self.source)
            for share, part in zip(self.shares, self.plan.strata, strict=True)
        ]

    def sampler(self, part: StratumPlan) -> Sampler:
        """Who draws the units of a part, and puts them in prompts."""
        settings = self.plan.settings
        prompts, records = settings.prompts_per_token, settings.records_per_prompt
        if settings.sampling == FIXED_SIZE:
            return FixedSizeSampler(prompts, records, self.source)
        return PoissonSampler(part.sampling_rate, prompts, records, self.source)

    def release(self, part: StratumPlan) -> Release:
        """The mechanism at work on one demonstration of a part, with the noise that is planned for it."""
        return start_release(self.mechanism, part.draws, part.noise_multiplier, self.source)

    def over(self, records: Sequence[Record], backend: LogprobBackend, plan: GenerationPlan) -> SetUp:
        """The same set-up for other records, another model and another plan, of which nothing is certified.

        Args:
            records: in place of the private ones, divided as those are.
            backend: in place of the language model.
            plan: in place of the plan, for the same labels.
        """
        labels = [label for part in plan.strata for label in part.labels]
        shares = tuple(divide(self.task, records, labels))
        return replace(self, backend=backend, plan=plan, shares=shares, certified=False)

    def _states(self, part: StratumPlan) -> bool:
        """Whether the part's event is that of what the sampler, the mechanism and the loop do."""
        settings, draws = self.plan.settings, part.draws
        return (
            draws.sampling_rate == rounded_up(part.sampling_rate)
            and draws.prompts == settings.prompts_per_token
            and draws.row_change is settings.row_change
            and draws.tokens_per_draw == settings.resample_every
            and (draws.fixed_size is not None) == (settings.sampling == FIXED_SIZE)
            and part.event == self.mechanism.event(draws, part.noise_multiplier)
        )


def _pays(part: StratumPlan) -> bool:
    """Whether the part's cost is at least what its event costs."""
    if part.cost is None or part.event is None:
        return False
    certified = epsilon(part.event, part.cost.as_target().delta).upper
    return Amount.certified(certified, part.cost.delta).fits(part.cost)
