"""A forked child connects by itself: it checks again, and its threads see a connection once it is checked."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from dpfewshot import PrivacyBudget, Record, Task
from dpfewshot.account.account import Account
from dpfewshot.backends import Scripted
from dpfewshot.errors import BackendNotBatchInvariant
from tests.support import factory, inside
from tests.support.processes import true_in_child
from tests.support.scripted_servers import VLLM, moved

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

TASK = Task("tickets", "Do it.", "Kind", "Text", ("A", "B"))
RECORDS = [Record(f"text {number}", label) for label in TASK.labels for number in range(20)]
BUDGET = PrivacyBudget(4, 1e-6)


class Turned(VLLM):
    """Batch-invariant until it is restarted in another mode."""

    def __init__(self):
        super().__init__()
        self.varies, self.asked = False, 0

    def logprobs(self, prompt, settings):
        found = super().logprobs(prompt, settings)
        self.asked += self.varies
        return moved(found, self.asked, 0.01) if self.varies else found


class Slow(VLLM):
    def __call__(self, path, body):
        time.sleep(0.01)
        return super().__call__(path, body)


synthesizer = partial(
    factory.synthesizer, records=RECORDS, task=TASK, budget=BUDGET, mechanism=None,
    prompts_per_draw=4, max_tokens=3, shots_per_label=2,
)  # fmt: skip


def test_a_server_that_turned_is_refused_in_the_child(connect, tmp_path):
    server = Turned()
    backend = connect(server)
    assert backend.batch_invariant
    made = synthesizer(backend, ledger=f"sqlite:///{tmp_path}/b.db")
    server.varies = True

    def is_refused():
        for _ in range(2):
            try:
                made.generate("A")
            except BackendNotBatchInvariant:
                continue
            return False
        return made.spent.epsilon == 0 and not backend.batch_invariant

    assert true_in_child(is_refused)
    server.varies = False
    assert true_in_child(lambda: made.generate("A").certified)


def test_nothing_is_drawn_once_a_backend_is_not_batch_invariant():
    words = [" I", " would", " like"]
    backend = Scripted(words, lambda _: [1 / 3] * 3)
    account = Account.in_memory(BUDGET)
    made = synthesizer(backend, account=account)
    backend.batch_invariant = False
    with pytest.raises(BackendNotBatchInvariant):
        made.generate("A")
    assert account.spent.epsilon == 0
    backend.batch_invariant = True
    assert made.generate("A").certified


def test_a_backend_that_turns_in_the_middle_ends_the_demonstration():
    class Turning(Scripted):
        asked = 0

        def next_token_logprobs(self, prompts, support=None):
            self.asked += support is not None
            self.batch_invariant = self.asked < 2
            return super().next_token_logprobs(prompts, support)

    backend = Turning([" I", " would", " like"], lambda _: [1 / 3] * 3)
    with pytest.raises(BackendNotBatchInvariant):  # M = n: no draw is empty
        synthesizer(backend, prompts_per_draw=20).generate("A")
    assert backend.asked == 2


def test_threads_of_a_child_wait_for_the_checked_connection(connect, tmp_path):
    backend = connect(VLLM())
    made = synthesizer(backend, ledger=f"sqlite:///{tmp_path}/b.db")
    assert made.set_up.writer is not None
    backend.servers[0].answer = Slow()

    def every_record_is_written():
        def generate(label, after):
            time.sleep(after)
            made.generate(label)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(generate, "AB", (0, 0.08)))
        return all(body is not None for body in inside.bodies(made))

    assert true_in_child(every_record_is_written)
