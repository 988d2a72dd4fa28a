"""Generates all demonstrations of a plan except those that its checkpoint holds.

They are made one after another, or with workers each stratum's one after another.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, is_dataclass

from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.generation.cancellation import Stopped, StopSignal
from dpfewshot.generation.checkpoint import Checkpoint, NoCheckpoint
from dpfewshot.generation.checkpointed import Progress, Unfinished
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.progress import ProgressBar
from dpfewshot.generation.request import GenerationRequest
from dpfewshot.generation.workers import Workers
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.prompts.chat import chat_turns
from dpfewshot.values import Demonstration, PrivacySpend

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
