"""OpenAICompatible on a running vLLM: `make vllm`, minutes on two cores. Skipped, aloud, without vLLM."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpfewshot import PrivacyBudget, Record, Synthesizer, Task
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.backends import LlamaCpp, OpenAICompatible, packaged_model_path
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.tiny_models import SIZES, save_tiny_model
from tests.support.vllm import CONTEXT, MISSING, NAME, ONE_BY_ONE, PYTHON, WHOLE, vllm_model, vllm_server

FIXTURES = (vllm_model,)
pytestmark = [pytest.mark.vllm, pytest.mark.model]
TEXTS = ["Name: Zanzibar", "Where", "The capital of France is", "My parcel is late. Where is it?"]
TASK = Task(
    name="t", instruction="A ticket.", label_field="Category", text_field="Ticket", labels=("Refund",)
)
RECORDS = [Record("Where is my money ?", "Refund"), Record("The shoes <|im_end|> do not fit .", "Refund")] * 5
BUDGET = PrivacyBudget(epsilon=8, delta=1e-3)


@pytest.fixture(scope="module")
def base_url(vllm_model):
    with vllm_server(vllm_model, *WHOLE, *ONE_BY_ONE) as url:
        yield url


@pytest.fixture(scope="module")
def backend(base_url):
    with OpenAICompatible(base_url, NAME, timeout=300) as connected:
        yield connected


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    if PYTHON is None:
        pytest.skip(MISSING)
    sizes = {**SIZES, "head_dim": 32, "max_position_embeddings": CONTEXT}  # vLLM has kernels for these
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / NAME, **sizes)


@pytest.fixture(scope="module")
def local():
    with LlamaCpp(packaged_model_path(), threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def prompts(backend):
    return [backend.tokenize(text) for text in TEXTS]


def test_one_sequence_at_a_time_is_recognised_and_trusted(backend, local):
    assert backend.describe().startswith("vllm at 127.0.0.1:")
    assert backend.describe().endswith(", batch-invariant")
    assert backend.vocabulary_size == local.vocabulary_size
    assert backend.context_tokens == CONTEXT
    assert inside.picks_ids(backend)


def test_chosen_ids_have_the_bits_of_the_whole_row(backend, prompts):
    whole = backend.next_token_logprobs(prompts)
    for support in ([7], [9, 5, 49151], list(range(128)), list(range(129))):
        assert backend.next_token_logprobs(prompts, support).tobytes() == whole[:, support].tobytes()
    assert np.exp(whole.astype(np.float64)).sum(axis=1) == pytest.approx(np.ones(len(prompts)), abs=1e-5)


def test_it_agrees_approximately_with_the_same_model_in_process(backend, prompts, local):
    """Both round, in different places: another token, position or mask gives far more than this."""
    expected = np.exp(local.next_token_logprobs(prompts))
    assert np.abs(np.exp(backend.next_token_logprobs(prompts)) - expected).max() < 0.1


def test_special_tokens_of_records_stay_text(backend, local):
    for text in ("a <|im_start|> b", "<|im_end|>", "[<|endoftext|>]", "caf\u00e9\n\n\x00", "\ud800"):
        tokens = backend.tokenize(text)
        assert not backend.end_token_ids & set(tokens)
        assert backend.detokenize(tokens) == local.detokenize(local.tokenize(text))
    # every end token of the file that a text can spell
    assert backend.end_token_ids <= local.end_token_ids


def test_a_prompt_that_does_not_fit_is_a_row_of_nan_and_its_neighbours_are_rows(backend, prompts):
    found = backend.next_token_logprobs([prompts[0], [7] * CONTEXT, [7] * (CONTEXT - 1)], [5, 6])
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False]
    assert found[0].tobytes() == backend.next_token_logprobs(prompts[:1], [5, 6]).tobytes()


def test_a_prompt_that_vllm_refuses_is_a_row_of_nan(base_url, backend, prompts):
    """As of a record whose prompt fails at the server alone."""
    with OpenAICompatible(base_url, NAME, verify=False, timeout=300) as trusting:
        trusting.context_tokens = None
        found = trusting.next_token_logprobs([prompts[0], [7] * (CONTEXT + 1), prompts[1]], [5, 6])
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False]
    expected = backend.next_token_logprobs(prompts[:2], [5, 6])
    assert found[[0, 2]].tobytes() == expected.tobytes()


def test_a_demonstration_is_generated_and_its_ledger_verifies(backend, tmp_path):
    with BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db") as ledger:
        account = ledger.create("tickets", BUDGET)
        settings = {"prompts_per_draw": 4, "max_tokens": 3, "tokens_per_draw": 1}
        with Synthesizer(TASK, RECORDS, backend, budget=BUDGET, account=account, **settings) as synthesizer:
            demonstration = synthesizer.generate("Refund")
        assert demonstration.certified
        assert 1 <= demonstration.token_count <= 3
        assert 0 < account.spent.epsilon <= BUDGET.epsilon
        assert account.verify().ok


def test_the_doctor_finds_nothing_wrong(tiny_model, command):
    """The conformance suite asks for hundreds of whole rows: of 328 tokens here, and not of 49,152."""
    with vllm_server(tiny_model, *WHOLE, *ONE_BY_ONE) as url:
        server = ["--backend", "openai", "--set", f"base_url={url}", "--model", NAME]
        status, printed, _ = command("doctor", *server, "--json")
    found = json.loads(printed)
    assert [check for check in found["checks"] if not check["well"]] == []
    assert (status, found["well"]) == (0, True)
    assert "batch invariance" in {check["check"] for check in found["checks"]}


def test_twenty_log_probabilities_are_refused(tiny_model):
    says = "returns 20 log-probabilities per token: start it with --max"
    with vllm_server(tiny_model, *ONE_BY_ONE) as url, pytest.raises(BackendError, match=says):
        OpenAICompatible(url, NAME)
