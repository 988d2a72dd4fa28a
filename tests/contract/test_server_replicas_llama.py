"""Two real llama-servers as replicas: the bits of one, and an error once one of them is killed."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dpfewshot.backends import OpenAICompatible, conformance, packaged_model_path
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.servers import llama_server

pytestmark = pytest.mark.model
TEXTS = ["Name: Zanzibar", "Where", "My parcel is late", "Refund me"]


def test_two_llama_servers_answer_as_one_until_one_is_killed():
    with ExitStack() as stack, llama_server(packaged_model_path()) as kept:
        urls = [kept, stack.enter_context(llama_server(packaged_model_path()))]
        with OpenAICompatible(urls, "smollm2", verify=False) as backend:
            prompts = [backend.tokenize(text) for text in TEXTS]
            found = backend.next_token_logprobs(prompts)
            with OpenAICompatible(kept, "smollm2", verify=False) as single:
                assert found.tobytes() == single.next_token_logprobs(prompts).tobytes()
            stack.close()
            inside.hurry(backend, 0.5)
            for prompt in prompts:  # wherever it is sent
                with pytest.raises(BackendError, match="does not answer"):
                    backend.next_token_logprobs([prompt])


@pytest.mark.soak
def test_two_llama_servers_conform():
    model = packaged_model_path()
    with (
        llama_server(model) as one,
        llama_server(model) as two,
        OpenAICompatible([one, two], "smollm2") as backend,
    ):
        assert backend.describe().startswith("2 replicas of llama-server at 127.0.0.1:")
        assert backend.batch_invariant
        conformance.require(conformance.examine(backend))
