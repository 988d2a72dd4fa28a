"""The ledger under load: a draw by what one commit takes, several accounts at once, and a large account."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import insert

import dpfewshot as dpf
from dpfewshot.account.amounts import Amount
from dpfewshot.account.database import Database
from dpfewshot.account.history import CHARGE, NOTHING_BEFORE, RESERVE, SETTLE, chained, event_now
from dpfewshot.account.reservation import Reservation, Terms
from dpfewshot.account.rule import Tally
from dpfewshot.account.tables import entries, history
from dpfewshot.values import PrivacySpend

COST = PrivacySpend(1e-6, 1e-15)
SIZES = (1_000, 10_000, 100_000)
TIMES = 20  # reservations of a large account
DRAWS = 256


def ahead_lines(ledgers: dict[str, Callable[[], str]]) -> Iterator[str]:
    """The time of a draw, by how many draws one commit charges."""
    yield f"## Draws charged ahead\n\n{DRAWS} draws of one reservation, one after another.\n"
    yield "| database | draws in a commit | a draw, ms (mean) |"
    yield "|---|---|---|"
    for name, make in ledgers.items():
        for at_once in (1, 8):
            account = dpf.BudgetLedger.open(make()).create("tickets", dpf.PrivacyBudget(1e6, 0.5))
            run = Reservation.make(account, Terms(COST, None, DRAWS, 1, 1.0, {}, draws_at_once=at_once))
            begun = time.perf_counter()
            for _ in range(DRAWS):
                run.draw()
            yield f"| {name} | {at_once} | {1e3 * (time.perf_counter() - begun) / DRAWS:.1f} |"


def accounts_lines(
    ledgers: dict[str, Callable[[], str]],
    seconds: float,
    forked: Callable[[Sequence[Callable[[], Any]]], list[Any]],
    cycles: Callable[[str, float, str], dict[str, Any]],
) -> Iterator[str]:
    """Cycles per second of processes that share an account, and of as many with an account each."""
    yield "## Several accounts\n\n8 processes reserve, charge and settle.\n"
    yield "| database | accounts | cycles per second | median, ms |"
    yield "|---|---|---|---|"
    for name, make in ledgers.items():
        for shared in (True, False):
            url = make()
            ledger = dpf.BudgetLedger.open(url)
            names = [f"tickets {number}" for number in range(1 if shared else 8)]
            for dataset in names:
                ledger.create(dataset, dpf.PrivacyBudget(1e6, 0.5))
            answers = forked(
                [functools.partial(cycles, url, seconds, names[i % len(names)]) for i in range(8)]
            )
            took = [one for answer in answers for one in answer["took"]]
            rate = sum(len(answer["took"]) / answer["seconds"] for answer in answers)
            yield f"| {name} | {len(names)} | {rate:.0f} | {1e3 * statistics.median(took):.1f} |"


def large_lines(ledgers: dict[str, Callable[[], str]], sizes: tuple[int, ...] = SIZES) -> Iterator[str]:
    """The time of a reservation, of the first one after a migration, and of `verify`, by entries."""
    yield "## A large account\n\nEach entry was reserved, charged and settled. Processor time is this process's, without the server's and without waits for the disk.\n"
    yield "| database | entries | first reservation, without totals: processor s | reserve, ms (median) | its processor ms | verify: processor s |"
    yield "|---|---|---|---|---|---|"
    for name, make in ledgers.items():
        for size in sizes:
            url = make()
            account = dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(1e6, 0.5))
            fill(url, size)
            reserve = functools.partial(account.reserve, None, COST, {"mechanism": "gaussian", "steps": 15})
            (_, first), *rest = [seconds_of(reserve) for _ in range(TIMES + 1)]
            wall, processor = (1e3 * statistics.median(each) for each in zip(*rest, strict=True))
            _, verified = seconds_of(account.verify)
            yield f"| {name} | {size:,} | {first:.2f} | {wall:.1f} | {processor:.1f} | {verified:.1f} |"


def fill(url: str, size: int) -> None:
    """Add settled entries, with their events, to the first account, and no totals: as an older ledger."""
    database, cost = Database(url), Tally.of(Amount.of_cost(COST), None).cost
    with database.write() as connection:
        last = connection.execute(history.select()).mappings().one()
        number, previous = int(last["number"]), str(last["hash"] or NOTHING_BEFORE)
        rows: list[dict[str, Any]] = []
        for entry in range(1, size + 1):
            for act in (RESERVE, CHARGE, SETTLE):
                number += 1
                event = event_now(act, entry=entry, amount=cost if act == RESERVE else None)
                rows.append({"renyi": None, "account_id": 1, **chained(event, number, previous)})
                previous = rows[-1]["hash"]
        words = {"account_id": 1, "epsilon": cost.epsilon, "delta": cost.delta, "state": "settled"}
        connection.execute(insert(entries), [{"id": entry, **words} for entry in range(1, size + 1)])
        connection.execute(insert(history), rows)
        if not database.place.is_sqlite:
            connection.exec_driver_sql(
                f"SELECT setval(pg_get_serial_sequence('dpfewshot_entry', 'id'), {size})"
            )
    database.close()


def seconds_of(call: Callable[[], object]) -> tuple[float, float]:
    """How long a call takes, and its processor time."""
    begun, before = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begun, time.process_time() - before
