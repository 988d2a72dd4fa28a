"""A run that follows a checkpoint: what it takes up and what it leaves (docs/proofs/resuming.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from dpfewshot.budget.draws import new_lease
from dpfewshot.budget.reservation import Reservation
from dpfewshot.errors import InvalidPlan, LedgerError
from dpfewshot.generation.checkpoint import Checkpoint, KeptReservation
from dpfewshot.generation.generation import Generation


@contextmanager
def checkpointed(
    generation: Generation, path: str | os.PathLike[str], what: Mapping[str, object]
) -> Iterator[Checkpoint]:
    """Write every draw to a checkpoint, and go on with what it says was reserved.

    Afterwards what is left of the plan is the checkpoint's: a further run takes it up, nobody else.

    Args:
        generation: of the plan.
        path: of the checkpoint.
        what: is being made: all public settings.

    Raises:
        InvalidPlan: the checkpoint is of another plan, or this synthesizer reserved anew meanwhile.
        BudgetExceeded: an account in memory has not the room for what was reserved, or it is closed.
        LedgerError: the checkpoint is stale or of another account, or cannot be read or written.
    """
    generation.check_open()
    with closing(Checkpoint(path, what, copies=generation.accountant.durable)) as checkpoint:
        with generation.nobody_draws():
            generation.check_open()
            if generation.checkpoint is not None:
                raise LedgerError(f"another run of this synthesizer is kept in {generation.checkpoint.path}")
            _check(generation, checkpoint)
            _take_up(generation, checkpoint)
            generation.checkpoint = checkpoint
        finished = False
        try:
            yield checkpoint
            finished = True
        finally:
            with generation.nobody_draws(), ExitStack() as each:
                if generation.checkpoint is checkpoint:  # in a forked child it is not
                    generation.checkpoint = None
                    for number, part in enumerate(generation.parts):
                        if part.reservation is not None:
                            each.callback(_leave, checkpoint, number, part.reservation, finished=finished)


def _check(generation: Generation, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of this plan whose lines do not fit the plan.

    Raises:
        LedgerError: they do not.
    """
    progress, plan = checkpoint.progress, generation.plan
    planned = {label for part in plan.strata for label in part.labels}
    fits = (
        all(_fits(generation, number, kept) for number, kept in progress.reserved.items())
        and {*(one.label for one in progress.finished), progress.label or plan.strata[0].labels[0]} <= planned
        and len(progress.released) <= plan.settings.max_tokens
        and all(token < generation.set_up.backend.vocabulary_size for token in progress.released)
    )
    if not fits:
        raise LedgerError(f"{checkpoint.path}: its lines do not fit its plan: name another file")


def _fits(generation: Generation, number: int, kept: KeptReservation) -> bool:
    if number >= len(generation.parts):
        return False
    part = generation.parts[number]
    return len(kept.blocks) == part.parts and max(kept.blocks) <= part.plan.steps


def _take_up(generation: Generation, checkpoint: Checkpoint) -> None:
    kept = dict(checkpoint.progress.reserved)
    for number, part in enumerate(generation.parts):
        own, known = part.reservation, kept.get(number)
        if own is not None and known is not None and own.entry != known.entry:
            raise InvalidPlan(
                f"{checkpoint.path}: this synthesizer has reserved for itself already: make a new one, "
                "and go on from the checkpoint first"
            )
    resumed = {number: _resumed(generation, checkpoint, number, each) for number, each in kept.items()}
    for number, part in enumerate(generation.parts):
        reservation = resumed.get(number, part.reservation)
        if reservation is not None:
            checkpoint.keep(number, reservation)
            part.reservation = reservation


def _resumed(
    generation: Generation, checkpoint: Checkpoint, number: int, kept: KeptReservation
) -> Reservation:
    part, lease, known = generation.parts[number], new_lease(), tuple(kept.leases)
    if _is_finished(generation, checkpoint):
        lease = known[-1]  # nothing is drawn any more: any copy may be read again
    else:
        checkpoint.resuming(number, lease)  # on disk first: it may be granted and the answer lost
    try:
        return generation.accountant.resume(
            kept.entry,
            part.plan.cost if generation.certified else None,
            scope=generation.scope(part),
            # who is in which disjoint part is private and not kept: what one of them drew, all count as drawn
            draws=min(kept.blocks),
            tokens_per_draw=part.plan.draws.tokens_per_draw,
            noise_multiplier=part.plan.noise_multiplier,
            details=generation.details(part),
            known=known,
            lease=lease,
            disjoint_parts=part.parts,
        )
    except LedgerError as error:
        raise LedgerError(f"{checkpoint.path}: {error}") from None


def _is_finished(generation: Generation, checkpoint: Checkpoint) -> bool:
    return len(checkpoint.progress.finished) >= generation.plan.demonstrations


def _leave(checkpoint: Checkpoint, number: int, reservation: Reservation, *, finished: bool) -> None:
    try:
        if finished:
            blocks = [0] * len(reservation.draws_left)
            checkpoint.reserved(number, reservation.entry, reservation.lease, blocks)
            reservation.close()
    finally:
        reservation.hand_over()  # whatever failed: nobody draws what the checkpoint does not count
