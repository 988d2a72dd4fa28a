"""A plan at work: what its parts reserved, and how one demonstration is released from one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from dpfewshot.accounting.account import Details
from dpfewshot.accounting.accountant import Accountant, Reservation
from dpfewshot.accounting.draws import new_lease
from dpfewshot.accounting.permit import Permit
from dpfewshot.accounting.scopes import scope_name
from dpfewshot.background import StopSignal, Worker
from dpfewshot.checkpoint import Checkpoint, KeptReservation
from dpfewshot.errors import BackendError, BudgetExceeded, InvalidPlan, LedgerError
from dpfewshot.forking import start_afresh_in_children
from dpfewshot.mechanisms import Mechanism
from dpfewshot.observability import Observer
from dpfewshot.parts import Part
from dpfewshot.plans import GenerationPlan
from dpfewshot.redaction import redacts_errors
from dpfewshot.set_up import SetUp
from dpfewshot.token_loop import TokenLoop
from dpfewshot.values import Demonstration


@dataclass(frozen=True, repr=False)
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

    `Synthesizer` keeps it to itself: what it draws follows from its set-up, which nobody else can change.

    Attributes:
        set_up: the plan, and what it is made for.
        accountant: of the budget.
        observer: told of what becomes public.
        parts: in the plan's order.
        loop: over tokens.
        checkpoint: of the run that is under way, if it has one.
        worker: the thread of whole runs.
    """

    set_up: SetUp
    accountant: Accountant
    observer: Observer
    parts: Sequence[Part] = field(init=False)
    loop: TokenLoop = field(init=False, repr=False)
    checkpoint: Checkpoint | None = field(default=None, init=False)
    worker: Worker = field(default_factory=Worker, init=False, repr=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.parts = self.set_up.parts()
        self.loop = TokenLoop(self.set_up.backend)
        start_afresh_in_children(self)

    @property
    def plan(self) -> GenerationPlan:
        """Fixed beforehand."""
        return self.set_up.plan

    @property
    def mechanism(self) -> Mechanism:
        """The only one who turns private numbers into a token."""
        return self.set_up.mechanism

    @property
    def certified(self) -> bool:
        """Whether the guarantee holds: never where no account is charged."""
        return self.set_up.certified and self.accountant.keeps_account

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
            BudgetExceeded: the plan or the account does not allow it, or it is closed; nothing is drawn.
            BackendError: the model or its server failed. What was drawn stays charged.
            LedgerError: the charge could not be recorded; nothing is drawn without it.
            Stopped: it was asked to.
        """
        self._check_open()
        part, writer = self.part_of(label), self.set_up.writer
        blocks = -(-(max_tokens - len(course.begun)) // part.plan.draws.tokens_per_block)
        with self.observer.generating(label) as tell:
            course.stop.acquire(part.lock)
            try:
                self._check_open()  # while it waited
                with self._reserved(part) as reservation:
                    number = reservation.part_for(blocks)
                    released = self.loop.release(
                        part.bodies(writer, number),
                        self.set_up.sampler(part.plan),
                        self.set_up.release(part.plan),
                        lambda: self._charge(part, number, label, course),
                        prompts=writer.for_label(label),
                        max_tokens=max_tokens,
                        begun=course.begun,
                        on_token=course.on_token,
                    )
            finally:
                part.lock.release()
            demonstration = self.demonstration(label, released)
            tell(demonstration)
        return demonstration

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
        """Draw no more: settle what drew, and give back what did not. What asks later is refused."""
        with self._nobody_draws():
            self._closed = True
            for part in self.parts:
                if part.reservation is not None:
                    part.reservation.close()

    def _check_open(self) -> None:
        if self._closed:
            raise BudgetExceeded(
                "the synthesizer is closed and generates no more: make a new one, with a budget of its own"
            )

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
            BudgetExceeded: an account in memory has not the room for what was reserved, or it is closed.
            LedgerError: the checkpoint is stale or of another account, or cannot be read or written.
        """
        self._check_open()
        with closing(Checkpoint(path, what, copies=self.accountant.durable)) as checkpoint:
            with self._nobody_draws():
                self._check_open()
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
            blocks = [0] * len(reservation.blocks_left)
            checkpoint.reserved(number, reservation.entry, reservation.lease, blocks)
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
        resumed = {number: self._resumed(checkpoint, number, each) for number, each in kept.items()}
        for number, part in enumerate(self.parts):
            reservation = resumed.get(number, part.reservation)
            if reservation is not None:
                _keep(checkpoint, number, reservation)
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
            tokens_per_block=plan.draws.tokens_per_block,
            noise_multiplier=plan.noise_multiplier,
            parts=part.parts,
            details=self._details(part),
        )
        self.observer.reserved(plan.scope, spend, plan.blocks)
        if self.checkpoint is not None:
            _keep(self.checkpoint, self._number(part), reservation)
        return reservation

    def _resumed(self, checkpoint: Checkpoint, number: int, kept: KeptReservation) -> Reservation:
        part, lease = self.parts[number], new_lease()
        # who is in which disjoint part is private and not kept: what one of them drew, all count as drawn
        blocks = min(kept.blocks)
        if blocks:
            checkpoint.resuming(number, lease)  # on disk first: it may be granted and the answer lost
        try:
            return self.accountant.resume(
                kept.entry,
                part.plan.spend if self.certified else None,
                scope=self._scope(part),
                blocks=blocks,
                tokens_per_block=part.plan.draws.tokens_per_block,
                noise_multiplier=part.plan.noise_multiplier,
                details=self._details(part),
                known=kept.leases,
                lease=lease,
                parts=part.parts,
            )
        except LedgerError as error:
            raise LedgerError(f"{checkpoint.path}: {error}") from None

    def _details(self, part: Part) -> Details:
        """What the account's history keeps of a part's plan. Public."""
        task = self.set_up.task
        labels = {} if task.labels is None else {"task_labels": json.dumps(task.labels)}
        return {
            "mechanism": self.mechanism.name,
            "disjoint_parts": part.parts,
            "records_per_prompt": self.plan.settings.records_per_prompt,
            **labels,
            **part.plan.details,
        }

    def _number(self, part: Part) -> int:
        return self.parts.index(part)

    def _scope(self, part: Part) -> str | None:
        task = self.set_up.task
        if part.plan.scope is None:
            return None
        return scope_name(task.name, task.labels or (), part.plan.scope)


def _keep(checkpoint: Checkpoint, number: int, reservation: Reservation) -> None:
    checkpoint.reserved(number, reservation.entry, reservation.lease, list(reservation.blocks_left))
