"""A server of a float32 model has the probabilities of the same model in process."""

from __future__ import annotations

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.backends.servers.openai_compatible import OpenAICompatible
from tests.support.server_faults import PROMPT
from tests.support.servers import llama_server

pytestmark = pytest.mark.model


def test_a_float32_model_has_the_probabilities_of_the_same_model_in_process(tmp_path):
    """Quantised kernels differ by 0.04 to 0.09 from build to build; in float32 only rounding is left."""
    import llama_cpp

    path = tmp_path / "float32.gguf"
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize, parameters.nthread = 0, True, 2
    assert (
        llama_cpp.llama_model_quantize(str(packaged_model_path()).encode(), str(path).encode(), parameters)
        == 0
    )
    with LlamaCpp(path, threads=1) as local, llama_server(path) as url:
        prompts = [local.tokenize(text) for text in ("The capital of France is", PROMPT)]
        with OpenAICompatible(url, "smollm2", verify=False) as served:
            difference = np.exp(served.next_token_logprobs(prompts)) - np.exp(
                local.next_token_logprobs(prompts)
            )
    assert np.abs(difference).max() < 1e-3
