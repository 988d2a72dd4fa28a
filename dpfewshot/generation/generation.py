"""A plan at work: what its parts reserved, and how one demonstration is released from one of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from dpfewshot.budget.account import Details
from dpfewshot.budget.permit import Permit
from dpfewshot.budget.reservation import Accountant, Reservation
from dpfewshot.budget.scopes import scope_name
from dpfewshot.errors import BackendError, BudgetExceeded, LedgerError
from dpfewshot.generation.cancellation import StopSignal, Worker
from dpfewshot.generation.checkpoint import Checkpoint
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.strata import Part
from dpfewshot.generation.telemetry import Observer
from dpfewshot.generation.token_loop import TokenLoop
from dpfewshot.mechanisms import Mechanism
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.runtime.redaction import redacts_errors
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

    def stratum_of(self, label: str) -> Part:
        """The part that generates a label.

        Raises:
            InvalidPlan: the label is not planned.
        """
        return self.parts[self.plan.strata.index(self.plan.stratum_of(label))]

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
        self.check_open()
        part, writer = self.stratum_of(label), self.set_up.writer
        blocks = -(-(max_tokens - len(course.begun)) // part.plan.draws.tokens_per_draw)
        with self.observer.generating(label) as tell:
            course.stop.acquire(part.lock)
            try:
                self.check_open()  # while it waited
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
            spent=self.stratum_of(label).plan.spend if self.certified else None,
            relation=self.plan.relation,
            mechanism=self.mechanism.name,
        )

    def close(self) -> None:
        """Draw no more: settle what drew, and give back what did not. What asks later is refused.

        What a run with a checkpoint reserved stays the checkpoint's: a later run goes on with it.

        Raises:
            LedgerError: something could not be given back; it stays spent, until this is called again.
        """
        with self.nobody_draws(), ExitStack() as stack:
            self._closed = True
            for part in self.parts:
                if part.reservation is not None:
                    # each of them, also where another one fails
                    stack.callback(
                        part.reservation.close if self.checkpoint is None else part.reservation.hand_over
                    )

    def check_open(self) -> None:
        """Refuse further work once this is closed.

        Raises:
            BudgetExceeded: it is.
        """
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
        part = self.stratum_of(label)
        if part.reservation is None:
            return self.plan.settings.draws_per_demonstration
        left = max(part.reservation.draws_left)
        if part.parts > 1:  # the others mostly have parts of their own
            return left
        needed = (
            sum(other in part.plan.labels for other in others) * self.plan.settings.draws_per_demonstration
        )
        return max(0, left - needed)

    @contextmanager
    def nobody_draws(self) -> Iterator[None]:
        """Hold every part's lock."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.lock)
            yield

    def _charge(self, part: Part, number: int, label: str, course: Course) -> Permit:
        """Charge one draw: first where a later run will count it, then in the account."""
        course.stop.check()
        self.set_up.check_invariance()
        checkpoint = self.checkpoint
        if checkpoint is not None:
            checkpoint.draw(self._number(part), number, label if course.kept else None)
        assert part.reservation is not None  # noqa: S101 - `release` holds it
        try:
            return part.reservation.draw(number)
        except (BudgetExceeded, LedgerError):
            if checkpoint is not None:
                with suppress(LedgerError):  # without this line the block counts as drawn
                    checkpoint.not_drawn(self._number(part), number)
            raise

    @contextmanager
    def _reserved(self, part: Part) -> Iterator[Reservation]:
        """The part's reservation; given back if something fails before the first draw was asked for."""
        if part.reservation is None:
            part.reservation = self._reserve(part)
        reservation = part.reservation
        try:
            yield reservation
        finally:
            if not reservation.asked:
                self._give_back(part, reservation)
            elif reservation.used_up:
                reservation.close()

    def _give_back(self, part: Part, reservation: Reservation) -> None:
        """Forget what nothing was asked of, unless the account cannot take it back now."""
        if self.checkpoint is not None:
            # on disk first: a checkpoint must never go on with what was given back
            self.checkpoint.returned(self._number(part))
        part.reservation = None
        try:
            reservation.close()
        except LedgerError:
            part.reservation = reservation
            if self.checkpoint is not None:
                self.checkpoint.keep(self._number(part), reservation)
            raise

    def _reserve(self, part: Part) -> Reservation:
        plan = part.plan
        spend = plan.spend if self.certified else None
        reservation = self.accountant.reserve(
            plan.cost if self.certified else None,
            scope=self.scope(part),
            draws=plan.steps,
            tokens_per_draw=plan.draws.tokens_per_draw,
            noise_multiplier=plan.noise_multiplier,
            disjoint_parts=part.parts,
            details=self.details(part),
        )
        try:
            if self.checkpoint is not None:
                self.checkpoint.keep(self._number(part), reservation)
            self.observer.reserved(plan.scope, spend, plan.steps)
        except BaseException:
            with suppress(LedgerError):
                reservation.close()  # nobody knows of it
            raise
        return reservation

    def details(self, part: Part) -> Details:
        """What the account's history keeps of a part's plan. Public."""
        task = self.set_up.task
        labels = {"task_labels": json.dumps(task.labels), "label_column": self.set_up.label_column}
        return {
            "mechanism": self.mechanism.name,
            "disjoint_parts": part.parts,
            "records_per_prompt": self.plan.settings.records_per_prompt,
            **({} if task.labels is None else labels),
            **part.plan.details,
        }

    def _number(self, part: Part) -> int:
        return self.parts.index(part)

    def scope(self, part: Part) -> str | None:
        """The part of the account's partition that a part draws from."""
        task = self.set_up.task
        if part.plan.scope is None:
            return None
        return scope_name(task.name, task.labels or (), part.plan.scope, self.set_up.label_column)
