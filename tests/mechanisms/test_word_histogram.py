"""The word histogram: its rows' bound in integers, its noise, its cost, and texts of the real small model."""

import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import ClassVar
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import epsilon
from dpfewshot.audit import canary_game
from dpfewshot.audit.certified import check_certificates
from dpfewshot.errors import BackendError, BudgetExceeded, InvalidPlan, LedgerError
from dpfewshot.generation import histogram_loop
from dpfewshot.generation.generation import unaccounted
from dpfewshot.generation.histogram_loop import HistogramLoop
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms import (
    Draws,
    InvisibleInk,
    ReportNoisyMax,
    RowChange,
    SparseVector,
    WordHistogram,
    word_histogram,
)
from dpfewshot.mechanisms.gaussian import noise_scale
from dpfewshot.mechanisms.word_histogram import Expected, Features, features, row_sum
from dpfewshot.planning.settings import Settings
from dpfewshot.runtime.stopping import Stopped, StopSignal
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.sampling import PoissonSampler
from dpfewshot.writing.histogram import Histogram
from dpfewshot.writing.label_check import LabelCheck
from dpfewshot.writing.request import PublicRequest
from dpfewshot.writing.writer import HistogramWriter
from tests.support.counts import NOTHING, VOCABULARY, expecting, summed
from tests.support.failing import Failing
from tests.support.laws import IMPOSSIBLE
from tests.support.scripts import Desk
from tests.support.small_models import small

FIXTURES = (small,)


ONE_DRAW = Draws(1.0, 1, 1, 50, RowChange.ADDED)

FLAT = [1.0] * word_histogram.LENGTHS

some_words = st.frozensets(st.integers(0, VOCABULARY - 1), max_size=VOCABULARY)

any_token = st.integers(-2, VOCABULARY + 2) | st.sampled_from([-(10**9), 10**9])

rows = st.builds(
    Features,
    words=st.frozensets(any_token, max_size=VOCABULARY),
    first=st.none() | any_token,
    length=st.integers(0, word_histogram.LENGTHS - 1),
    end=st.integers(0, len(word_histogram.ENDS) + 1),
    named=st.booleans(),
)


def squared(change):
    return sum(int(each) ** 2 for each in change)


@given(st.lists(rows, max_size=12), rows, rows, some_words.map(expecting))
def test_a_unit_moves_the_sum_by_at_most_one(others, one, another, expected):
    without, with_one = (summed(some, expected) for some in (others, [*others, one]))
    replaced = summed([another, *others], expected)
    assert (without >= 0).all()
    assert squared(with_one - without) <= _core.grid**2
    assert squared(with_one - replaced) <= 2 * _core.grid**2


def test_the_bound_is_nearly_reached_and_unnormalised_words_break_it(monkeypatch):
    one = Features(frozenset(range(7)), 1, 3, 0, named=True)
    some = expecting({0, 1})
    for expected in (NOTHING, some, expecting(one.words)):
        assert squared(summed([one], expected)) > 0.999 * _core.grid**2
    monkeypatch.setattr(word_histogram, "_steps", lambda _: math.isqrt(_core.grid**2 // 5))
    assert squared(summed([one], some)) > _core.grid**2


ANY_TOKENS = [999, *range(1000, 1012), 10**9, -(10**9)]


@given(st.text() | st.text("ab\u00e9' .?!\n"), st.integers(), st.sets(st.integers(1000, 1011)).map(expecting))
def test_any_text_has_a_row_of_at_most_one(text, tokenizer, expected):
    """Of these tokens a vocabulary of 1012 has all but the last two, and the first is no word's."""
    found = features(text, lambda word: [ANY_TOKENS[crc32(f"{tokenizer}{word}".encode()) % len(ANY_TOKENS)]])
    assert squared(summed([found], expected, size=1012)) <= _core.grid**2


def test_a_text_is_counted_by_its_words_first_word_length_and_end():
    ids = {" where": 1200, " is": 5, " my": 6, " parcel": 2000, " Where": 1300}
    found = features("Where is my parcel, parcel?", lambda word: [ids[word]])
    assert found == Features(frozenset({1200, 2000}), 1300, round(2 * math.log2(5)), 1)
    assert features("", lambda word: [ids[word]]) == Features(frozenset(), None, 0, 3)
    texts = ("a?", "A parcel", "a parcel", "a Parcel ", "12", "12 a", "\u6211\u7684\u5361")
    assert [features(text, lambda _: [1, 2]).end for text in texts] == [1, 3, 4, 3, 3, 4, 3]
    assert features("12 parcels", lambda _: [1, 2]).first is None
    names = {" iraq": [7, 8], " Iraq": [3000], " in": [9], " In": [10]}
    assert features("In Iraq", names.__getitem__) == Features(frozenset({3000}), 10, 2, 3, named=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("She met Bob.", True),
        ('she read "Emma"', True),
        ("Is it what I said? Yes! It is: So it is.", False),
        ("I'm sure that I'd like it, as I said", False),
        ("Where is it\nVisa", True),
        ("Moscow", False),
        ("an EU law", True),
        ("in \u00c5rhus", True),
    ],
)
def test_a_capital_letter_within_a_sentence_is_a_name(text, named):
    assert features(text, lambda _: [1, 2]).named is named


@given(st.text("aB .\"'(\n"))
def test_a_name_is_found_as_by_a_slower_rule(text):
    """Of words of two letters and more after one space or line and what ends no sentence."""
    slow = any(
        before[-1:].isspace()
        and before[-2:-1] not in ("", *" \n.")
        and text[at].isupper()
        and text[at + 1 : at + 2].isalpha()
        for at in range(len(text))
        for before in [text[:at].rstrip("\"'(")]
    )
    assert word_histogram.has_a_name(text) is slow


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (0.9, False), (1.1, False)])
def test_the_noise_has_the_scale_that_was_charged(factor, fits):
    """With controls of a scale that is 10 % off."""
    release = WordHistogram().start(ONE_DRAW, 1.7)
    noisy, *_ = release.noisy_sum(summed([], size=50_000), Permit(1, 1.7))
    scaled = noisy / (1.7 * factor * _core.grid)
    spread = float((scaled**2).sum())
    chance = 2 * min(stats.chi2.cdf(spread, len(scaled)), stats.chi2.sf(spread, len(scaled)))
    assert bool(chance > IMPOSSIBLE) is fits


@dataclass(frozen=True)
class AnotherOnce(ReportNoisyMax):
    name: ClassVar[str] = "another"
    draws_once: ClassVar[bool] = True


def test_one_draw_for_all_texts_is_its_alone():
    with pytest.raises(InvalidPlan, match="draws_once is WordHistogram's alone, and 'another' has it"):
        dpf.Synthesizer(
            *(SUPPORT_TICKETS, support_tickets(), Desk()),
            budget=dpf.PrivacyBudget(4, 1e-5),
            mechanism=AnotherOnce(top_k=None),
        )


def test_a_draw_pays_for_one_histogram():
    permit = Permit(1, 1.7)
    release = WordHistogram().start(ONE_DRAW, 1.7)
    nothing = summed([])
    release.noisy_sum(nothing, permit)
    with pytest.raises(BudgetExceeded):
        release.noisy_sum(nothing, permit)
    with pytest.raises(BudgetExceeded, match="another noise multiplier"):
        release.noisy_sum(nothing, Permit(1, 1.6))


@pytest.mark.parametrize("noise", [0.7, 1.5, 3.7308717988])
def test_the_cost_is_that_of_one_gaussian(noise):
    """Balle and Wang 2018, Theorem 8: δ of the analytic Gaussian mechanism, without sampling."""
    event = WordHistogram().event(ONE_DRAW, noise)
    bound = epsilon(event, delta=1e-5).upper
    normal, half = stats.norm.cdf, 1 / (2 * noise)
    delta = normal(half - bound * noise) - math.exp(bound) * normal(-half - bound * noise)
    assert 0.99e-5 < delta <= 1e-5


def test_an_expected_word_has_most_of_a_rows_weight():
    row = summed([Features(frozenset({1, 2, 3}), None, 0, 0)], expecting({1}))
    squares = [Fraction(int(row[word]), _core.grid) ** 2 for word in (1, 2, 3)]
    assert list(map(float, squares)) == pytest.approx([0.38, 0.04, 0.04])


def test_the_likeliest_words_are_expected():
    words = [f" {letter}{place}" for place in range(34) for letter in "abcdefghijklmnopqrstuvwxyz{|}~"]
    words += [" parcel", " Where", " refund", " 12", "?"]
    model = dpf.backends.Scripted(words, lambda _: [1.0] * len(words))
    parcel, where, refund = (model.tokenize(word)[0] for word in (" parcel", " Where", " refund"))
    counts = np.zeros(model.vocabulary_size)
    counts[[refund, parcel, where, where + 2, 7]] = 1, 2, 3, 4, 5
    expected = Expected.of(counts, counts, model)
    assert expected == Expected({parcel: 2.0, refund: 1.0}, {where: 3.0, parcel: 2.0, refund: 1.0})


# ---- with a real model -----------------------------------------------------------------------------------


def loaded(path):
    return dpf.backends.LlamaCpp(path, context_tokens=256, kept_prompts=15, threads=1)


@pytest.fixture(scope="module")
def model(small):
    with loaded(small) as backend:
        yield backend


@pytest.fixture(scope="module")
def whole_model():
    with loaded(dpf.backends.packaged_model_path()) as backend:
        yield backend


def synthesizer(model, records=None, **settings):
    given = {"budget": dpf.PrivacyBudget(4, 1e-5), "max_tokens": 10, "mechanism": WordHistogram()}
    return dpf.Synthesizer(
        settings.pop("task", SUPPORT_TICKETS),
        support_tickets() if records is None else records,
        model,
        labels=["Refund"],
        **(given | settings),
    )


def histogram_of(run):
    [stratum] = run._generation.runs  # noqa: SLF001 - nothing shows it
    return stratum.reservation.histogram


def test_one_draw_serves_all_texts_of_a_label(model):
    run = synthesizer(model, shots_per_label=2)
    [stratum] = run.plan.strata
    assert (stratum.steps, stratum.sampling_rate) == (1, Fraction(1))
    made = [*run.generate_all(), run.generate("Refund"), *run.generate_all()]  # also those not planned
    assert len({one.text for one in made}) == 5
    assert all(one.certified and one.spent == stratum.spend for one in made)
    assert run.spent == stratum.spend


def test_a_plan_says_what_it_does_and_shows_a_text_without_records(model):
    records = [replace(one, unit=f"c{number}") for number, one in enumerate(support_tickets())]
    run = synthesizer(model, records, shots_per_label=2)
    said = run.describe()
    assert re.match(
        r"plan: 2 texts of at most about \d words: 2 Refund \(\d+ units\); a unit of several", said
    )
    assert "for one unit left out: a reader" in said
    assert "time:" not in said
    run.probe(0.01)
    assert "time: at most about" in run.describe()
    shown = run.preview("Refund")
    assert (shown.label, shown.spent, shown.mechanism) == (
        "Refund",
        dpf.PrivacySpend(0, 0),
        "instruction-only",
    )
    with pytest.raises(InvalidPlan, match="plan"):
        run.preview("Nothing")
    assert run.spent == dpf.PrivacySpend(0, 0)


def test_texts_come_from_the_noisy_sum(whole_model, monkeypatch):
    """Noise that is all on one word makes this word known, which no record has."""
    (word,) = whole_model.tokenize(" volcano")

    def noise(scale, size, _):
        return np.where(np.arange(size) == word, 100 * scale, 0)

    monkeypatch.setattr(_core, "rounded_normals", noise)
    run = synthesizer(whole_model, budget=dpf.PrivacyBudget(1e-2, 1e-5))
    run.generate("Refund")
    assert str(word) in histogram_of(run)["words"]


def test_the_texts_of_disjoint_parts_are_made_one_by_one(model):
    run = synthesizer(model, shots_per_label=4, settings=Settings(disjoint_parts=2))
    assert len({run.generate("Refund").text for _ in range(4)}) > 1
    assert [one.texts_left for one in run._generation.runs] == [0, 0]  # noqa: SLF001


def test_a_run_resumes_from_its_histogram_without_another_draw(model, ledger_url):
    def account():
        return dpf.open_account(ledger_url, "tickets")

    dpf.BudgetLedger.open(ledger_url).create("tickets", dpf.PrivacyBudget(4, 1e-5))
    first = synthesizer(model, shots_per_label=2, account=account())
    one = first.generate("Refund")
    kept = histogram_of(first)
    first.close()
    second = synthesizer(model, shots_per_label=2, account=account())
    made = second.generate_all(resume=True)
    assert made[0].text == one.text
    assert Counter(each.label for each in made) == {"Refund": 2}
    assert histogram_of(second) == kept
    assert account().spent == one.spent


def test_an_interruption_after_the_count_loses_no_text(model, ledger_url, monkeypatch):
    dpf.BudgetLedger.open(ledger_url).create("tickets", dpf.PrivacyBudget(4, 1e-5))

    def run():
        return synthesizer(model, shots_per_label=2, account=dpf.open_account(ledger_url, "tickets"))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, run() as first:
        patched.setattr("dpfewshot.writing.writer.best", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.generate_all()
    spent = dpf.open_account(ledger_url, "tickets").spent
    with run() as second:
        assert len(second.generate_all(resume=True)) == 2
    assert dpf.open_account(ledger_url, "tickets").spent == spent != dpf.PrivacySpend(0, 0)


def test_texts_are_replaced_and_added_from_the_same_histogram_at_no_cost(model, ledger_url):
    dpf.BudgetLedger.open(ledger_url).create("tickets", dpf.PrivacyBudget(4, 1e-5))

    def run(shots, max_tokens=4, **wording):
        account, task = dpf.open_account(ledger_url, "tickets"), replace(SUPPORT_TICKETS, **wording)
        return synthesizer(model, task=task, shots_per_label=shots, max_tokens=max_tokens, account=account)

    with run(2) as first:
        made = first.generate_all()
        kept = histogram_of(first)
    with run(2) as second, run(2) as another:  # the run is settled
        assert another.generate_all(resume=True) == made
        again = second.generate_all(resume=True, keep=made[1:])
        assert histogram_of(second) == kept
        assert second.generate_all(resume=True, keep=again) == again  # nothing is lacking
        assert second.generate_all(resume=True) == again == another.generate_all(resume=True)
        with pytest.raises(InvalidPlan, match="not release, or has it too often"):
            second.generate_all(resume=True, keep=[again[0]] * 4)  # three are released, perhaps alike
    # nor are more texts, longer ones, or other prompts another plan
    with run(3, 6, instruction="Write a complaint.") as third, ThreadPoolExecutor() as executor:
        more = third.generate_all(resume=True, keep=again, executor=executor)
    assert ([one.text for one in again].count(made[1].text), len(again), len(more)) == (1, 2, 3)
    assert list(again) == list(more[:2])
    assert len({one.certificate.reservation for one in (*made, *more)}) == 1
    assert len({one.certificate.prompt for one in (*made, *more)}) == 2
    ledger = dpf.BudgetLedger.open(ledger_url)
    assert check_certificates([*made, *(one for one in more if one not in made)], ledger).verified
    account = ledger.account("tickets")
    assert (account.spent, account.entries, account.verify().ok) == (made[0].spent, 1, True)


@pytest.mark.parametrize("settled", [True, False])
def test_a_text_whose_answer_was_lost_is_recorded_once_whatever_is_replaced(
    model, monkeypatch, tmp_path, settled
):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    ledger = dpf.BudgetLedger.open(url)
    ledger.create("tickets", dpf.PrivacyBudget(4, 1e-5))
    account = dpf.open_account(url, "tickets")
    run = synthesizer(model, max_tokens=4, shots_per_label=3, account=account)
    made = list(run.generate_all()) if settled else []
    record = dpf.Account.record_release

    def lost(self, *arguments):
        record(self, *arguments)
        raise LedgerError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(dpf.Account, "record_release", lost)
        with pytest.raises(LedgerError):
            run.generate_all(keep=made[:2] if settled else None)
    for keep in (made[1:], []):
        assert len(run.generate_all(resume=not settled, keep=keep)) == 3
    assert account.verify().ok
    later = synthesizer(model, max_tokens=4, shots_per_label=3, account=account)
    assert len(later.generate_all(resume=True)) == 3


def test_fewer_texts_of_disjoint_parts_are_replaced_too(model):
    account = dpf.Account.in_memory(dpf.PrivacyBudget(4, 1e-5))
    run = synthesizer(model, max_tokens=4, settings=Settings(disjoint_parts=2), account=account)
    made = run.generate_all()
    assert len(run.generate_all(keep=[])) == len(run.generate_all(keep=made)) == account.entries == 1


def test_texts_are_replaced_without_a_ledger_too_and_not_where_each_text_draws(model):
    run = synthesizer(model, max_tokens=4)
    with pytest.raises(InvalidPlan, match="counted the words of all labels, and this one has not"):
        run.generate_all(keep=[])
    made = run.generate_all()
    assert len(run.generate_all(keep=[])) == len(run.generate_all(keep=made)) == run.account.entries == 1
    for keep in ("text", [None], made[0], 1):
        with pytest.raises(InvalidPlan, match="keep= takes demonstrations"):
            run.generate_all(keep=keep)
    with pytest.raises(InvalidPlan, match="invisible-ink draws for each text"):
        synthesizer(model, mechanism=InvisibleInk(10)).generate_all(keep=[])


def test_two_processes_that_resume_one_run_take_it_from_each_other(model, ledger_url):
    ledger = dpf.BudgetLedger.open(ledger_url)
    ledger.create("tickets", dpf.PrivacyBudget(4, 1e-5))
    runs = [
        synthesizer(model, shots_per_label=2, account=dpf.open_account(ledger_url, "tickets")) for _ in "123"
    ]
    first = runs[0].generate("Refund")
    assert runs[1].unfinished
    made = runs[1].generate_all(resume=True)
    assert made[0].text == first.text
    further = runs[0].generate("Refund")  # no draw is left to take from it
    assert [one.text for one in runs[2].generate_all(resume=True)] == [one.text for one in (*made, further)]
    assert ledger.account("tickets").verify().problems == ()


class Odd(dpf.backends.Scripted):
    """Always writes of a parcel. It fails on one word alone, and for another it gives a wrong token.

    What is one token comes in one list, again and again.
    """

    def __init__(self):
        self.one = [0]
        words = [*map(str, range(word_histogram.COMMONEST))]
        words += [" parcel", " refund", " unspeakable", " unheard", "\n"]
        super().__init__(words, lambda _: [0.5 * (word in (" parcel", "\n")) for word in words])

    def tokenize(self, text):
        if text == " unspeakable":
            raise ValueError(text)
        tokens = [10**9] if text == " unheard" else super().tokenize(text)
        if len(tokens) != 1:
            return tokens
        self.one[:] = tokens
        return self.one


@pytest.mark.parametrize(("word", "counted"), [("refund", 1.0), ("unspeakable", 0.8), ("unheard", 1.0)])
def test_what_is_expected_is_the_models_and_an_odd_word_is_its_records_matter(monkeypatch, word, counted):
    """All records have "parcel" and "refund", of which the model writes the first alone."""
    monkeypatch.setattr(_core, "rounded_normals", lambda _, size, __: np.zeros(size, dtype=np.int64))
    records = [dpf.Record(f"{one} parcel refund", "Refund") for one in ["late"] * 40 + [word] * 10]
    run = synthesizer(Odd(), records)
    assert run.generate("Refund").certified
    kept = {"1000": counted * math.sqrt(0.38), "1001": counted * math.sqrt(0.08)}
    assert histogram_of(run)["words"] == pytest.approx(kept)


def test_texts_take_turns_with_the_subjects_of_a_label():
    """What the model expects is of all of them, and the records are counted once."""
    asked = []

    def answer(prompt):
        asked.append(tuple(token for token in prompt if token in {0, 1}))
        return [0, 0, 0.5, 0.5]

    model = dpf.backends.Scripted([" late", " lost", " parcel", "\n"], answer, end_token_ids={3})
    task = replace(SUPPORT_TICKETS, label_descriptions={"Refund": "late; lost"})
    budget = dpf.PrivacyBudget(4, 1e-5)
    run = dpf.Synthesizer(
        task, support_tickets(), model, budget=budget, labels=["Refund"], shots_per_label=3, max_tokens=4
    )
    run.generate_all()
    assert list(dict.fromkeys(asked)) == [(0, 1), (0,), (1,)]
    assert asked[-1] == (0,)
    asked.clear()
    dpf.Synthesizer(
        task,
        support_tickets(),
        model,
        budget=budget,
        labels=["Refund"],
        shots_per_label=4,
        max_tokens=4,
        settings=Settings(disjoint_parts=2),
    ).generate_all()  # each part makes two texts
    turns = [subjects for subjects, _ in groupby(asked)]
    assert Counter(turns) == {(0, 1): 2, (0,): 2, (1,): 2}


def test_words_of_a_count_that_nobody_paid_for_are_not_told(model):
    for budget in (dpf.NO_PRIVACY, dpf.PrivacyBudget(8, 1e-5)):
        with synthesizer(model, budget=budget) as run:
            run.generate("Refund")
            assert bool(run.counted_words()) is (budget is not dpf.NO_PRIVACY)
        audited = unaccounted(run.set_up)
        audited.release("Refund", 4)
        assert audited.counted_words() == {}


def test_a_model_that_is_away_costs_nothing(model):
    run = synthesizer(Failing(model))
    with pytest.raises(BackendError, match="no probability"):
        run.generate("Refund")
    assert run.spent == dpf.PrivacySpend(0, 0)


def test_a_count_is_charged_before_it_begins_and_one_that_fails_costs_no_draw(model, ledger_url):
    """Else the order of charges, and whether there is one, would tell how long a record is."""
    ledger = dpf.BudgetLedger.open(ledger_url)
    ledger.create("tickets", dpf.PrivacyBudget(4, 1e-5))
    backend = Failing(model, counting=True, answers=True)
    first, second = (synthesizer(backend, account=dpf.open_account(ledger_url, "tickets")) for _ in "12")
    with pytest.raises(BackendError):
        first.generate("Refund")
    account = ledger.account("tickets")
    assert [row["act"] for row in account.history()] == ["create", "reserve", "charge"]
    first.close()
    backend.counting = False
    assert [one.label for one in second.generate_all(resume=True)] == ["Refund"]
    assert account.spent == first.plan.strata[0].spend
    assert account.verify().ok


def test_whether_a_cancelled_call_is_charged_does_not_tell_how_long_its_count_takes(model, monkeypatch):
    backend, stop = Failing(model, answers=True), StopSignal()
    run = synthesizer(backend)
    monkeypatch.setattr(histogram_loop, "row_sum", lambda *given: stop.set() or row_sum(*given))
    with pytest.raises(Stopped):
        run._generation.release("Refund", 10, stop)  # noqa: SLF001 - as agenerate does
    assert run.spent == run.plan.strata[0].spend
    assert run.generate("Refund").certified


def test_a_tokenizer_that_never_works_fails_whatever_the_records_are(model, monkeypatch):
    backend = Failing(model, answers=True)
    run = synthesizer(backend)
    monkeypatch.setattr(HistogramLoop, "_works", backend.away)
    with pytest.raises(BackendError, match="away"):
        run.generate("Refund")
    assert run.spent == dpf.PrivacySpend(0, 0)


def test_generation_checks_each_text_for_its_own_label(model, monkeypatch):
    asked = []
    monkeypatch.setattr(
        LabelCheck, "fits", lambda _, label, text: asked.append((label, text)) or len(asked) > 2
    )
    made = synthesizer(model).generate("Refund")
    assert 1 <= len(asked) <= 3  # chance decides how many candidates are whole
    assert {label for label, _ in asked} == {"Refund"}
    released = asked[2 if len(asked) > 2 else 0][1]  # the one that fits, or else the likest
    assert made.text.startswith(released)  # an unended one is completed


def test_what_writes_gets_no_records(model, monkeypatch):
    """It is post-processing: neither the words to expect nor the texts can come from records."""
    asked = []
    for step in ("expected", "text"):
        inner = getattr(HistogramWriter, step)
        watched = lambda writer, *given, inner=inner: asked.append(given[-1]) or inner(writer, *given)  # noqa: E731
        monkeypatch.setattr(HistogramWriter, step, watched)
    synthesizer(model).generate("Refund")
    assert [type(request) for request in asked] == [PublicRequest] * 2


def test_a_text_without_records_reads_none_costs_nothing_and_knows_earlier_ones(model, monkeypatch):
    monkeypatch.setattr(SetUp, "bodies", None)  # which would read records
    write, asked = HistogramWriter.text, []

    def watched(made, histogram, request, candidates):
        asked.append((histogram, request.earlier))
        return write(made, histogram, request, candidates)

    monkeypatch.setattr(HistogramWriter, "text", watched)
    made = synthesizer(model)
    first = made.set_up.without_records("Refund", [], 8).text
    assert first
    assert made.set_up.without_records("Refund", [first], 8).text
    assert asked == [(Histogram(), []), (Histogram(), [first])]
    assert made.account.spent == dpf.PrivacySpend(0, 0)


def test_prompts_are_in_the_models_template_unless_it_cannot_be_asked(model):
    assert synthesizer(model).set_up.task.chat
    backend = Failing(model)
    assert not synthesizer(backend).set_up.task.chat  # it has no template
    backend.chat_text = backend.away
    with pytest.raises(BackendError, match="away"):
        synthesizer(backend)


def test_a_sparse_vector_cannot_wrap_it():
    with pytest.raises(InvalidPlan, match="releases every token"):
        SparseVector(WordHistogram(), threshold=0.5, releases=2)


def test_the_histogram_of_many_records_has_their_words(whole_model):
    run = synthesizer(whole_model, budget=dpf.PrivacyBudget(8, 1e-5))
    run.generate("Refund")
    told = histogram_of(run)
    words = {whole_model.detokenize([int(word)]).strip() for word in told["words"]}
    texts = [record.text.lower() for record in support_tickets() if record.label == "Refund"]
    assert len(words) > 3
    missing = [word for word in words if sum(word in text for text in texts) < len(texts) / 40]
    assert len(missing) <= len(words) / 3  # of 100 expected ones, 0.6 are noise alone


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (dpf.Task("shaped", "Write.", "Kind", "Text", ("a",), schema="[0-9]{3}"), Settings(), "no schema"),
        (dpf.Task("plain", "Write.", "Kind", "Text", ("a",)), Settings(records_per_prompt=2), "per_prompt=1"),
        (dpf.Task("plain", "Write.", "Kind", "Text", ("a",)), Settings(tokens_per_draw=2), "one draw"),
    ],
)
def test_a_task_that_it_cannot_serve_is_refused(model, task, settings, message):
    with pytest.raises(InvalidPlan, match=message):
        dpf.Synthesizer(
            task,
            [dpf.Record("123", "a")] * 9,
            model,
            budget=dpf.PrivacyBudget(1, 1e-5),
            mechanism=WordHistogram(),
            max_tokens=10,
            labels=["a"],
            settings=settings,
        )


@pytest.mark.parametrize(
    ("settings", "share", "verdict"),
    [
        (Settings(), 1.0, "passed"),
        (Settings(), 0.7, "failed"),
        (Settings(prompts_per_draw=90), 1.0, "passed"),
        (Settings(prompts_per_draw=90), 0.7, "failed"),
        (Settings(sampling="fixed-size"), 1.0, "passed"),
        (Settings(sampling="fixed-size"), 0.7, "failed"),  # nearly the √2 of a replaced row
    ],
)
def test_the_canary_game_refutes_too_little_noise(monkeypatch, model, share, verdict, settings):
    monkeypatch.setattr(
        word_histogram, "noise_scale", lambda sigma, rows, grid: noise_scale(share * sigma, rows, grid)
    )
    small = dpf.PrivacyBudget(1, 1e-5)  # many canaries: their products are beyond 64 bits
    finding = canary_game(synthesizer(model, budget=small, settings=settings), plays=1000)
    assert finding.verdict == verdict, finding.statement
    least, _, noise = finding.figures[:3]
    assert noise.value > 0.9 * share * noise.reference
    assert least.value > 0.4 * least.reference, "the game has power"
    with pytest.raises(InvalidPlan, match="one release"):
        canary_game(synthesizer(model), plays=100, texts_only=True)


def test_the_canary_game_refutes_units_drawn_more_often(monkeypatch, model):
    rate = PoissonSampler.__init__
    monkeypatch.setattr(
        PoissonSampler, "__init__", lambda self, q, *others: rate(self, min(Fraction(1), 2 * q), *others)
    )
    finding = canary_game(synthesizer(model, settings=Settings(prompts_per_draw=30)), plays=1000)
    assert "share of draws that hold a unit" in finding.statement
