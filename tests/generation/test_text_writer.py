"""A chat model that writes texts from a released histogram: what it is told, and whatever it answers."""

import itertools
import re
import sys
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.audit.certified import check_certificates
from dpfewshot.errors import BackendError, InvalidPlan, MissingExtra
from dpfewshot.generation.brief import ASKED, Brief
from dpfewshot.generation.generation import unaccounted
from dpfewshot.generation.token_loop import COMPLETION
from dpfewshot.mechanisms import InvisibleInk, WordHistogram
from dpfewshot.mechanisms.word_histogram import Histogram
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from tests.support.servers import llama_server, scripted
from tests.support.small_models import small

FIXTURES = (small,)

BRIEF = {
    "preamble": "Write a ticket.\n\n",
    "topic": "Queue: Keys",
    "words": None,
    "most_words": 9,
    "firsts": (),
    "known": (),
    "marks": True,
    "lower": False,
    "earlier": (),
    "multiline": False,
}


def brief(**settings):
    return Brief(**(BRIEF | settings))


def texts(answer, **settings):
    return brief(**settings).texts(lambda _: answer)


def test_a_writer_is_told_the_task_and_what_is_known_of_the_records():
    assert str(brief()) == (
        "Write a ticket.\n\nQueue: Keys\n\n"
        f"Write {ASKED} texts, as {ASKED} people would who know nothing of each other,\n"
        "each on a line of its own, without a number and without anything else.\n"
        "At most 9 words each."
    )
    told = str(
        brief(words=4, firsts=["My"], known=["key", "lock"], marks=False, earlier=["a", "b"], multiline=True)
    )
    assert "with a blank line between them" in told
    assert told.endswith(
        "About 4, and at most 9, words each.\nReal ones often begin with: My.\n"
        "Words of real ones, the commonest first: key, lock. Use them where they fit, a few in each, and "
        "none for its own sake.\nReal ones end without a mark.\n"
        "Yours differ from these, which are there already:\na\nb"
    )
    assert str(brief(lower=True, marks=False)).endswith("Real ones have no capital letters and no marks.")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("one\ntwo", ["one", "two"]),
        ("1. one\n2) two\n- three\n* 4 keys\n\u2022 five", ["one", "two", "three", "4 keys", "five"]),
        ('"one"\n\u201ctwo\u201d\n"a" or "b"', ["one", "two", '"a" or "b"']),
        ("Here are six texts:\n\n```\none\n```", ["one"]),
        ("<think>Two?\nThree?</think>\none", ["one"]),
        ("3.5 % is too much\n-5 degrees", ["3.5 % is too much", "-5 degrees"]),
        ("one  two\x0bthree\r\n\x1b[31mred\u2028", ["one two three", "[31mred"]),
    ],
)
def test_what_stands_around_texts_is_taken_off(answer, found):
    assert texts(answer) == found


def test_texts_of_several_lines_are_parted_by_blank_ones():
    assert texts("1. one\ntwo\n\nthree", multiline=True) == ["one\ntwo", "three"]


@pytest.mark.parametrize("answer", ["", "\n \n", "<think>I will", "Here they are:"])
def test_an_answer_without_a_text_is_an_error_and_may_be_asked_for_again(answer):
    with pytest.raises(BackendError, match="wrote no text") as raised:
        texts(answer)
    assert raised.value.retryable


def test_a_writer_that_fails_or_returns_no_text_is_one_error():
    def failing(_):
        raise ValueError("a key")

    with pytest.raises(BackendError, match="the text writer failed with ValueError") as raised:
        brief().texts(failing)
    assert raised.value.retryable
    with pytest.raises(BackendError, match="must return text, not NoneType"):
        texts(None)


# ---- in a run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(small):
    with dpf.backends.LlamaCpp(small, context_tokens=256, kept_prompts=15, threads=1) as backend:
        yield backend


class Writer:
    """Writes other texts each time, and keeps what it was told."""

    model = "large-1"

    def __init__(self, lines=("I want my money back.", "Please pay me back, number {}.")):
        self.lines, self.prompts, self.numbers = lines, [], itertools.count()

    def __call__(self, prompt):
        self.prompts.append(prompt)
        return "\n".join(self.lines).format(*[next(self.numbers)] * 9)


def synthesizer(model, writer, **settings):
    given = {"budget": dpf.PrivacyBudget(4, 1e-5), "max_tokens": 20, "mechanism": WordHistogram()}
    task, records = settings.pop("task", SUPPORT_TICKETS), settings.pop("records", support_tickets())
    return dpf.Synthesizer(task, records, model, labels=["Refund"], text_writer=writer, **(given | settings))


def test_texts_are_the_writers_and_it_is_told_the_noisy_histogram_alone(model):
    writer = Writer()
    run = synthesizer(model, writer, shots_per_label=3)
    made = run.generate_all()
    assert [one.text for one in made] == [
        "I want my money back.",
        "Please pay me back, number 1.",
        "Please pay me back, number 2.",
    ]
    assert all(one.certified and one.finished for one in made)
    assert {one.certificate.model for one in made} == {"claimed:large-1"}

    [stratum] = run._generation.runs  # noqa: SLF001 - nothing shows it
    histogram = Histogram.from_dict(stratum.reservation.histogram).spelled(model)
    known, firsts = (
        [model.detokenize([token]).strip() for token in sorted(some, key=some.get, reverse=True)]
        for some in (histogram.words, histogram.firsts)
    )
    assert known
    lengths = {f"About {min(words, 13)}, and at most 13, words each." for words in histogram.usual_lengths}
    for prompt in writer.prompts:
        told, _, rest = prompt.partition(" words each.\n")
        assert told.startswith(SUPPORT_TICKETS.instruction + "\n\nCategory: Refund\n\nWrite ")
        assert f"{told.splitlines()[-1]} words each." in lengths or "\nAt most 13" in told
        assert f"Words of real ones, the commonest first: {', '.join(known[:40])}. " in rest
        assert (f"often begin with: {', '.join(firsts[:12])}." in rest) == bool(firsts)
    assert writer.prompts[1].endswith("there already:\nI want my money back.")


def test_what_it_is_told_is_the_same_whatever_a_record_is_if_the_released_sum_is(model, monkeypatch):
    """Post-processing: with one noisy sum, two data sets lead to the same prompts."""
    from dpfewshot.mechanisms.word_histogram import HistogramRelease

    released = []

    def the_first(self, total, permit):
        permit.use(self.noise_multiplier)
        released.append((total, 1, self.draws.prompts))
        return released[0]

    monkeypatch.setattr(HistogramRelease, "noisy_sum", the_first)
    told = []
    for text in ("Where is my refund?", "A wholly other zebra"):
        writer = Writer()
        records = [*support_tickets(), dpf.Record(text, "Refund")]
        synthesizer(model, writer, records=records).generate("Refund")
        told.append(re.sub(r"\n.*most \d+,? words", "", writer.prompts[0]))  # which is drawn
    assert told[0] == told[1]
    assert "zebra" not in told[1]
    assert (released[0][0] != released[1][0]).any()


@pytest.fixture(scope="module")
def answering(model):
    answers = []
    return answers, synthesizer(model, lambda _: answers[0], max_tokens=6).set_up


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
def test_whatever_it_answers_is_one_line_that_fits_or_one_error(answering, answer):
    answers, set_up = answering
    answers[:] = [answer]
    try:
        text = set_up.text_without_records("Refund", [], 6)
    except BackendError as error:
        assert "text" in str(error)  # noqa: PT017 - most answers are texts
        return
    assert text == " ".join(text.split())
    assert not any(unicodedata.category(each) == "Cc" for each in text)
    assert len(set_up.backend.tokenize(text)) <= 6 + COMPLETION  # a cut text is completed


def test_a_writer_that_fails_loses_nothing_and_another_goes_on(model, ledger_url):
    def account():
        return dpf.open_account(ledger_url, "tickets")

    def dead(_):
        raise ConnectionError

    ledger = dpf.BudgetLedger.open(ledger_url)
    ledger.create("tickets", dpf.PrivacyBudget(4, 1e-5))
    settings = {"shots_per_label": 2, "max_tokens": 8}
    with synthesizer(model, dead, account=account(), **settings) as first:
        with pytest.raises(BackendError, match="the text writer failed with ConnectionError"):
            first.generate_all()
        cost = account().spent
        assert cost.epsilon
    with synthesizer(model, Writer(), account=account(), **settings) as second:
        made = second.generate_all(resume=True)
    assert Counter(one.label for one in made) == {"Refund": 2}
    # what the backend wrote, a writer replaces, and the other way round: one run, one cost
    with synthesizer(model, None, account=account(), **settings) as third:
        mixed = third.generate_all(resume=True, keep=made[:1])
    assert mixed[0] == made[0]
    assert mixed[1].certificate.model != "claimed:large-1"
    assert mixed[1].text not in {one.text for one in made}
    assert account().spent == cost
    found = check_certificates([*made, mixed[1]], ledger)
    assert found.verified
    assert re.fullmatch(r"sha256:\w+, claimed:large-1", found.entries[0].provenance.model)


def test_the_first_without_a_flaw_that_fits_its_label_is_taken(model, monkeypatch):
    from dpfewshot.generation.set_up import SetUp

    monkeypatch.setattr(SetUp, "fits", lambda _, label, text: (label, text) != ("Refund", "A third one."))
    writer = Writer(["Dear [name], hello", "A third one.", "A fourth one.", "A fifth one."])
    assert synthesizer(model, writer).generate("Refund").text == "A fourth one."


def test_each_text_is_told_its_label_and_its_subject(model):
    from dataclasses import replace

    writer = Writer()
    task = replace(SUPPORT_TICKETS, label_descriptions={"Refund": "paid twice; money back"})
    synthesizer(model, writer, task=task, shots_per_label=2).generate_all()
    assert ["Category: Refund: paid twice\n" in one for one in writer.prompts] == [True, False]
    assert "Category: Refund: money back\n" in writer.prompts[1]


def test_a_writer_needs_counted_words_and_must_be_a_function(model):
    with pytest.raises(InvalidPlan, match="invisible-ink counts none"):
        synthesizer(model, Writer(), mechanism=InvisibleInk())
    with pytest.raises(InvalidPlan, match="must be a function"):
        synthesizer(model, "gpt")


def test_audits_and_the_measured_speed_are_without_it(model):
    writer = Writer()
    run = synthesizer(model, writer, shots_per_label=20)
    assert unaccounted(run.set_up).set_up.text_writer is None
    assert run.set_up.over([], model, run.set_up.plan).text_writer is None
    without = synthesizer(model, None, shots_per_label=20)
    assert run.probe(0).estimated_seconds < without.probe(0).estimated_seconds / 4
    assert not writer.prompts


def test_threads_ask_it_at_the_same_time(model):
    labels = ["Refund", "Delivery"]
    run = dpf.Synthesizer(
        SUPPORT_TICKETS,
        support_tickets(),
        model,
        labels=labels,
        budget=dpf.PrivacyBudget(4, 1e-5),
        max_tokens=12,
        mechanism=WordHistogram(),
        text_writer=Writer(),
    )
    with ThreadPoolExecutor(2) as executor:
        assert {one.label for one in run.generate_all(executor=executor)} == set(labels)


# ---- a server --------------------------------------------------------------------------------------------


def test_a_real_server_writes():
    with llama_server(dpf.backends.packaged_model_path()) as base_url:
        writer = dpf.backends.ChatWriter("packaged", base_url)
        assert writer("Write a word.").strip()
        with pytest.raises(BackendError, match="answered status 404") as raised:
            dpf.backends.ChatWriter("packaged", f"{base_url}/no")("Write.")
        assert not raised.value.retryable


def answer(content):
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return 200, {}, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def test_it_sends_one_message_with_the_key_of_the_environment(monkeypatch):
    monkeypatch.setenv("OUR_KEY", "sk-secret")
    bodies = []

    def page(_path, body):
        bodies.append(body)
        return answer("one")

    with scripted(page) as server:
        writer = dpf.backends.ChatWriter("m", server.base_url, "OUR_KEY")
        assert writer("Write.") == "one"
        assert server.keys == ["Bearer sk-secret"]
    assert bodies == [{"model": "m", "messages": [{"role": "user", "content": "Write."}]}]
    assert "secret" not in repr(writer)


@pytest.mark.parametrize(
    ("found", "message", "retryable"),
    [
        (
            (401, {}, {"error": {"message": "wrong key sk-secret"}}),
            "401; the key is taken from OUR_KEY",
            False,
        ),
        ((400, {}, {}), "status 400", False),
        ((200, {}, {"choices": []}), "failed with IndexError", False),
        ((200, {}, b"<html>"), "failed with", False),
    ],
)
def test_a_refusal_is_one_error_without_what_the_server_says(monkeypatch, found, message, retryable):
    monkeypatch.setenv("OUR_KEY", "sk-secret")
    with scripted(lambda *_: found) as server, pytest.raises(BackendError, match=message) as raised:
        dpf.backends.ChatWriter("m", server.base_url, "OUR_KEY")("Write.")
    assert raised.value.retryable == retryable
    assert "secret" not in str(raised.value)


def test_a_server_that_is_away_may_come_back(monkeypatch):
    monkeypatch.setattr("dpfewshot.backends.chat_writer._RETRIES", 0)
    with pytest.raises(BackendError, match="does not answer") as raised:
        dpf.backends.ChatWriter("m", "http://127.0.0.1:9/v1")("Write.")
    assert raised.value.retryable


def test_what_cannot_be_asked_is_refused_at_once(monkeypatch):
    with pytest.raises(BackendError, match="password"):
        dpf.backends.ChatWriter("m", "http://me:secret@127.0.0.1/v1")
    with pytest.raises(BackendError, match="name of its model"):
        dpf.backends.ChatWriter("")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match="text-writer"):
        dpf.backends.ChatWriter("m", "http://127.0.0.1:9/v1")("Write.")
