"""What LlamaCpp and HuggingFace have in common: blocks, rows of NaN, counts, threads, forks and failures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, conformance
from dpfewshot.backends.hugging_face import HuggingFace, HuggingFaceStreams
from dpfewshot.backends.llama_cpp.model import KVStreams
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.processes import true_in_child
from tests.support.small_models import small
from tests.support.streams import answers, evaluated, same_bits
from tests.support.tiny_models import SMALL, folder, one_thread

FIXTURES = (folder, one_thread, small)
pytestmark = pytest.mark.model

PREFIX = [11, 12, 13]
PROMPTS = [[5, 6, 7], [30], [9] * 20, [40, 41, 42, 43]]
OPENERS = {
    "llama.cpp": lambda small, _: LlamaCpp(
        small, context_tokens=256, kept_prompts=15, threads=1, weights="file"
    ),
    "transformers": lambda _, folder: HuggingFace(folder, **SMALL),
}


@pytest.fixture(scope="module", params=OPENERS)
def opened(request, small, folder):
    """Opens another backend of the kind."""
    return lambda: OPENERS[request.param](small, folder)


@pytest.fixture(scope="module")
def backend(opened):
    with opened() as loaded:
        yield loaded


@pytest.fixture
def streams(backend):
    """The class of its streams, to be broken."""
    return KVStreams if isinstance(backend, LlamaCpp) else HuggingFaceStreams


def alike(one, other):
    """Whether these are answers to the same prompts, evaluated in calls of other shapes."""
    return all(np.corrcoef(row, expected)[0, 1] > 0.99 for row, expected in zip(one, other, strict=True))


def test_an_answer_may_be_asked_for_again(backend):
    block = backend.open_block(PREFIX, PROMPTS[:2], 3)
    first = block.next_token_logprobs()
    assert same_bits(first, block.next_token_logprobs())
    block.append(5)
    block.append(6)
    after = block.next_token_logprobs()
    assert same_bits(after, block.next_token_logprobs())
    assert same_bits(after, answers(backend, PREFIX, PROMPTS[:2], [5, 6])[-1])
    assert same_bits(after[:, [7, 3]], block.next_token_logprobs([7, 3]))
    block.close()


def test_an_interrupted_repetition_is_evaluated_afresh(backend, streams, monkeypatch):
    expected = answers(backend, PREFIX, PROMPTS[:2], [5])[-1]

    def interrupted(*_):
        raise KeyboardInterrupt

    block = backend.open_block(PREFIX, PROMPTS[:2], 3)
    block.next_token_logprobs()
    with monkeypatch.context() as patch:
        patch.setattr(streams, "extend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            block.next_token_logprobs()
    block.append(5)
    assert same_bits(block.next_token_logprobs(), expected)
    block.close()


def test_a_public_block_stays_open_while_private_ones_come_and_go(backend):
    expected = answers(backend, PREFIX, [[]], [5, 6], public=True)
    public = backend.open_block(PREFIX, [[]], 3, public=True)
    found = []
    for token in (5, 6, None):
        found.append(public.next_token_logprobs())
        answers(backend, PREFIX, PROMPTS[:2], [1])
        backend.next_token_logprobs(PROMPTS[:1])
        if token is not None:
            public.append(token)
    public.close()
    assert all(map(same_bits, expected, found))


def test_more_prompts_than_are_kept_have_the_same_bits(backend):
    suffixes = [[20 + index] * (1 + index % 6) for index in range(40)]
    together = answers(backend, PREFIX, suffixes, [5, 6])
    for index in (0, 14, 15, 39):
        alone = answers(backend, PREFIX, [suffixes[index]], [5, 6])
        assert all(same_bits(many[index : index + 1], one) for many, one in zip(together, alone, strict=True))


def test_public_prompts_step_together_without_dummies(backend):
    suffixes = [[], [], [20], [21, 22]]
    expected = answers(backend, PREFIX, suffixes, [5, 6])
    answers(backend, PREFIX, suffixes, [5], public=True)  # evaluates the prefix
    with evaluated() as count:
        found = answers(backend, PREFIX, suffixes, [5, 6], public=True)
    assert (count.tokens, count.dummies) == (3 + 2 * len(suffixes), 0)
    assert all(map(alike, found, expected))
    assert all(map(same_bits, expected, answers(backend, PREFIX, suffixes, [5, 6])))


def test_public_prompts_of_one_token_continue_one_another(backend):
    """Each by itself has the bits that it has alone; what continues it is evaluated from there."""
    first, other = PROMPTS[0], PROMPTS[3]
    prompts = [first, [*first, 5], [*first, 5, 6], [], [*first, 7], other, first]
    whole = answers(backend, PREFIX, prompts, [])[0]
    with evaluated() as count:
        turns = answers(backend, PREFIX, prompts, [], public=True)[0]
    assert count.tokens == 2 * len(first) + len(other) + 1 + 2 + 1
    for row in (0, 3, 5, 6):
        assert same_bits(turns[row], whole[row])
    assert same_bits(turns[1:2], answers(backend, PREFIX, [other, *prompts[:2]], [], public=True)[0][2:])
    assert np.abs(np.exp(turns) - np.exp(whole)).max() < 0.1  # about the same: see check_block_agreement
    with evaluated() as count:
        answers(backend, PREFIX, prompts[:3], [])
    assert count.tokens == 3 * len(first) + 3  # private prompts never do


def test_public_prompts_that_are_kept_go_on_without_the_others(backend):
    suffixes = [[], [20], [21, 22], [23], *([25 + place] for place in range(backend.kept_prompts))]
    many = len(suffixes) - 1  # more than one group holds; the last ones are evaluated afresh for each token
    block = backend.open_block(PREFIX, suffixes, 5, public=True)
    block.keep([*range(many + 1)])
    block.next_token_logprobs()
    released = {place: [30 + place] for place in range(many + 1)}
    block.append_each([tokens[0] for tokens in released.values()])
    for kept in ([0, 2, 3, many], [2, many], [2]):
        block.keep([place for place, own in enumerate(released) if own in kept])
        released = {place: [*released[place], 40 + place] for place in kept}
        with evaluated() as count:
            block.next_token_logprobs()
            block.append_each([tokens[-1] for tokens in released.values()])
            found = block.next_token_logprobs()
        assert found.shape[0] == len(kept)
        for row, (place, tokens) in enumerate(released.items()):
            assert alike(found[row : row + 1], answers(backend, PREFIX, [suffixes[place]], tokens)[-1])
    assert (count.tokens, count.dummies) == (2, 0)
    block.close()
    for public, places in ((False, [0]), (True, [1, 0]), (True, [0, 0]), (True, [-1]), (True, [9])):
        with pytest.raises(BackendError, match="places of public prompts, ascending"):
            backend.open_block(PREFIX, suffixes[:3], 3, public=public).keep(places)


@pytest.mark.parametrize("public", [True, False])
def test_each_prompt_may_continue_with_its_own_tokens(backend, public):
    tokens = [[40 + row, 60 + row] for row in range(len(PROMPTS))]
    block = backend.open_block(PREFIX, PROMPTS, 3, public=public)
    for step in range(2):
        block.append_each([each[step] for each in tokens])
    together = block.next_token_logprobs()
    for row, (prompt, each) in enumerate(zip(PROMPTS, tokens, strict=True)):
        alone = answers(backend, PREFIX, [prompt], each)[-1]
        assert (alike if public else same_bits)(together[row : row + 1], alone)
    with pytest.raises(BackendError, match="give one each"):
        block.append_each([5])
    with pytest.raises(BackendError, match="not in 0 to"):
        block.append_each([backend.vocabulary_size] * len(PROMPTS))
    block.close()


def test_it_evaluates_a_prefix_once(backend):
    answers(backend, [60] * 30, PROMPTS, [5])
    with evaluated() as count:
        answers(backend, [60] * 30, PROMPTS, [5])
        answers(backend, [61] * 30, PROMPTS[:1], [5])
    rest = sum(map(len, PROMPTS)) + len(PROMPTS) + len(PROMPTS[0]) + 1
    assert count.tokens == 30 + rest
    assert count.dummies == 2 * 16 - len(PROMPTS) - 1


def test_prompts_that_cannot_be_evaluated_are_rows_of_nan(backend):
    good, size, context = [1, 2, 3], backend.vocabulary_size, backend.context_tokens
    bad = [[], [7] * (context + 1), [3, size], [-1]]
    found = backend.next_token_logprobs([bad[0], good, *bad[1:]], [5, 6])
    assert np.isnan(found[[0, 2, 3, 4]]).all()
    assert same_bits(found[1:2], backend.next_token_logprobs([good], [5, 6]))
    assert np.isfinite(backend.next_token_logprobs([[7] * context], [5])).all()
    assert [found.shape for found in answers(backend, PREFIX, [], [5])] == [(0, size)] * 2
    fits, does_not = [7] * (context - 10 - 2), [7] * (context - 10 - 1)
    for found in answers(backend, [3] * 10, [fits, does_not], [5, 5]):  # room for the tokens to come
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1]).all()


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_a_row_of_nan(backend, streams, monkeypatch, fault):
    """Only the row concerned: `extend` is what evaluates one prompt."""
    evaluate = streams.extend

    def broken(self, stream, start, tokens, **options):
        logits = evaluate(self, stream, start, tokens, **options) + 0  # a copy
        if tokens[0] == 9:
            logits[100] = fault
        return logits

    good = backend.next_token_logprobs([[8]])
    monkeypatch.setattr(streams, "extend", broken)
    found = backend.next_token_logprobs([[9], [8], [9, 9]])
    assert np.isnan(found[[0, 2]]).all()
    assert same_bits(found[1:2], good)


def test_special_tokens_in_text_stay_text(backend):
    assert backend.detokenize([min(backend.end_token_ids)]).startswith("<|")
    special = ("<|im_end|>", "a<|endoftext|>b", "<|im_start|>user", "<tool_call>", "<s>")
    for text in (*special, "caf\u00e9 \U0001f30d"):
        tokens = backend.tokenize(text)
        assert len(tokens) > 1
        assert not backend.end_token_ids & set(tokens)
        assert backend.detokenize(tokens) == text
    assert backend.detokenize(backend.tokenize("a\ud800b")) == "a?b"  # a text that is no Unicode


def test_threads_take_turns(backend):
    expected = answers(backend, PREFIX, PROMPTS, [5])
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(lambda _: answers(backend, PREFIX, PROMPTS, [5]), range(3)):
            assert all(map(same_bits, expected, found))


def fail(**_):
    raise RuntimeError("shape [1, 20] of a secret")


def test_a_failure_speaks_of_no_prompt_and_can_be_tried_again(backend, monkeypatch):
    expected = answers(backend, PREFIX, PROMPTS, [5])
    block = backend.open_block(PREFIX, PROMPTS, 2)
    model = inside.model(backend)
    says = "llama_decode failed with status -3" if isinstance(backend, LlamaCpp) else "PyTorch failed on cpu"
    with monkeypatch.context() as patch:
        if isinstance(backend, LlamaCpp):
            patch.setattr(model.library, "llama_decode", lambda *_: -3)
        else:
            patch.setattr(model, "network", fail)
        with pytest.raises(BackendError, match=says) as raised:
            block.next_token_logprobs()
    assert raised.value.retryable
    assert raised.value.__cause__ is None
    assert "secret" not in str(raised.value)
    with pytest.raises(BackendError, match="caches are lost"):
        block.next_token_logprobs()
    block.close()
    assert all(map(same_bits, expected, answers(backend, PREFIX, PROMPTS, [5])))


def test_what_the_caller_gets_wrong_is_an_error(backend):
    with pytest.raises(BackendError, match="at least one token"):
        backend.open_block(PREFIX, [[1]], 0)
    with pytest.raises(BackendError, match="leave no room"):
        backend.open_block([1] * backend.context_tokens, [[1]], 1)
    with pytest.raises(BackendError, match="support"):
        backend.next_token_logprobs([[1]], [-1])
    with pytest.raises(BackendError, match="not in 0 to"):
        backend.detokenize([backend.vocabulary_size])
    block = backend.open_block(PREFIX, [[1]], 2)
    with pytest.raises(BackendError, match="not in 0 to"):
        block.append(-1)
    block.append(1)
    block.append(1)  # the token after the last is not looked at
    with pytest.raises(BackendError, match="opened for 2 tokens"):
        block.next_token_logprobs()
    block.close()
    block.close()
    with pytest.raises(BackendError, match="block is closed"):
        block.next_token_logprobs()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_refused(backend):
    def refused():
        with pytest.raises(BackendError, match="another process"):
            backend.next_token_logprobs([[1]])
        with pytest.raises(BackendError, match="another process"):
            backend.prepare(1)
        return True

    assert true_in_child(refused)


def test_a_closed_backend_refuses(opened):
    loaded = opened()
    block = loaded.open_block([1], [[2]], 2)
    assert conformance.check_closing(loaded, [[1]]).passed
    block.close()
    for use in (lambda: loaded.tokenize("a"), block.next_token_logprobs, lambda: block.append(1)):
        with pytest.raises(BackendError, match="closed"):
            use()
