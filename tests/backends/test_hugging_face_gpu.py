"""HuggingFace on a GPU: the same bits in any batch, in every dtype.

The model is the packaged one, or the one that DPFEWSHOT_TEST_GGUF names (a folder will do too).
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from dpfewshot.backends import conformance, packaged_model_path
from dpfewshot.backends.hugging_face import HuggingFace

pytestmark = [pytest.mark.gpu, pytest.mark.model, pytest.mark.usefixtures("cuda")]

ALLOCATION = 20 * 2**20
"""What PyTorch takes from the driver at a time."""

SETTINGS = {"device": "cuda", "context_tokens": 128, "kept_prompts": 15}


@pytest.fixture(scope="module")
def path(cuda):
    assert cuda.is_available()
    return os.environ.get("DPFEWSHOT_TEST_GGUF") or packaged_model_path()


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def backend(request, path):
    with HuggingFace(path, dtype=request.param, **SETTINGS) as loaded:
        yield loaded


def test_it_passes_the_whole_suite(backend):
    assert backend.batch_invariant, backend.describe()
    samples = replace(conformance.Samples.of(backend), texts=())
    conformance.require(conformance.examine(backend, samples, closing=False))


def test_eighty_prompts_have_the_bits_of_each_alone(backend):
    given = conformance.Samples.of(backend)
    suffixes = [[*given.suffixes[index % len(given.suffixes)], index] for index in range(80)]
    finding = conformance.check_block_invariance(backend, given.prefix, suffixes, given.released)
    assert finding.passed, f"{backend.describe()}: {finding.detail}"


def test_it_agrees_approximately_with_the_cpu(backend, path):
    """Half precision has 8 or 11 bits: a wrong token, position or mask gives far more than this."""
    prompts = conformance.Samples.of(backend).prompts[:4]
    with HuggingFace(path, **{**SETTINGS, "device": "cpu"}) as exact:
        expected = exact.next_token_logprobs(prompts)
    assert np.abs(np.exp(backend.next_token_logprobs(prompts)) - np.exp(expected)).max() < 0.1


def test_memory_is_taken_before_the_first_private_prompt(backend):
    """The longest prompts and a full block need no more than the constructor took."""
    import torch

    before = torch.cuda.memory_reserved()
    block = backend.open_block(
        [1], [[2 + index] * (SETTINGS["context_tokens"] - 3) for index in range(15)], 3
    )
    for token in (5, 6):
        block.next_token_logprobs()
        block.append(token)
    block.next_token_logprobs()
    block.close()
    assert torch.cuda.memory_reserved() - before <= ALLOCATION
