"""Labels of several tokens, scored whole: every figure here is worked out by hand."""

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.icl.prompt import LabelTree

A, B, C, D = 4, 7, 2, 9


def rows(tree: LabelTree, probabilities: dict[tuple[int, ...], dict[int, float]]) -> np.ndarray:
    """The answer to one text, from the probabilities after each beginning."""
    with np.errstate(divide="ignore"):
        return np.log([[[probabilities[b].get(t, 0.0) for t in tree.support] for b in tree.beginnings]])


def test_labels_of_one_token_take_one_question() -> None:
    tree = LabelTree([[A], [B]], 10)
    assert tree.beginnings == [()]
    assert tree.support == [A, B]
    scores = tree.logprobs(rows(tree, {(): {A: 0.5, B: 0.125}}))
    assert np.exp(scores) == pytest.approx(np.array([[0.5, 0.125]]))


def test_a_label_of_several_tokens_is_the_product_of_them() -> None:
    tree = LabelTree([[A], [B, C, D], [B, D]], 10)
    assert tree.beginnings == [(), (B,), (B, C)]
    answer = rows(tree, {(): {A: 0.5, B: 0.4}, (B,): {C: 0.5, D: 0.25, A: 0.1}, (B, C): {D: 0.1}})
    assert np.exp(tree.logprobs(answer)) == pytest.approx(np.array([[0.5, 0.02, 0.1]]))


def test_the_longest_beginnings_lead_past_every_other() -> None:
    assert LabelTree([[A], [B]], 10).longest_beginnings == [()]
    assert LabelTree([[A, B, C], [A, D, C], [B, D], [A]], 10).longest_beginnings == [(A, B), (A, D), (B,)]


def test_a_label_that_others_begin_with_has_what_does_not_go_on_to_them() -> None:
    tree = LabelTree([[A], [A, B], [A, C, D]], 10)
    answer = rows(tree, {(): {A: 0.8}, (A,): {B: 0.5, C: 0.3}, (A, C): {D: 0.25}})
    assert np.exp(tree.logprobs(answer)) == pytest.approx(np.array([[0.8 * 0.2, 0.4, 0.06]]))


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
