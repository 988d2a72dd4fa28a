"""Demonstrations at work, with a scripted model whose answers are worked out by hand."""

import logging
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.backends import Scripted
from tests.support.colours import COLOURS, WORDS, Colours, shown

ROSE = shown("rose", "red")
SECRET = "swordfish"


def biased(**options: Any) -> icl.Classifier:
    return icl.Classifier(COLOURS, Colours(), [ROSE], calibrated=False, **options)


# ---- classification --------------------------------------------------------------------------------------


def test_probabilities_are_the_labels_share_and_labels_are_scored_whole() -> None:
    found = biased().predict_proba(["sky", "rose"])
    # " light blue" is 0.3 * 0.5 of the sky; red and blue are one token.
    expected = np.array([[0.5, 0.1, 0.15], [0.8, 0.05, 0.025]])
    assert found == pytest.approx(expected / expected.sum(axis=1, keepdims=True), rel=1e-6)
    assert found.dtype == np.float64


def test_a_fond_model_is_wrong_and_calibrated_right() -> None:
    """The control: without calibration everything is red."""
    things = ["rose", "sky", "sea"]
    assert biased().predict(things) == ["red", "red", "red"]
    assert icl.Classifier(COLOURS, Colours(), [ROSE]).predict(things) == ["red", "light blue", "blue"]


def test_p_cf_is_the_mean_over_three_texts_that_say_nothing() -> None:
    class Uneven(Colours):
        def answer(self, prompt: list[int]) -> list[float]:
            given = super().answer(prompt)
            if "[MASK]" in self.prompts[-1] and "light" not in self.prompts[-1]:
                given[WORDS.index(" red")], given[WORDS.index(" blue")] = 0.1, 0.7
            return given

    labels = replace(COLOURS, labels=("red", "blue"))
    classifier = icl.Classifier(labels, Uneven())
    found = classifier.predict_proba("rose")[0]
    p_cf = np.array([2 * 0.875 + 0.125, 2 * 0.125 + 0.875]) / 3  # each normalised over the labels first
    ratios = np.array([0.8, 0.05]) / p_cf
    assert found == pytest.approx(ratios / ratios.sum(), rel=1e-6)
    assert np.exp(classifier.bias) == pytest.approx(p_cf, rel=1e-6)
    assert (biased().bias == 0).all()


def test_with_a_demonstration_of_each_label_p_cf_is_the_mean_over_their_words_mixed() -> None:
    every = [ROSE, shown("sky", "light blue"), shown("sea", "blue"), shown("sea", "blue")]
    backend = Colours()
    classifier = icl.Classifier(COLOURS, backend, every)
    asked = [prompt.rsplit("Thing: ", 1)[1].split("\n")[0] for prompt in backend.prompts[::2]]
    assert len(asked) == 20
    assert {"rose", "sky", "sea"} == set(asked)
    assert max(map(asked.count, asked)) == 7, "labels take turns, however many demonstrations they have"
    alone = icl.Classifier(COLOURS, Colours(), every, calibrated=False).predict_proba(asked)
    assert np.exp(classifier.bias) == pytest.approx(alone.mean(axis=0), rel=1e-6)
    assert classifier.predict(["rose", "sky", "sea"]) == ["red", "light blue", "blue"]
    assert (icl.Classifier(COLOURS, Colours(), every).bias == classifier.bias).all()


def test_mixed_words_that_the_context_does_not_hold_are_not_asked_for() -> None:
    every = [ROSE, shown("sky", "light blue"), shown("sea rose " * 9, "blue")]

    def asked(context: int | None) -> list[int]:
        backend = Colours()
        backend.context_tokens = context
        icl.Classifier(COLOURS, backend, every)
        return [len(backend.tokenize(prompt)) for prompt in backend.prompts]

    longest = max(asked(None))
    assert len(asked(None)) == len(asked(longest + 1)) == 2 * 20  # one more, which a model may put in front
    assert len(asked(longest)) == 2 * 3


def test_the_prompt_is_the_one_that_to_prompt_writes_and_only_label_tokens_are_asked_for() -> None:
    backend = Colours()
    classifier = icl.Classifier(COLOURS, backend, [ROSE, shown("sky", "light blue")])
    whole = COLOURS.prompt([ROSE, shown("sky", "light blue")], "{}")
    texts = [
        text for item in ("N/A", "[MASK]", "") for text in (whole.format(item), f"{whole.format(item)} light")
    ]
    assert backend.prompts == texts
    classifier.predict("sea")
    assert backend.prompts[-2:] == [whole.format("sea"), f"{whole.format('sea')} light"]
    assert {tuple(support or ()) for support in backend.supports} == {
        tuple(WORDS.index(word) for word in (" red", " blue", " light"))
    }


def test_label_words_stand_in_prompts_and_labels_in_predictions() -> None:
    words = replace(COLOURS, labels=("warm", "cold"), label_words=("red", "blue"))
    backend = Colours()
    classifier = icl.Classifier(words, backend, [shown("rose", "warm")])
    assert classifier.labels == ("warm", "cold")
    assert classifier.predict(["rose", "sea"]) == ["warm", "cold"]
    assert "Thing: rose\nColour: red" in backend.prompts[-1]
    with pytest.raises(dpf.InvalidTask, match="the labels are warm, cold") as caught:
        words.word(SECRET)
    assert SECRET not in str(caught.value)


def test_a_stream_reads_as_far_as_predictions_are_asked_for() -> None:
    read: list[int] = []

    def endless() -> Iterator[str]:
        for number in count():
            read.append(number)
            yield ("rose", "sky", "sea")[number % 3]

    classifier = icl.Classifier(COLOURS, Colours(), [ROSE])
    stream = classifier.stream(endless())
    first = next(stream)
    assert (first.label, read) == ("red", [0])
    assert first.probability == max(first.probabilities)
    assert sum(first.probabilities) == pytest.approx(1)
    assert [next(stream).label for _ in range(2)] == ["light blue", "blue"]
    assert read == [0, 1, 2]

    backend = Colours()
    stream = icl.Classifier(COLOURS, backend, calibrated=False).stream(endless(), batch_size=5)
    next(stream)
    assert backend.calls == [2 * 5]  # two questions a text: what is said first, and after " light"
    assert len(read) == 3 + 5


def test_a_long_list_is_cut_into_batches_and_keeps_its_order() -> None:
    backend = Colours()
    classifier = icl.Classifier(COLOURS, backend)
    things = ["rose", "sky", "sea"] * 30
    assert classifier.predict(things) == ["red", "light blue", "blue"] * 30
    assert max(backend.calls) <= 2 * 32


def test_threads_may_share_a_classifier() -> None:
    classifier = icl.Classifier(COLOURS, Colours(), [ROSE])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(classifier.predict, ["rose", "sky", "sea"] * 20))
    assert found == ["red", "light blue", "blue"] * 20


# ---- extraction ------------------------------------------------------------------------------------------


class Storyteller(Scripted):
    """Says the tokens of its script one after the other, and then repeats the last."""

    def __init__(self, script: list[str], **options: Any) -> None:
        words = ["Thing:", "\nColour:", " deep", " blue", " rose", ".\n", "<end>"]
        self.script = [words.index(word) for word in script]
        super().__init__(words, self.answer, **options)

    def answer(self, prompt: list[int]) -> list[float]:
        said = len(prompt) - 1 - max(place for place, token in enumerate(prompt) if token == 1)
        return [float(token == self.script[min(said, len(self.script) - 1)]) for token in range(7)]


FREE = icl.PromptFormat("", "Thing", "Colour")


@pytest.mark.parametrize(
    ("script", "max_tokens", "expected"),
    [
        ([" deep", " blue", ".\n"], 16, "deep blue"),
        ([" deep", " blue", "<end>"], 16, "deep blue"),
        ([" deep"], 3, "deep deep deep"),
        ([".\n"], 16, ""),
    ],
)
def test_a_label_is_written_to_the_end_of_its_line(script: list[str], max_tokens: int, expected: str) -> None:
    backend = Storyteller(script, end_token_ids=[6])
    extractor = icl.Extractor(FREE, backend, [shown("rose", "blue")], max_tokens=max_tokens)
    assert extractor.predict("rose") == expected
    assert extractor.predict(["rose", "rose"]) == [expected] * 2
    assert next(extractor.stream(iter(["rose"]))) == expected


def test_labels_of_different_lengths_are_written_together_each_to_its_own_end() -> None:
    class Counting(Storyteller):
        """Says " blue" once for each rose of the question, and then something that nobody may see."""

        def answer(self, prompt: list[int]) -> list[float]:
            field = max(place for place, token in enumerate(prompt) if token == 1)
            roses = prompt[:field][::-1].index(0)
            said = len(prompt) - 1 - field
            token = 3 if said < roses else 5 if said == roses else 2
            return [float(token == each) for each in range(7)]

    extractor = icl.Extractor(FREE, Counting([" blue"]), max_tokens=4)
    texts = [" ".join(["rose"] * count) for count in (3, 1, 2, 9)]
    expected = ["blue blue blue", "blue", "blue blue", "blue blue blue blue"]
    assert extractor.predict(texts) == expected
    assert list(extractor.stream(iter(texts), batch_size=3)) == expected
    assert list(extractor.stream(iter(texts))) == expected
    with pytest.raises(dpf.InvalidPlan, match="batch_size"):
        next(extractor.stream(texts, batch_size=0))


# ---- what cannot be done ---------------------------------------------------------------------------------


def made(kind: str, backend: Any) -> icl.Classifier | icl.Extractor:
    if kind == "classifier":
        return icl.Classifier(COLOURS, backend, calibrated=False)
    return icl.Extractor(COLOURS, backend)


@pytest.mark.parametrize("kind", ["classifier", "extractor"])
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["rose", ""], r"texts\[1\] is blank"),
        ([" \n\t"], r"texts\[0\] is blank"),
        ("", r"texts\[0\] is blank"),
        (["rose", None], r"texts\[1\] is NoneType, not a string"),
        (b"rose", r"texts\[0\] is int, not a string"),
    ],
)
def test_a_bad_text_is_named_by_its_position(kind: str, texts: Any, message: str) -> None:
    with pytest.raises(dpf.InvalidRecords, match=message):
        made(kind, Colours()).predict(texts)


class Faulty(Colours):
    """Fails in one of several ways where a prompt holds the sea."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def tokenize(self, text: str) -> list[int]:
        if self.way == "tokenize" and "sea" in text:
            raise ValueError(f"cannot tokenise {text} {SECRET}")
        return super().tokenize(text)

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if self.way == "raise" and any(" sea" in self.detokenize(prompt) for prompt in prompts):
            raise ValueError(f"cannot evaluate {SECRET}")
        rows = super().next_token_logprobs(prompts, support)
        for row, prompt in zip(rows, prompts, strict=True):
            if " sea" in self.detokenize(prompt):
                row[:] = {"nan": np.nan, "nothing": -np.inf}.get(self.way, row)
        return rows[:, :-1] if self.way == "shape" else rows


@pytest.mark.parametrize("kind", ["classifier", "extractor"])
@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("nan", r"no answer for texts\[2\].*exceed the backend's context"),
        ("nothing", r"no answer for texts\[2\]"),
        ("tokenize", r"cannot tokenise texts\[2\]"),
        ("raise", r"failed with ValueError|no answer for texts\[2\]"),
        ("shape", "wrong shape"),
    ],
)
def test_a_backend_that_fails_tells_no_text(
    kind: str, way: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(dpf.BackendError, match=message) as caught:
        made(kind, Faulty(way)).predict(["rose", "sky", f"the sea {SECRET}"])
    told = "".join(traceback.format_exception(caught.value, chain=not caught.value.__suppress_context__))
    assert SECRET not in str(caught.value)
    assert f"cannot evaluate {SECRET}" not in told
    assert SECRET not in caplog.text


def test_a_server_that_is_gone_is_retryable() -> None:
    class Gone(Colours):
        def tokenize(self, text: str) -> list[int]:
            if "sea" in text:
                raise dpf.BackendError("the server does not answer", retryable=True)
            return super().tokenize(text)

    with pytest.raises(dpf.BackendError, match="does not answer") as caught:
        made("classifier", Gone()).predict("sea")
    assert caught.value.retryable


def test_a_label_that_the_model_never_says_cannot_be_calibrated() -> None:
    backend = Scripted([*WORDS], lambda _prompt: [1.0 * (word == " red") for word in WORDS])
    with pytest.raises(dpf.BackendError, match="calibrated=False"):
        icl.Classifier(COLOURS, backend)
    assert icl.Classifier(COLOURS, backend, calibrated=False).predict("rose") == "red"


def test_a_content_free_text_without_an_answer() -> None:
    class Mute(Colours):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            return super().next_token_logprobs(prompts, support) * np.nan

    with pytest.raises(dpf.BackendError, match="no answer for a content-free text"):
        icl.Classifier(COLOURS, Mute())


def test_demonstrations_that_do_not_fit_or_do_not_belong() -> None:
    class Short(Colours):
        context_tokens = 12

    with pytest.raises(dpf.InvalidPlan, match=r"3 demonstrations take \d+ tokens.*context_tokens=12"):
        icl.Classifier(COLOURS, Short(), [ROSE] * 3)
    with pytest.raises(dpf.InvalidPlan, match="use fewer or shorter"):
        icl.Extractor(FREE, Short(), [ROSE] * 3)
    with pytest.raises(dpf.InvalidTask, match="a demonstration's label: no such label") as caught:
        icl.Classifier(COLOURS, Colours(), [shown("rose", SECRET)])
    assert SECRET not in str(caught.value)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(dpf.InvalidTask, match="use Extractor"):
        icl.Classifier(dpf.tasks.MIT_D, Colours())
    with pytest.raises(dpf.InvalidTask, match="label 2 has no tokens of its own"):
        icl.Classifier(replace(COLOURS, labels=("red", "green")), Colours())
    with pytest.raises(dpf.InvalidPlan, match="max_tokens"):
        icl.Extractor(FREE, Colours(), max_tokens=0)
    with pytest.raises(dpf.InvalidPlan, match="batch_size"):
        next(biased().stream(["rose"], batch_size=0))
    with pytest.raises(dpf.InvalidRecords, match="letter by letter"):
        next(biased().stream("rose"))
    stream = made("classifier", Faulty("nan")).stream(["rose", "sea"])
    assert next(stream).label == "red"  # type: ignore[union-attr]
    with pytest.raises(dpf.BackendError, match=r"texts\[1\]"):
        next(stream)
