"""Real processes that die, and that race, on one budget: for the tests, and for `make soak`.

One warm process forks a child a round: what is forked is a Synthesizer that has its ledger open, as under a
server that loads the application before it forks.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dpfewshot as dpf
from dpfewshot.generation import set_up
from dpfewshot.ledger import store
from dpfewshot.values import PrivacySpend
from tests.support.scripts import TASK, Sentence, tickets

STEPS = ("reserve", "charge", "release", "settle")
PLACES = ("before", "inside", "after")
BOUNDARIES = [
    *(f"{place} {step}" for step in STEPS for place in PLACES if (place, step) != ("inside", "release")),
    "at any moment",
]
"""Where a child is killed. "inside" is a transaction that has written and not committed yet."""

_PLAN = dpf.PrivacyBudget(epsilon=0.5, delta=1e-7)
_LONGEST_MOMENT = 0.1  # seconds
_DEADLINE = 60.0  # seconds for a child


# Kills


def kill_rounds(url: str, rounds: int, *, forgetful: bool = False) -> dict[str, Any]:
    """Kill a generating process, round by round, and compare what it released with what is recorded.

    Args:
        url: an empty ledger.
        rounds: one child each.
        forgetful: a control: reservations and charges are not written at all.

    Returns:
        Figures; `overdrawn` counts the rounds after which less was recorded than had been released.
    """
    account = dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(1e6, 0.5))
    boundaries = BOUNDARIES
    if forgetful:
        boundaries = ["after release"]
        account.reserve = lambda *_: 1
        account.draw = account.settle = account.cancel = lambda *_: None
    made = dpf.Synthesizer(
        TASK, tickets(), Sentence(), budget=_PLAN, ledger=account, labels=["refund"], max_tokens=4
    )
    cost = made.plan.strata[0].spend.epsilon
    figures: Counter[str] = Counter()
    for number, boundary in enumerate(itertools.islice(itertools.cycle(boundaries), rounds)):
        released = _one_kill(made, boundary)
        figures["rounds"] += 1
        figures["rounds that released"] += released > 0
        figures["tokens released"] += released
        # what was released is certified at the whole plan's cost, each time anew
        figures["overdrawn"] += account.spent.epsilon < figures["rounds that released"] * cost * (1 - 1e-9)
        figures["broken histories"] += number % 20 == 0 and not account.verify().ok
    figures["broken histories"] += not account.verify().ok
    return {**figures, "epsilon recorded": account.spent.epsilon, "epsilon of one plan": cost}


def _one_kill(made: dpf.Synthesizer, boundary: str) -> int:
    """Fork, generate, die at the boundary; how many tokens had been released by then."""
    reading, writing = os.pipe()
    child = in_a_child(lambda: _generate_and_die(made, boundary, writing))
    os.close(writing)
    if boundary == "at any moment":
        time.sleep(secrets.randbelow(1000) / 1000 * _LONGEST_MOMENT)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as released:
        tokens = len(released.read())
    status = os.waitpid(child, 0)[1]
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise AssertionError(f"the child that should die {boundary} ended with {status}")
    return tokens


def _generate_and_die(made: dpf.Synthesizer, boundary: str, writing: int) -> None:
    place, _, step = boundary.partition(" ")
    _watch_releases(writing, place if step == "release" else "")
    if place == "inside":
        _die_around(store, "record", "after", lambda arguments: arguments[2].act == step)
    elif step in ("reserve", "charge", "settle"):
        act = "draw" if step == "charge" else step
        _die_around(type(made.accountant._account), act, place, lambda _: True)
    made.generate("refund")
    made.close()
    time.sleep(_DEADLINE)  # the moment comes


def _die_around(owner: Any, name: str, place: str, when: Callable[[Any], bool]) -> None:
    real = getattr(owner, name)

    def deadly(*arguments: Any) -> Any:
        if place == "before" and when(arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments)
        if place == "after" and when(arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


class _Watched:
    """Tells the parent of every token at the moment when it is known, and dies before or after the second."""

    def __init__(self, release: Any, writing: int, place: str) -> None:
        self.support = release.support
        self._release, self._writing, self._place = release, writing, place
        self._tokens = itertools.count(1)

    def token(self, *numbers: Any) -> Any:
        second = next(self._tokens) == 2
        if self._place == "before" and second:
            os.kill(os.getpid(), signal.SIGKILL)
        found = self._release.token(*numbers)
        os.write(self._writing, b".")
        if self._place == "after" and second:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def _watch_releases(writing: int, place: str) -> None:
    real = set_up.started
    set_up.started = lambda *arguments: _Watched(real(*arguments), writing, place)


# Races


def race(url: str, processes: int, threads: int, fitting: int) -> dict[str, Any]:
    """Many want the last of a budget at once: every thread asks twice, `fitting` of them all can have it.

    The ledger is new: of the processes that open it at once, one makes the tables and one the account.

    Returns:
        How often each outcome occurred, `spent`, and the slowest answer in seconds.
    """
    gate = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for number in range(processes):
            path = Path(folder, str(number))
            children.append(in_a_child(lambda path=path: _racer(url, threads, fitting, gate, path)))
        for end in reversed(gate):  # go
            os.close(end)
        statuses = Counter(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        answers = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    outcomes = Counter(outcome for answer in answers for outcome, _ in answer)
    with dpf.BudgetLedger.open(url) as ledger:
        account = ledger.account("raced")
        return {
            "ended well": statuses[0],
            "outcomes": dict(outcomes),
            "spent": account.spent.epsilon,
            "entries": account.entries,
            "history agrees": account.verify().ok,
            "slowest": max((seconds for answer in answers for _, seconds in answer), default=0.0),
        }


def _racer(url: str, threads: int, fitting: int, gate: tuple[int, int], answers: Path) -> None:
    reading, writing = gate
    os.close(writing)
    os.read(reading, 1)  # until the parent lets go
    account = dpf.BudgetLedger.open(url).account_or_create("raced", dpf.PrivacyBudget(fitting / 10, 1e-5))
    outcomes: list[tuple[str, float]] = []

    def ask() -> None:
        for _ in range(2):
            start = time.monotonic()
            try:
                account.charge(account.reserve(None, PrivacySpend(0.1, 1e-9), {}))
                outcome = "charged"
            except dpf.BudgetExceeded:
                outcome = "refused"
            except dpf.LedgerError as error:
                outcome = str(error)
            outcomes.append((outcome, time.monotonic() - start))

    asking = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    answers.write_text(json.dumps(outcomes))


def in_a_child(act: Callable[[], Any]) -> int:
    """Fork, act and end, whatever happens: nothing of the parent's goes on in a child. Its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        act()
        status = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(status)


# Databases


@contextmanager
def new_ledgers() -> Iterator[dict[str, Callable[[], str]]]:
    """What makes the URL of an empty ledger, SQLite and PostgreSQL."""
    from tests.support.postgresql import running_server

    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        numbers = itertools.count()
        yield {
            "SQLite": lambda: f"sqlite:///{folder}/{next(numbers)}.db",
            "PostgreSQL": server.new_database,
        }
