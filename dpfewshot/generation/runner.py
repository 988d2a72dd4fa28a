"""All demonstrations of a plan, one after another; what a run before this one finished is not made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace

from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.generation.cancellation import StopSignal
from dpfewshot.generation.checkpoint import Progress
from dpfewshot.generation.generation import Course, Generation
from dpfewshot.generation.progress import ProgressBar
from dpfewshot.values import Demonstration, PrivacySpend

OnDemonstration = Callable[[Demonstration], None]


def release_all(
    generation: Generation, on_demonstration: OnDemonstration | None, stop: StopSignal
) -> Demonstrations:
    """Release every planned demonstration that the generation's checkpoint does not hold.

    Args:
        generation: of the plan.
        on_demonstration: called with each one as it is released, once it is in the checkpoint.
        stop: looked at between two tokens.

    Returns:
        All of them, with those that the checkpoint held.

    Raises:
        BudgetExceeded: some cannot be made. With a checkpoint, all others are made first.
        LedgerError: the checkpoint is the parent's of this process.
    """
    checkpoint, plan = generation.checkpoint, generation.plan
    progress = Progress() if checkpoint is None else checkpoint.progress
    done = list(progress.finished)
    with ProgressBar(plan, done) as bar:

        def on_token(token: int) -> None:
            if checkpoint is not None:
                checkpoint.token(token)
            bar.token()
            stop.check()

        course = Course(on_token=on_token, stop=stop, kept=checkpoint is not None)
        labels = [label for part in plan.strata for label in part.labels]
        todo = _missing(labels * plan.settings.shots_per_label, done)
        if progress.label in todo:  # the interrupted one goes on first
            todo.remove(progress.label)
            todo.insert(0, progress.label)
        refused: list[str] = []
        for position, label in enumerate(todo):
            generation.check_open()
            if generation.checkpoint is not checkpoint:
                raise LedgerError(
                    "the checkpoint is the parent's of this process, which goes on with the run"
                )
            tokens = _tokens(generation, progress, label, todo[position + 1 :])
            if not tokens and checkpoint is not None:
                refused.append(label)
                continue
            one = _release(generation, progress, label, tokens or plan.settings.max_tokens, course)
            if checkpoint is not None:
                checkpoint.finish(one)
            done.append(one)
            with bar.demonstration(one):
                if on_demonstration is not None:
                    on_demonstration(one)
    if refused:
        generation.check_open()  # a closed one has no draws left for another reason
        raise BudgetExceeded(_cannot_be_made(refused, len(done)))
    spend = PrivacySpend(plan.epsilon or 0.0, plan.delta or 0.0) if generation.certified else None
    return Demonstrations(done, plan_spend=spend)


def identity(generation: Generation, further: Mapping[str, object]) -> dict[str, object]:
    """All that a run must have in common with the one whose checkpoint it goes on from. Public.

    Args:
        generation: of the plan.
        further: what it does not know of: budget, account, vocabulary.
    """
    mechanism: object = generation.mechanism
    return {
        **further,
        "task": asdict(generation.set_up.task),
        "plan": generation.plan.figures(),
        # a mechanism of one's own may have a repr with an address in it
        "mechanism": repr(mechanism) if is_dataclass(mechanism) else generation.mechanism.name,
        "certified": generation.certified,
    }


def _missing(planned: Iterable[str], done: Iterable[Demonstration]) -> list[str]:
    """The planned labels, in order, without those of the finished demonstrations."""
    finished = Counter(one.label for one in done)
    missing = []
    for label in planned:
        if finished[label]:
            finished[label] -= 1
        else:
            missing.append(label)
    return missing


def _tokens(generation: Generation, progress: Progress, label: str, others: Sequence[str]) -> int:
    """How many tokens a demonstration may have in all; 0 where too few draws are left for it.

    An interrupted one has the draws that the others leave to it. If that is none and nothing of it was
    released, it has the draws of the next one of its label, so that the label's last one is lost.
    """
    settings = generation.plan.settings
    if label == progress.label:
        draws, begun = generation.draws_left(label, others), len(progress.released)
        if begun + draws > 0:
            return min(settings.max_tokens, begun + draws * settings.resample_every)
    enough = generation.draws_left(label, ()) >= settings.draws_per_demonstration
    return settings.max_tokens if enough else 0


def _release(
    generation: Generation, progress: Progress, label: str, tokens: int, course: Course
) -> Demonstration:
    """Make a demonstration, or the rest of the one that was interrupted."""
    begun = list(progress.released) if label == progress.label else []
    if begun and (tokens == len(begun) or begun[-1] in generation.loop.ends):
        return generation.demonstration(label, begun)
    return generation.release(label, tokens, replace(course, begun=begun))


def _cannot_be_made(labels: Sequence[str], made: int) -> str:
    numbers = ", ".join(f"{count} of {label!r}" for label, count in Counter(labels).items())
    return (
        f"{numbers} cannot be made: draws of the plan were interrupted, or went to other callers. The other "
        f"{made} are in the checkpoint, for Demonstrations.from_jsonl. A further plan needs further budget"
    )
