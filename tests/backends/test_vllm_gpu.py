"""A vLLM with a GPU in its batch-invariant mode: `make vllm VLLM=vllm==0.33.0`. Skipped, aloud, elsewhere."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from dpfewshot.backends import OpenAICompatible, conformance
from tests.support.vllm import CONTEXT, NAME, PYTHON, WHOLE, vllm_model, vllm_server

FIXTURES = (vllm_model,)
pytestmark = [pytest.mark.vllm, pytest.mark.gpu, pytest.mark.model]
INVARIANT = {"VLLM_BATCH_INVARIANT": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
SUPPORT = list(range(100, 200))
ASK_FOR_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"


@pytest.fixture(scope="module")
def backend(vllm_model):
    """vLLM computes as many sequences at once as it likes."""
    if subprocess.run([PYTHON, "-c", ASK_FOR_GPU], check=False).returncode:
        pytest.skip("vLLM has no CUDA device: its batch-invariant mode is not tested")
    with (
        vllm_server(vllm_model, *WHOLE, "--no-enable-prefix-caching", **INVARIANT) as url,
        OpenAICompatible(url, NAME, concurrency=16, timeout=300) as connected,
    ):
        yield connected


def moved(backend, prompts):
    """The positions of prompts that have other bits together than alone."""
    alone = np.concatenate([backend.next_token_logprobs([prompt], SUPPORT) for prompt in prompts])
    together = backend.next_token_logprobs(prompts, SUPPORT)
    return np.flatnonzero((alone.view(np.int32) != together.view(np.int32)).any(axis=1)).tolist()


def test_the_probe_trusts_it(backend):
    assert backend.describe().endswith(", batch-invariant")


@pytest.mark.parametrize("count", [3, 8, 12, 27, 43, 44, 45, 64, 65, 66, 128, 270])
def test_a_crowd_has_the_bits_of_each_alone(backend, count):
    """Known faults of earlier versions began at 44 and at 65 sequences."""
    samples = conformance.Samples.of(backend).suffixes
    assert moved(backend, [[*samples[place % len(samples)], place] for place in range(count)]) == []


@pytest.mark.parametrize("tokens", [255, 256, 257, CONTEXT - 2])
def test_steps_of_more_than_256_tokens_move_nothing(backend, tokens):
    """Earlier versions chose a block's size by the number of tokens in a step (vLLM PR 48391)."""
    assert moved(backend, [[place + 5] * tokens for place in range(20)]) == []
