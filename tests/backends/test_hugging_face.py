"""HuggingFace on small random models and on the packaged one: the same bits in any batch."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, conformance, packaged_model_path
from dpfewshot.backends.hugging_face import HuggingFace, HuggingFaceStreams
from dpfewshot.errors import BackendError
from dpfewshot.prompts.chat import chat_turns
from tests.support import inside
from tests.support.streams import answers
from tests.support.tiny_models import PADDING, SIZES, SMALL, folder, one_thread, save_tiny_model

FIXTURES = (folder, one_thread)
pytestmark = pytest.mark.model
PROMPTS = [[5, 6, 7], [30], [9] * 20, [40, 41, 42, 43]]


@pytest.fixture(scope="module")
def backend(folder):
    with HuggingFace(folder, **SMALL) as loaded:
        yield loaded


def transformers_own(backend, prompt):
    """The log-probabilities that transformers gives one prompt, without a cache."""
    import torch

    model = inside.model(backend)
    with torch.inference_mode():
        logits = model.network(input_ids=torch.tensor([prompt])).logits[0, -1, : model.vocabulary_size]
    return torch.log_softmax(logits.double(), dim=0).numpy()


def test_it_passes_the_whole_suite(backend, folder):
    whole = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert backend.model_identity == f"sha256:{whole}"
    assert backend.tokenizer_identity.startswith("sha256:")
    assert backend.batch_invariant
    assert backend.end_token_ids == {0, 1}
    samples = replace(conformance.Samples.of(backend), texts=())
    conformance.require(conformance.examine(backend, samples, closing=False))


@pytest.mark.soak
def test_the_packaged_model_is_invariant_and_agrees_with_llama_cpp():
    """The weights are the same four bits; llama.cpp rounds activations to eight bits, PyTorch does not."""
    settings = {"context_tokens": 64, "kept_prompts": 7, "decode_batch": 8}
    with HuggingFace(packaged_model_path(), device="cpu", **settings) as loaded:
        assert loaded.batch_invariant
        assert "in steps of 8" in loaded.describe()
        prefix, suffix = loaded.tokenize("The capital of"), loaded.tokenize(" France is")
        found = answers(loaded, prefix, [suffix, suffix[:1]], loaded.tokenize(" the"))
        digits = loaded.tokenize("2,850 km in 1999")
        ends, special = loaded.end_token_ids, loaded.tokenize("a<|im_end|>b")
        assert not ends & set(special)
        turns = chat_turns(loaded)
    with LlamaCpp(packaged_model_path(), threads=1, **settings) as other:
        expected = answers(other, prefix, [suffix, suffix[:1]], other.tokenize(" the"))
        assert {0, 2} == ends <= other.end_token_ids
        assert digits == other.tokenize("2,850 km in 1999")
        assert special == other.tokenize("a<|im_end|>b")
        assert turns == chat_turns(other)
    for one, two in zip(found, expected, strict=True):
        assert np.abs(np.exp(one) - np.exp(two)).max() < 0.1
        assert (one.argmax(axis=1) == two.argmax(axis=1)).all()


def test_a_chat_template_learns_no_date(backend, monkeypatch):
    """Else a run that began yesterday could not be resumed."""
    template = "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% endif %}{{ messages[0].content }}"
    for given in (None, {"tool_use": template}):
        monkeypatch.setattr(inside.tokenizer(backend), "chat_template", given)
        with pytest.raises(BackendError, match="has no chat template"):
            backend.chat_text(["one"])
    monkeypatch.setattr(inside.tokenizer(backend), "chat_template", {"default": template})
    assert backend.chat_text(["one"]) == "one"


def test_blocks_agree_with_transformers_on_whole_prompts(backend):
    prefix, released = [11, 12, 13], [50, 51]
    found = answers(backend, prefix, PROMPTS, released)
    for count, answer in enumerate(found):
        for row, suffix in zip(answer, PROMPTS, strict=True):
            expected = transformers_own(backend, [*prefix, *suffix, *released[:count]])
            np.testing.assert_allclose(row, expected, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
        ("Mistral", {**SIZES, "sliding_window": 96}),
        ("Gemma3Text", {**SIZES, "sliding_window": 96, "query_pre_attn_scalar": 16}),
    ],
)
def test_other_architectures(tmp_path, kind, settings):
    with HuggingFace(save_tiny_model(tmp_path, kind, **settings), **SMALL) as loaded:
        assert loaded.batch_invariant
        found = answers(loaded, [11, 12], PROMPTS[:2], [50])
        np.testing.assert_allclose(found[1][0], transformers_own(loaded, [11, 12, 5, 6, 7, 50]), atol=2e-3)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_as_invariant_as_the_backend_states(folder, dtype, attention):
    with HuggingFace(folder, dtype=dtype, attention=attention, **SMALL) as loaded:
        finding = conformance.check_block_invariance(
            loaded, [11, 12], [[5 + i] * (1 + i) for i in range(20)], [7]
        )
        assert finding.passed == loaded.batch_invariant, finding.detail


def test_steps_that_tell_of_neighbours_are_taken_one_by_one(folder, monkeypatch):
    step = HuggingFaceStreams.step

    def leaky(self, first, tokens, positions, active):
        trace = 1e-3 * sum(positions[:active]) if len(tokens) > 1 else 0.0
        return [row + trace * (row > 0) for row in step(self, first, tokens, positions, active)]

    monkeypatch.setattr(HuggingFaceStreams, "step", leaky)
    with HuggingFace(folder, **SMALL) as loaded:
        assert loaded.batch_invariant
        assert loaded.describe().endswith("prompts one by one: batch invariant")


def test_prompts_that_tell_of_earlier_ones_are_not_invariant(folder, monkeypatch):
    extend = HuggingFaceStreams.extend
    calls = []

    def leaky(self, *arguments, **options):
        calls.append(None)
        row = extend(self, *arguments, **options)
        return row + 1e-3 * len(calls) * (row > 0)

    monkeypatch.setattr(HuggingFaceStreams, "extend", leaky)
    with HuggingFace(folder, **SMALL) as loaded:
        assert not loaded.batch_invariant
        assert "NOT batch invariant" in loaded.describe()


def test_rows_that_only_pad_the_matrices_are_no_tokens(backend):
    rows = inside.model(backend).network.get_output_embeddings().weight.shape[0]
    assert backend.vocabulary_size == rows - PADDING
    totals = np.exp(backend.next_token_logprobs(PROMPTS).astype(np.float64)).sum(axis=1)
    np.testing.assert_allclose(totals, 1, atol=1e-5)


def test_a_beginning_that_the_tokenizer_adds_stands_before_every_prompt(tmp_path, backend):
    with HuggingFace(save_tiny_model(tmp_path, bos=True, **SIZES), **SMALL) as loaded:
        assert 2 not in loaded.tokenize("Where is the")
        found, expected = loaded.next_token_logprobs([[5, 6]]), backend.next_token_logprobs([[2, 5, 6]])
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert np.abs(found - backend.next_token_logprobs([[5, 6]])).max() > 1e-2
        assert np.isfinite(loaded.next_token_logprobs([[]])).all()


def test_products_are_whole_whatever_the_process_chose(backend, monkeypatch):
    import torch

    seen = []
    network = inside.model(backend).network

    def watched(**options):
        seen.append(torch.get_float32_matmul_precision())
        return network(**options)

    monkeypatch.setattr(inside.model(backend), "network", watched)
    torch.set_float32_matmul_precision("high")
    try:
        backend.next_token_logprobs([[1]])
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode_batch": 12}, "decode_batch"),
        ({"context_tokens": 0}, "context_tokens=0"),
        ({"kept_prompts": -1}, "kept_prompts"),
        ({"context_tokens": 257}, "context_tokens=257: at most 256, the tokens that"),
        ({"device": "cuda:77"}, "no such device"),
        ({"device": "abacus"}, "no such device"),
        ({"dtype": "int8"}, "float32, bfloat16, float16"),
        ({"attention": "flash_attention_2"}, "eager, sdpa"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(folder, settings, message):
    with pytest.raises(BackendError, match=message):
        HuggingFace(folder, **{"device": "cpu", **settings})


def test_streams_that_do_not_fit_are_refused_before_there_is_a_prompt(folder, monkeypatch):
    import torch

    zeros = torch.zeros

    def full(shape, **options):
        if len(shape) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(shape, **options)

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(BackendError, match="do not fit the memory of cpu: lower kept_prompts"):
        HuggingFace(folder, **SMALL)


def test_models_that_cannot_be_evaluated_are_refused(tmp_path):
    text = tmp_path / "model.gguf"
    text.write_text("not a model")
    mamba = {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
    for model, message in (
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path, "cannot load"),
        (text, "cannot load"),
        (save_tiny_model(tmp_path / "recurrent", "Mamba", **mamba), "not a decoder-only transformer"),
        (
            save_tiny_model(tmp_path / "window", "Mistral", **SIZES, sliding_window=32),
            "at most 32, the tokens that",
        ),
    ):
        with pytest.raises(BackendError, match=message):
            HuggingFace(model, **SMALL)
