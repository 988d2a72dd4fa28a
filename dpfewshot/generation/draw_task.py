"""One draw as a task for a worker: a thread, a process, or a process of another host."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dpfewshot.account.permit import Permit
from dpfewshot.account.reservation import DelegatedDraw
from dpfewshot.account.scopes import Partition
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.token_loop import TokenLoop
from dpfewshot.generation.worker_backend import WorkerBackend
from dpfewshot.mechanisms import Mechanism
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.prompts.writer import LabelPrompts
from dpfewshot.records.units import UnitSequence
from dpfewshot.runtime.redaction import portable, redacted
from dpfewshot.tasks import Task


@dataclass(frozen=True)
class Drawn:
    """What became of a task. Public: it holds released tokens, or a redacted error.

    Attributes:
        tokens: those that the draw released.
        asked: whether the account was asked for the draw.
        charged: whether it granted it.
        error: what ended the task; None if it was done.
    """

    tokens: tuple[int, ...] = ()
    asked: bool = False
    charged: bool = False
    error: BaseException | None = None


@dataclass(frozen=True, repr=False)
class DrawTask:
    """One draw of a stratum, and the tokens that share it. Private: it holds the records to draw from.

    It pickles unless its account lives in memory, or its worker has no backend of its own.

    Attributes:
        draw: to charge before it is made.
        backend: the worker's.
        task: what to generate.
        mechanism: turns private numbers into tokens.
        plan: of the stratum alone. The worker refuses one that states less than its draws cost.
        units: private: those of the disjoint part.
        certified: whether the guarantee holds.
        partition: names the account's strata.
        random_source: for tests alone.
        ends: the tokens that end a demonstration.
        prompt: the label's public prompt, in tokens. A worker whose model writes other ones is refused.
        vocabulary: `TokenLoop.vocabulary` of the caller. Likewise.
        label: of the demonstration.
        max_tokens: `prior_tokens` and those of this draw.
        text_tokens: the most tokens of the demonstration.
        prior_tokens: released before.
    """

    draw: DelegatedDraw
    backend: WorkerBackend
    task: Task
    mechanism: Mechanism
    plan: GenerationPlan
    units: UnitSequence
    certified: bool
    partition: Partition
    random_source: RandomSource | None
    ends: frozenset[int]
    prompt: tuple[int, ...]
    vocabulary: str
    label: str
    max_tokens: int
    text_tokens: int
    prior_tokens: tuple[int, ...]

    def set_up(self) -> SetUp:
        """The caller's set-up, on the worker's backend and for this stratum alone.

        Raises:
            BackendError: the worker's backend cannot be made.
            InvalidPlan: the plan states less than its draws cost, or the backend is another model.
        """
        scope = self.plan.strata[0].scope
        made = SetUp(
            self.task,
            self.backend.here(),
            self.mechanism,
            self.plan,
            {scope: self.units},
            self.certified,
            self.partition,
            self.random_source,
        )
        if public_prompt(made.writer.for_label(self.label)) != self.prompt:
            raise InvalidPlan(
                "a worker's backend writes the public prompt in other tokens than the synthesizer's: "
                "worker_backend must make the same model"
            )
        if self.loop(made).vocabulary != self.vocabulary:
            raise InvalidPlan(
                "a worker's backend has other tokens for the task's schema than the synthesizer's: "
                "worker_backend must make the same model"
            )
        return made

    def loop(self, made: SetUp) -> TokenLoop:
        """The loop of a worker's set-up, with the ends that the caller knows."""
        return TokenLoop(made.backend, self.task.layout, self.ends)


def public_prompt(prompts: LabelPrompts) -> tuple[int, ...]:
    """A label's prompt without records, what follows a record, and the names of further fields."""
    names = (token for name in prompts.further for token in name)
    return (*prompts.prefix, *prompts.public_suffix, *prompts.between, *names)


def make_draw(task: DrawTask) -> Drawn:
    """Charge a draw, make it, and return what it released. What a worker runs; never raises."""
    asked = charged = False
    error: BaseException | None = None
    tokens: list[int] = []

    def charge() -> Permit:
        nonlocal asked, charged
        set_up.check_invariance()  # here, since the public answer may have shown that the backend varies
        asked = True
        permit = task.draw.charge()
        charged = True
        return permit

    try:
        with _uninterrupted():
            set_up = task.set_up()
            [stratum] = set_up.plan.strata
            tokens = task.loop(set_up).release(
                set_up.bodies(task.units),
                set_up.sampler(stratum),
                set_up.release(stratum),
                charge,
                prompts=set_up.writer.for_label(task.label),
                max_tokens=task.max_tokens,
                text_tokens=task.text_tokens,
                prior_tokens=task.prior_tokens,
            )
    except BaseException as raised:  # noqa: BLE001 - the caller raises it, redacted
        error = portable(redacted(raised, BackendError, "generation"))
    return Drawn(tuple(tokens[len(task.prior_tokens) :]), asked, charged, error)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and cancellation in the main thread of a worker process.

    The caller ends the run after the draw. An interrupt within a transaction could leave the ledger locked
    for as long as the worker lives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
