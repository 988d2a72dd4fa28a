"""Classification on the packaged model: tokens, bits and costs."""

from collections.abc import Iterator

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.icl.classifier import CONTENT_FREE
from tests.support.colours import shown
from tests.support.streams import evaluated

pytestmark = pytest.mark.model

DEMONSTRATIONS = [
    shown("How many people live in Ohio ?", "Number"),
    shown("Where is Perth ?", "Location"),
    shown("Who wrote Hamlet ?", "Person"),
]
QUESTIONS = ["Where is Rome ?", "How many moons has Mars ?", "Where is Rome ?\nAnswer Type: Ab"]
ODD = [
    '"quoted"',
    "...",
    "1999",
    "'s",
    "(x)",
    "\u2014 dash",
    "\u4e2d\u6587",
    "\U0001f600 hi",
    " two  blanks ",
]


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaCpp]:
    with LlamaCpp(packaged_model_path(), context_tokens=256, kept_prompts=15, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def classifier(backend: LlamaCpp) -> icl.Classifier:
    return icl.Classifier(dpf.tasks.TREC, backend, DEMONSTRATIONS, calibrated=False)


@pytest.mark.parametrize("task", [dpf.tasks.TREC, dpf.tasks.AGNEWS, dpf.tasks.DBPEDIA, dpf.tasks.MIT_D])
def test_pieces_have_the_tokens_of_the_whole_prompt(backend: LlamaCpp, task: dpf.Task) -> None:
    labels = task.labels or ("steven spielberg", "McG")
    demonstrations = [shown(text, label) for text, label in zip(ODD, labels, strict=False)]
    prompt = icl.prompt.FewShotPrompt(task, backend, demonstrations)
    for text in (*QUESTIONS, *ODD, *CONTENT_FREE):
        for label in labels:
            whole = backend.tokenize(f"{prompt.format.prompt(demonstrations, text)} {label}")
            assert prompt.prefix + prompt.question(text) + prompt.label(label) == whole


def test_answers_are_those_of_whole_prompts(backend: LlamaCpp, classifier: icl.Classifier) -> None:
    """A label of three tokens is the sum of theirs, each after those before it."""
    prompt = backend.tokenize(classifier.format.prompt(DEMONSTRATIONS, QUESTIONS[0]))
    tokens = backend.tokenize(" Abbreviation")
    (location,) = backend.tokenize(" Location")
    prompts = [[*prompt, *tokens[:end]] for end in range(len(tokens))]
    rows = backend.next_token_logprobs(prompts, [*tokens, location])
    assert len(tokens) == 3
    found = classifier.predict_proba(QUESTIONS[0])[0]
    odds = found[classifier.labels.index("Abbreviation")] / found[classifier.labels.index("Location")]
    assert np.log(odds) == pytest.approx(np.trace(rows[:, :3]) - rows[0, 3], abs=0.02)


def test_a_text_has_the_same_bits_alone_and_in_any_batch(classifier: icl.Classifier) -> None:
    together = classifier.predict_proba(QUESTIONS)
    alone = [classifier.predict_proba(question)[0] for question in QUESTIONS]
    assert together.tobytes() == np.array(alone).tobytes()
    assert classifier.predict_proba(QUESTIONS[::-1])[::-1].tobytes() == together.tobytes()


def test_the_prefix_is_evaluated_once_and_a_text_once_for_all_labels(
    classifier: icl.Classifier,
) -> None:
    classifier.predict(QUESTIONS[0])
    with evaluated() as count:
        classifier.predict(QUESTIONS)
    texts = sum(len(classifier.prompt.question(question)) for question in QUESTIONS)
    labels = sum(len(path) for path in classifier.tree.beginnings)
    assert count.tokens == texts + len(QUESTIONS) * labels
    assert labels > 0


def test_private_texts_have_the_same_bits_alone_and_in_any_batch(classifier: icl.Classifier) -> None:
    prompt, tree = classifier.prompt, classifier.tree
    questions = [prompt.question(question) for question in QUESTIONS]

    def rows(some: list[list[int]]) -> bytes:
        return prompt.label_logprobs(tree, some, private=True).tobytes()

    assert b"".join(rows([one]) for one in questions) == rows(questions)
    assert rows([*questions, *questions[:2]])[: len(rows(questions))] == rows(questions)
    public = prompt.label_logprobs(tree, questions)
    np.testing.assert_allclose(prompt.label_logprobs(tree, questions, private=True), public, atol=0.3)


def test_a_private_text_is_evaluated_once_for_all_labels(classifier: icl.Classifier) -> None:
    prompt, tree = classifier.prompt, classifier.tree
    questions = [prompt.question(question) for question in QUESTIONS]
    prompt.label_logprobs(tree, questions, private=True)  # evaluates the prefix
    with evaluated() as count:
        prompt.label_logprobs(tree, questions, private=True)
    steps = sum(map(len, tree.longest_beginnings))
    assert count.tokens == sum(map(len, questions)) + steps * len(questions)


def test_a_text_longer_than_the_context_is_named(backend: LlamaCpp, classifier: icl.Classifier) -> None:
    long = "swordfish " * 300
    for predictor in (classifier, icl.Extractor(dpf.tasks.MIT_D, backend)):
        with pytest.raises(dpf.BackendError, match=r"no answer for texts\[1\]") as caught:
            predictor.predict([QUESTIONS[0], long])
        assert "swordfish" not in str(caught.value)
    assert classifier.predict(QUESTIONS[1]) in classifier.labels
    with pytest.raises(dpf.InvalidPlan, match="context_tokens=256"):
        icl.Classifier(dpf.tasks.TREC, backend, [shown("word " * 300, "Number")])


def test_a_director_is_found_alone_and_in_a_batch(backend: LlamaCpp) -> None:
    extractor = icl.Extractor(
        dpf.tasks.MIT_D,
        backend,
        [
            shown("a 1993 film by steven spielberg about dinosaurs", "steven spielberg"),
            shown("kubrick 's space film of 1968", "kubrick"),
        ],
        max_tokens=8,
    )
    texts = ["the tim burton movie about a barber", "woody allen 's film set in paris"]
    assert extractor.predict(texts[0]) == "tim burton"
    assert extractor.predict(texts) == [extractor.predict(text) for text in texts]
