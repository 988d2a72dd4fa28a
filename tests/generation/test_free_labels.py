"""Where labels are free, one count of all records serves texts of every label, and reads no label."""

import pytest

import dpfewshot as dpf
from dpfewshot.errors import BudgetExceeded
from dpfewshot.generation import histogram_loop
from dpfewshot.generation.histogram_loop import HistogramLoop
from dpfewshot.writing.writer import HistogramWriter
from tests.support.small_models import small

FIXTURES = (small,)

TASK = dpf.Task("films", "Write a question about a film of the director.", "Director", "Text", None)
BUDGET = dpf.PrivacyBudget(2, 1e-5)


@pytest.fixture(scope="module")
def model(small):
    return dpf.backends.LlamaCpp(small)


def films(director="anna bell", *, number=60):
    return [dpf.Record(f"what film number {each} is about war", director) for each in range(number)]


def synthesizer(model, *labels, records=(), **options):
    return dpf.Synthesizer(
        TASK, records or films(), model, budget=BUDGET, labels=labels, max_tokens=6, **options
    )


def test_one_count_serves_any_labels_later_ones_too(model, tmp_path):
    account = dpf.open_account(f"sqlite:///{tmp_path}/b.db", "films", create=BUDGET)
    first = synthesizer(model, "one", "two", account=account).generate_all()
    spent = account.spent
    assert 1.99 < spent.epsilon <= 2
    more = synthesizer(model, "two", "three", account=account)
    with pytest.raises(BudgetExceeded):
        synthesizer(model, "three", records=films(number=61), account=account).generate("three")
    labels = [one.label for one in more.generate_all(resume=True)]
    assert labels.count("three") == 1
    assert account.spent == spent
    assert {one.mechanism for one in first} == {"word-histogram"}


def test_no_count_has_a_records_label(model, monkeypatch):
    """The integers are the same for records that differ in their labels alone."""
    sums = []

    def summed(*given):
        sums.append(row_sum(*given))
        return sums[-1]

    row_sum = histogram_loop.row_sum
    monkeypatch.setattr(histogram_loop, "row_sum", summed)
    monkeypatch.setattr(HistogramWriter, "expected", lambda *_: histogram_loop.Expected())
    for director in ("anna bell", "war film"):
        synthesizer(model, "one", records=films(director)).generate("one")
    assert sums[0].any()
    assert (sums[0] == sums[1]).all()


def test_control_bodies_of_prompts_have_the_label(model):
    """What the test above would count, if a record were read as for a prompt."""
    set_up = synthesizer(model, "one").set_up
    texts = [model.detokenize(each) for each in map(set_up.writer.body, films()[:1])]
    assert "anna bell" in texts[0]
    [[counted]] = set_up.bodies(set_up.plan.strata[0], 0).of([[(0, 0)]])
    assert model.detokenize(counted).strip() == films()[0].text


def test_a_text_has_its_label_in_its_words_and_the_model_is_not_asked(model, monkeypatch):
    check = synthesizer(model, "Anna Bell").set_up.label_check
    monkeypatch.setattr(model, "next_token_logprobs", None)
    assert check.fits("Anna Bell", "what did anna  bell direct")
    assert check.fits("Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}", "who is zoe\N{COMBINING DIAERESIS}?")
    assert not check.fits("Anna Bell", "what did anna direct")
    assert not check.fits("Anna Bell", "what did joanna bell direct")


def test_a_text_differs_from_those_of_all_labels(model, monkeypatch):
    asked = []
    of_loop = HistogramLoop.tokens
    monkeypatch.setattr(
        HistogramLoop, "tokens", lambda self, request: asked.append(request.earlier) or of_loop(self, request)
    )
    made = synthesizer(model, "one", "two").generate_all()
    assert asked == [[], [made[0].text]]


def test_texts_of_labels_that_a_call_does_not_name_stay(model, tmp_path):
    account = dpf.open_account(f"sqlite:///{tmp_path}/b.db", "films", create=BUDGET)
    first = synthesizer(model, "one", "two", account=account).generate_all(resume=True)
    with synthesizer(model, "three", account=account) as further:
        replaced = further.generate_all(resume=True)
        further.generate_all(resume=True, keep=[])
    texts = [one.text for one in synthesizer(model, "one", "two", account=account).generate_all(resume=True)]
    assert texts == [one.text for one in first]
    stand = synthesizer(model, "three", account=account).generate_all(resume=True)
    assert stand[0].text != replaced[0].text


@pytest.mark.parametrize("labels", [("one", None), ("one", 3), ("one", "a\nb"), ("\udce9",), "one"])
def test_what_is_no_label_is_refused_before_anything_is_charged(model, tmp_path, labels):
    account = dpf.open_account(f"sqlite:///{tmp_path}/b.db", "films", create=BUDGET)
    with pytest.raises(dpf.DPFewShotError, match=r"the task's label |a label for each letter"):
        dpf.Synthesizer(TASK, films(), model, budget=BUDGET, labels=labels, account=account)
