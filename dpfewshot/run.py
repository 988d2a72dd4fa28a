"""All demonstrations of a plan, one after another; what a run before this one finished is not made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace

from dpfewshot.background import StopSignal
from dpfewshot.checkpoint import Progress
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BudgetExceeded
from dpfewshot.generation import Course, Generation
from dpfewshot.progress import ProgressBar
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
        labels = [label for part in plan.parts for label in part.labels]
        todo = _missing(labels * plan.settings.shots_per_label, done)
        for position, label in enumerate(todo):
            if progress.label is None:
                one = generation.release(label, plan.settings.max_tokens, course)
            else:
                one = _go_on(generation, progress, todo[position + 1 :], course)
            if checkpoint is not None:
                checkpoint.finish(one)
            done.append(one)
            with bar.demonstration(one):
                if on_demonstration is not None:
                    on_demonstration(one)
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
        "plan": generation.plan.as_dict() | {"estimated_seconds": None},
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


def _go_on(
    generation: Generation, progress: Progress, others: Sequence[str], course: Course
) -> Demonstration:
    """Make the rest of the demonstration that was interrupted, in the draws that the others leave to it.

    Raises:
        BudgetExceeded: no draw is left and nothing of it was released; nothing is drawn.
    """
    label, begun = str(progress.label), list(progress.released)
    settings = generation.plan.settings
    draws = generation.draws_left(label, others)
    tokens = min(settings.max_tokens, len(begun) + draws * settings.resample_every)
    if begun and (tokens == len(begun) or begun[-1] in generation.loop.ends):
        return generation.demonstration(label, begun)
    if not tokens:
        raise BudgetExceeded(
            f"the draw of the demonstration of {label!r} was interrupted before anything of it was released, "
            "and no other is left: a further plan needs further budget"
        )
    return generation.release(label, tokens, replace(course, begun=begun))
