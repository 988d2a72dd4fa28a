"""Processes that are killed, and that race, on one budget: for bench/ledger.py and for tests/faults.

Each round forks a child from one warm process whose Synthesizer has its ledger open, as a server does that
loads the application before it forks.
"""

from __future__ import annotations

import functools
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
from unittest.mock import patch

import dpfewshot as dpf
from bench.postgresql import running_server
from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.draws import Terms
from dpfewshot.account.reservation import Reservation
from dpfewshot.account.sql import SqlTransaction
from dpfewshot.backends import Scripted
from dpfewshot.mechanisms import Gaussian
from dpfewshot.values import PrivacySpend

STEPS = ("reserve", "charge", "release", "settle")
PLACES = ("before", "inside", "after")
BOUNDARIES = [
    *(f"{place} {step}" for step in STEPS for place in PLACES if (place, step) != ("inside", "release")),
    "at any moment",
]
"""Where a child is killed. "inside" is a transaction that has written but not committed."""

_TASK = dpf.Task("tickets", "Write a ticket.", "Kind", "Ticket", ("refund", "delivery"))
_RECORDS = [
    dpf.Record(f"ticket number {number}", label) for number in range(200) for label in _TASK.labels or ()
]
_WORDS = (" my", " parcel", " money", " is", " late", " back", " secret", "\n")
_PLAN = dpf.PrivacyBudget(epsilon=0.5, delta=1e-7)
_RACED = Terms(PrivacySpend(0.1, 1e-9), None, 1, 1, 1.0, {})
_LONGEST_MOMENT = 0.1  # seconds
_DEADLINE = 60.0  # seconds for a child


# Kills


def kill_rounds(url: str, rounds: int, *, forgetful: bool = False) -> dict[str, Any]:
    """Kills a generating process in each round, and compares what it released with what the ledger recorded.

    Args:
        url: an empty ledger.
        rounds: one child each.
        forgetful: a control: the ledger records no reservation and no charge.

    Returns:
        Figures; `overdrawn` counts the rounds after which the ledger recorded less than was released.
    """
    account = dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(1e6, 0.5))
    boundaries = BOUNDARIES
    if forgetful:
        boundaries = ["after release"]
        vars(account).update(
            reserve=lambda *_: Reserved(1, "none"),
            draw=_nothing,
            record_release=_nothing,
            record_progress=_nothing,
            settle=_nothing,
            cancel=_nothing,
        )
    backend = Scripted(_WORDS, lambda _: [0.93, *[0.01] * (len(_WORDS) - 1)])
    made = dpf.Synthesizer(
        _TASK,
        _RECORDS,
        backend,
        budget=_PLAN,
        account=account,
        labels=["refund"],
        max_tokens=4,
        settings=dpf.Settings(preset="tang"),
    )
    cost = made.plan.epsilon
    assert cost is not None  # noqa: S101 - the plan is certified
    figures: Counter[str] = Counter()
    for number, boundary in enumerate(itertools.islice(itertools.cycle(boundaries), rounds)):
        released = _one_kill(made, account, boundary)
        figures["rounds"] += 1
        figures["rounds that released"] += released > 0
        figures["tokens released"] += released
        # each round that released costs the whole plan
        figures["overdrawn"] += account.spent.epsilon < figures["rounds that released"] * cost * (1 - 1e-9)
        figures["broken histories"] += number % 20 == 0 and not account.verify().ok
    figures["broken histories"] += not account.verify().ok
    return {**figures, "epsilon recorded": account.spent.epsilon, "epsilon of one plan": cost}


def _nothing(*_: Any) -> None:
    """An act that the ledger does not record."""


def _one_kill(made: dpf.Synthesizer, account: Account, boundary: str) -> int:
    """The number of tokens that a child releases before it is killed at the boundary."""
    reading, writing = os.pipe()
    child = in_a_child(lambda: _generate_and_die(made, account, boundary, writing))
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


def _generate_and_die(made: dpf.Synthesizer, account: Account, boundary: str, writing: int) -> None:
    place, _, step = boundary.partition(" ")
    _watch_releases(writing, place if step == "release" else "")
    if place == "inside":
        _die_around(SqlTransaction, "record", "after", lambda arguments: arguments[1] == step)
    elif step in ("reserve", "charge", "settle"):
        act = "draw" if step == "charge" else step
        _die_around(type(account), act, place, lambda _: True)
    made.generate("refund")
    made.close()
    time.sleep(_DEADLINE)  # until the parent kills it


def _die_around(owner: Any, name: str, place: str, when: Callable[[Any], bool]) -> None:
    real = getattr(owner, name)

    def deadly(*arguments: Any, **named: Any) -> Any:
        if place == "before" and when(arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if place == "after" and when(arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


class _Watched:
    """A release that tells the parent of every token at once, and dies before or after the second."""

    def __init__(self, release: Any, writing: int, place: str) -> None:
        self.support = release.support
        self._release, self._writing, self._place = release, writing, place
        self._tokens = itertools.count()

    def token(self, *numbers: Any) -> Any:
        second = next(self._tokens) == 1
        if self._place == "before" and second:
            os.kill(os.getpid(), signal.SIGKILL)
        found = self._release.token(*numbers)
        os.write(self._writing, b".")
        if self._place == "after" and second:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def _watch_releases(writing: int, place: str) -> None:
    real = Gaussian.start
    patch.object(Gaussian, "start", lambda *words: _Watched(real(*words), writing, place)).start()


# Races


def race(url: str, processes: int, threads: int, fitting: int) -> dict[str, Any]:
    """Lets many threads reserve the rest of a budget at once: each asks twice, and `fitting` requests fit.

    The ledger is new: one of the processes that open it at once creates the tables, and one the account.

    Returns:
        How often each outcome occurred, `spent`, and the slowest answer in seconds.
    """
    gate = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for number in range(processes):
            path = Path(folder, str(number))
            children.append(in_a_child(functools.partial(_racer, url, threads, fitting, gate, path)))
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
    os.read(reading, 1)  # until the parent closes the gate
    account = dpf.BudgetLedger.open(url).account_or_create("raced", dpf.PrivacyBudget(fitting / 10, 1e-5))
    outcomes: list[tuple[str, float]] = []

    def ask() -> None:
        for _ in range(2):
            start = time.monotonic()
            try:
                Reservation.make(account, _RACED).draw()
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
    """The process id of a forked child that acts and exits, and never returns into the parent's code."""
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
    """Functions that return the URL of an empty ledger, on SQLite and on PostgreSQL."""
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        numbers = itertools.count()
        yield {
            "SQLite": lambda: f"sqlite:///{folder}/{next(numbers)}.db",
            "PostgreSQL": server.new_database,
        }
