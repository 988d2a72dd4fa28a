"""The ledger: cycles per second, its share of a real generation, and processes that are killed or race.

    make soak                       # all of it, into docs/results/ledger.md: a quarter of an hour
    python -m bench.ledger --kills 44 --races 1 --seconds 1

A cycle reserves, charges and settles one plan, on one account that all processes share.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import insert, update

import dpfewshot as dpf
from bench.ledger_rounds import BOUNDARIES, in_a_child, kill_rounds, new_ledgers, race
from dpfewshot.account.amounts import Amount
from dpfewshot.account.database import Database
from dpfewshot.account.draws import DrawCounts, Terms, columns, granted
from dpfewshot.account.history import CHARGE, NOTHING_BEFORE, RESERVE, SETTLE, HistoryEvent, as_json, chained
from dpfewshot.account.reservation import Reservation
from dpfewshot.account.sql import UNSEALED
from dpfewshot.account.tables import accounts, entries, history
from dpfewshot.values import PrivacySpend

PROCESSES = (1, 8, 32)
FITTING = 20  # plans that fit the budget of a race
DATASET = "tickets"
COST = PrivacySpend(1e-6, 1e-15)
SIZES = (1_000, 10_000, 100_000)
TIMES = 20  # reservations of a large account
CYCLE = Terms(COST, None, 15, 1, 1.0, {"mechanism": "gaussian", "steps": 15})
Timed = list[float]
Ledgers = dict[str, Callable[[], str]]
"""Of each database, what makes an empty ledger and returns its URL."""


def main() -> None:
    """Prints the page; fails if anything was lost or overspent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--races", type=int, default=3)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    chosen = parser.parse_args()
    print("# The ledger, measured\n\n    make soak\n")
    print("Two shared cores; SQLite and PostgreSQL 15 on the same disk, every commit synchronous. ", end="")
    print(f"Load average when this began: {os.getloadavg()[0]:.0f}; above 2, other work ran as well.\n")
    with new_ledgers() as ledgers:
        print_lines(rate_lines(ledgers, chosen.seconds))
        print_lines(accounts_lines(ledgers, chosen.seconds))
        print_lines(large_lines(ledgers))
        print_lines(kill_lines(ledgers, chosen.kills))
        print_lines(race_lines(ledgers, chosen.races, chosen.processes, chosen.threads))
        print_lines(share_lines(ledgers))


def print_lines(lines: Iterator[str]) -> None:
    """Print each line as soon as it is known."""
    for line in lines:
        print(line, flush=True)
    print(flush=True)


def rate_lines(ledgers: Ledgers, seconds: float) -> Iterator[str]:
    """Cycles per second and the time of one, by number of processes."""
    yield "## Reserve, charge, settle\n"
    yield "| database | processes | cycles per second | median, ms | p99, ms | p99 / median | refused as locked |"
    yield "|---|---|---|---|---|---|---|"
    for name, make in ledgers.items():
        for processes in PROCESSES:
            url = make()
            dpf.BudgetLedger.open(url).create(DATASET, dpf.PrivacyBudget(1e6, 0.5))
            answers = forked([functools.partial(cycles, url, seconds)] * processes)
            took = sorted(one for answer in answers for one in answer["took"])
            locked = sum(answer["locked"] for answer in answers)
            rate = sum(len(answer["took"]) / answer["seconds"] for answer in answers)
            median, slow = 1e3 * statistics.median(took), 1e3 * took[int(0.99 * len(took))]
            yield (
                f"| {name} | {processes} | {rate:.0f} | {median:.1f} | {slow:.0f} | {slow / median:.1f} | {locked} |"
            )


def accounts_lines(ledgers: Ledgers, seconds: float) -> Iterator[str]:
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
            acts = [functools.partial(cycles, url, seconds, name) for name in names]
            answers = forked(acts * (8 // len(names)))
            took = [one for answer in answers for one in answer["took"]]
            rate = sum(len(answer["took"]) / answer["seconds"] for answer in answers)
            yield f"| {name} | {len(names)} | {rate:.0f} | {1e3 * statistics.median(took):.1f} |"


def large_lines(ledgers: Ledgers) -> Iterator[str]:
    """The time of a reservation, of the first one after a migration, and of `verify`, by entries."""
    yield "## A large account\n\nEach entry was reserved, charged and settled. Processor time is this process's, without the server's and without waits for the disk.\n"
    yield "| database | entries | first reservation, without totals: processor s | reserve, ms (median) | its processor ms | verify: processor s |"
    yield "|---|---|---|---|---|---|"
    for name, make in ledgers.items():
        for size in SIZES:
            url = make()
            account = dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(1e6, 0.5))
            fill(url, size)
            reserve = functools.partial(Reservation.make, account, CYCLE)
            (_, first), *rest = [seconds_of(reserve) for _ in range(TIMES + 1)]
            wall, processor = (1e3 * statistics.median(each) for each in zip(*rest, strict=True))
            _, verified = seconds_of(account.verify)
            yield f"| {name} | {size:,} | {first:.2f} | {wall:.1f} | {processor:.1f} | {verified:.1f} |"


def fill(url: str, size: int) -> None:
    """Add settled entries, with their events, to the first account, and no totals: as an older ledger."""
    database, cost, drawn = Database(url), Amount.of_cost(COST), DrawCounts(0, "lease")
    with database.write() as connection:
        last = connection.execute(history.select()).mappings().one()
        number, previous = int(last["number"]), str(last["hash"] or NOTHING_BEFORE)
        rows: list[dict[str, Any]] = []
        for entry in range(1, size + 1):
            for act in (RESERVE, CHARGE, SETTLE):
                number += 1
                event = HistoryEvent(
                    act=act,
                    entry=entry,
                    **(cost._asdict() if act == RESERVE else {}),
                    details="{}" if act == CHARGE else as_json(granted(drawn)),
                )
                rows.append({"renyi": None, "account_id": 1, **chained(event, number, previous)})
                previous = rows[-1]["hash"]
        words = {"account_id": 1, **cost._asdict(), "state": "settled", **columns(drawn)}
        connection.execute(insert(entries), [{"id": entry, **words} for entry in range(1, size + 1)])
        connection.execute(insert(history), rows)
        connection.execute(update(accounts).values(seal=UNSEALED))
        if not database.is_sqlite:
            connection.exec_driver_sql(
                f"SELECT setval(pg_get_serial_sequence('dpfewshot_entry', 'id'), {size})"
            )
    database.close()


def seconds_of(call: Callable[[], object]) -> tuple[float, float]:
    """How long a call takes, and its processor time."""
    begun, before = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begun, time.process_time() - before


def cycles(url: str, seconds: float, dataset: str = DATASET) -> dict[str, Any]:
    """Reserve, charge and settle until the time is up."""
    account = dpf.BudgetLedger.open(url).account(dataset)
    took: Timed = []
    locked, begun = 0, time.perf_counter()
    while (start := time.perf_counter()) - begun < seconds:
        try:
            plan = Reservation.make(account, CYCLE)
            plan.draw()
            plan.close()
        except dpf.LedgerError:
            locked += 1
        took.append(time.perf_counter() - start)
    return {"took": took, "locked": locked, "seconds": time.perf_counter() - begun}


def forked(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers of children that act at once, one child an act."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(len(acts))]
        children = [
            in_a_child(functools.partial(_write_answer, path, act))
            for path, act in zip(paths, acts, strict=True)
        ]
        for child in children:
            os.waitpid(child, 0)
        return [json.loads(path.read_text()) for path in paths]


def _write_answer(path: Path, act: Callable[[], Any]) -> None:
    path.write_text(json.dumps(act()))


def kill_lines(ledgers: Ledgers, rounds: int) -> Iterator[str]:
    """Rounds of kill -9, and whether the ledger ever recorded less than was released."""
    yield f"## kill -9\n\nA round kills a generating process at one of {len(BOUNDARIES)} step boundaries in turn.\n"
    yield "| database | rounds | of them released tokens | tokens | recorded below released | broken histories |"
    yield "|---|---|---|---|---|---|"
    for name, make in ledgers.items():
        found = Counter(kill_rounds(make(), rounds))
        yield (
            f"| {name} | {found['rounds']} | {found['rounds that released']} | {found['tokens released']} | "
            f"{found['overdrawn']} | {found['broken histories']} |"
        )
        if found["overdrawn"] or found["broken histories"]:
            sys.exit(f"{name}: something was lost")


def race_lines(ledgers: Ledgers, races: int, processes: int, threads: int) -> Iterator[str]:
    """Races for the rest of a budget."""
    yield f"## Races\n\n{processes} processes of {threads} threads open a new ledger at once and ask twice each;"
    yield f"{FITTING} plans fit.\n"
    yield "| database | charged | refused | anything else | history agrees | slowest answer, s |"
    yield "|---|---|---|---|---|---|"
    for name, make in ledgers.items():
        for _ in range(races):
            found = race(make(), processes, threads, FITTING)
            outcomes = Counter(found["outcomes"])
            charged, refused = outcomes.pop("charged"), outcomes.pop("refused")
            other = outcomes.total() + processes - found["ended well"]
            agrees = "yes" if found["history agrees"] else "no"
            yield f"| {name} | {charged} | {refused} | {other} | {agrees} | {found['slowest']:.1f} |"
            if charged > FITTING or found["entries"] != charged or not found["history agrees"]:
                sys.exit(f"{name}: something was overspent")


def share_lines(ledgers: Ledgers) -> Iterator[str]:
    """The ledger's share of a real generation's time: `dpfewshot demo`, one demonstration a label."""
    from dpfewshot.cli.doctor import KEPT_FOR, MAX_TOKENS, PROMPT_TOKENS
    from dpfewshot.cli.models import Model, open_backend
    from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets

    yield "## Share of a generation\n\n`dpfewshot demo` with a ledger: one demonstration a label, packaged model.\n"
    yield "| database | ledger events | ledger, s | generation, s | share |"
    yield "|---|---|---|---|---|"
    backend = open_backend(Model(), prompts=KEPT_FOR)
    for name, make in ledgers.items():
        account = dpf.BudgetLedger.open(make()).create(DATASET, dpf.PrivacyBudget(8.0, 1e-3))
        took: Timed = []
        for act in ("reserve", "draw", "record_release", "settle", "cancel"):
            setattr(account, act, timed(getattr(account, act), took))
        made = dpf.Synthesizer(
            SUPPORT_TICKETS, support_tickets(), backend, budget=dpf.PrivacyBudget(4.0, 1e-5), account=account,
            max_tokens=MAX_TOKENS,
            settings=dpf.Settings(prompt_token_limit=PROMPT_TOKENS, record_token_cap=32),
        )  # fmt: skip
        start = time.perf_counter()
        made.generate_all()
        made.close()
        whole = time.perf_counter() - start
        yield f"| {name} | {len(took)} | {sum(took):.3f} | {whole:.1f} | {sum(took) / whole:.2%} |"


def timed(call: Callable[..., Any], took: Timed) -> Callable[..., Any]:
    """The same call, which appends its seconds to a list."""

    def noting(*arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            took.append(time.perf_counter() - start)

    return noting


if __name__ == "__main__":
    main()
