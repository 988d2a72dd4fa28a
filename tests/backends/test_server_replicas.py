"""Replicas of a server: which one a prompt goes to, and what fails at one of several."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot import BudgetLedger, PrivacyBudget, Record, Task
from dpfewshot.backends import OpenAICompatible, conformance
from dpfewshot.backends.servers.replicas import PrivateLoop, replica_of
from dpfewshot.errors import BackendError, BackendNotBatchInvariant
from tests.support import factory, inside
from tests.support.processes import true_in_child
from tests.support.scripted_servers import VLLM, VOCABULARY, LlamaServer, moved, weights

pytestmark = pytest.mark.usefixtures("quick")

SUPPORT = [5, 6, 7]
PROMPTS = [[place, 2, 3 * place] for place in range(12)]
AT = [[prompt for prompt in PROMPTS if replica_of(prompt, 2) == replica] for replica in range(2)]
"""The prompts of each of two replicas."""


@pytest.fixture
def connected(connect):
    """Connects to scripts as replicas, which are asked one request at a time."""
    return lambda *scripts, **options: connect(*scripts, **({"concurrency": 1} | options))


def host_of(server):
    return server.base_url.removeprefix("http://").removesuffix("/v1")


class Rounding(VLLM):
    """A replica on another processor: its values differ a little, and so tell where a row is from."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def logprobs(self, prompt, settings):
        return moved(super().logprobs(prompt, settings), 1 + self.number, 1e-3)


def test_a_prompt_goes_to_the_replica_that_its_own_tokens_name(connected):
    """In any company and order, with or without a neighbour, and after any other prompts."""
    scripts = [Rounding(number) for number in range(3)]
    backend = connected(*scripts)
    assert backend.batch_invariant
    assert backend.describe().startswith("3 replicas of vllm at 127.0.0.1:")

    @settings(max_examples=25)
    @given(st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=6), min_size=1, max_size=8), st.data())
    def holds(prompts, data):
        place = data.draw(st.integers(0, len(prompts)))
        neighbour = data.draw(st.lists(st.integers(0, 95), min_size=1, max_size=6))
        found = backend.next_token_logprobs(prompts, SUPPORT)
        beside = backend.next_token_logprobs([*prompts[:place], neighbour, *prompts[place:]], SUPPORT)
        assert np.delete(beside, place, axis=0).tobytes() == found.tobytes()
        for prompt, row in zip(prompts, found, strict=True):
            own = scripts[replica_of(prompt, 3)].logprobs(prompt, {})
            np.testing.assert_allclose(row, own[SUPPORT], atol=1e-5)

    holds()
    assert {replica_of(prompt, 3) for prompt in PROMPTS} == {0, 1, 2}


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(1, 9))
def test_the_rule_is_a_public_function_of_the_tokens(prompt, count):
    found = replica_of(prompt, count)
    assert 0 <= found < count
    assert found == replica_of(np.array(prompt, dtype=np.int32), count) == replica_of(tuple(prompt), count)


def test_the_rule_stays_as_it_is():
    """Another rule would give a resumed run other rows than its first half had, on replicas that differ."""
    assert [replica_of(prompt, 4) for prompt in ([], [1], [1, 2], [2, 1], [300, 70000])] == [3, 1, 3, 0, 2]


def chi_square(rule, count=4, prompts=20_000):
    """The statistic of prompts that begin alike, as those of one draw do."""
    found = np.bincount([rule([7] * 20 + [2 * n], count) for n in range(prompts)], minlength=count)
    return float(((found - prompts / count) ** 2).sum() / (prompts / count))


def test_prompts_spread_evenly_over_replicas():
    most = 46.0  # of a chi-square with 3 degrees of freedom: p < 1e-9
    assert chi_square(replica_of) < most
    assert chi_square(lambda prompt, count: sum(prompt) % count) > most


@pytest.mark.parametrize("script", [LlamaServer, VLLM])
def test_replicas_conform_and_answer_as_one_server_in_any_order(connected, script):
    backend = connected(script(), script())
    assert backend.batch_invariant
    prompts = [backend.tokenize("ab" * length) for length in (1, 3, 9, 2)]
    conformance.require(
        [
            conformance.check_text(backend, ["a<>[x]", "", "two\nlines"]),
            conformance.check_shapes(backend, prompts),
            conformance.check_support(backend, prompts),
            conformance.check_batch_invariance(backend, prompts),
            conformance.check_concurrency(backend, prompts),
            conformance.check_block_agreement(backend, prompts[0], prompts[1:], [3, 4]),
        ]
    )
    urls = [server.base_url for server in backend.servers]
    answers = {backend.next_token_logprobs(PROMPTS, SUPPORT).tobytes()}
    for other in (urls[::-1], urls[0]):
        with OpenAICompatible(other, "served", concurrency=1) as single:
            answers.add(single.next_token_logprobs(PROMPTS, SUPPORT).tobytes())
    assert len(answers) == 1


class OtherName(VLLM):
    model = "another"


class OtherContext(VLLM):
    def models(self, _):
        return 200, {}, {"data": [{"id": "served", "owned_by": "vllm", "max_model_len": 256}]}


class OtherValues(VLLM):
    def logprobs(self, prompt, settings):
        return super().logprobs(prompt, settings)[::-1]


class OtherVocabulary(VLLM):
    def top(self, prompt, body):
        return {token: value for token, value in super().top(prompt, body).items() if token != "token_id:103"}


class Unnormalised(VLLM):
    def logprobs(self, prompt, settings):
        return super().logprobs(prompt, settings) - 0.5


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (OtherName, "differs from the one at .* in its model"),
        (OtherContext, "differs from the one at .* in its context"),
        (OtherValues, "differs from the one at .* in its log-probabilities"),
        (LlamaServer, "differs from the one at .* in its kind of server"),
        (Unnormalised, "probabilities sum to 0.6"),
        (OtherVocabulary, "differs from the one at .* in its vocabulary"),
    ],
)
def test_a_replica_that_differs_is_refused_by_its_address(connected, other, says):
    with pytest.raises(BackendError, match=r"the replica at 127\.0\.0\.1:\d+.*" + says):
        connected(VLLM(), other())


def test_a_replica_whose_answers_depend_on_others_is_named(connected):
    class Varying(VLLM):
        asked = 0

        def logprobs(self, prompt, settings):
            self.asked += 1
            return moved(super().logprobs(prompt, settings), self.asked)

    backend = connected(VLLM(), Varying())
    assert not backend.batch_invariant
    assert f"not batch-invariant at {host_of(backend.servers[1])}: start vLLM" in backend.describe()


TASK = Task("tickets", "Do it.", "Kind", "Text", ("A",))
RECORDS = [Record(f"private {number}", "A") for number in range(40)]


def dead(*_):
    """The answer of a server that is gone."""


@pytest.mark.parametrize("gone", [[1], [0, 1]], ids=["one", "both"])
@pytest.mark.parametrize("answer", [dead, lambda *_: (401, {}, {}), lambda *_: (400, {}, {})])
def test_a_dead_replica_fails_every_call_in_the_same_words(connected, gone, answer):
    """Whether a private prompt was at that replica must not show."""
    backend = connected(LlamaServer(), LlamaServer(), verify=False, hurry=0.2)
    for replica in gone:
        backend.servers[replica].answer = answer
    told = set()
    for prompts in (AT[0][:2], AT[1][:2], PROMPTS, [], [[]]):
        with pytest.raises(BackendError) as raised:
            backend.next_token_logprobs(prompts, SUPPORT)
        told.add((str(raised.value), raised.value.retryable))
    assert len(told) == 1
    assert f"llama-server at {host_of(backend.servers[gone[0]])} " in told.pop()[0]


def test_a_replica_that_serves_another_model_fails_every_call(connected):
    scripts = [LlamaServer(), LlamaServer()]
    backend = connected(*scripts, verify=False, hurry=5.0)
    scripts[1].model = "another"
    for prompts in AT:
        with pytest.raises(BackendError, match="serves a different model"):
            backend.next_token_logprobs(prompts, SUPPORT)


def test_a_prompt_that_its_replica_refuses_is_its_row_of_nan(connected):
    scripts = [LlamaServer(), LlamaServer()]
    backend = connected(*scripts, verify=False)
    alone = backend.next_token_logprobs(PROMPTS, SUPPORT)
    refused = AT[1][0]
    scripts[1].fault = lambda prompt, _: (400, {}, {}) if prompt == refused else None
    found = backend.next_token_logprobs(PROMPTS, SUPPORT)
    place = PROMPTS.index(refused)
    assert np.isnan(found[place]).all()
    assert np.delete(found, place, axis=0).tobytes() == np.delete(alone, place, axis=0).tobytes()


class Sharing(LlamaServer):
    """A replica that shares a machine with another: it refuses whatever is computed beside anything else."""

    lock, total = threading.Lock(), 0

    def completion(self, body):
        with Sharing.lock:
            Sharing.total += 1
        try:
            time.sleep(0.03)  # on a busy core too, two requests that may overlap do
            return (400, {}, {}) if Sharing.total > 1 else super().completion(body)
        finally:
            with Sharing.lock:
                Sharing.total -= 1


def test_a_prompt_is_blamed_only_while_no_replica_has_another(connected):
    found = connected(Sharing(), Sharing(), verify=False).next_token_logprobs(PROMPTS * 4, SUPPORT)
    values = [weights(prompt, {})[: len(VOCABULARY)] for prompt in PROMPTS]
    expected = [(row - np.log(np.exp(row).sum()))[SUPPORT] for row in values]
    np.testing.assert_allclose(found, expected * 4, atol=1e-5)


def test_requests_to_each_replica_are_limited_by_its_own_slots(connected):
    scripts = [LlamaServer(slots=1), LlamaServer(slots=3)]
    for script in scripts:
        script.seconds = lambda _: 0.02
    backend = connected(*scripts, verify=False, concurrency=8)
    for script in scripts:
        script.crowds.clear()
    backend.next_token_logprobs(PROMPTS, SUPPORT)
    assert [max(under_way for _, under_way in script.crowds) for script in scripts] == [1, 3]


def test_a_replica_that_dies_in_a_draw_fails_it_and_the_draw_stays_charged(connected, tmp_path):
    """The second replica is gone from the first private prompt on, wherever that one is sent."""
    ledger = f"sqlite:///{tmp_path}/budget.db"
    backend = connected(VLLM(), VLLM(), hurry=0.3)
    servers = backend.servers
    made = factory.synthesizer(
        backend, RECORDS, task=TASK, budget=PrivacyBudget(4, 1e-6), mechanism=None, prompts_per_draw=40,
        max_tokens=3, tokens_per_draw=1, ledger=ledger,
    )  # fmt: skip
    assert made.set_up.writer is not None
    private = str(tuple(backend.tokenize("private")))[1:-1]
    alive = servers[0].answer, servers[1].answer

    def watched(replica):
        def answer(path, body):
            prompts = (body or {}).get("prompt")
            if isinstance(prompts, list) and any(private in str(each) for each in prompts):
                servers[1].answer = dead
            return alive[replica](path, body)

        return answer

    for replica, server in enumerate(servers):
        server.answer = watched(replica)
    with pytest.raises(BackendError, match="does not answer") as raised:
        made.generate("A")
    assert raised.value.retryable
    (left,) = inside.draws_left(made)
    assert left == 2  # of three
    spent = made.spent
    assert spent.epsilon == pytest.approx(4, rel=0.05)
    servers[0].answer, servers[1].answer = alive
    made.close()
    assert BudgetLedger.open(ledger).account("tickets").spent.epsilon <= spent.epsilon


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_connects_to_every_replica_and_checks_it(connected):
    backend = connected(VLLM(), VLLM())
    server = backend.servers[1]
    expected = backend.next_token_logprobs(PROMPTS, SUPPORT).tobytes()

    def is_refused():
        try:
            backend.next_token_logprobs(PROMPTS, SUPPORT)
        except BackendNotBatchInvariant as error:
            return host_of(server) in str(error)
        return False

    assert true_in_child(lambda: backend.next_token_logprobs(PROMPTS, SUPPORT).tobytes() == expected)
    asked = []

    def turned(prompt, _):
        asked.append(prompt)
        return moved(weights(prompt, {}), len(asked))

    server.answer.logprobs = turned
    assert true_in_child(is_refused)


def test_closing_closes_every_connection(connected):
    before = set(threading.enumerate())  # other tests' connections may close at any time
    backend = connected(VLLM(), VLLM(), verify=False)
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="closed"):
        backend.next_token_logprobs(PROMPTS, SUPPORT)
    opened = set(threading.enumerate()) - before
    assert not any(thread.name == "dpfewshot-server" for thread in opened)


def test_a_call_that_begins_while_the_loop_closes_is_refused_and_never_waits() -> None:
    loop, begun, may_end = PrivateLoop(), threading.Event(), threading.Event()

    async def last() -> None:
        begun.set()
        await asyncio.to_thread(may_end.wait)

    async def work() -> int:
        return 1

    assert loop.run(work()) == 1
    closing = threading.Thread(target=loop.close, args=(last(),))
    closing.start()
    assert begun.wait(10)
    with pytest.raises(CancelledError):  # whoever is admitted now is not cancelled, and the loop stops
        loop.run(work())
    may_end.set()
    closing.join(10)
    with pytest.raises(CancelledError):
        loop.run(work())


def test_a_child_has_nothing_to_close() -> None:
    """A thread may have been connecting at the fork; the child's exit would wait for a loop without one."""
    loop = PrivateLoop()

    async def last() -> None:
        pass

    def closes() -> bool:
        loop.close(last())
        return True

    assert true_in_child(closes)
    loop.close(last())
