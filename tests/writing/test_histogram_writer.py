"""What texts from a histogram are like, and which of several is released."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import dpfewshot as dpf
from dpfewshot.errors import BackendError
from dpfewshot.mechanisms import (
    word_histogram,
)
from dpfewshot.mechanisms.word_histogram import Expected
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.runtime.stopping import Stopped, StopSignal
from dpfewshot.sample_data import SUPPORT_TICKETS
from dpfewshot.writing import candidate, model_writer
from dpfewshot.writing.histogram import Histogram
from dpfewshot.writing.request import PublicRequest
from dpfewshot.writing.style import Style
from dpfewshot.writing.writer import HistogramWriter
from tests.support.chats import Chat
from tests.support.laws import IMPOSSIBLE

FLAT = [1.0] * word_histogram.LENGTHS


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
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=3)
    expected = writer.expected(request)
    assert expected == Expected(firsts=dict.fromkeys([0, 3, 4, 5, 6, 7], 1.0))  # these are no subjects


@pytest.mark.parametrize("possible", [True, False])
def test_words_become_likelier_until_a_text_has_them_and_others_less_so(possible):
    words = [f" {letter * 3}" for letter in "abcdefgh"]
    each = 1 / (7 + possible)
    model = dpf.backends.Scripted(words, lambda _: [each * possible, *[each] * 7])
    histogram = Histogram({0: 0.4, 1: 0.1}, {}, FLAT, [1.0] * 4, {1: 3.0, 2: -3.0})
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    begun = [writer.model.begun() for _ in range(1000)]
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    style = writer.styles.of(histogram, 3)
    written = writer.model.written(begun, PublicRequest(prompts=prompts, max_tokens=3), style)
    places = [Counter(one.tokens[place] for one in written if len(one.tokens) > place) for place in (0, 1)]
    assert (places[0][0] > 500) is possible
    assert places[1][0] < 375  # about 700 if those that have it already sought it again
    assert places[0][1] > places[0][2]
    assert places[1][3] > places[1][2]
    logprobs = [logprob for one in written for logprob in one.logprobs]
    assert logprobs == pytest.approx([math.log(each)] * len(logprobs), rel=1e-4)  # the model's own


def test_names_are_likely_and_not_words_that_are_likelier_in_small_letters():
    words = [" going", " Going", " Rome", " Oslo", " Visa", " I"]
    writer = HistogramWriter(dpf.backends.Scripted(words, lambda _: [1 / 6] * 6), SUPPORT_TICKETS)
    scores = np.log([0.4, 0.2, 0.2, 0.015, 0.1, 0.1])  # Oslo's is 3.3 below the largest
    style = Style(named=True, prompt=frozenset({"visa"}))
    names = writer.model._likely_names([*range(6)], scores, style)  # noqa: SLF001 - as they gain
    assert names == [2]


@pytest.mark.parametrize("named", [True, False])
def test_a_text_that_shall_have_a_name_seeks_one_until_it_has_it(named):
    words = [" team", " won", " Rome", " Oslo"]
    model = dpf.backends.Scripted(words, lambda _: [0.3, 0.3, 0.2, 0.2])
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    begun = [writer.model.begun([place % 3]) for place in range(1500)]
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    style = Style(named=named)
    written = writer.model.written(begun, PublicRequest(prompts=prompts, max_tokens=3), style)
    seconds = Counter(one.tokens[1] > 1 for one in written)
    thirds = Counter(one.tokens[2] > 1 for one in written if one.tokens[1] > 1)
    assert (seconds[True] > 800) is named  # 1,051 and 540 of 1,500 are expected
    assert thirds[True] < 550  # 378 of 1,051 are; if a name were not seen, 736


@pytest.mark.parametrize("named", [True, False])
def test_a_candidate_that_the_model_does_not_go_on_with_ends_no_other(named):
    model = dpf.backends.Scripted([" team", " won", "\n"], lambda prompt: [0, 0, prompt[-1] != 0])
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request, begun = PublicRequest(prompts=prompts, max_tokens=3), [writer.model.begun([0])]
    with pytest.raises(BackendError, match="no probability at all"):
        writer.model.written(begun, request, Style(named=named))
    begun = [writer.model.begun([first]) for first in (0, 1)]
    [written] = writer.model.written(begun, request, Style(named=named))
    assert (written.text, begun[0].failed) == ("won", True)


@pytest.mark.parametrize(
    "shares", [(0.5, 0.2, 0.2), (0.5, 0.4, 0.1), (0.5, 0.6, 0.0), (0.5, 0.5), (0.9, 0.1)]
)
def test_texts_begin_with_known_first_words_by_their_shares_or_as_often_as_the_rarest_freely(shares):
    *known, freely = shares
    model = dpf.backends.Scripted([" where", " why", "\n"], lambda _: [0.1, 0.1, 0.8])
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    firsts = {place: share * math.sqrt(0.35) for place, share in enumerate(known)}
    histogram = Histogram({}, firsts, FLAT, [1.0] * 4, {})
    drawn = Counter(tuple(writer.styles.beginning(histogram)) for _ in range(2000))
    expected = {(place,): share for place, share in enumerate(known)} | {(): freely}
    places = [place for place, share in expected.items() if share]
    total = sum(expected.values())
    chance = stats.chisquare(
        [drawn[place] for place in places], [2000 * expected[place] / total for place in places]
    ).pvalue
    assert drawn.total() == sum(drawn[place] for place in places)
    assert chance > IMPOSSIBLE
    assert writer.styles.beginning(replace(histogram, firsts={})) == []


def test_first_words_of_the_model_lose_what_the_records_have_more_rarely():
    """Only as first words; temperature 0.7 takes e^(-3/0.7) for e^-3."""
    model = dpf.backends.Scripted([" Hi", " Where", "\n"], lambda _: [0.5, 0.45, 0.05])
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    request = PublicRequest(
        prompts=PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund"), max_tokens=2
    )
    begun = [writer.model.begun() for _ in range(1000)]
    written = writer.model.written(begun, request, Style(habits={0: -3.0}))
    firsts, seconds = (Counter(one.tokens[place : place + 1][0] for one in written) for place in (0, 1))
    assert firsts[0] < 100 < firsts[1]
    assert seconds[0] > 400


def test_what_ends_a_text_is_no_word_and_what_is_excluded_is_no_token():
    model = dpf.backends.Scripted([" where", " is", "\n"], lambda _: [0.3, 0.3, 0.4], end_token_ids={0})
    flat = Histogram({}, {0: 0.5, 1: 0.5}, FLAT, [1.0] * 4, {})
    assert flat.spelled(model).firsts == {1: 0.5}
    assert model_writer._among(np.zeros(3), frozenset({0, 2})) == [1]  # noqa: SLF001 - no text shows it


@pytest.mark.parametrize(
    ("topic", "best"), [("a knee or hip hurts", "hip hurts."), ("a hip", "knee or hip hurts.")]
)
def test_a_text_that_leaves_open_what_its_subject_does_is_behind_others(topic, best):
    model = dpf.backends.Scripted([" knee", " or", " hip", " hurts", ".", "\n"], lambda _: [1 / 6] * 6)
    writer = HistogramWriter(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0))
    written = [writer.model.begun() for _ in range(2)]
    for one, tokens, logprob in zip(written, ([0, 1, 2, 3, 4, 5], [2, 3, 4, 5]), (-0.1, -9.0), strict=True):
        for token in tokens:
            one.add(token, logprob)
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=9, topic=f"Refund: {topic}")
    flat = Histogram({}, {}, FLAT, [1.0] * 4, {})
    assert candidate.best(written, flat, request, Style(), model.tokenize).text == best


def test_a_text_with_a_models_words_is_behind_all_others():
    words = [" where", " [name]", " 12345678", " Team A", " to account B", " XXXXX", " XYZ", " CVE-xxxx"]
    refusals = [" unable to assist", " AI language model", " to provide a general comment"]
    words += [" (Full Name)", " (name of witness)", " (your address)", " <drug name>"]
    words += [" libfoo", " /your-package-name", " `example-command`", " libexample-dev"]
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
        " notify us if you need anything",
        " Jane Doe",
        " urgent, urgent Urgent",
        " water@utility",
        " in Anytown (guest's name)",
        " subject: a bill",
        " thank you for your patience",
        " I'm here to help",
        " to assist you",
        " Sorry for the loss of my phone",
        " any inconvenience",
        " contact support",
        " thanks, Qwen",
        " please check your card",
        " please let us know",
        " check the card and try again",
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
        " a bill, a bill",
        " thank you for your help",
        " this text",
        " in a picture",
        " for example",
        " food",
        " unable to pay",
        " unable to create an account",
        " unable to provide my receipt",
        " I do not have access",
        " (first name unknown)",
        " please check my bill",
        " I will try again",
        " contact customer support",
        *refusals,
        ".",
        "\n",
    ]
    model = dpf.backends.Scripted(words, lambda _: [1 / len(words)] * len(words))
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    good = words.index(" I would like")
    written = [writer.model.begun([0, good, word]) for word in range(len(words) - 2)]
    for one in written:
        for token in (len(words) - 2, len(words) - 1):
            one.add(token, -1.0)
    flaws = [one.flaws([], Style()) for one in written]
    assert flaws == [0, *[8] * 58, *[0] * 23, *[24] * 3]


def test_a_text_that_says_what_an_earlier_one_does_is_behind_others():
    words = [" Hello", " Hi", " please", " cancel", " my", " policy", " I", " sold", " it", ".", "\n"]
    model = dpf.backends.Scripted(words, lambda _: [1 / 11] * 11)
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    histogram = Histogram({}, {1: 0.2}, FLAT, [1.0] * 4, {})
    written = [writer.model.begun(first) for first in ([0, 2, 3, 4, 5], [1, 2, 3, 4, 5], [6, 7, 8])]
    for one in written:
        one.add(9, -1.0)
        one.add(10, -1.0)
    assert [one.flaws([], Style()) for one in written] == [0, 0, 0]
    alone = [one.likeness(histogram, model.tokenize) for one in written]
    assert max(alone) == alone[1]
    written.append(writer.model.begun([6, 7]))  # it ends no sentence
    again, greeted, new, unended = (one.flaws([written[0].text], Style()) for one in written)
    assert new < greeted < unended < again == written[0].flaws(["hello please cancel my Policy"], Style())


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
    one = HistogramWriter(model, SUPPORT_TICKETS).model.begun(model.tokenize(f" {text}\n"))
    assert one.text == text
    alone, beside = (one.flaws(others, Style()) for others in ([], ["Other.", earlier]))
    assert (beside > alone) is behind


def written_in_style(style, sentence, max_tokens=30):
    """What 50 candidates become of a model that repeats three words, and would end at any place."""
    words = [" where", " is", " it", sentence, "\n", "<|begin|>"]
    chances = [0.1, 0.1, 0.1, 0.4, 0.2, 0.1]
    model = dpf.backends.Scripted(words, lambda _: chances, end_token_ids={4})
    model.tokenize = lambda text: [] if "<" in text else type(model).tokenize(model, text)  # it is no text
    writer = HistogramWriter(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0))
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=max_tokens)
    return writer.model.written([writer.model.begun([0]) for _ in range(50)], request, style)


@pytest.mark.parametrize(("words", "least"), [(None, 1), (1, 1), (10, 7), (16, 11)])
def test_no_text_ends_long_before_the_records_do(words, least):
    found = written_in_style(Style(words=words), "?")
    assert min(len(one.text.removesuffix("?").split()) for one in found) == least
    assert not any("<" in one.text for one in found)


def test_no_text_begins_as_a_letter_does_behind_a_space_or_not():
    model = dpf.backends.Scripted(["Dear", " Dear", " Bank", "\n"], lambda _: [0.4, 0.3, 0.2, 0.1])
    writer = HistogramWriter(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0))
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=5)
    assert "Dear" not in model.detokenize(writer.text(Histogram(), request))
    written = writer.model.written([writer.model.begun() for _ in range(20)], request)
    assert any("Dear" in one.text for one in written)  # without a style


@pytest.mark.parametrize(("mark", "multiline", "ends"), [(",", 0, 0), (":", 0, 0), ("!", 0, 1), (",", 1, 1)])
def test_a_text_of_one_line_goes_on_behind_its_greeting(mark, multiline, ends):
    words = [" Hi", mark, " late", "\n", f"{mark}\n", " "]
    model = dpf.backends.Scripted(words, lambda _: [0.02, 0.2, 0.25, 0.25, 0.18, 0.1])
    task = replace(SUPPORT_TICKETS, no_repeat_ngram_size=0, multiline=bool(multiline))
    writer = HistogramWriter(model, task)
    prompts = PromptWriter(task, model, 20).for_label("Refund")
    begun = [writer.model.begun([0]) for _ in range(50)]
    written = writer.model.written(begun, PublicRequest(prompts=prompts, max_tokens=30))
    lines = [line for one in written if one.draft.finished for line in one.text.split("\n")]
    assert any(line.endswith(mark) for line in lines) is bool(ends)
    assert any(line.endswith("late") for line in lines)


def test_a_model_that_knows_nothing_but_formalities_writes_them():
    model = dpf.backends.Scripted([" Dear", "\n"], lambda _: [1.0, 0.0])
    writer = HistogramWriter(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0))
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=3)
    assert model.detokenize(writer.text(Histogram(), request)) == " Dear Dear Dear"


@pytest.mark.parametrize(
    ("words", "theirs", "said"), [(24, (), False), (10, (), True), (24, (" thank",), True)]
)
def test_a_long_text_is_not_filled_up_with_courtesies_unless_the_records_have_them(words, theirs, said):
    vocabulary = [" thank", " Please", " let", " me", ".", "\n"]
    model = dpf.backends.Scripted(vocabulary, lambda _: [0.3, 0.1, 0.1, 0.3, 0.1, 0.1], end_token_ids={5})
    writer = HistogramWriter(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0))
    lengths = [float(each == round(2 * math.log2(words))) for each in range(16)]
    counted = Histogram({vocabulary.index(word): 0.3 for word in theirs}, {}, lengths, [1.0] * 4, {})
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=60)
    style = writer.styles.of(counted, 60)
    begun = [writer.model.begun([3]) for _ in range(20)]
    texts = [one.text for one in writer.model.written(begun, request, style)]
    assert any("thank" in text for text in texts) is said
    assert any("Please let" in text for text in texts) is (words == 10)
    assert any("me let" in text for text in texts)


@pytest.mark.parametrize("theirs", [(), (" reaches",)])
def test_no_text_has_a_letters_formalities_unless_the_records_have_their_words(theirs):
    vocabulary = [" email", " reaches", " we", ".", "\n"]
    model = dpf.backends.Scripted(vocabulary, lambda _: [0.4, 0.3, 0.1, 0.1, 0.1], end_token_ids={4})
    writer = HistogramWriter(model, replace(SUPPORT_TICKETS, no_repeat_ngram_size=0))
    counted = Histogram({vocabulary.index(word): 0.3 for word in theirs}, {}, [0.0] * 16, [1.0] * 4, {})
    request = PublicRequest(
        prompts=PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund"), max_tokens=12
    )
    begun = [writer.model.begun([2]) for _ in range(30)]
    written = writer.model.written(begun, request, writer.styles.of(counted, 12))
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
    monkeypatch.setattr("dpfewshot.writing.style.COMMONEST", commonest)
    monkeypatch.setattr(model, "detokenize", lambda tokens: type(model).detokenize(model, tokens) or task)
    tickets = replace(SUPPORT_TICKETS, instruction=instruction, example=example, no_repeat_ngram_size=0)
    writer = HistogramWriter(model, tickets)
    counted = Histogram({vocabulary.index(word): 0.3 for word in theirs}, {}, [0.0] * 16, [1.0] * 4, {})
    prompts = PromptWriter(SUPPORT_TICKETS, model, 20).for_label("Refund")
    request = PublicRequest(prompts=prompts, max_tokens=40)
    style = writer.styles.of(counted, 40)
    begun = [writer.model.begun([2]) for _ in range(20)]
    texts = [one.text for one in writer.model.written(begun, request, style)]
    assert set(" ".join(texts).split()) == said


@pytest.mark.parametrize("lower", [False, True])
def test_only_a_long_text_has_several_sentences(lower):
    """In small letters it has none: records without capital letters have no marks."""
    found = written_in_style(Style(words=24, lower=lower), "?", 200)
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
    found = written_in_style(Style(marks=histogram.ends_with_marks), sentence)
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
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    one = writer.model.begun(model.tokenize(said))
    spelled = writer._in_lower_case(one, max_tokens)  # noqa: SLF001 - of the candidate that was chosen
    begun = writer.model.begun(spelled)
    assert (begun.text, begun.draft.finished) == (text, said.endswith("\n"))


def test_a_text_in_small_letters_has_no_mark():
    """That most have neither says that most have no mark, whatever the noise made of that."""
    writer = HistogramWriter(dpf.backends.Scripted([" where"], lambda _: [1.0]), SUPPORT_TICKETS)
    for lower in (False, True):
        style = writer.styles.of(Histogram({}, {}, FLAT, [0.2, 0.0, 0.0, 0.1], {}, lower), 30)
        assert (style.lower, style.marks) == (lower, not lower)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("Write a note that a school nurse writes.", ["A school nurse is", "as the school nurse, I"]),
        ("Write a note that an owner leaves, of", ["Hi, I am an owner.", "the owner said"]),
        ("Write a note of an owner.", []),
        ("Write a note. Topic: says that a nurse writes", []),
    ],
)
def test_a_text_that_calls_its_writer_as_the_prompt_does_is_behind_unless_records_do(prompt, told):
    model = dpf.backends.Scripted([" nurse", " owner", f" {prompt}"], lambda _: [0.5, 0.5, 0])
    styles = HistogramWriter(model, SUPPORT_TICKETS).styles
    texts = ["A school nurse is", "as the school nurse, I", "Hi, I am an owner.", "the owner said", "a nurse"]
    for theirs, flawed in (({}, told), ({0: 0.1, 1: 0.1}, [])):
        style = styles.of(Histogram(theirs, {}, FLAT, [1.0] * 4, {}), 30, [2])
        assert [each for each in texts if style.is_told_in(each)] == flawed


@pytest.mark.parametrize(
    ("chat", "multiline", "said", "quotes"),
    [
        (True, False, " I am unable to assist\n", True),
        (True, False, " It came late\n", False),
        (True, True, " I am unable to assist\n\n", False),
        (False, False, " I am unable to assist\n", False),
    ],
)
def test_a_chat_model_that_writes_no_text_quotes_one(chat, multiline, said, quotes):
    task = replace(SUPPORT_TICKETS, chat=chat, multiline=multiline)
    model = Chat()
    model.values = {"Ticket:\n>": " It came late\n", "Ticket:": said}
    answer, prompts = model.next_token_logprobs, set[str]()

    def watched(asked, support=None):
        prompts.update(map(model.detokenize, asked))
        return answer(asked, support)

    model.next_token_logprobs = watched
    writer = HistogramWriter(model, task)
    label = PromptWriter(task, model, 20).for_label("Refund")
    request = PublicRequest(prompts=label, max_tokens=30)
    chosen = model.detokenize(writer.text(Histogram(), request))
    assert chosen.startswith(" It came late" if quotes else said.rstrip("\n"))
    assert any(each.endswith("Ticket:\n>") for each in prompts) is quotes
    prompts.clear()
    writer.expected(request)
    assert any(each.endswith("Ticket:\n>") for each in prompts) is quotes


@pytest.mark.parametrize(("words", "told"), [({}, True), ({1: 0.1}, False)], ids=["not theirs", "theirs"])
def test_a_text_that_names_its_labels_field_is_behind_unless_records_do(words, told):
    model = dpf.backends.Scripted([" in", " queue", "\n"], lambda _: [0.1, 0.2, 0.7])
    writer = HistogramWriter(model, replace(SUPPORT_TICKETS, label_field="Queue"))
    style = writer.styles.of(Histogram(words, {}, FLAT, [1.0] * 4, {}), 30)
    assert style.is_told_in("Is there a queue?") is told
    assert not style.is_told_in("I queued for hours.")


@pytest.mark.parametrize(
    ("style", "text", "little"),
    [
        (Style(), "hi", True),
        (Style(), "I sold it.", False),
        (Style(words=1), "hi", False),
        (Style(words=12), "Sold it.", True),
        (Style(words=1), "17442", False),
        (Style(prompt=frozenset({"of", "claim", "status"})), "Status of Claim:", True),
        (Style(prompt=frozenset({"of", "claim", "status"})), "My claim status", False),
    ],
)
def test_a_text_of_one_word_or_of_its_prompt_says_little_unless_the_records_are_short(style, text, little):
    assert style.says_little(text) is little


@pytest.mark.parametrize(
    ("fitting", "best"),
    [((), "in Rome"), (("in Rome", "at it"), "in Rome"), (("in Sports", "at it"), "at it")],
)
def test_a_text_with_a_name_is_before_others_of_its_label(fitting, best):
    words = [" in", " Rome", " at", " it", " Sports", "\n"]
    model = dpf.backends.Scripted(words, lambda _: [1 / 6] * 6)
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    written = [writer.model.begun(tokens) for tokens in ([2, 3, 5], [0, 4, 5], [0, 1, 5])]
    written[0].logprobs.append(3.0)  # the likest
    request = PublicRequest(prompts=None, max_tokens=3, fits=lambda text: text in fitting)
    style, flat = Style(named=True, prompt=frozenset({"sports"})), Histogram({}, {}, FLAT, [1.0] * 4, {})
    assert candidate.best(written, flat, request, style, model.tokenize).text == best


def test_a_text_that_names_the_length_that_its_prompt_told_is_behind_all_others():
    model = dpf.backends.Scripted(
        [" a", " film", " of", " 16", " 160", " minutes", ".", "\n"], lambda _: [0.1] * 8
    )
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    leaky, other = (writer.model.begun([0, 1, 2, number, 5, 6, 7]) for number in (3, 4))
    flaws = [[one.flaws([], Style(prompted=told)) for one in (leaky, other)] for told in ((), ("16",))]
    assert flaws[0][0] == flaws[0][1] == flaws[1][1] < flaws[1][0]


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
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    texts = {(2, 5): -3.0, (3, 5): -1.0, (1, 5): -2.0, (0, 4, 5): -1.0, (0, 5): -1.0}
    written = [replace(writer.model.begun(tokens), logprobs=[logprob]) for tokens, logprob in texts.items()]
    found = []
    fits = lambda text: found.append(text) or text in fitting  # noqa: E731
    request = PublicRequest(prompts=None, max_tokens=3, earlier=["ddd"], fits=fits)
    assert candidate.best(written, histogram, request, Style(), model.tokenize).text == best
    assert found == ["aaa", "bbb", "ccc"][:asked]  # no more than needed: each takes time


def test_a_cancelled_check_releases_nothing_and_what_was_written_alike_is_asked_once():
    model = dpf.backends.Scripted([" aaa", " bbb", "\n"], lambda _: [0.3, 0.3, 0.4])
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    written = [writer.model.begun(tokens) for tokens in ([0, 2], [0, 2], [1, 2])]
    stop, found = StopSignal(), []
    fits = lambda text: found.append(text) or (len(found) == 2 and stop.set())  # noqa: E731
    request = PublicRequest(prompts=None, max_tokens=3, fits=fits, stop=stop)
    flat = Histogram({}, {}, FLAT, [1.0] * 4, {})
    assert candidate.best(written, flat, request, Style(), model.tokenize).text == "aaa"
    assert found == ["aaa", "bbb"]
    with pytest.raises(Stopped):
        candidate.best(written, flat, request, Style(), model.tokenize)


@pytest.mark.parametrize(("most", "max_tokens", "told"), [(4, 40, 8), (3, 40, ""), (4, 8, 6), (4, 1, 1)])
def test_a_length_is_told_in_few_tokens_and_never_one_beyond_the_text(monkeypatch, most, max_tokens, told):
    monkeypatch.setattr(model_writer, "MOST_HINT", most)
    model = dpf.backends.Scripted(
        ["\nLength:", *(f" {each} words" for each in range(9))], lambda _: [0.1] * 10
    )
    writer = HistogramWriter(model, SUPPORT_TICKETS)
    of_eight = Histogram({}, {}, [0.0] * 6 + [1.0] + [0.0] * 9, [1.0] * 4, {})
    hint = model.detokenize(writer.model._hint(writer.styles.of(of_eight, max_tokens).words))  # noqa: SLF001 - no text shows it
    assert hint == (f"\nLength: {told} words" if told else "")
