"""A run that follows a checkpoint: what it resumes and what it leaves (docs/proofs/resuming.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from dpfewshot.errors import InvalidPlan, LedgerError
from dpfewshot.generation.checkpoint import NO_CHECKPOINT, Checkpoint
from dpfewshot.generation.generation import Generation


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
