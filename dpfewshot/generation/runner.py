"""Generates all demonstrations of a plan except those that its run has released already.

Demonstrations are made one after another, or with an executor each stratum's by one worker.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from tqdm import tqdm

from dpfewshot.account.account import Account
from dpfewshot.demonstrations import Demonstrations, json_line
from dpfewshot.errors import BudgetExceeded
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.stratum import StratumRun, without
from dpfewshot.generation.workers import Workers
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.runtime import progress_bar
from dpfewshot.runtime.redaction import may_pass
from dpfewshot.runtime.stopping import POLL, Stopped, StopSignal
from dpfewshot.values import Demonstration, by_label, epsilon_text, on_one_line

OnDemonstration = Callable[[Demonstration], None]

_LANES = 128
"""The most strata that wait for workers at the same time."""

_BAR: Final = "{desc}: {bar} {n_fmt} of {total_fmt} texts [{elapsed}<{remaining}{postfix}]"


def release_all(
    generation: Generation,
    on_demonstration: OnDemonstration | None,
    stop: StopSignal,
    workers: Workers | None = None,
    *,
    resume: bool = False,
) -> Demonstrations:
    """Release every planned demonstration.

    Args:
        on_demonstration: as of `Synthesizer.generate_all`.
        workers: make the demonstrations of several strata at a time; None: the caller's thread makes all.
        resume: whether those count that the runs have released already.

    Raises:
        BudgetExceeded: too few draws are left for some, which interruptions or other callers took. All others
            are made first.
    """
    generation.follow()
    shares = []
    for run in generation.runs:
        run.check_open()
        released = run.released if resume else []
        to_do = sorted(without(run.labels, released), key=run.has_begun, reverse=True)
        shares.append(_Share(run, released, to_do))
    refusal = _refusal(generation.account, shares, stop)
    to_make = [share for share in shares if refusal is None or share.run.reservation is not None]
    plan, calls = generation.set_up.plan, threading.Lock()
    there = _in_order(plan, shares)
    if on_demonstration is not None:
        for one in there:
            on_demonstration(one)
    with progress_bar(total=plan.demonstrations - len(there), desc="generating", unit="text") as bar:
        bar.bar_format = _BAR
        if plan.epsilon is not None:
            bar.set_postfix_str(f"epsilon {epsilon_text(plan.epsilon)} for all")

        def finish(one: Demonstration) -> None:
            with calls:
                bar.clear()  # so that callers may print
                if on_demonstration is not None:
                    on_demonstration(one)
                bar.update()
                bar.refresh()

        if workers is None:
            _in_turn(to_make, stop, finish, bar)
        else:
            _side_by_side(to_make, stop, workers, finish)
    for share in shares if resume else ():  # as a later resume finds them: some may be in others' places
        places = {json_line(one): place for place, one in enumerate(share.run.released)}
        share.made.sort(key=lambda one: places.get(json_line(one), len(places)))
    made = _in_order(plan, shares)
    _check_complete(shares, len(made), refusal)
    return Demonstrations(made)


def _check_complete(shares: Iterable[_Share], made: int, refusal: BudgetExceeded | None) -> None:
    """Name what the budget or the draws did not suffice for."""
    if refusal is not None:
        raise refusal.with_traceback(None)  # whose frames hold the records
    refused = Counter(label for share in shares for label in share.to_do)
    if refused:
        numbers = ", ".join(f"{count} of {label!r}" for label, count in refused.items())
        others = "one is" if made == 1 else f"{made} are"
        raise BudgetExceeded(
            f"{numbers} cannot be made: draws of the plan were interrupted, or went to other callers. The "
            f"other {others} released. A further plan needs further budget"
        )


def _refusal(account: Account | None, shares: Sequence[_Share], stop: StopSignal) -> BudgetExceeded | None:
    """Why strata that have not begun do not all fit: then none begins, else the faster ones would."""
    terms = [share.run.terms for share in shares if share.to_do and share.run.reservation is None]
    try:
        if account is not None:
            account.check((each.scope, each.cost) for each in terms if each.cost is not None)
    except BudgetExceeded as refusal:
        found = [share.run.find(stop) for share in shares if share.run.reservation is None]
        if any(found):
            return _refusal(account, shares, stop)
        for share in shares:
            share.run.check_first()
        return shares[0].run.advised(refusal)
    return None


@dataclass(eq=False)
class _Share:
    """What one stratum contributes to a set of demonstrations.

    Attributes:
        to_do: the labels of those to make, in order: one that was interrupted is continued first.
    """

    run: StratumRun
    made: list[Demonstration]
    to_do: list[str]


def _in_turn(shares: Sequence[_Share], stop: StopSignal, finish: OnDemonstration, bar: tqdm[Any]) -> None:
    """Make one demonstration of each stratum, then the next of each."""
    for labels in zip_longest(*(tuple(share.to_do) for share in shares)):
        for share, label in zip(shares, labels, strict=True):
            if label is None:
                continue
            others = list(share.to_do)
            others.remove(label)
            bar.set_description_str(f"writing for {on_one_line(label)}")
            one = share.run.make(label, others, stop, lambda _token: bar.refresh())
            if one is not None:
                share.to_do = others
                share.made.append(one)
                finish(one)


def _side_by_side(
    shares: Sequence[_Share], stop: StopSignal, workers: Workers, finish: OnDemonstration
) -> None:
    """Give each stratum to a worker."""
    halt = StopSignal()

    def make(share: _Share) -> None:
        for one in workers.make(share.run, tuple(share.to_do), halt):
            share.to_do.remove(one.label)
            share.made.append(one)
            finish(one)

    with ThreadPoolExecutor(_LANES, thread_name_prefix="dpfewshot") as lanes:
        # in the caller's context, so that spans and request ids are the caller's
        made = [lanes.submit(contextvars.copy_context().run, make, share) for share in shares if share.to_do]
        try:
            while _unfinished(made):
                stop.check()
        finally:
            halt.set()
    _raise_first(made)


def _unfinished(made: Sequence[Future[None]]) -> bool:
    """Whether some go on, after a while, and none found its backend gone.

    After any other failure the others finish: which texts there are must not depend on who was faster.
    """
    done, others = wait(made, timeout=POLL)
    return bool(others) and not any(may_pass(error) for each in done if (error := each.exception()))


def _raise_first(made: Iterable[Future[None]]) -> None:
    """Raise what ended the run: a backend that is gone, or another failure, before those that it stopped."""
    raised = [error for each in made if (error := each.exception()) is not None]
    try:
        for error in sorted(raised, key=lambda error: (isinstance(error, Stopped), not may_pass(error))):
            raise error.with_traceback(None)  # whose frames hold the records
    finally:
        raised.clear()  # they hold this frame


def _in_order(plan: GenerationPlan, shares: Iterable[_Share]) -> list[Demonstration]:
    """The demonstrations in the order of the plan: the first of each label, then the next of each."""
    made = by_label(one for share in shares for one in share.made)
    in_turn = zip_longest(*(made.get(label, []) for label in plan.labels))
    return [one for each_label in in_turn for one in each_label if one is not None]
