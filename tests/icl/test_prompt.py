"""Labels of several tokens, scored whole: every figure here is worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.icl.prompt import LabelTree
from tests.support.colours import COLOURS, Colours

A, B, C, D = 4, 7, 2, 9


def rows(tree: LabelTree, probabilities: dict[tuple[int, ...], dict[int, float]]) -> np.ndarray:
    """The answer to one text, from the probabilities after each beginning."""
    with np.errstate(divide="ignore"):
        return np.log([[[probabilities[b].get(t, 0.0) for t in tree.support] for b in tree.beginnings]])


def test_the_longest_beginnings_lead_past_every_other() -> None:
    assert LabelTree([[A], [B]], 10).longest_beginnings == [()]
    assert LabelTree([[A, B, C], [A, D, C], [B, D], [A]], 10).longest_beginnings == [(A, B), (A, D), (B,)]


def test_the_sum_of_tokens_alone_would_never_choose_the_longer_label() -> None:
    """A control: without what is taken off, the beginning has at least the probability of the whole."""
    tree = LabelTree([[A], [A, B]], 10)
    answer = rows(tree, {(): {A: 1.0}, (A,): {B: 0.9}})
    assert tree.logprobs(answer)[0].argmax() == 1
    beginning = answer[0, 0, tree.support.index(A)]
    assert beginning > tree.logprobs(answer)[0, 1]


def test_nothing_is_left_for_a_beginning_that_always_goes_on() -> None:
    tree = LabelTree([[A], [A, B]], 10)
    scores = tree.logprobs(rows(tree, {(): {A: 0.5}, (A,): {B: 1.0}}))
    assert np.isfinite(scores).all()  # rounding may leave less than nothing: no warning, no NaN
    assert np.exp(scores) == pytest.approx(np.array([[0.0, 0.5]]))
    assert np.isnan(tree.logprobs(np.full((1, 2, 2), np.nan))).all()
    assert (tree.logprobs(np.full((1, 2, 2), -np.inf)) == -np.inf).all()


@pytest.mark.parametrize("labels", [[[A], [A]], [[A], []], [[A], [B, 10]]])
def test_labels_that_cannot_be_told_apart_are_named(labels: list[list[int]]) -> None:
    with pytest.raises(dpf.InvalidTask, match="label 2 has no tokens of its own"):
        LabelTree(labels, 10)


# ---- What holds of every label set, every answer and every batch -----------------------------------------


V = 5

label_sets = st.lists(
    st.lists(st.integers(0, V - 1), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6, unique=True
)


@given(label_sets, st.randoms(use_true_random=False))
def test_labels_share_nothing_of_a_models_probability(labels, source) -> None:
    """They are disjoint, so they sum to at most 1; and to 1 where labels are all that can be said."""
    tree = LabelTree(labels, V)
    weights = np.array([[source.random() + 1e-3 for _ in range(V)] for _ in tree.beginnings])
    chances = weights / weights.sum(axis=1, keepdims=True)
    answer = np.log(chances)[None][:, :, tree.support]
    scores = tree.logprobs(answer)
    assert np.exp(scores).sum() <= 1 + 1e-9
    if len(tree.beginnings) == 1 and len(tree.support) == V:
        assert np.exp(scores).sum() == pytest.approx(1)


@given(label_sets, st.randoms(use_true_random=False))
def test_a_label_is_what_is_counted_where_the_model_writes(labels, source) -> None:
    """Against the definition, by enumeration of all texts as long as the longest label and one token more."""
    tree = LabelTree(labels, V)
    chances = {b: [source.random() + 0.1 for _ in range(V)] for b in tree.beginnings}
    chances = {b: np.array(row) / sum(row) for b, row in chances.items()}
    answer = np.log([[[chances[b][t] for t in tree.support] for b in tree.beginnings]])

    def chance_of(path: tuple[int, ...]) -> float:
        return float(np.prod([chances[path[:end]][token] for end, token in enumerate(path)]))

    for label, score in zip(labels, tree.logprobs(answer)[0], strict=True):
        longer = {other[: len(label) + 1] for other in labels if other[: len(label)] == label != other}
        expected = chance_of(label) - sum(chance_of(path) for path in longer)
        assert np.exp(score) == pytest.approx(max(expected, 0), abs=1e-9)


things = st.lists(st.sampled_from(["rose", "sky", "sea", "void", "something else", "the sky"]), max_size=9)


@given(things, st.booleans(), st.integers(1, 4))
def test_probabilities_sum_to_one_and_know_nothing_of_their_batch(texts, calibrated, batch_size) -> None:
    classifier = icl.Classifier(COLOURS, Colours(), calibrated=calibrated)
    found = classifier.predict_proba(texts)
    assert found.sum(axis=1) == pytest.approx(np.ones(len(texts)))
    alone = [classifier.predict_proba(text)[0] for text in texts]
    assert (found == np.reshape(alone, found.shape)).all()
    assert (classifier.predict_proba(texts[::-1])[::-1] == found).all()
    streamed = classifier.stream(iter(texts), batch_size=batch_size)
    assert [one.probabilities for one in streamed] == [tuple(row) for row in found.tolist()]
    assert classifier.predict(texts) == [classifier.labels[row.argmax()] for row in found]


@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3))
def test_a_bias_of_any_kind_is_taken_off(bias) -> None:
    """A model that answers everything alike has, calibrated, no opinion; and evidence decides alone."""

    class Biased(Colours):
        def answer(self, prompt: list[int]) -> list[float]:
            chances = np.array(super().answer(prompt))
            places = [self.tokenize(word)[0] for word in (" red", " blue", " light")]
            if not self.prompts[-1].endswith(" light"):
                chances[places] *= bias
            return list(chances / chances.sum())

    classifier = icl.Classifier(COLOURS, Biased())
    assert classifier.predict_proba("void")[0] == pytest.approx([1 / 3] * 3, rel=1e-5)
    assert classifier.predict(["rose", "sky", "sea"]) == ["red", "light blue", "blue"]
