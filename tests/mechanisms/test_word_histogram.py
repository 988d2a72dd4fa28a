"""The word histogram: its rows' bound in integers, its noise, its cost, and texts of the real small model."""

import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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
from dpfewshot.generation.histogram_loop import HistogramLoop, _Candidate, _Style
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.stopping import Stopped, StopSignal
from dpfewshot.generation.token_loop import PublicRequest
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
from dpfewshot.mechanisms.word_histogram import (
    Expected,
    Features,
    Histogram,
    features,
    of_noisy_sum,
    row_sum,
)
from dpfewshot.planning.settings import Settings
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.sampling import PoissonSampler
from tests.support.laws import IMPOSSIBLE
from tests.support.scripts import Desk
from tests.support.small_models import small

FIXTURES = (small,)

VOCABULARY = 40
ONE_DRAW = Draws(1.0, 1, 1, 50, RowChange.ADDED)

NOTHING = Expected()

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


def summed(texts, expected=NOTHING, *, size=VOCABULARY):
    return row_sum(texts, size, expected)


def expecting(words, firsts=()):
    return Expected(dict.fromkeys(words, 0.5), firsts)


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


@pytest.mark.parametrize(("named", "share"), [(19, 0.0), (21, 21 / 40)])
def test_that_records_have_names_is_told_if_it_is_clear(named, share):
    """Of 40 texts; 20 have 2.5 standard deviations of the noise."""
    texts = [Features(frozenset(), None, 4, 0, place < named) for place in range(40)]
    scale = round(20 * math.sqrt(0.03) * _core.grid / 2.5)
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING)
    assert found.named == pytest.approx(share)
    assert Histogram.from_dict(found.as_dict()) == found


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


def test_words_that_noise_alone_may_have_made_are_left_out():
    total = np.zeros(2 * VOCABULARY + 22, dtype=np.int64)
    total[[3, 7]] = 4 * _core.grid, 6 * _core.grid
    kept = of_noisy_sum(total, _core.grid, 10, NOTHING)
    assert dict(kept.words) == {7: pytest.approx(0.6)}
    assert Histogram.from_dict(kept.as_dict()) == kept


def test_what_is_expected_needs_less_to_be_kept():
    total = np.zeros(2 * VOCABULARY + 22, dtype=np.int64)
    total[[2, 3, 4, VOCABULARY + 5, VOCABULARY + 6]] = 3 * _core.grid
    total[4] = 2 * _core.grid
    kept = of_noisy_sum(total, _core.grid, 10, expecting({3, 4}, [5]))
    assert (set(kept.words), set(kept.firsts)) == ({3}, {5})


def test_a_first_word_that_the_model_knows_as_one_needs_less_than_another():
    total = np.zeros(2 * VOCABULARY + 22, dtype=np.int64)
    total[VOCABULARY + 3 : VOCABULARY + 6] = 4 * _core.grid
    known = [*range(6, 5 + word_histogram.EXPECTED_FIRST), 3]  # the last that is expected
    kept = of_noisy_sum(total, _core.grid, 10, expecting((), [*known, 4]))
    assert set(kept.firsts) == {3, 4}


@pytest.mark.parametrize(("units", "lengths"), [(10, []), (14, [3, 4, 6])])
def test_a_length_that_noise_alone_may_have_made_is_not_told(units, lengths):
    """The commonest and its neighbours, weighed 2 to 1, have √6 times the noise of one: 2.5 of these."""
    texts = [Features(frozenset(), None, place, 3) for place in (3, 4, 5)] * units
    of_twelve = 4 * 12 * math.sqrt(0.08) * _core.grid
    scale = round(of_twelve / (2.5 * math.sqrt(6)))
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING).usual_lengths
    assert [*found] == lengths


def test_a_length_that_stands_apart_from_the_usual_ones_is_noise():
    lengths = np.zeros(word_histogram.LENGTHS)
    lengths[[5, 6, 7, 14]] = 0.2, 0.3, 0.2, 0.25
    assert [*Histogram(lengths=lengths.tolist()).usual_lengths] == [6, 8, 11]


@pytest.mark.parametrize(("unmarked", "marked"), [(19, True), (21, False)])
def test_marks_stay_unless_it_is_clear_that_most_records_have_none(unmarked, marked):
    """Of 40 texts; the lead of those without over those with has √5 times the noise of one: 2.5 of these."""
    texts = [Features(frozenset(), None, 4, 3)] * (10 + unmarked) + [Features(frozenset(), None, 4, 0)] * 10
    scale = round(20 * math.sqrt(0.08) * _core.grid / (2.5 * math.sqrt(5)))
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING)
    assert (found.ends_with_marks, found.in_lower_case) == (marked, False)


@pytest.mark.parametrize(("lower", "expected"), [(19, False), (21, True)])
@pytest.mark.parametrize(("end", "noise"), [(0, math.sqrt(4)), (3, math.sqrt(2))], ids=["mark", "capital"])
def test_capitals_stay_unless_it_is_clear_that_most_records_have_none(lower, expected, end, noise):
    """The same, of those without mark or capital over those with a mark, and over those with a capital."""
    texts = [Features(frozenset(), None, 4, 4)] * (10 + lower) + [Features(frozenset(), None, 4, end)] * 10
    scale = round(20 * math.sqrt(0.08) * _core.grid / (2.5 * noise))
    found = of_noisy_sum(row_sum(texts, VOCABULARY, NOTHING), scale, 40, NOTHING)
    assert found.in_lower_case is expected
    assert Histogram.from_dict(found.as_dict()) == found


def test_first_words_in_capitals_are_noise_where_most_records_have_none():
    model = dpf.backends.Scripted([" where", " Where", "\n"], lambda _: [1.0] * 3)
    for lower, firsts in ((False, {0: 0.2, 1: 0.3}), (True, {0: 0.2})):
        found = Histogram({}, {0: 0.2, 1: 0.3}, FLAT, [1.0] * 4, {}, lower)
        assert found.spelled(model).firsts == firsts


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
    assert expected == Expected({parcel: 2.0, refund: 1.0}, [where, parcel, refund])


def test_a_likelier_text_has_the_words_of_the_records():
    common, rare = Features(frozenset({2, 3}), 1, 4, 1), Features(frozenset({8}), 9, 15, 0)
    noiseless = of_noisy_sum(summed([common] * 20 + [rare]), 0, 21, NOTHING)
    flat = replace(noiseless, log_ratios={})
    assert flat.likeness(common) == pytest.approx(0.97 * ((20 / 21) ** 2 + (1 / 21) ** 2), abs=1e-6)
    assert flat.likeness(rare) == pytest.approx(0.97 / 21, abs=1e-6)
    assert noiseless.usual_lengths == {4: pytest.approx(2 * 20 / 21 * math.sqrt(0.08))}


def test_a_text_is_no_likelier_than_the_records_themselves():
    """Of records with one of many words beside a common one, none has the common one alone."""
    texts = [Features(frozenset({2, word}), 1, 4, 1) for word in range(3, 40)]
    mean = of_noisy_sum(summed(texts), 0, len(texts), NOTHING)
    flat = replace(mean, log_ratios={})
    of_records = [flat.likeness(text) for text in texts]
    assert flat.likeness(Features(frozenset({2}), 1, 4, 1)) == pytest.approx(np.mean(of_records), rel=1e-6)


def test_a_words_log_ratio_says_how_much_oftener_the_records_have_it():
    expected = Expected({2: 0.5, 3: 0.5, 4: 1.0, 5: 0.001})
    texts = [Features(frozenset({2, 6}), None, 4, 1)] * 10 + [Features(frozenset({3}), None, 4, 1)] * 90
    found = of_noisy_sum(summed(texts, expected), 0, 100, expected).log_ratios
    share = math.sqrt(0.38 / 2.001)  # of a word that each of the model's own texts has
    assert found[2] == pytest.approx(math.log(0.1 * math.sqrt(0.38) / (0.5 * share)))
    assert found[3] == pytest.approx(math.log(0.9 * math.sqrt(0.46) / (0.5 * share)))
    assert (found[4], found[5], found[6]) == (-3, -3, 3)
    total = summed(texts, expected)
    noisy = of_noisy_sum(total, _core.grid * 100, 100, expected).log_ratios  # what is not clear may be there
    assert not noisy


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
        patched.setattr(HistogramLoop, "_best", interrupted)
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
            second.generate_all(resume=True, keep=[*again, again[0]])
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


class Failing(dpf.backends.LogprobBackend):
    """The model, which fails where it is told to."""

    batch_invariant = True

    def __init__(self, model, *, counting=False, answers=False):
        self.model, self.counting, self.answers = model, counting, answers
        self.vocabulary_size, self.end_token_ids = model.vocabulary_size, model.end_token_ids

    def tokenize(self, text):
        if self.counting and text == " suitcase":
            raise BackendError("the tokenizer is away", retryable=True)
        return self.model.tokenize(text)

    def away(self, *_):
        raise BackendError("the server is away", retryable=True)

    def detokenize(self, tokens):
        return self.model.detokenize(tokens)

    def next_token_logprobs(self, prompts, support=None):
        if self.answers:
            return self.model.next_token_logprobs(prompts, support)
        return np.full((len(prompts), self.vocabulary_size), np.nan, dtype=np.float32)

    def open_block(self, *prompts, **settings):
        """The model's own, which evaluates what prompts share once."""
        return (self.model if self.answers else super()).open_block(*prompts, **settings)


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


@pytest.mark.filterwarnings("error")
def test_odd_answers_are_expected_as_far_as_they_go_and_warn_of_nothing():
    odd = [np.inf, -np.inf, np.nan, 300.0]
    model = dpf.backends.Scripted([f" {letter}" for letter in "abcdefgh"], lambda _: [1.0] * 8)
    answer = model.next_token_logprobs

    def oddly(prompts, support=None):
        rows = answer(prompts, support).copy()
        rows[:, :4] = odd
        return rows

    model.next_token_logprobs = oddly
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=3)
    expected = loop._expected(request)  # noqa: SLF001 - before anything is charged
    assert expected == Expected(firsts=[0, 3, 4, 5, 6, 7])  # these are no subjects


@pytest.mark.parametrize("possible", [True, False])
def test_words_become_likelier_until_a_text_has_them_and_others_less_so(possible):
    words = [f" {letter * 3}" for letter in "abcdefgh"]
    each = 1 / (7 + possible)
    model = dpf.backends.Scripted(words, lambda _: [each * possible, *[each] * 7])
    histogram = Histogram({0: 0.4, 1: 0.1}, {}, FLAT, [1.0] * 4, {1: 3.0, 2: -3.0})
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    begun = [_Candidate(loop.draft()) for _ in range(1000)]
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    style = loop._style(histogram, 3)  # noqa: SLF001
    written = loop._written(begun, PublicRequest(prompts=prompts, max_tokens=3), style)  # noqa: SLF001
    places = [Counter(one.tokens[place] for one in written if len(one.tokens) > place) for place in (0, 1)]
    assert (places[0][0] > 500) is possible
    assert places[1][0] < 375  # about 700 if those that have it already sought it again
    assert places[0][1] > places[0][2]
    assert places[1][3] > places[1][2]
    logprobs = [logprob for one in written for logprob in one.logprobs]
    assert logprobs == pytest.approx([math.log(each)] * len(logprobs), rel=1e-4)  # the model's own


def test_names_are_likely_and_not_words_that_are_likelier_in_small_letters():
    words = [" going", " Going", " Rome", " Oslo", " Visa", " I"]
    loop = HistogramLoop(dpf.backends.Scripted(words, lambda _: [1 / 6] * 6), SUPPORT_TICKETS.layout)
    scores = np.log([0.4, 0.2, 0.2, 0.015, 0.1, 0.1])  # Oslo's is 3.3 below the largest
    style = _Style(named=True, prompt=frozenset({"visa"}))
    names = loop._likely_names([*range(6)], scores, style)  # noqa: SLF001 - as they gain
    assert names == [2]


@pytest.mark.parametrize("named", [True, False])
def test_a_text_that_shall_have_a_name_seeks_one_until_it_has_it(named):
    words = [" team", " won", " Rome", " Oslo"]
    model = dpf.backends.Scripted(words, lambda _: [0.3, 0.3, 0.2, 0.2])
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    begun = [_Candidate(loop.draft([place % 3])) for place in range(1500)]
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    style = _Style(named=named)
    written = loop._written(begun, PublicRequest(prompts=prompts, max_tokens=3), style)  # noqa: SLF001
    seconds = Counter(one.tokens[1] > 1 for one in written)
    thirds = Counter(one.tokens[2] > 1 for one in written if one.tokens[1] > 1)
    assert (seconds[True] > 800) is named  # 1,051 and 540 of 1,500 are expected
    assert thirds[True] < 550  # 378 of 1,051 are; if a name were not seen, 736


@pytest.mark.parametrize(
    "shares", [(0.5, 0.2, 0.2), (0.5, 0.4, 0.1), (0.5, 0.6, 0.0), (0.5, 0.5), (0.9, 0.1)]
)
def test_texts_begin_with_known_first_words_by_their_shares_or_as_often_as_the_rarest_freely(shares):
    *known, freely = shares
    model = dpf.backends.Scripted([" where", " why", "\n"], lambda _: [0.1, 0.1, 0.8])
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    firsts = {place: share * math.sqrt(0.35) for place, share in enumerate(known)}
    histogram = Histogram({}, firsts, FLAT, [1.0] * 4, {})
    drawn = Counter(tuple(loop._beginning(histogram)) for _ in range(2000))  # noqa: SLF001
    expected = {(place,): share for place, share in enumerate(known)} | {(): freely}
    places = [place for place, share in expected.items() if share]
    total = sum(expected.values())
    chance = stats.chisquare(
        [drawn[place] for place in places], [2000 * expected[place] / total for place in places]
    ).pvalue
    assert drawn.total() == sum(drawn[place] for place in places)
    assert chance > IMPOSSIBLE
    assert loop._beginning(replace(histogram, firsts={})) == []  # noqa: SLF001


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


def test_what_ends_a_text_is_no_word_and_what_is_excluded_is_no_token():
    model = dpf.backends.Scripted([" where", " is", "\n"], lambda _: [0.3, 0.3, 0.4], end_token_ids={0})
    flat = Histogram({}, {0: 0.5, 1: 0.5}, FLAT, [1.0] * 4, {})
    assert flat.spelled(model).firsts == {1: 0.5}
    assert histogram_loop._among(np.zeros(3), frozenset({0, 2})) == [1]  # noqa: SLF001 - no text shows it


@pytest.mark.parametrize(
    ("topic", "best"), [("a knee or hip hurts", "hip hurts."), ("a hip", "knee or hip hurts.")]
)
def test_a_text_that_leaves_open_what_its_subject_does_is_behind_others(topic, best):
    model = dpf.backends.Scripted([" knee", " or", " hip", " hurts", ".", "\n"], lambda _: [1 / 6] * 6)
    loop = HistogramLoop(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0).layout)
    written = [_Candidate(loop.draft()) for _ in range(2)]
    for one, tokens, logprob in zip(written, ([0, 1, 2, 3, 4, 5], [2, 3, 4, 5]), (-0.1, -9.0), strict=True):
        for token in tokens:
            one.add(token, logprob)
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=9, topic=f"Refund: {topic}")
    flat = Histogram({}, {}, FLAT, [1.0] * 4, {})
    assert loop._best(written, flat, request, _Style()).text == best  # noqa: SLF001


def test_a_text_with_a_models_words_is_behind_all_others():
    words = [" where", " [name]", " 12345678", " Team A", " to account B", " XXXXX", " XYZ"]
    words += [" Dr.X", " the Clinic Name", " Subject: a refund"]
    words += [" this encyclopedia entry", " this text describes"]
    words += [" May we help you", " contact your bank", " contact our bank", " your account"]
    words += [" would you like", " of the given text", " in this image", " the sentence"]
    words += [" try our card payment service", " do you have any questions"]
    words += [
        " Mr./Mrs.",
        " Mrs., she",
        " your daughter",
        " Hi, Mommy",
        " Dear dad",
        " The client has",
        " our users report",
    ]
    words += [
        " this is an artist's description",
        " this article",
        " a broad category that",
        " the latest AI trends",
        " ABC Corp",
        " Jane Doe",
    ]
    words += [
        " the client's",
        " a client of",
        " your service",
        " Mrs. Dad",
        " your kid",
        " Hi, Tom",
        " John D",
        " your bank",
        " I would like",
        " this text",
        " in a picture",
        ".",
        "\n",
    ]
    model = dpf.backends.Scripted(words, lambda _: [1 / len(words)] * len(words))
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    flat = Histogram({}, {}, FLAT, [1.0] * 4, {})
    written = [_Candidate(loop.draft([0, 0, word])) for word in range(len(words) - 2)]
    for one in written:
        for token in (len(words) - 2, len(words) - 1):
            one.add(token, -1.0)
    flaws = [one.worth(flat, model.tokenize, [], _Style())[0] for one in written]
    assert flaws == [0, *[-8] * 34, *[0] * 11]


def test_a_text_that_says_what_an_earlier_one_does_is_behind_others():
    words = [" Hello", " Hi", " please", " cancel", " my", " policy", " I", " sold", " it", ".", "\n"]
    model = dpf.backends.Scripted(words, lambda _: [1 / 11] * 11)
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    histogram = Histogram({}, {1: 0.2}, FLAT, [1.0] * 4, {})
    written = [_Candidate(loop.draft(first)) for first in ([0, 2, 3, 4, 5], [1, 2, 3, 4, 5], [6, 7, 8])]
    for one in written:
        one.add(9, -1.0)
        one.add(10, -1.0)
    alone = [one.worth(histogram, model.tokenize, [], _Style()) for one in written]
    assert max(alone) == alone[1]
    written.append(_Candidate(loop.draft([6, 7])))  # it ends no sentence
    again, greeted, new, unended = (
        one.worth(histogram, model.tokenize, [written[0].text], _Style()) for one in written
    )
    assert new > greeted > unended > again


@pytest.mark.parametrize(
    ("text", "earlier", "behind"),
    [
        ("I sold it today with no reason.", "I sold it.", True),  # of the words of the shorter one
        ("I sold it.", "Please cancel, I sold it today.", True),
        ("I Sold my car.", "i sold it.", False),  # two of three
        ("I sold my car today.", "I sold my policy then.", False),
        ("I sold my sold my.", "I sold a car today.", False),  # distinct words
    ],
)
def test_a_text_is_another_with_a_third_of_its_words_new(text, earlier, behind):
    words = [*dict.fromkeys(f" {word}" for word in text[:-1].split()), ".", "\n"]
    model = dpf.backends.Scripted(words, lambda _: [1 / len(words)] * len(words))
    one = _Candidate(HistogramLoop(model, SUPPORT_TICKETS.layout).draft(model.tokenize(f" {text}\n")))
    assert one.text == text
    flat = Histogram({}, {}, FLAT, [1.0] * 4, {})
    alone, beside = (
        one.worth(flat, model.tokenize, others, _Style())[0] for others in ([], ["Other.", earlier])
    )
    assert (beside < alone) is behind


def written_in_style(style, sentence, max_tokens=30):
    """What 50 candidates become of a model that repeats three words, and would end at any place."""
    words = [" where", " is", " it", sentence, "\n", "<|begin|>"]
    chances = [0.1, 0.1, 0.1, 0.4, 0.2, 0.1]
    model = dpf.backends.Scripted(words, lambda _: chances, end_token_ids={4})
    model.tokenize = lambda text: [] if "<" in text else type(model).tokenize(model, text)  # it is no text
    loop = HistogramLoop(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0).layout)
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=max_tokens)
    return loop._written([_Candidate(loop.draft([0])) for _ in range(50)], request, style)  # noqa: SLF001


@pytest.mark.parametrize(("words", "least"), [(None, 1), (1, 1), (10, 7), (16, 11)])
def test_no_text_ends_long_before_the_records_do(words, least):
    found = written_in_style(_Style(words=words), "?")
    assert min(len(one.text.removesuffix("?").split()) for one in found) == least
    assert not any("<" in one.text for one in found)


@pytest.mark.parametrize(
    ("words", "theirs", "said"), [(24, (), False), (10, (), True), (24, (" thank",), True)]
)
def test_a_long_text_is_not_filled_up_with_courtesies_unless_the_records_have_them(words, theirs, said):
    vocabulary = [" thank", " Please", " let", " me", ".", "\n"]
    model = dpf.backends.Scripted(vocabulary, lambda _: [0.3, 0.1, 0.1, 0.3, 0.1, 0.1], end_token_ids={5})
    loop = HistogramLoop(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0).layout)
    lengths = [float(each == round(2 * math.log2(words))) for each in range(16)]
    counted = Histogram({vocabulary.index(word): 0.3 for word in theirs}, {}, lengths, [1.0] * 4, {})
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=60)
    style = loop._style(counted, 60)  # noqa: SLF001
    begun = [_Candidate(loop.draft([3])) for _ in range(20)]
    texts = [one.text for one in loop._written(begun, request, style)]  # noqa: SLF001
    assert any("thank" in text for text in texts) is said
    assert any("Please let" in text for text in texts) is (words == 10)
    assert any("me let" in text for text in texts)


@pytest.mark.parametrize("theirs", [(), (" reaches",)])
def test_no_text_has_a_letters_formalities_unless_the_records_have_their_words(theirs):
    vocabulary = [" email", " reaches", " we", ".", "\n"]
    model = dpf.backends.Scripted(vocabulary, lambda _: [0.4, 0.3, 0.1, 0.1, 0.1], end_token_ids={4})
    loop = HistogramLoop(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0).layout)
    counted = Histogram({vocabulary.index(word): 0.3 for word in theirs}, {}, [0.0] * 16, [1.0] * 4, {})
    request = PublicRequest(
        prompts=PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund"), max_tokens=12
    )
    begun = [_Candidate(loop.draft([2])) for _ in range(30)]
    written = loop._written(begun, request, loop._style(counted, 12))  # noqa: SLF001
    assert any("email reaches" in one.text for one in written) is bool(theirs)
    assert any("reaches email" in one.text for one in written)


@pytest.mark.parametrize(
    ("task", "theirs", "commonest", "said"),
    [
        ("Write. | the jumper broke", (), 0, {"lamp"}),
        ("Write. | the Jumper broke", (), 0, {"lamp"}),
        ("Write of a jumper. | the jumper broke", (), 0, {"jumper", "lamp"}),
        ("Write. | the jumper broke", (" broke",), 0, {"broke", "lamp"}),
        ("Write. | the jumper broke", (), 3, {"jumper", "broke", "lamp"}),
        ("Write. | ", (), 0, {"jumper", "broke", "lamp"}),
    ],
)
def test_a_text_takes_no_subject_from_the_made_up_example(monkeypatch, task, theirs, commonest, said):
    """Unless its prompt or the records have the word, too, or it is a common one, which says no subject."""
    instruction, example = task.split(" | ")
    vocabulary = [" jumper", " broke", " lamp", "\n"]
    model = dpf.backends.Scripted(vocabulary, lambda _: [0.3, 0.3, 0.3, 0.1], end_token_ids={3})
    monkeypatch.setattr(histogram_loop, "COMMONEST", commonest)
    monkeypatch.setattr(model, "detokenize", lambda tokens: type(model).detokenize(model, tokens) or task)
    layout = replace(SUPPORT_TICKETS, instruction=instruction, example=example, no_repeat_ngram_size=0).layout
    loop = HistogramLoop(model, layout)
    counted = Histogram({vocabulary.index(word): 0.3 for word in theirs}, {}, [0.0] * 16, [1.0] * 4, {})
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=40)
    style = loop._style(counted, 40)  # noqa: SLF001
    begun = [_Candidate(loop.draft([2])) for _ in range(20)]
    texts = [one.text for one in loop._written(begun, request, style)]  # noqa: SLF001
    assert set(" ".join(texts).split()) == said


@pytest.mark.parametrize("lower", [False, True])
def test_only_a_long_text_has_several_sentences(lower):
    """In small letters it has none: records without capital letters have no marks."""
    found = written_in_style(_Style(words=24, lower=lower), "?", 200)
    assert min(len(one.text.split()) for one in found) >= 16
    assert all("?" in one.text[:-1] for one in found) is not lower
    assert not any("<" in one.text for one in found)


@pytest.mark.parametrize(
    ("ends", "sentence", "share"),
    [
        ([0.1, 0.0, 0.0, 0.2], "?", 0),
        ([0.0, 0.1, 0.1, 0.2], "?", 0.2),  # half of the records: as the model ends it
        ([0.1, 0.0, 0.0, 0.2], '?"', 0.2),  # a quotation that has begun is ended
    ],
)
def test_texts_end_without_a_mark_if_most_records_do(ends, sentence, share):
    histogram = Histogram({}, {}, [0.0] * 16, ends, {})
    found = written_in_style(_Style(marks=histogram.ends_with_marks), sentence)
    marked = [one.text.endswith(sentence) for one in found]
    assert (sum(marked) / 50 > share) if share else not any(marked)
    assert not any(one.draft.cut_off for one in found)


@pytest.mark.parametrize(
    ("said", "max_tokens", "text"),
    [
        (" where is Paris?\n", 6, "where is paris?"),
        (" where is Paris?\n", 5, "where is Paris?"),  # small letters take a token more
        (" where is Paris", 6, "where is Paris"),  # cut off: the model completes it as it writes
        (" Rome?\n", 6, "Rome?"),  # which no token spells in small letters
    ],
)
def test_a_text_is_spelled_in_small_letters_where_that_can_be(said, max_tokens, text):
    words = [" where", " is", " Paris", " par", "is", "?", "\n", " Rome"]
    model = dpf.backends.Scripted(words, lambda _: [1 / 8] * 8, end_token_ids={6})
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    one = _Candidate(loop.draft(model.tokenize(said)))
    spelled = loop._in_lower_case(one, max_tokens)  # noqa: SLF001 - of the candidate that was chosen
    assert (loop.draft(spelled).text(), loop.ended(spelled)) == (text, said.endswith("\n"))


def test_a_text_in_small_letters_has_no_mark():
    """That most have neither says that most have no mark, whatever the noise made of that."""
    loop = HistogramLoop(dpf.backends.Scripted([" where"], lambda _: [1.0]), SUPPORT_TICKETS.layout)
    for lower in (False, True):
        style = loop._style(Histogram({}, {}, FLAT, [0.2, 0.0, 0.0, 0.1], {}, lower), 30)  # noqa: SLF001
        assert (style.lower, style.marks) == (lower, not lower)


@pytest.mark.parametrize(("words", "told"), [({}, True), ({1: 0.1}, False)], ids=["not theirs", "theirs"])
def test_a_text_that_names_its_labels_field_is_behind_unless_records_do(words, told):
    model = dpf.backends.Scripted([" in", " queue", "\n"], lambda _: [0.1, 0.2, 0.7])
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout, label_field="Queue")
    style = loop._style(Histogram(words, {}, FLAT, [1.0] * 4, {}), 30)  # noqa: SLF001 - as it is chosen by
    assert style.is_told_in("Is there a queue?") is told
    assert not style.is_told_in("I queued for hours.")


@pytest.mark.parametrize(
    ("style", "text", "little"),
    [
        (_Style(), "hi", True),
        (_Style(), "I sold it.", False),
        (_Style(words=1), "hi", False),
        (_Style(words=12), "Sold it.", True),
    ],
)
def test_a_text_of_one_word_says_little_unless_the_records_are_so(style, text, little):
    assert style.says_little(text) is little


@pytest.mark.parametrize(
    ("fitting", "best"),
    [((), "in Rome"), (("in Rome", "at it"), "in Rome"), (("in Sports", "at it"), "at it")],
)
def test_a_text_with_a_name_is_before_others_of_its_label(fitting, best):
    words = [" in", " Rome", " at", " it", " Sports", "\n"]
    model = dpf.backends.Scripted(words, lambda _: [1 / 6] * 6)
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    written = [_Candidate(loop.draft(tokens)) for tokens in ([2, 3, 5], [0, 4, 5], [0, 1, 5])]
    written[0].logprobs.append(3.0)  # the likest
    request = PublicRequest(prompts=None, max_tokens=3, fits=lambda text: text in fitting)
    style = _Style(named=True, prompt=frozenset({"sports"}))
    assert loop._best(written, Histogram({}, {}, FLAT, [1.0] * 4, {}), request, style).text == best  # noqa: SLF001


def test_a_text_that_names_the_length_that_its_prompt_told_is_behind_all_others():
    model = dpf.backends.Scripted(
        [" a", " film", " of", " 16", " 160", " minutes", ".", "\n"], lambda _: [0.1] * 8
    )
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    flat = Histogram({}, {}, FLAT, [1.0] * 4, {})
    leaky, other = (_Candidate(loop.draft([0, 1, 2, number, 5, 6, 7])) for number in (3, 4))
    worths = [
        [one.worth(flat, model.tokenize, [], _Style(prompted=told))[0] for one in (leaky, other)]
        for told in ((), ("16",))
    ]
    assert worths[0][0] == worths[0][1] == worths[1][1] > worths[1][0]


@pytest.mark.parametrize(
    ("fitting", "best", "asked"),
    [
        ({"aaa", "bbb", "ccc"}, "aaa", 1),
        ({"bbb", "ccc"}, "bbb", 2),
        ({"ccc"}, "ccc", 3),
        ({"aaa 1234", "ddd"}, "aaa", 3),  # one has a place for a number, one repeats an earlier text
    ],
)
def test_the_likest_of_the_whole_and_new_texts_that_fit_their_label_is_released(fitting, best, asked):
    words = [" aaa", " bbb", " ccc", " ddd", " 1234", "\n"]
    model = dpf.backends.Scripted(words, lambda _: [1 / 6] * 6)
    histogram = Histogram({}, {}, FLAT, [1.0] * 4, {})
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    texts = {(2, 5): -3.0, (3, 5): -1.0, (1, 5): -2.0, (0, 4, 5): -1.0, (0, 5): -1.0}
    written = [_Candidate(loop.draft(tokens), [logprob]) for tokens, logprob in texts.items()]
    found = []
    fits = lambda text: found.append(text) or text in fitting  # noqa: E731
    request = PublicRequest(prompts=None, max_tokens=3, earlier=["ddd"], fits=fits)
    assert loop._best(written, histogram, request, _Style()).text == best  # noqa: SLF001 - as released
    assert found == ["aaa", "bbb", "ccc"][:asked]  # no more than needed: each takes time


def test_a_cancelled_check_releases_nothing_and_what_was_written_alike_is_asked_once():
    model = dpf.backends.Scripted([" aaa", " bbb", "\n"], lambda _: [0.3, 0.3, 0.4])
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    written = [_Candidate(loop.draft(tokens)) for tokens in ([0, 2], [0, 2], [1, 2])]
    stop, found = StopSignal(), []
    fits = lambda text: found.append(text) or (len(found) == 2 and stop.set())  # noqa: E731
    request = PublicRequest(prompts=None, max_tokens=3, fits=fits, stop=stop)
    flat = Histogram({}, {}, FLAT, [1.0] * 4, {})
    assert loop._best(written, flat, request, _Style()).text == "aaa"  # noqa: SLF001 - none fits
    assert found == ["aaa", "bbb"]
    with pytest.raises(Stopped):
        loop._best(written, flat, request, _Style())  # noqa: SLF001


def test_generation_checks_each_text_for_its_own_label(model, monkeypatch):
    asked = []
    monkeypatch.setattr(SetUp, "fits", lambda _, label, text: asked.append((label, text)) or len(asked) > 2)
    made = synthesizer(model).generate("Refund")
    assert 1 <= len(asked) <= 3  # chance decides how many candidates are whole
    assert {label for label, _ in asked} == {"Refund"}
    released = asked[2 if len(asked) > 2 else 0][1]  # the one that fits, or else the likest
    assert made.text.startswith(released)  # an unended one is completed


def test_a_text_without_records_reads_none_costs_nothing_and_knows_earlier_ones(model, monkeypatch):
    monkeypatch.setattr(SetUp, "bodies", None)  # which would read records
    write, asked = HistogramLoop._text, []  # noqa: SLF001

    def watched(loop, histogram, request, candidates):
        asked.append((histogram, request.earlier))
        return write(loop, histogram, request, candidates)

    monkeypatch.setattr(HistogramLoop, "_text", watched)
    made = synthesizer(model)
    first = made.set_up.without_records("Refund", [], 8).text
    assert first
    assert made.set_up.without_records("Refund", [first], 8).text
    assert asked == [(Histogram(), []), (Histogram(), [first])]
    assert made.account.spent == dpf.PrivacySpend(0, 0)


COLOURS = ("dark red", "dark blue", "pale pink hue", "pale pink tone")


def checked(of_text, of_dark=(), of_pink=(), of_nothing=(1 / 9,) * 9, labels=COLOURS):
    """A set-up whose model answers so behind a rose and the beginnings of labels, and what has no content."""
    words = ["\n", " dark", " pale", " red", " blue", " pink", " hue", " tone", " rose"]

    def next_token(prompt):
        behind = {1: of_dark, 5: of_pink}.get(prompt[-1], [0] * 5 + [1] if prompt[-1] == 2 else of_text)
        known = list(behind if 8 in prompt else of_nothing)
        return [*known, *[0.0] * (9 - len(known))]

    task = dpf.Task("colours", "Write.", "Kind", "Text", labels)
    budget, model = dpf.PrivacyBudget(1, 1e-5), dpf.backends.Scripted(words, next_token)
    records = [dpf.Record("rose", label) for label in labels] * 20
    run = dpf.Synthesizer(task, records, model, budget=budget, mechanism=WordHistogram(), max_tokens=3)
    return run.set_up


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("answers", "fitting"),
    [
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 0.3, 0.7]}, [1]),
        ({"of_text": [0, 0.6, 0.4], "of_dark": [1]}, [0, 1]),  # it cannot say which
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 0.7]}, [0]),  # the other one is less likely
        ({"of_text": [0, 0.4, 0.6], "of_pink": [*[0] * 6, 0.6, 0.4]}, [2]),
        ({"of_text": [0, 0.4, 0.6], "of_pink": [*[0] * 6, 0.4, 0.6]}, [3]),
        ({"of_text": [1], "of_dark": [1], "of_pink": [1]}, [0, 1, 2, 3]),
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 1], "of_nothing": [0, 0.8, 0.2]}, [2, 3]),
        ({"of_text": [0, 0.6, 0.4], "of_dark": [0, 0, 0, 1], "of_nothing": [0, 0.5, 0]}, [0]),
        ({"of_text": [0, 0.1, 0.9], "of_pink": [*[0] * 7, 1], "of_nothing": [0, 0.5, 0]}, [3]),
        ({"of_text": [0, np.nan, 0.9], "of_pink": [*[0] * 7, 1], "of_nothing": [0, np.nan, 0.9]}, [3]),
    ],
)
def test_a_text_fits_the_label_that_the_model_writes_and_any_if_it_knows_none(answers, fitting):
    set_up = checked(**answers)
    assert [COLOURS.index(label) for label in COLOURS if set_up.fits(label, "rose")] == fitting


def test_texts_without_content_are_weighed_together_and_asked_about_once():
    set_up, asked = checked([0, 0.6, 0.4], [0, 0, 0, 1]), []
    answer = set_up.backend.next_token_logprobs

    def biased(prompts, support):
        asked.append(len(prompts))
        rows = answer(prompts, support)
        return rows + np.log([[0.1, 1], [0.1, 1], [9, 1]]) if len(prompts) == 3 and 1 in support else rows

    set_up.backend.next_token_logprobs = biased  # together they have 9.2 to 3 for "dark": it is the bias
    assert not any(set_up.fits("dark red", "rose") for _ in range(2))
    assert asked.count(3) == asked.count(1) / 2


def test_a_model_that_is_away_is_an_error_and_one_that_fails_or_cannot_label_says_nothing():
    set_up = checked([0, 0.4, 0.6])
    assert not set_up.fits("dark red", "rose")
    for answer in (Failing(set_up.backend).away, lambda *_: np.zeros((9, 9))):
        set_up.backend.next_token_logprobs = answer
        with pytest.raises(BackendError, match="away") if "away" in answer.__name__ else nullcontext():
            assert set_up.fits("dark red", "rose")
    for name, value in (("vocabulary_size", 2), ("context_tokens", 3), ("tokenize", {}.__getitem__)):
        unable = checked([0, 0.4, 0.6])
        setattr(unable.backend, name, value)
        assert unable.fits("dark red", "rose")


def test_one_label_needs_no_check():
    set_up = checked([1], labels=("dark red",))
    set_up.backend.next_token_logprobs = Failing(set_up.backend).away
    assert set_up.fits("dark red", "rose")


def test_a_check_that_rounding_would_decide_says_nothing():
    set_up = checked([0, 0.5, 0.5 - 1e-6], [0, 0, 0, 1], [*[0] * 6, 1])
    assert all(set_up.fits(label, "rose") for label in ("dark red", "pale pink hue"))


@pytest.mark.parametrize(("most", "max_tokens", "told"), [(2, 40, 8), (1, 40, ""), (2, 8, 6), (2, 1, 1)])
def test_a_length_is_told_in_few_tokens_and_never_one_beyond_the_text(monkeypatch, most, max_tokens, told):
    monkeypatch.setattr(histogram_loop, "MOST_HINT", most)
    model = dpf.backends.Scripted(
        ["\nLength:", *(f" {each} words" for each in range(9))], lambda _: [0.1] * 10
    )
    loop = HistogramLoop(model, SUPPORT_TICKETS.layout)
    of_eight = Histogram({}, {}, [0.0] * 6 + [1.0] + [0.0] * 9, [1.0] * 4, {})
    hint = model.detokenize(loop._hint(loop._style(of_eight, max_tokens).words))  # noqa: SLF001 - no text shows it
    assert hint == (f"\nLength: {told} words" if told else "")


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
        (dpf.Task("free", "Write.", "Kind", "Text", None), Settings(), "given labels"),
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
