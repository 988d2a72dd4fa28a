"""A plan at work: what its parts reserved, and how one demonstration is released from one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from dpfewshot.accounting.account import scope_name
from dpfewshot.accounting.accountant import Accountant, Reservation
from dpfewshot.accounting.permit import Permit
from dpfewshot.background import StopSignal, Worker
from dpfewshot.checkpoint import Checkpoint, KeptReservation
from dpfewshot.errors import BackendError, InvalidPlan, LedgerError
from dpfewshot.forking import start_afresh_in_children
from dpfewshot.mechanisms import Mechanism
from dpfewshot.mechanisms.noiseless import started
from dpfewshot.observability import Observer
from dpfewshot.parts import Part
from dpfewshot.plans import GenerationPlan
from dpfewshot.prompts import PromptWriter
from dpfewshot.redaction import redacts_errors
from dpfewshot.sampling import FixedSizeSampler, PoissonSampler, Sampler, Source
from dpfewshot.settings import FIXED_SIZE
from dpfewshot.tasks import Task
from dpfewshot.token_loop import TokenLoop
from dpfewshot.values import Demonstration


@dataclass(frozen=True)
class Course:
    """What goes with the making of one demonstration.

    Attributes:
        begun: its tokens that were released before, by a run that was interrupted.
        on_token: called with each further token.
        stop: looked at before each draw and after each token.
        kept: whether it is the run's that the checkpoint follows.
    """

    begun: Sequence[int] = ()
    on_token: Callable[[int], None] = lambda _token: None
    stop: StopSignal = field(default_factory=StopSignal)
    kept: bool = False


@dataclass(eq=False)
class Generation:
    """The parts of one plan, and all that it takes to release from them.

    Attributes:
        task: its name names the partition.
        mechanism: the only one who turns private numbers into a token.
        plan: fixed beforehand.
        parts: in the plan's order.
        writer: of prompts.
        loop: over tokens.
        accountant: of the budget.
        observer: told of what becomes public.
        certified: whether the guarantee holds.
        source: for tests alone.
        checkpoint: of the run that is under way, if it has one.
        worker: the thread of whole runs.
    """

    task: Task
    mechanism: Mechanism
    plan: GenerationPlan
    parts: Sequence[Part]
    writer: PromptWriter
    loop: TokenLoop
    accountant: Accountant
    observer: Observer
    certified: bool
    source: Source = field(default=None, repr=False)
    checkpoint: Checkpoint | None = None
    worker: Worker = field(default_factory=Worker, repr=False)

    def __post_init__(self) -> None:
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """The checkpoint is the parent's, who goes on writing it."""
        self.worker.after_fork()
        if self.checkpoint is not None:
            self.checkpoint.close()
            self.checkpoint = None

    def part_of(self, label: str) -> Part:
        """The part that generates a label.

        Raises:
            InvalidPlan: the label is not planned.
        """
        return self.parts[self.plan.parts.index(self.plan.part_of(label))]

    @redacts_errors(BackendError, "generation")
    def release(self, label: str, max_tokens: int, course: Course) -> Demonstration:
        """Release one demonstration.

        Args:
            label: a planned one.
            max_tokens: at most, with those that were released before.
            course: what goes with it.

        Raises:
            BudgetExceeded: the plan or the account does not allow it; nothing is drawn.
            BackendError: the model or its server failed. What was drawn stays charged.
            LedgerError: the charge could not be recorded; nothing is drawn without it.
            Stopped: it was asked to.
        """
        part = self.part_of(label)
        blocks = -(-(max_tokens - len(course.begun)) // self.loop.tokens_per_draw)
        with self.observer.generating(label) as tell:
            course.stop.acquire(part.lock)
            try:
                with self._reserved(part) as reservation:
                    number = reservation.part_for(blocks)
                    released = self.loop.release(
                        part.bodies(self.writer, number),
                        self.sampler(part),
                        started(self.mechanism, part.plan.draws, part.plan.noise_multiplier, self.source),
                        lambda: self._charge(part, number, label, course),
                        prompts=self.writer.for_label(label),
                        max_tokens=max_tokens,
                        begun=course.begun,
                        on_token=course.on_token,
                    )
            finally:
                part.lock.release()
            demonstration = self.demonstration(label, released)
            tell(demonstration)
        return demonstration

    def sampler(self, part: Part) -> Sampler:
        """Who draws the units of a part, and puts them in prompts."""
        settings = self.plan.settings
        prompts, records = settings.prompts_per_token, settings.records_per_prompt
        if settings.sampling == FIXED_SIZE:
            return FixedSizeSampler(prompts, records, self.source)
        return PoissonSampler(part.plan.sampling_rate, prompts, records, self.source)

    def demonstration(self, label: str, released: Sequence[int]) -> Demonstration:
        """What was released, as a value."""
        return Demonstration(
            text=self.loop.text_of(released),
            label=label,
            token_count=len(released),
            private=self.certified,
            spent=self.part_of(label).plan.spend if self.certified else None,
            relation=self.plan.relation,
            mechanism=self.mechanism.name,
        )

    def close(self) -> None:
        """Draw no more: settle what drew, and give back what did not."""
        with self._nobody_draws():
            for part in self.parts:
                if part.reservation is not None:
                    part.reservation.close()

    def draws_left(self, label: str, others: Sequence[str]) -> int:
        """The draws that a demonstration may take, at most, if the others to come shall have theirs.

        Args:
            label: of the demonstration.
            others: labels of the demonstrations to come after it.
        """
        part = self.part_of(label)
        if part.reservation is None:
            return self.plan.settings.blocks_per_shot
        left = max(part.reservation.blocks_left)
        if part.parts > 1:  # the others mostly have parts of their own
            return left
        needed = sum(other in part.plan.labels for other in others) * self.plan.settings.blocks_per_shot
        return max(0, left - needed)

    @contextmanager
    def kept(self, path: str | os.PathLike[str], what: Mapping[str, object]) -> Iterator[Checkpoint]:
        """Write every draw to a checkpoint, and go on with what it says was reserved.

        Afterwards what is left of the plan is the checkpoint's: a further run takes it up, nobody else.

        Args:
            path: of the checkpoint.
            what: is being made: all public settings.

        Raises:
            InvalidPlan: the checkpoint is of another plan, or this synthesizer reserved anew meanwhile.
            BudgetExceeded: an account in memory has not the room for what was reserved.
            LedgerError: the account knows nothing of it, or the checkpoint cannot be read or written.
        """
        with closing(Checkpoint(path, what)) as checkpoint:
            with self._nobody_draws():
                if self.checkpoint is not None:
                    raise LedgerError(f"another run of this synthesizer is kept in {self.checkpoint.path}")
                self._take_up(checkpoint)
                self.checkpoint = checkpoint
            finished = False
            try:
                yield checkpoint
                finished = True
            finally:
                with self._nobody_draws():
                    self.checkpoint = None
                    for number, part in enumerate(self.parts):
                        if part.reservation is not None:
                            self._leave(checkpoint, number, part.reservation, finished=finished)

    @contextmanager
    def _nobody_draws(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.lock)
            yield

    def _leave(
        self, checkpoint: Checkpoint, number: int, reservation: Reservation, *, finished: bool
    ) -> None:
        if finished:
            checkpoint.reserved(number, reservation.entry, [0] * len(reservation.blocks_left))
            reservation.close()
        else:
            reservation.hand_over()

    def _take_up(self, checkpoint: Checkpoint) -> None:
        kept = dict(checkpoint.progress.reserved)
        for number, part in enumerate(self.parts):
            own, known = part.reservation, kept.get(number)
            if own is not None and known is not None and own.entry != known.entry:
                raise InvalidPlan(
                    f"{checkpoint.path}: this synthesizer has reserved for itself already: make a new one, "
                    "and go on from the checkpoint first"
                )
        resumed = {number: self._resumed(self.parts[number], each) for number, each in kept.items()}
        for number, part in enumerate(self.parts):
            reservation = resumed.get(number, part.reservation)
            if reservation is not None:
                checkpoint.reserved(number, reservation.entry, list(reservation.blocks_left))
                part.reservation = reservation

    def _charge(self, part: Part, number: int, label: str, course: Course) -> Permit:
        """Charge one draw: first where a later run will count it, then in the account."""
        course.stop.check()
        if self.checkpoint is not None:
            self.checkpoint.draw(self._number(part), number, label if course.kept else None)
        assert part.reservation is not None  # noqa: S101 - `release` holds it
        return part.reservation.draw(number)

    @contextmanager
    def _reserved(self, part: Part) -> Iterator[Reservation]:
        """The part's reservation; given back if something fails before its first draw."""
        if part.reservation is None:
            part.reservation = self._reserve(part)
        reservation = part.reservation
        try:
            yield reservation
        finally:
            if not reservation.drawn:
                part.reservation = None
                if self.checkpoint is not None:
                    # on disk first: a checkpoint must never go on with what was given back
                    self.checkpoint.returned(self._number(part))
            if reservation.used_up or not reservation.drawn:
                reservation.close()

    def _reserve(self, part: Part) -> Reservation:
        plan = part.plan
        spend = plan.spend if self.certified else None
        reservation = self.accountant.reserve(
            spend,
            scope=self._scope(part),
            blocks=plan.blocks,
            tokens_per_block=self.loop.tokens_per_draw,
            noise_multiplier=plan.noise_multiplier,
            parts=part.parts,
            details={"mechanism": self.mechanism.name, "disjoint_parts": part.parts, **plan.details},
        )
        self.observer.reserved(plan.scope, spend, plan.blocks)
        if self.checkpoint is not None:
            self.checkpoint.reserved(self._number(part), reservation.entry, list(reservation.blocks_left))
        return reservation

    def _resumed(self, part: Part, kept: KeptReservation) -> Reservation:
        return self.accountant.resume(
            kept.entry,
            part.plan.spend if self.certified else None,
            scope=self._scope(part),
            # who is in which disjoint part is private and not kept: what one of them drew, all count as drawn
            blocks=min(kept.blocks),
            tokens_per_block=self.loop.tokens_per_draw,
            noise_multiplier=part.plan.noise_multiplier,
            parts=part.parts,
        )

    def _number(self, part: Part) -> int:
        return self.parts.index(part)

    def _scope(self, part: Part) -> str | None:
        return None if part.plan.scope is None else scope_name(self.task.name, part.plan.scope)
