"""A holdout end to end: generation spares the units that choose, and both cost the greater, not the sum."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.records.units import units
from dpfewshot.releases.payment import Payment, open_payment
from dpfewshot.sampling import Holdout
from dpfewshot.values import PrivacySpend
from tests.support import factory
from tests.support.accounts import MakeAccount, make_account
from tests.support.scripts import TASK, tickets

FIXTURES = (make_account,)
BUDGET = dpf.PrivacyBudget(4.0, 1e-5)
FREE = dataclasses.replace(TASK, labels=None)


def synthesizer(account: object = None, **options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(account=account, **({"budget": BUDGET, "holdout": 0.2} | options))


def payment(account: object, records: Any = None, task: dpf.Task = TASK, **options: Any) -> Payment:
    records = dpf.as_records(tickets() if records is None else records)
    return open_payment(task, records, budget=BUDGET, account=account, **({"holdout": 0.2} | options))


def spend(one: Payment, epsilon: float) -> None:
    """Pay for a release that draws."""
    cost = PrivacySpend(epsilon, 0.0)
    with one.reserved(cost, uses=1, noise_multiplier=1.0, details={"mechanism": "choice"}) as reservation:
        reservation.draw().use(1.0)


def test_what_is_public_of_a_label_counts_units_not_records() -> None:
    """A unit may have any number of records: theirs would be a private number in the weights of a choice."""
    rows = [dpf.Record("late", "delivery", str(who)) for who in range(60) for _ in range(who)]
    rows += [dpf.Record("back", "refund", f"other {who}") for who in range(40)]
    assert payment(None, rows).counts == {"delivery": 59, "refund": 40}


# ---- generation ------------------------------------------------------------------------------------------


def test_a_holdout_of_many_digits_can_be_drawn() -> None:
    """Its exact sampling rate has a denominator above 2⁶⁴, which the sampler does not take."""
    records = [dpf.Record(f"ticket {number}", "refund") for number in range(4001)]
    made = synthesizer(records=records, labels=["refund"], holdout=1 / 3, prompts_per_draw=20)
    [stratum] = made.plan.strata
    exact = Fraction(20) / (4001 * (1 - Fraction(repr(1 / 3))))
    assert exact.denominator >= 1 << 64
    assert 0 <= exact - stratum.sampling_rate < Fraction(1, 1 << 63)
    assert made.generate("refund").certified


@pytest.mark.parametrize("free", [False, True])
def test_a_unit_that_chooses_never_enters_a_prompt(free: bool, drawn_from: list[Any]) -> None:
    task, labels = (FREE, ["refund", "delivery"]) if free else (TASK, None)
    made = synthesizer(task=task, labels=labels, prompts_per_draw=160, tokens_per_draw=8)
    made.generate("refund")
    members = [unit for unit in units(tickets()) if free or unit[0].label == "refund"]
    generating = [unit for unit in members if not Holdout(0.2).chooses(unit)]
    assert 0 < len(generating) < len(members)
    assert drawn_from == [generating]


def test_the_rate_counts_the_units_that_generate() -> None:
    """And the public n is that of all units: the number that generate is private, and never used."""
    plain, divided = synthesizer(holdout=0.0).plan, synthesizer().plan
    assert divided.strata[0].population == plain.strata[0].population == 200
    assert divided.strata[0].sampling_rate == plain.strata[0].sampling_rate / Holdout(0.2).generating_share
    assert divided.settings.holdout == divided.as_dict()["holdout"] == 0.2
    assert plain.as_dict()["holdout"] == 0.0


def test_more_prompts_than_units_that_generate_are_refused() -> None:
    assert synthesizer(prompts_per_draw=160).plan.sampling_rate == 1.0
    with pytest.raises(
        dpf.InvalidPlan, match=r"161 is above the population 160 .* holdout of 0.2.*=160 would"
    ):
        synthesizer(prompts_per_draw=161)
    with pytest.raises(dpf.InvalidPlan, match="no units to sample from"):
        synthesizer(
            records=tickets(2), holdout=0.5, prompts_per_draw=1, population={"refund": 1, "delivery": 1}
        )


def test_draws_of_fixed_size_have_no_holdout() -> None:
    with pytest.raises(dpf.InvalidPlan, match="holdout needs Poisson draws"):
        synthesizer(sampling="fixed-size")


def test_a_certified_set_up_divides_as_its_account_is_charged() -> None:
    set_up = synthesizer().set_up
    for settings in (0.0, 0.25):
        plan = dataclasses.replace(
            set_up.plan, settings=dataclasses.replace(set_up.plan.settings, holdout=settings)
        )
        with pytest.raises(dpf.InvalidPlan, match="holdout or parts are not those"):
            dataclasses.replace(set_up, plan=plan)


# ---- one account for both --------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [TASK, FREE], ids=["labels", "free"])
def test_generating_and_choosing_cost_the_greater(make_account: MakeAccount, task: dpf.Task) -> None:
    account = make_account(BUDGET)
    synthesizer(account, task=task, labels=["refund", "delivery"]).generate_all()
    spent = account.spent
    assert 3.9 < spent.epsilon <= 4.0
    choosing = payment(account, task=task)
    assert choosing.parallel
    assert set(choosing.units) == set(Holdout(0.2).choosing(units(tickets())))
    assert choosing.population == 80
    spend(choosing, 3.0)
    assert account.spent == spent
    spend(payment(account, task=task), 1.0)
    assert account.spent.epsilon == 4.0
    with pytest.raises(dpf.BudgetExceeded):
        spend(payment(account, task=task), 0.1)
    scopes = {row["scope"] for row in account.history()} if account.durable else set()
    assert not scopes or choosing.scope in scopes


@pytest.mark.parametrize(
    ("account_words", "generating", "other"),
    [
        ({}, {}, {"holdout": 0.25}),
        ({}, {}, {"holdout": 0.0}),
        ({}, {}, {"task": FREE}),
        ({}, {"holdout": 0.0}, {}),
        ({"parallel": False}, {}, {}),
    ],
    ids=["another holdout", "no holdout", "another task", "generated without one", "a sequential account"],
)
def test_a_release_whose_units_generation_did_not_spare_adds(
    make_account: MakeAccount, account_words: Any, generating: Any, other: Any
) -> None:
    account = make_account(dpf.PrivacyBudget(12.0, 1e-4), **account_words)
    synthesizer(account, **generating).generate_all()
    before = account.spent.epsilon
    one = payment(account, **other)
    assert not (other and one.parallel)
    spend(one, 1.0)
    assert account.spent.epsilon == pytest.approx(before + 1.0)


def test_another_division_of_the_same_account_is_refused(make_account: MakeAccount) -> None:
    """A unit may generate in one division and choose in the other: it would pay once and bear both."""
    account = make_account(BUDGET)
    synthesizer(account, labels=["refund"]).generate("refund")
    for holdout in (0.0, 0.25):
        with pytest.raises(dpf.LedgerError, match=r"^this plan divides the data set in another way"):
            synthesizer(account, labels=["delivery"], holdout=holdout).generate("delivery")


@pytest.mark.parametrize("filtered", [False, True])
def test_another_text_column_is_another_division(filtered: bool) -> None:
    """Without units the texts decide who chooses, so texts of another column decide otherwise."""
    rows = [{"subject": f"s{i}", "text": one.text, "label": one.label} for i, one in enumerate(tickets())]
    account = dpf.Account.in_memory(BUDGET)
    synthesizer(account, records=dpf.as_records(rows), labels=["refund"]).generate("refund")
    subjects: list[dpf.Record] = dpf.as_records(rows, text="subject")
    if filtered:
        subjects = [one for one in subjects if len(one.text) < 500]
    assert not payment(account, subjects).parallel
    with pytest.raises(dpf.LedgerError, match="divides the data set in another way"):
        synthesizer(account, records=subjects, labels=["delivery"]).generate("delivery")


# ---- who pays ----------------------------------------------------------------------------------------------


def test_without_a_holdout_a_release_reads_and_charges_everybody() -> None:
    one = payment(None, holdout=0.0, population={"refund": 210, "delivery": 190})
    assert len(one.units) == one.population == 400
    assert (one.relation, one.scope) == ("add-remove", None)
    assert payment(None, population=1_000).population == 200


def test_what_draws_nothing_is_given_back(make_account: MakeAccount) -> None:
    account = make_account(BUDGET)
    with (
        pytest.raises(dpf.BackendError),
        payment(account).reserved(PrivacySpend(1.0, 0.0), uses=1, noise_multiplier=1.0, details={}),
    ):
        raise dpf.BackendError("the server is gone")
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_a_release_is_refused_an_account_of_another_unit_and_an_unknown_label() -> None:
    account = dpf.Account.in_memory(BUDGET)
    account.bind(frozenset({"zero-out"}), "customer")
    with pytest.raises(dpf.LedgerError, match="unit='customer'"):
        payment(account)
    with pytest.raises(dpf.InvalidRecords, match="record 1 has a label"):
        payment(None, [dpf.Record("a", "unknown")])
    with pytest.raises(dpf.InvalidPlan, match="population"):
        payment(None, population={"refund": 0, "delivery": 0})


def test_a_payment_shows_no_unit() -> None:
    assert "ticket number" not in repr(payment(None))
