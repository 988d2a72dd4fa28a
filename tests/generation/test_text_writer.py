"""A chat model that writes texts from a released histogram: what it is told, and whatever it answers."""

import asyncio
import itertools
import math
import re
import subprocess
import sys
import threading
import time
import traceback
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.audit.certified import check_certificates
from dpfewshot.errors import BackendError, BudgetExceeded, InvalidPlan, MissingExtra
from dpfewshot.generation.generation import unaccounted
from dpfewshot.mechanisms import InvisibleInk, WordHistogram
from dpfewshot.runtime.stopping import Stopped, StopSignal
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.writing.brief import ASKED, Brief
from dpfewshot.writing.histogram import Histogram
from dpfewshot.writing.label_check import LabelCheck
from dpfewshot.writing.public_loop import COMPLETION
from dpfewshot.writing.request import PublicRequest
from tests.support.servers import llama_server, scripted
from tests.support.small_models import small

FIXTURES = (small,)

BRIEF = {
    "preamble": "Write a ticket.\n\n",
    "topic": "Queue: Keys",
    "words": None,
    "most_words": 9,
    "firsts": {},
    "known": (),
    "marks": True,
    "lower": False,
    "earlier": (),
    "multiline": False,
}


def brief(**settings):
    return Brief(**(BRIEF | settings))


def texts(answer, **settings):
    return brief(**settings).texts(lambda _: answer, StopSignal())


def test_a_writer_is_told_the_task_and_what_is_known_of_the_records():
    assert str(brief()) == (
        "Write a ticket.\n\nQueue: Keys\n\n"
        f"Write {ASKED} texts, as {ASKED} people would who know nothing of each other,\n"
        "each on a line of its own, without a number and without anything else.\n"
        "At most 9 words each."
    )
    told = str(
        brief(
            words=4,
            firsts={"My": 0.384, "I": 0.1},
            known=["key", "lock"],
            marks=False,
            earlier=["a", "b"],
            multiline=True,
        )
    )
    assert "with a blank line between them" in told
    assert told.endswith(
        "About 4, and at most 9, words each.\nFirst words of real ones: My (38 %).\n"
        "Words of real ones, the commonest first, some by chance: key, lock. Use them where they fit, a few "
        "in each, and none for its own sake.\nReal ones end without a mark.\n"
        "Yours differ from these, which are there already:\na\nb"
    )
    assert str(brief(lower=True, marks=False)).endswith("Real ones have no capital letters and no marks.")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("one\ntwo", ["one", "two"]),
        ("Sure!\n1. one\n2) two\n- three\n* 4 keys\n\u2022 five", ["one", "two", "three", "4 keys", "five"]),
        ("**1.** one\n(2) two\nHope it helps", ["one", "two"]),
        (
            "24. December was the order\nMy lamp is broken",
            ["24. December was the order", "My lamp is broken"],
        ),
        ('"one"\n\u201ctwo\u201d\n"a" or "b"', ["one", "two", '"a" or "b"']),
        ("\u201ca\u201d is not \u201cb\u201d", ["\u201ca\u201d is not \u201cb\u201d"]),
        ("a\nPlease send these:", ["a", "Please send these:"]),
        ("\u200bone\u202e\n<|im_end|>\n\U000e0041two", ["one", "two"]),
        ("one<|im_<|x|>end|> </s>[INST]\n</think>two", ["one", "two"]),
        ("Here are six texts:\n\n```\none\n```", ["one"]),
        ("<think>Two?\nThree?</think>\none", ["one"]),
        ("3.5 % is too much\n-5 degrees", ["3.5 % is too much", "-5 degrees"]),
        ("one  two\x0bthree\r\n\x1b[31mred\u2028", ["one two three", "[31mred"]),
    ],
)
def test_what_stands_around_texts_is_taken_off(answer, found):
    assert texts(answer) == found


def test_texts_of_several_lines_are_parted_by_blank_ones():
    assert texts("1. one\ntwo\n\n2. three", multiline=True) == ["one\ntwo", "three"]
    assert texts("```\none\ntwo\n```", multiline=True) == ["one\ntwo"]


def test_an_answer_made_to_be_slow_is_cut():
    started = time.process_time()
    assert texts("<think>" + "no " * 10**5 + "</think>one\n" + "<|" * 10**6 + "x" + "|>" * 10**6)[0] == "one"
    assert time.process_time() - started < 10


@pytest.mark.parametrize("answer", ["", "\n \n", "<think>I will", "Here they are:"])
def test_an_answer_without_a_text_is_an_error_and_may_be_asked_for_again(answer):
    with pytest.raises(BackendError, match="wrote no text") as raised:
        texts(answer)
    assert raised.value.retryable


@pytest.mark.parametrize("error", [ValueError, TimeoutError, BudgetExceeded])
def test_a_writer_that_fails_or_returns_no_text_is_one_error(error):
    def failing(_):
        raise error("a key")

    with pytest.raises(BackendError, match=f"the text writer failed with {error.__name__}") as raised:
        brief().texts(failing, StopSignal())
    assert raised.value.retryable
    assert raised.value.__context__ is None
    with pytest.raises(BackendError, match="must return text, not NoneType"):
        texts(None)


def test_nobody_waits_for_a_writer_once_the_generation_is_stopped():
    stop, hangs, ends = StopSignal(), threading.Event(), threading.Event()

    def hanging(_):
        hangs.set()
        ends.wait()
        return "one"

    threading.Thread(target=lambda: (hangs.wait(), stop.set())).start()
    with pytest.raises(Stopped):
        brief().texts(hanging, stop)
    ends.set()


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


def test_texts_are_the_writers_and_it_is_told_the_noisy_histogram_alone(model, monkeypatch):
    monkeypatch.setattr(LabelCheck, "fits", lambda *_: True)
    writer = Writer()
    run = synthesizer(model, writer, shots_per_label=3)
    assert run.counted_words() == {}
    made = run.generate_all()
    assert [one.text for one in made] == [
        "I want my money back.",
        "Please pay me back, number 2.",
        "Please pay me back, number 3.",
    ]
    assert all(one.certified and one.finished for one in made)
    assert {one.certificate.model for one in made} == {"writer:large-1"}

    [stratum] = run._generation.runs  # noqa: SLF001 - nothing shows it
    histogram = Histogram.from_dict(stratum.reservation.histogram).spelled(model)
    common = {token: share for token, share in histogram.firsts.items() if share >= 0.2 * math.sqrt(0.35)}
    known, firsts = (
        [model.detokenize([token]).strip() for token in sorted(some, key=some.get, reverse=True)]
        for some in (histogram.words, common)
    )
    assert known
    assert run.counted_words() == {"Refund": known}
    lengths = {f"About {words}, and at most 13, words each." for words in histogram.usual_lengths}
    assert "eal ones" not in writer.prompts[0]  # before anything is charged
    for prompt in writer.prompts[1:]:
        told, _, rest = prompt.partition(" words each.\n")
        assert told.startswith(SUPPORT_TICKETS.instruction + "\n\nCategory: Refund\n\nWrite ")
        assert f"{told.splitlines()[-1]} words each." in lengths or "\nAt most 13" in told
        assert f"Words of real ones, the commonest first, some by chance: {', '.join(known[:40])}. " in rest
        assert re.findall(r"(\w+) \(\d+ %\)", rest) == firsts
    assert writer.prompts[2].endswith("there already:\nI want my money back.")


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
        told.append(re.sub(r"\n.*most \d+,? words", "", writer.prompts[1]))  # which is drawn
    assert told[0] == told[1]
    assert "zebra" not in told[1]
    assert (released[0][0] != released[1][0]).any()


def test_its_words_without_records_are_expected_and_no_other_texts_words(model):
    """More of the records' words stand out of the noise so."""
    words = ("planet", "animals", "What")
    assert not any(model.tokenize(f" {word}")[1:] for word in words)
    planet, animals, what = (model.tokenize(f" {word}")[0] for word in words)
    expected = []
    for writer in (None, Writer(["What planet is it?", "My planet has animals, {}."])):
        set_up = synthesizer(model, writer).set_up
        request = PublicRequest(prompts=set_up.prompts("Refund", 0), max_tokens=20)
        expected.append(set_up.loop.writer.expected(request))
        told = set_up.text_writer
    assert "Write 18 texts, as 18 people would" in told.prompts[0]
    request = PublicRequest(prompts=set_up.prompts("Refund", 0), max_tokens=100)
    set_up.loop.writer.expected(request)
    assert "Write 10 texts, as 10 people would" in told.prompts[1]
    assert not {planet, animals} & expected[0].words.keys()
    assert [expected[1].words[word] for word in (planet, animals)] == pytest.approx([1, 0.5], abs=0.01)
    assert what in [*expected[1].firsts][:2]


def test_texts_without_a_token_are_found_before_anything_is_charged():
    known = dpf.backends.Scripted([" my", " parcel", " is", " late"], lambda _: [1.0] * 4)
    for answer, spent in (("12 34\n((", False), ("Unknown my parcel\nmy parcel is late", True)):
        run = synthesizer(known, lambda _, answer=answer: answer, max_tokens=4)
        with nullcontext() if spent else pytest.raises(BackendError, match="has no tokens for what the text"):
            run.generate("Refund")
        assert bool(run.spent.epsilon) is spent


@pytest.fixture(scope="module")
def answering(model):
    answers = []
    return answers, synthesizer(model, lambda _: answers[0], max_tokens=6).set_up


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
def test_whatever_it_answers_is_one_line_that_fits_or_one_error(answering, answer):
    answers, set_up = answering
    answers[:] = [answer]
    try:
        text = set_up.without_records("Refund", [], 6).text
    except BackendError as error:
        assert "text" in str(error)  # noqa: PT017 - most answers are texts
        return
    assert text == " ".join(text.split())
    assert not any(unicodedata.category(each) == "Cc" for each in text)
    assert len(set_up.backend.tokenize(text)) <= 6 + COMPLETION  # a cut text is completed


def dying(prompt):
    """Answers until it is told of a histogram."""
    if "Words of real ones" in prompt:
        raise ConnectionError
    return "I want my money back."


def test_a_writer_that_is_dead_costs_nothing(model):
    run = synthesizer(model, lambda _: "")
    with pytest.raises(BackendError, match="wrote no text"):
        run.generate("Refund")
    assert run.spent == dpf.PrivacySpend(0, 0)


def test_a_writer_that_fails_loses_nothing_and_another_goes_on(model, ledger_url):
    def account():
        return dpf.open_account(ledger_url, "tickets")

    ledger = dpf.BudgetLedger.open(ledger_url)
    ledger.create("tickets", dpf.PrivacyBudget(4, 1e-5))
    settings = {"shots_per_label": 2, "max_tokens": 8}
    with synthesizer(model, dying, account=account(), **settings) as first:
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
    assert mixed[1].certificate.model != "writer:large-1"
    assert mixed[1].text not in {one.text for one in made}
    assert account().spent == cost
    found = check_certificates([*made, mixed[1]], ledger)
    assert found.verified
    assert re.fullmatch(r"sha256:\w+, writer:large-1", found.entries[0].provenance.model)


def test_the_first_without_a_flaw_that_fits_its_label_is_taken(model, monkeypatch):
    monkeypatch.setattr(
        LabelCheck, "fits", lambda _, label, text: (label, text) != ("Refund", "A third one.")
    )
    writer = Writer(["Dear [name], hello", "A third one.", "A fourth one.", "A fifth one."])
    assert synthesizer(model, writer).generate("Refund").text == "A fourth one."


def test_each_text_is_told_its_label_and_its_subject(model):
    from dataclasses import replace

    writer = Writer()
    task = replace(SUPPORT_TICKETS, label_descriptions={"Refund": "paid twice; money back"})
    synthesizer(model, writer, task=task, shots_per_label=2).generate_all()
    told = [re.search(r"\nCategory: Refund: (.*)\n", one)[1] for one in writer.prompts]
    assert told == ["paid twice", "paid twice", "money back"]


def test_a_writer_needs_counted_words_and_must_be_a_function(model):
    with pytest.raises(InvalidPlan, match="invisible-ink counts none"):
        synthesizer(model, Writer(), mechanism=InvisibleInk())

    async def later(_):
        return "one"

    for writer in ("gpt", "", 0, later, dpf.backends.ChatWriter):
        with pytest.raises(InvalidPlan, match="must be a function"):
            synthesizer(model, writer)
    with pytest.raises(InvalidPlan, match="may be words of single records"):
        synthesizer(model, Writer(), budget=dpf.NO_PRIVACY)


def test_a_function_is_named_in_its_lines_and_no_name_looks_like_two(model):
    writer = Writer()
    assert synthesizer(model, writer.__call__).set_up.written_by.model == "writer:Writer.__call__"
    writer.model = "gpt, sha256:0123456789abcdef"
    assert synthesizer(model, writer).set_up.written_by.model == "writer:gpt_sha256:0123456789abcdef"


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
        with pytest.raises(BackendError, match="has no such page") as raised:
            dpf.backends.ChatWriter("packaged", f"{base_url}/no")("Write.")
        assert not raised.value.retryable


def answer(content):
    return 200, {}, {"choices": [{"message": {"role": "assistant", "content": content}}]}


def test_it_sends_one_message_and_the_key_that_is_named(monkeypatch):
    for name in ("OUR_KEY", "OPENAI_API_KEY", "OPENAI_ORG_ID"):
        monkeypatch.setenv(name, f"secret-{name}")
    bodies = []

    def page(path, body):
        bodies.append((path, body))
        return answer("one")

    with scripted(page) as server:
        ours = dpf.backends.ChatWriter("m", server.base_url, "OUR_KEY")
        assert ours("Write.") == "one"
        assert dpf.backends.ChatWriter("m", server.base_url)("Write.") == "one"
        assert server.keys == ["Bearer secret-OUR_KEY", None]
        assert "secret-OPENAI" not in str(server.headers)
    message = {"model": "m", "messages": [{"role": "user", "content": "Write."}]}
    assert bodies == [("/v1/chat/completions", message)] * 2
    assert "secret" not in repr(ours)
    assert ours.host == server.base_url.removeprefix("http://").removesuffix("/v1")


@pytest.mark.parametrize(
    ("found", "message", "retryable"),
    [
        ((401, {}, {"error": "wrong key secret"}), "answered status 401 to the key of OUR_KEY", False),
        ((307, {"location": "http://localhost/"}, {}), "a redirect, which is not followed", False),
        ((400, {}, {}), "refuses a public request", False),
        ((200, {}, {"choices": []}), "undocumented form", True),
        ((200, {}, b"<html>"), "undocumented form", True),
        (answer(["one"]), "undocumented form", True),
        (None, "does not answer: the connection failed", True),
    ],
)
def test_a_refusal_is_one_error_without_what_the_server_says(monkeypatch, found, message, retryable):
    monkeypatch.setattr("dpfewshot.backends.chat_writer._SECONDS", 0.1)
    monkeypatch.setenv("OUR_KEY", "secret")
    with scripted(lambda *_: found) as server, pytest.raises(BackendError, match=message) as raised:
        dpf.backends.ChatWriter("m", server.base_url, "OUR_KEY")("Write.")
    assert raised.value.retryable == retryable
    for frame, _ in traceback.walk_tb(raised.value.__traceback__):
        assert frame.f_code.co_filename == __file__ or "secret" not in str(frame.f_locals)
    assert "secret" not in str(raised.value)


def test_an_answer_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr("dpfewshot.backends.chat_writer._SECONDS", 0.1)

    def drips(*_):
        time.sleep(1)
        return answer("one")

    with scripted(drips) as server, pytest.raises(BackendError, match="timeout"):
        dpf.backends.ChatWriter("m", server.base_url)("Write.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m", "http://me:secret@127.0.0.1/v1"), "password"),
        (("m", "http://127.0.0.1/v1?api_key=secret"), "must end with its path"),
        (("m", "ftp://127.0.0.1/v1"), "not an http or https address"),
        ((" ", "http://127.0.0.1/v1"), "name of its model"),
        (("m", "http://127.0.0.1/v1", "SPACED"), "api_key is empty, or holds a space"),
        (("m", "http://127.0.0.1/v1", None, "http://u:secret@[x"), "proxy is not an http or https address"),
        (("m", "https://127.0.0.1/v1", None, None, "/none"), "ca_bundle='/none' holds no certificates"),
        (("m", "http://127.0.0.1/v1", "NO_SUCH_KEY"), "the variable NO_SUCH_KEY is unset or empty"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_once(monkeypatch, arguments, message):
    monkeypatch.setenv("SPACED", "a secret")
    with pytest.raises(BackendError, match=message) as raised:
        dpf.backends.ChatWriter(*arguments)
    assert "secret" not in str(raised.value)
    assert raised.value.__context__ is None


def test_no_representation_has_a_proxys_password():
    assert "secret" not in repr(dpf.backends.ChatWriter("m", "http://h/v1", proxy="http://u:secret@p:1"))


def test_a_process_ends_while_a_request_hangs():
    ended = threading.Event()

    def hangs(*_):
        ended.wait(120)

    program = (
        "import sys, threading, time, dpfewshot as dpf\n"
        "ask = dpf.backends.ChatWriter('m', sys.argv[1])\n"
        "threading.Thread(target=ask, args=('hi',), daemon=True).start()\n"
        "time.sleep(1)"
    )
    with scripted(hangs) as server:
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", program, server.base_url], check=True)
        ended.set()
        assert time.monotonic() - started < 60  # it would be given up after 300


def test_what_cannot_be_noted_is_not_sent(tmp_path):
    bodies = []
    with scripted(lambda *body: bodies.append(body) or answer("one")) as server:
        writer = dpf.backends.ChatWriter("m", server.base_url, log=str(tmp_path))
        with pytest.raises(BackendError, match="so nothing is sent: Is a directory"):
            writer("Write.")
    assert not bodies


def test_it_is_missed_before_anything_is_spent(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpcore2", None)
    with pytest.raises(MissingExtra, match="openai"):
        dpf.backends.ChatWriter("m", "http://127.0.0.1:9/v1")


def test_it_can_be_asked_where_an_event_loop_runs():
    async def ask(writer):
        return writer("Write.")

    with scripted(lambda *_: answer("one")) as server:
        assert asyncio.run(ask(dpf.backends.ChatWriter("m", server.base_url))) == "one"
