"""Generates all demonstrations of a plan except those that its checkpoint holds.

A run may follow a checkpoint (docs/proofs/resuming.md). Demonstrations are made one after another, or with
workers each stratum's one after another.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, is_dataclass
from typing import Self

from tqdm import tqdm

from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BudgetExceeded, InvalidPlan, LedgerError
from dpfewshot.generation.checkpoint import NO_CHECKPOINT, Checkpoint, NoCheckpoint, Progress, Unfinished
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.request import GenerationRequest, Stopped, StopSignal
from dpfewshot.generation.workers import Workers
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.prompts.chat import chat_turns
from dpfewshot.values import Demonstration, PrivacySpend, epsilon_text


@contextmanager
def checkpointed(
    generation: Generation, path: str | os.PathLike[str], identity: Mapping[str, object]
) -> Iterator[Checkpoint]:
    """Open a checkpoint that records every draw, and resume the reservations in it.

    Afterwards the checkpoint keeps what is left of the plan: only a later run that follows it can draw.

    Args:
        generation: of the plan.
        path: of the checkpoint.
        identity: public settings that all runs of one checkpoint share.

    Raises:
        InvalidPlan: the checkpoint is of another plan, or this synthesizer has a reservation of its own.
        BudgetExceeded: an account in memory has no room for what was reserved, or the synthesizer is closed.
        LedgerError: the checkpoint is stale or of another account, or cannot be read or written.
    """
    generation.check_open()
    books, weights = generation.books, generation.set_up.backend.weights
    durable = books.account is not None and books.account.durable
    with closing(Checkpoint(path, identity, weights=weights, copies=durable)) as checkpoint:
        with generation.no_draws():
            generation.check_open()
            if isinstance(books.checkpoint, Checkpoint):
                raise LedgerError(
                    f"another run of this synthesizer writes its checkpoint to {books.checkpoint.path}"
                )
            _check(generation, checkpoint)
            _resume(generation, checkpoint)
            generation.resumed(checkpoint.progress.finished)
            books.checkpoint = checkpoint
        finished = False
        try:
            yield checkpoint
            finished = True
        finally:
            with generation.no_draws(), ExitStack() as stack:
                if books.checkpoint is checkpoint:  # a forked child has dropped it
                    books.checkpoint = NO_CHECKPOINT
                    for run in generation.runs.values():
                        stack.callback(run.hand_over, checkpoint, finished=finished)


def _check(generation: Generation, checkpoint: Checkpoint) -> None:
    """Refuse lines that name this plan but do not fit it, and a reservation that is not the checkpoint's.

    Raises:
        LedgerError: a line does not fit.
        InvalidPlan: this synthesizer has a reservation of its own.
    """
    progress, plan, runs = checkpoint.progress, generation.plan, generation.runs.values()
    planned = {label for stratum in plan.strata for label in stratum.labels}
    found = {one.label for one in progress.finished}
    fits = (
        all(number < len(runs) for number in progress.reserved)
        and all(run.fits(checkpoint) for run in runs)
        and found <= planned
        and all(
            number < len(runs)
            and each.label in plan.strata[number].labels
            and len(each.released) <= plan.settings.max_tokens
            and all(token < generation.set_up.backend.vocabulary_size for token in each.released)
            for number, each in progress.unfinished.items()
        )
    )
    if not fits:
        raise LedgerError(f"{checkpoint.path}: its lines do not fit its plan: name another file")
    for run in runs:
        own, recorded = run.reservation, progress.reserved.get(run.number)
        if own is not None and recorded is not None and own.entry != recorded.entry:
            raise InvalidPlan(
                f"{checkpoint.path}: this synthesizer has already reserved for itself: make a new one "
                "and resume the checkpoint first"
            )


def _resume(generation: Generation, checkpoint: Checkpoint) -> None:
    """Resume all strata or none: if one fails, the others stay unchanged."""
    runs = generation.runs.values()
    resumed = [run.resume(checkpoint) or run.reservation for run in runs]
    for run, reservation in zip(runs, resumed, strict=True):
        if reservation is not None:
            checkpoint.reserved(run.number, reservation)
    for run, reservation in zip(runs, resumed, strict=True):
        run.reservation = reservation


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


OnDemonstration = Callable[[Demonstration], None]

_LANES = 128
"""The most strata that wait for workers at the same time."""

_POLL = 0.1
"""Seconds after which a run with workers checks whether its caller was cancelled."""


def release_all(
    generation: Generation,
    on_demonstration: OnDemonstration | None,
    stop: StopSignal,
    workers: Workers | None = None,
) -> Demonstrations:
    """Release every planned demonstration that the generation's checkpoint does not hold.

    Args:
        generation: of the plan.
        on_demonstration: called with each demonstration once the checkpoint holds it, one call at a time.
        stop: checked between two tokens; a worker's draw is recorded whole before.
        workers: make the draws, of several strata at a time; None: the caller's thread does.

    Returns:
        All of them, those of the checkpoint first, then in the order of the plan.

    Raises:
        BudgetExceeded: some cannot be made. With a checkpoint, all others are made first.
        LedgerError: the checkpoint belongs to the parent of this process.
    """
    plan, checkpoint = generation.plan, generation.books.checkpoint
    resumed = list(checkpoint.progress.finished)
    to_do = _to_do(plan, checkpoint.progress)
    with ProgressBar(plan, resumed) as bar:
        run = _Run(generation, checkpoint, bar, on_demonstration)
        if workers is None:
            run.make(to_do, stop, None)
        else:
            _side_by_side(run, to_do, stop, workers)
    made = len(resumed) + len(run.made)
    if run.refused:
        generation.check_open()  # after `close` no draws are left, for another reason
        raise BudgetExceeded(_cannot_be_made(run.refused, made))
    spend = PrivacySpend(plan.epsilon or 0.0, plan.delta or 0.0) if generation.certified else None
    return Demonstrations([*resumed, *(run.made[number] for number in sorted(run.made))], plan_spend=spend)


def identity(generation: Generation, further: Mapping[str, object]) -> dict[str, object]:
    """Public settings that all runs of one checkpoint share.

    Args:
        generation: of the plan.
        further: what the generation does not know: budget, account, vocabulary.
    """
    set_up = generation.set_up
    mechanism: object = set_up.mechanism
    turns = {"chat": chat_turns(set_up.backend).fingerprint()} if set_up.task.chat else {}
    return {
        **further,
        **turns,
        "task": set_up.task.identity(),
        "plan": generation.plan.figures(),
        # the repr of a user's own mechanism may contain an address
        "mechanism": repr(mechanism) if is_dataclass(mechanism) else set_up.mechanism.name,
        "certified": generation.certified,
    }


@dataclass(frozen=True)
class _ToDo:
    """A demonstration to make.

    Attributes:
        number: its place in the result.
        label: its label.
        interrupted: how far an earlier run came with it.
    """

    number: int
    label: str
    interrupted: Unfinished | None = None


@dataclass(eq=False)
class _Run:
    """What the demonstrations of one run share.

    Attributes:
        generation: of the plan.
        checkpoint: of the run.
        bar: shows its progress.
        on_demonstration: the caller's.
        made: the demonstrations, by their place in the result.
        refused: labels of those for which too few draws are left.
    """

    generation: Generation
    checkpoint: Checkpoint | NoCheckpoint
    bar: ProgressBar
    on_demonstration: OnDemonstration | None
    made: dict[int, Demonstration] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    _calls: threading.Lock = field(default_factory=threading.Lock)
    """Held while the caller is told, who may call `close`: no thread waits for it with a stratum's lock."""

    def make(self, to_do: Sequence[_ToDo], stop: StopSignal, workers: Workers | None) -> None:
        """Make these demonstrations, one after another."""
        generation, settings = self.generation, self.generation.plan.settings
        for position, each in enumerate(to_do):
            generation.check_open()
            if generation.books.checkpoint is not self.checkpoint:
                raise LedgerError("the checkpoint belongs to the parent of this process, which continues it")
            others = [one.label for one in to_do[position + 1 :]]
            tokens = _tokens(generation, each, others)
            if not tokens and self.checkpoint.resumable:
                self.refused.append(each.label)
                continue
            request = GenerationRequest(
                each.label,
                tokens or settings.max_tokens,
                prior_tokens=tuple(each.interrupted.released) if each.interrupted else (),
                on_token=self._on_token(generation.run_of(each.label).number),
                stop=stop,
                checkpointed=True,
                workers=workers,
                others=others,
            )
            try:
                one = _released(generation, request)
            except BudgetExceeded:
                if generation.run_of(each.label).draws_left() or not self.checkpoint.resumable:
                    raise
                self.refused.append(each.label)  # workers died with its draws
                continue
            self._finish(each.number, one)

    def _on_token(self, stratum: int) -> Callable[[int], None]:
        def on_token(token: int) -> None:
            self.checkpoint.token(stratum, token)
            self.bar.token()

        return on_token

    def _finish(self, number: int, one: Demonstration) -> None:
        with self._calls:
            self.checkpoint.finish(one)
            self.made[number] = one
            with self.bar.demonstration(one):
                if self.on_demonstration is not None:
                    self.on_demonstration(one)


def _side_by_side(run: _Run, to_do: Iterable[_ToDo], stop: StopSignal, workers: Workers) -> None:
    """Make the demonstrations of several strata at a time. If one fails, the others stop after their draw."""
    plan = run.generation.plan
    strata: dict[str | None, list[_ToDo]] = {}
    for each in to_do:
        strata.setdefault(plan.stratum_of(each.label).scope, []).append(each)
    if not strata:
        return
    halt = StopSignal()
    with ThreadPoolExecutor(min(_LANES, len(strata)), thread_name_prefix="dpfewshot") as lanes:
        made = [
            # in the caller's context, so that spans and request ids are the caller's
            lanes.submit(contextvars.copy_context().run, run.make, stratum, halt, workers)
            for stratum in strata.values()
        ]
        try:
            while _unfinished(made):
                stop.check()
        finally:
            halt.set()
            workers.cancel()
    _raise_first(made)


def _unfinished(made: Sequence[Future[None]]) -> bool:
    """Whether all go on, after a while."""
    done, others = wait(made, timeout=_POLL, return_when=FIRST_EXCEPTION)
    return bool(others) and all(each.exception() is None for each in done)


def _raise_first(made: Iterable[Future[None]]) -> None:
    """Raise what ended the run: a failure before those that it stopped."""
    raised = [error for each in made if (error := each.exception()) is not None]
    try:
        for error in sorted(raised, key=lambda error: isinstance(error, Stopped)):
            raise error
    finally:
        raised.clear()  # they hold this frame


def _to_do(plan: GenerationPlan, progress: Progress) -> list[_ToDo]:
    """The unfinished demonstrations in the order of the plan, the interrupted ones first."""
    labels = [label for stratum in plan.strata for label in stratum.labels]
    finished = Counter(one.label for one in progress.finished)
    interrupted = {each.label: each for each in progress.unfinished.values()}
    first, rest = [], []
    for number, label in enumerate(labels * plan.settings.shots_per_label):
        if finished[label]:
            finished[label] -= 1
        elif label in interrupted:
            first.append(_ToDo(number, label, interrupted.pop(label)))
        else:
            rest.append(_ToDo(number, label))
    return first + rest


def _tokens(generation: Generation, each: _ToDo, others: Sequence[str]) -> int:
    """How many tokens a demonstration may have in all; 0 if too few draws are left.

    An interrupted demonstration has the draws that the others leave to it. If they leave none and it has no
    token yet, it takes those of the next one of its label, so that the last one of that label is lost.
    """
    settings, run = generation.plan.settings, generation.run_of(each.label)
    if each.interrupted is not None:
        draws, prior = run.draws_left(others), len(each.interrupted.released)
        if prior + draws > 0:
            return min(settings.max_tokens, prior + draws * settings.tokens_per_draw)
    return settings.max_tokens if run.draws_left() >= settings.draws_per_demonstration else 0


def _released(generation: Generation, request: GenerationRequest) -> Demonstration:
    """The demonstration; without a draw if its prior tokens are all that it can have."""
    prior = request.prior_tokens
    if prior and (request.max_tokens == len(prior) or generation.set_up.loop.ended(prior)):
        return generation.demonstration(request.label, prior)
    return generation.release(request)


def _cannot_be_made(labels: Sequence[str], made: int) -> str:
    numbers = ", ".join(f"{count} of {label!r}" for label, count in Counter(labels).items())
    return (
        f"{numbers} cannot be made: draws of the plan were interrupted, or went to other callers. The other "
        f"{'one is' if made == 1 else f'{made} are'} in the checkpoint "
        "(Demonstrations.from_jsonl). A further plan needs further budget"
    )
