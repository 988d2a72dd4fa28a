"""Generates all demonstrations of a plan, one after another, except those that its checkpoint holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass

from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.generation.cancellation import StopSignal
from dpfewshot.generation.checkpoint import Progress
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.progress import ProgressBar
from dpfewshot.generation.request import GenerationRequest
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.values import Demonstration, PrivacySpend

OnDemonstration = Callable[[Demonstration], None]


def release_all(
    generation: Generation, on_demonstration: OnDemonstration | None, stop: StopSignal
) -> Demonstrations:
    """Release every planned demonstration that the generation's checkpoint does not hold.

    Args:
        generation: of the plan.
        on_demonstration: called with each demonstration once the checkpoint holds it.
        stop: checked between two tokens.

    Returns:
        All of them, those of the checkpoint first.

    Raises:
        BudgetExceeded: some cannot be made. With a checkpoint, all others are made first.
        LedgerError: the checkpoint belongs to the parent of this process.
    """
    checkpoint, plan = generation.books.checkpoint, generation.plan
    progress = checkpoint.progress
    done = list(progress.finished)
    refused: list[str] = []
    with ProgressBar(plan, done) as bar:

        def on_token(token: int) -> None:
            checkpoint.token(token)
            bar.token()
            stop.check()

        to_do = _to_do(plan, progress)
        for position, label in enumerate(to_do):
            generation.check_open()
            if generation.books.checkpoint is not checkpoint:
                raise LedgerError("the checkpoint belongs to the parent of this process, which continues it")
            tokens = _tokens(generation, progress, label, to_do[position + 1 :])
            if not tokens and checkpoint.resumable:
                refused.append(label)
                continue
            request = GenerationRequest(
                label,
                tokens or plan.settings.max_tokens,
                prior_tokens=tuple(progress.released) if label == progress.label else (),
                on_token=on_token,
                stop=stop,
                checkpointed=True,
            )
            one = _released(generation, request)
            checkpoint.finish(one)
            done.append(one)
            with bar.demonstration(one):
                if on_demonstration is not None:
                    on_demonstration(one)
    if refused:
        generation.check_open()  # after `close` no draws are left, for another reason
        raise BudgetExceeded(_cannot_be_made(refused, len(done)))
    spend = PrivacySpend(plan.epsilon or 0.0, plan.delta or 0.0) if generation.certified else None
    return Demonstrations(done, plan_spend=spend)


def identity(generation: Generation, further: Mapping[str, object]) -> dict[str, object]:
    """Public settings that all runs of one checkpoint share.

    Args:
        generation: of the plan.
        further: what the generation does not know: budget, account, vocabulary.
    """
    mechanism: object = generation.set_up.mechanism
    return {
        **further,
        "task": asdict(generation.set_up.task),
        "plan": generation.plan.figures(),
        # the repr of a user's own mechanism may contain an address
        "mechanism": repr(mechanism) if is_dataclass(mechanism) else generation.set_up.mechanism.name,
        "certified": generation.certified,
    }


def _to_do(plan: GenerationPlan, progress: Progress) -> list[str]:
    """Labels of the unfinished demonstrations in the order of the plan, the interrupted one first."""
    labels = [label for stratum in plan.strata for label in stratum.labels]
    finished = Counter(one.label for one in progress.finished)
    to_do = []
    for label in labels * plan.settings.shots_per_label:
        if finished[label]:
            finished[label] -= 1
        else:
            to_do.append(label)
    if progress.label in to_do:
        to_do.remove(progress.label)
        to_do.insert(0, progress.label)
    return to_do


def _tokens(generation: Generation, progress: Progress, label: str, others: Sequence[str]) -> int:
    """How many tokens a demonstration may have in all; 0 if too few draws are left.

    An interrupted demonstration has the draws that the others leave to it. If they leave none and it has no
    token yet, it takes those of the next one of its label, so that the last one of that label is lost.
    """
    settings, run = generation.plan.settings, generation.run_of(label)
    if label == progress.label:
        draws, prior = run.draws_left(others), len(progress.released)
        if prior + draws > 0:
            return min(settings.max_tokens, prior + draws * settings.resample_every)
    return settings.max_tokens if run.draws_left() >= settings.draws_per_demonstration else 0


def _released(generation: Generation, request: GenerationRequest) -> Demonstration:
    """The demonstration; without a draw if its prior tokens are all that it can have."""
    prior = request.prior_tokens
    if prior and (request.max_tokens == len(prior) or prior[-1] in generation.set_up.loop.ends):
        return generation.demonstration(request.label, prior)
    return generation.release(request)


def _cannot_be_made(labels: Sequence[str], made: int) -> str:
    numbers = ", ".join(f"{count} of {label!r}" for label, count in Counter(labels).items())
    return (
        f"{numbers} cannot be made: draws of the plan were interrupted, or went to other callers. The other "
        f"{'one is' if made == 1 else f'{made} are'} in the checkpoint "
        "(Demonstrations.from_jsonl). A further plan needs further budget"
    )
