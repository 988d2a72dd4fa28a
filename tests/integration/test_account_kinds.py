"""An account holds for one partition, one unit column and one relation, and admits nothing else."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

import dpfewshot as dpf
from tests.support import factory
from tests.support.scripts import TASK, tickets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-4)
PLAN = dpf.PrivacyBudget(epsilon=3.9999, delta=1e-5)


@pytest.fixture(params=["memory", "ledger"])
def make_account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    def in_memory(unit: str | None = None) -> dpf.Account:
        account = dpf.Account.in_memory(BUDGET)
        account.bind(frozenset({"zero-out"}), unit)
        return account

    if request.param == "memory":
        yield in_memory
        return
    with dpf.BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db") as ledger:
        yield lambda unit=None: ledger.create("tickets", BUDGET, unit=unit)


def synthesizer(account: object, records: object = None, **options: Any) -> dpf.Synthesizer:
    settings = {"budget": PLAN, "prompts_per_draw": 10, "max_tokens": 3} | options
    return factory.synthesizer(records=records, account=account, **settings)


def customers() -> Any:
    """Of two tickets each, of one label."""
    units = enumerate(tickets())
    return dpf.as_records(
        [dpf.Record(one.text, one.label, f"{one.label} {i // 4}") for i, one in units], unit="customer"
    )


# ---- one partition -----------------------------------------------------------------------------------


def relabelled(task: dpf.Task) -> list[dpf.Record]:
    assert task.labels
    return [dpf.Record(one.text, task.labels[i // 200]) for i, one in enumerate(tickets())]


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(TASK, labels=("angry", "calm")),
        dataclasses.replace(TASK, labels=("delivery", "refund", "other")),
    ],
    ids=lambda task: ",".join(task.labels),
)
def test_two_tasks_of_one_name_with_other_labels_do_not_run_side_by_side(
    make_account: Any, other: dpf.Task
) -> None:
    account = make_account()
    synthesizer(account, labels=["refund"]).generate("refund")
    records = relabelled(dataclasses.replace(other, labels=other.labels[:2]))
    made = synthesizer(account, records, task=other, labels=[other.labels[0]])
    with pytest.raises(dpf.LedgerError, match="--sequential"):
        made.generate(other.labels[0])
    sequential = dpf.Account.in_memory(BUDGET, parallel=False)
    synthesizer(sequential, labels=["refund"]).generate("refund")
    with pytest.raises(dpf.BudgetExceeded):
        synthesizer(sequential, records, task=other, labels=[other.labels[0]]).generate(other.labels[0])


def of_columns() -> list[dict[str, str]]:
    """Tickets whose kind and second opinion differ for every other one."""
    return [
        {"text": one.text, "kind": one.label, "opinion": ("refund", "delivery")[i // 2 % 2]}
        for i, one in enumerate(tickets())
    ]


def test_two_columns_of_labels_do_not_run_side_by_side(make_account: Any, tmp_path: Path) -> None:
    path = tmp_path / "tickets.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in of_columns()))
    account = make_account()
    synthesizer(account, dpf.read_records(path, label="kind")).generate("refund")
    spent = account.spent
    for records in (
        dpf.read_records(path, label="opinion"),
        dpf.as_records(of_columns(), label="opinion")[:300],
        [one for one in dpf.read_records(path, label="opinion") if len(one.text) < 500],
        sorted(dpf.as_records(of_columns(), label="opinion"), key=lambda one: one.text),
        dpf.as_records(tickets(), label="opinion")[:300],
        tickets(),
    ):
        with pytest.raises(dpf.LedgerError, match="--sequential"):
            synthesizer(account, records).generate("delivery")
    assert account.spent == spent
    again = [one for one in dpf.as_records(of_columns(), label="kind") if len(one.text) < 500]
    synthesizer(account, again).generate("delivery")
    assert account.spent.epsilon < 4


def test_labels_in_another_order_are_the_same_partition(make_account: Any) -> None:
    account = make_account()
    synthesizer(account).generate("refund")
    turned = dataclasses.replace(TASK, labels=("delivery", "refund"))
    synthesizer(account, task=turned).generate("delivery")
    assert account.spent.epsilon < 4


def test_names_that_differ_by_a_colon_are_two_partitions(make_account: Any) -> None:
    account = make_account()
    synthesizer(account, task=dataclasses.replace(TASK, name="t:x")).generate("refund")
    with pytest.raises(dpf.LedgerError, match="t%3Ax"):
        synthesizer(account, task=dataclasses.replace(TASK, name="t x")).generate("delivery")


# ---- one unit column -----------------------------------------------------------------------------------


def test_an_account_for_customers_takes_customers_and_nobody_else(make_account: Any, tmp_path: Path) -> None:
    path = tmp_path / "tickets.jsonl"
    rows = [
        {"text": one.text, "label": one.label, "customer": i, "ticket": i} for i, one in enumerate(tickets())
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    account = make_account(unit="customer")
    for unit in ("ticket", None):
        with pytest.raises(dpf.LedgerError, match="unit='customer'"):
            synthesizer(account, dpf.read_records(path, unit=unit))
    with pytest.raises(dpf.LedgerError, match="unit='customer'"):
        dpf.release_labels(
            dpf.read_records(path, unit="ticket"), count=1, epsilon=1, delta=1e-6, account=account
        )
    assert account.spent == dpf.PrivacySpend(0.0, 0.0)
    read = dpf.read_records(path, unit="customer")
    synthesizer(account, [one for one in read if len(one.text) < 500]).generate("refund")
    assert account.spent.epsilon > 3.9


def test_units_are_named_by_the_synthesizer_or_refused(make_account: Any) -> None:
    """Two columns that nobody named, customers and agents, passed for one."""
    by_hand = [dpf.Record(one.text, one.label, str(i)) for i, one in enumerate(tickets())]
    account = make_account(unit="customer")
    with pytest.raises(dpf.LedgerError, match="name it with unit="):
        synthesizer(account, by_hand)
    with pytest.raises(dpf.LedgerError, match="name it with unit="):
        dpf.release_labels(by_hand, count=1, epsilon=1, delta=1e-6, account=account)
    synthesizer(account, by_hand, unit="customer").generate("refund")


def test_all_records_have_a_unit_or_none_has() -> None:
    """Or one record would decide which account its neighbours may spend from."""
    mixed = [dpf.Record("my parcel is late", "refund", "ann"), *tickets()]
    with pytest.raises(dpf.InvalidRecords, match="others do not"):
        synthesizer(None, mixed)


def test_rows_are_read_with_the_unit_that_the_synthesizer_names() -> None:
    rows = [
        {"text": one.text, "label": one.label, "who": i // 4 * 2 + i % 2} for i, one in enumerate(tickets())
    ]
    account = dpf.Account.in_memory(BUDGET)
    made = synthesizer(account, rows, unit="who")
    assert account.unit == "who"
    assert [part.population for part in made.plan.strata] == [100, 100]


# ---- filtered beforehand ----------------------------------------------------------------------------


def test_records_filtered_by_label_are_refused_where_it_can_be_seen(make_account: Any) -> None:
    """A unit with records under two labels would belong to either, as its records are filtered."""
    everything = customers()
    filtered = dpf.as_records([one for one in everything if one.label == "refund"], unit="customer")
    account = make_account(unit="customer")
    with pytest.raises(dpf.InvalidPlan, match="no unit belongs to the label 'delivery'"):
        synthesizer(account, filtered, labels=["refund"])
    for allowed in (None, dpf.Account.in_memory(BUDGET, parallel=False)):
        synthesizer(allowed, filtered, labels=["refund"])
    assert account.spent == dpf.PrivacySpend(0.0, 0.0)


def test_a_customer_of_two_labels_is_in_one_stratum_whatever_is_generated() -> None:
    """Runs for different labels share no customer, though each sees the records of all."""
    both = dpf.as_records(
        [
            {"text": label, "label": label, "who": str(who)}
            for who in range(200)
            for label in ("refund", "delivery")
        ],
        unit="who",
    )
    found = [
        {unit[0].unit for unit in synthesizer(None, both, labels=[label]).set_up.units[label]}
        for label in ("refund", "delivery")
    ]
    assert not found[0] & found[1]
    assert len(found[0] | found[1]) == 200


def test_with_a_population_nothing_is_looked_at() -> None:
    """The counts are private there: a refusal would tell whether a label has any unit."""
    everything = customers()
    filtered = dpf.as_records([one for one in everything if one.label == "refund"], unit="customer")
    for records in (everything, filtered):
        account = dpf.Account.in_memory(BUDGET)
        synthesizer(account, records, labels=["refund"], population={"refund": 200})


@pytest.mark.parametrize("account", [7, object(), "sqlite:///budget.db"])
def test_what_is_no_account_is_refused(account: object) -> None:
    with pytest.raises(dpf.InvalidPlan, match=r"open_account\(.* is no account"):
        synthesizer(account)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"budget": 2}, r"budget= takes PrivacyBudget\(epsilon, delta\) or NO_PRIVACY, not int"),
        ({"task": {"labels": ["a"]}}, "task= takes a Task, not dict"),
        ({"settings": {}}, "settings= takes Settings"),
    ],
)
def test_what_is_of_another_kind_is_named(wrong: dict[str, Any], says: str) -> None:
    given = {"task": TASK, "records": tickets(), "backend": dpf.backends.Scripted([" a"], lambda _: [1.0])}
    with pytest.raises(dpf.InvalidPlan, match=says):
        dpf.Synthesizer(**{"budget": BUDGET, **given, **wrong})
