"""`generate_all(executor=...)`: what a death, a copy or a failure costs, and that it costs no more."""

import asyncio
import pickle
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.generation.stratum import StratumRun
from dpfewshot.generation.telemetry import Observer
from dpfewshot.generation.workers import make_stratum
from tests.support import factory, fleet
from tests.support.crash_reporter import collected
from tests.support.scripted_servers import LlamaServer
from tests.support.scripts import Sentence, tickets
from tests.support.servers import scripted

TOKENS, PLANNED, SHOTS = 5, 8, 20
TEXT = "my parcel is late"
OPTIONS: dict[str, Any] = {"prompts_per_draw": 100, "labels": ["refund", "delivery"]}
KEY = "sk-hunter2"
GONE = dpf.BackendError("the server is gone", retryable=True)
SHUT_DOWN = ThreadPoolExecutor(1)
SHUT_DOWN.shutdown()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'budget.db'}"


@pytest.fixture
def remote() -> Iterator[fleet.Remote]:
    with fleet.Remote() as pool:
        yield pool


@pytest.fixture(params=["threads", "remote"])
def engine(request: pytest.FixtureRequest) -> Executor:
    """Workers that share the caller's run, and workers with a copy."""
    found: Executor = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    with fleet.processes(1) as pool:
        yield pool


def synthesizer(ledger: str | None = None, backend: Any = None, **options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(backend or fleet.sure(), ledger=ledger, **(OPTIONS | options))


def refunds(ledger: str | None = None, backend: Any = None, **options: Any) -> dpf.Synthesizer:
    return synthesizer(ledger, backend, labels=["refund"], **options)


def draws_left(url: str) -> list[int]:
    """The draws that each entry has left, as the ledger counts them."""
    account = dpf.open_account(url, "tickets")
    assert account.verify().problems == ()
    return sorted(row["draws_left"] for row in account.export()["entries"])  # type: ignore[attr-defined]


def acts(url: str) -> Counter[object]:
    return Counter(row["act"] for row in dpf.open_account(url, "tickets").history())


def dies(pool: fleet.Remote, *numbers: int) -> Callable[[int], None]:
    """Lets one worker after another seem to die, each at its private prompt of that number."""
    to_come, lock = list(numbers), threading.Lock()

    def hook(asked: int) -> None:
        with lock:
            now = to_come[:1] == [asked]
            del to_come[:now]
        if now:
            pool.die()

    return hook


@pytest.mark.parametrize(("at", "planned"), [(1, PLANNED), (3, PLANNED), (5, PLANNED), (3, 64)])
def test_a_death_costs_one_draw_and_another_worker_continues(
    url: str, remote: fleet.Remote, at: int, planned: int
) -> None:
    with refunds(url, max_tokens=planned) as made:
        [one] = made.generate_all(executor=remote, worker_backend=fleet.hooked(dies(remote, at)))
    assert one.text == TEXT
    assert draws_left(url) == [planned - TOKENS - 1]
    assert acts(url) == {"create": 1, "reserve": 1, "charge": 1, "resume": 2, "release": 1, "settle": 1}


def test_a_worker_that_was_taken_for_dead_draws_no_more(url: str, remote: fleet.Remote) -> None:
    asked: Counter[int] = Counter()
    die = dies(remote, 3)

    def hook(number: int) -> None:
        worker = threading.get_ident()
        asked[worker] += 1
        if len(asked) == 2 and number == 1:  # the second worker, which wakes the first
            remote.woken.set()
            wait_until(lambda: bool(remote.answers))
        die(number)

    with refunds(url) as made:
        [one] = made.generate_all(executor=remote, worker_backend=fleet.hooked(hook))
    assert one.text == TEXT
    assert list(asked.values()) == [3, 3]
    assert isinstance(remote.answers[0], dpf.LedgerError)
    assert "resumed by another run" in str(remote.answers[0])
    assert draws_left(url) == [PLANNED - TOKENS - 1]


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + fleet.SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_workers_that_keep_dying_end_the_run_and_a_later_one_finishes_it(
    url: str, remote: fleet.Remote
) -> None:
    with refunds(url) as made, pytest.raises(dpf.BackendError, match="3 workers died in a row") as raised:
        made.generate_all(executor=remote, worker_backend=fleet.hooked(dies(remote, *[1] * 20)))
    assert raised.value.retryable
    assert [one.text for one in refunds(url).generate_all(resume=True)] == [TEXT]
    assert draws_left(url) == [PLANNED - TOKENS - 3]


def test_a_demonstration_whose_draws_died_is_shorter_and_leaves_the_others_theirs(
    url: str, remote: fleet.Remote
) -> None:
    worker_backend = fleet.hooked(dies(remote, 3, 3), endless=True)
    with refunds(url, worker_backend(), shots_per_label=2) as made:
        released = made.generate_all(executor=remote, worker_backend=worker_backend)
    assert [one.token_count for one in released] == [PLANNED - 2, PLANNED]
    assert draws_left(url) == [0]


def test_with_disjoint_parts_a_death_costs_one_draw_of_its_part(url: str, remote: fleet.Remote) -> None:
    with refunds(url, disjoint_parts=2, prompts_per_draw=50, shots_per_label=2) as made:
        made.generate_all(executor=remote, worker_backend=fleet.hooked(dies(remote, 2)))
    assert draws_left(url) == [PLANNED - TOKENS - 1, PLANNED - TOKENS]


def test_a_label_whose_draws_died_leaves_the_other_labels_running(url: str, remote: fleet.Remote) -> None:
    told: list[dpf.Demonstration] = []
    worker_backend = fleet.hooked(dies(remote, 1))
    made = synthesizer(url, tokens_per_draw=PLANNED)
    with made, pytest.raises(dpf.BudgetExceeded, match=r"1 of '\w+' cannot be made"):
        made.generate_all(executor=remote, worker_backend=worker_backend, on_demonstration=told.append)
    assert [one.text for one in told] == [TEXT]


@pytest.mark.parametrize("copied", [False, True])
def test_a_task_that_is_run_twice_draws_once(url: str, copied: bool) -> None:
    with fleet.Twice(remote=copied) as pool, synthesizer(url, shots_per_label=2) as made:
        backend = fleet.sure if copied else None
        assert [one.text for one in made.generate_all(executor=pool, worker_backend=backend)] == [TEXT] * 4
    assert draws_left(url) == [2 * (PLANNED - TOKENS)] * 2
    assert acts(url)["resume"] == 0


@pytest.mark.parametrize("copied", [False, True])
def test_a_task_that_is_run_again_after_it_failed_continues(url: str, copied: bool) -> None:
    def fails(asked: int) -> None:
        if asked == TOKENS + 2:
            raise GONE

    with fleet.Twice(remote=copied) as pool, refunds(url, shots_per_label=2) as made:
        released = made.generate_all(executor=pool, worker_backend=fleet.hooked(fails))
    assert [one.text for one in released] == [TEXT] * 2
    assert draws_left(url) == [2 * (PLANNED - TOKENS) - 1]


def test_a_late_copy_draws_nothing_and_a_plan_that_states_less_than_it_costs_is_refused(
    url: str, remote: fleet.Remote
) -> None:
    with refunds(url) as made:
        made.generate_all(executor=remote, worker_backend=fleet.sure)
    before = acts(url), draws_left(url)
    task = pickle.loads(remote.tasks[0])  # noqa: S301 - our own
    assert make_stratum(task) is None
    plan = task.arguments["plan"]
    [stratum] = plan.strata
    cheap = type(stratum.cost)(stratum.cost.epsilon // 2, stratum.cost.delta)
    for lie in ({"noise_multiplier": stratum.noise_multiplier / 2}, {"cost": cheap}):
        lying = replace(plan, strata=(replace(stratum, **lie),))
        refused = make_stratum(replace(task, arguments=task.arguments | {"plan": lying}))
        assert isinstance(refused, dpf.InvalidPlan)
    assert (acts(url), draws_left(url)) == before


def test_a_plan_beyond_the_budget_is_refused_with_what_is_left(url: str, remote: fleet.Remote) -> None:
    small = dpf.PrivacyBudget(1.0, 1e-5)
    factory.account(url, dpf.as_records(tickets()), budget=small)
    with synthesizer(url) as made, pytest.raises(dpf.BudgetExceeded) as raised:
        made.generate_all(executor=remote, worker_backend=fleet.sure)
    assert raised.value.remaining == (1.0, 1e-5)
    assert acts(url) == {"create": 1}


def test_labels_that_do_not_all_fit_are_refused_before_any_begins(url: str, engine: Executor) -> None:
    """Else which of them the rest of a budget suffices for would depend on which is faster."""
    account = dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(9.0, 1e-4), parallel=False)
    with synthesizer(url) as made:
        account.change_budget(dpf.PrivacyBudget(1.5 * made.plan.strata[0].spend.epsilon, 1e-4))
        with pytest.raises(dpf.BudgetExceeded, match="does not fit"):
            made.generate_all(executor=engine, worker_backend=fleet.sure)
    assert "reserve" not in acts(url)


class Told(Sentence):
    """A model that says which one it is, or names the form of its weights."""

    def __init__(self, **facts: str) -> None:
        super().__init__(sure=0.999999)
        vars(self).update(facts)


IDENTITY, OTHER = ({"model_identity": f"sha256:{name}"} for name in ("ab", "cd"))


@pytest.mark.parametrize(
    ("own", "worker", "words"),
    [
        (fleet.sure, fleet.OtherModel, "public prompt.* same model"),
        (fleet.sure, fleet.Mixing, "nothing is drawn"),
        (partial(Told, weights="file"), partial(Told, weights="bf16"), "has weights='bf16'.*='file'"),
        (partial(Told, **IDENTITY), partial(Told, **OTHER), "model is sha256:cd, and the .* sha256:ab"),
    ],
    ids=["tokens", "mixing", "weights", "identity"],
)
def test_a_worker_refuses_another_model_before_a_draw(
    url: str, engine: Executor, own: Any, worker: Any, words: str
) -> None:
    kind = dpf.BackendNotBatchInvariant if worker is fleet.Mixing else dpf.InvalidPlan
    with synthesizer(url, own()) as made, pytest.raises(kind, match=words):
        made.generate_all(executor=engine, worker_backend=worker)
    assert made.spent.epsilon == 0


def test_a_factory_that_fails_leaves_its_worker_fit_for_the_next_run() -> None:
    with ThreadPoolExecutor(1) as pool:

        def run(worker_backend: Any) -> list[int]:
            made = refunds().generate_all(executor=pool, worker_backend=worker_backend)
            return [one.token_count for one in made]

        assert run(fleet.sure) == [TOKENS]
        with pytest.raises(dpf.BackendError, match="RuntimeError"):
            run(partial(failing, "no model"))
        assert run(fleet.sure) == [TOKENS]


class FindsItselfVariant(Sentence):
    """Finds at its first public answer that it mixes batches, as a client of a server may."""

    private_answers = 0

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        self.batch_invariant = False
        self.private_answers += support is not None
        return super().next_token_logprobs(prompts, support)


@pytest.mark.parametrize("has_executor", [False, True])
def test_a_backend_that_finds_itself_variant_at_a_public_answer_draws_nothing(has_executor: bool) -> None:
    backend = FindsItselfVariant(sure=0.999999)
    with ThreadPoolExecutor(1) as pool, synthesizer(None, backend) as made:
        with pytest.raises(dpf.BackendNotBatchInvariant):
            made.generate_all(executor=pool if has_executor else None)
        assert made.spent.epsilon == 0
    assert backend.private_answers == 0


@pytest.mark.parametrize(
    ("engine", "own"), [("threads", "server"), ("threads", "model"), ("process", "server")]
)
def test_workers_of_a_server_are_threads_and_never_make_clients_of_their_own(
    url: str, engine: str, own: str, request: pytest.FixtureRequest
) -> None:
    executor = request.getfixturevalue(engine)
    with scripted(LlamaServer(slots=1)) as served:  # type: ignore[no-untyped-call]
        client = partial(dpf.backends.OpenAICompatible, served.base_url, "served")
        with client() as backend, synthesizer(url, backend if own == "server" else None) as made:
            with pytest.raises(dpf.InvalidPlan, match="ThreadPoolExecutor"):
                made.generate_all(executor=executor, worker_backend=client if engine == "threads" else None)
            assert made.spent.epsilon == 0


@pytest.mark.parametrize(
    ("has_ledger", "worker_backend", "words"),
    [
        (False, fleet.sure, "open_account"),
        (True, None, "worker_backend="),
        (True, lambda: Sentence(sure=0.9), "can import"),
    ],
    ids=["memory", "no backend", "closure"],
)
def test_what_processes_cannot_have_is_one_clear_error_and_costs_nothing(
    url: str, process: Executor, has_ledger: bool, worker_backend: Any, words: str
) -> None:
    with synthesizer(url if has_ledger else None) as made, pytest.raises(dpf.DPFewShotError, match=words):
        made.generate_all(executor=process, worker_backend=worker_backend)
    assert made.spent.epsilon == 0


def test_ctrl_c_in_a_worker_ends_it_between_two_tokens_and_costs_no_draw(url: str, process: Executor) -> None:
    with refunds(url) as made, pytest.raises(dpf.BackendError, match="interrupted") as raised:
        made.generate_all(executor=process, worker_backend=fleet.interrupted)
    assert raised.value.retryable
    assert draws_left(url) == [PLANNED - 2]
    with refunds(url) as made:
        [one] = made.generate_all(executor=process, worker_backend=fleet.sure, resume=True)
    assert one.text == TEXT
    assert draws_left(url) == [PLANNED - TOKENS]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"executor": 7}, dpf.InvalidPlan, "int, which has no submit"),
        ({"executor": ThreadPoolExecutor}, dpf.InvalidPlan, "class ThreadPoolExecutor"),
        ({"worker_backend": fleet.sure}, dpf.InvalidPlan, "executor="),
        ({"executor": SHUT_DOWN}, dpf.BackendError, "shut down"),
    ],
)
def test_what_is_no_executor_or_was_shut_down_is_refused_and_costs_nothing(
    options: dict[str, Any], kind: Any, words: str
) -> None:
    with synthesizer() as made, pytest.raises(kind, match=words):
        made.generate_all(**options)
    assert made.spent.epsilon == 0


def test_an_executor_that_drops_tasks_during_a_run_ends_it_with_one_error() -> None:
    pool = ThreadPoolExecutor(1)

    def drops() -> Sentence:
        pool.shutdown(wait=False, cancel_futures=True)
        return fleet.sure()

    with synthesizer() as made, pytest.raises(dpf.BackendError, match="shut down"):
        made.generate_all(executor=pool, worker_backend=drops)


class Wraps(fleet.Remote):
    """Returns the seconds with each answer, as wrappers do that measure their tasks."""

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        return super().submit(lambda task: (fn(task), 0.1), *arguments)


class Loses(fleet.Remote):
    """Loses every answer, as wrappers do that give each task a deadline."""

    def submit(self, fn: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        super().submit(fn, *arguments).result()
        raise TimeoutError


@pytest.mark.parametrize(("pool", "words"), [(Wraps, "of type tuple"), (Loses, "TimeoutError")])
def test_what_a_worker_released_is_kept_if_its_answer_is_lost(url: str, pool: Any, words: str) -> None:
    with pool() as executor, refunds(url) as made:
        with pytest.raises(dpf.BackendError, match=words):
            made.generate_all(executor=executor, worker_backend=fleet.sure)
        assert [one.text for one in made.generate_all(resume=True)] == [TEXT]
    assert draws_left(url) == [PLANNED - TOKENS]


def test_a_ledger_that_does_not_answer_after_a_worker_loses_nothing(
    url: str, remote: fleet.Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, take_back = count(1), StratumRun.take_back

    def fails(run: StratumRun) -> None:
        if next(calls) == 2:  # the worker's is the first
            raise dpf.LedgerError("the ledger does not answer")
        take_back(run)

    monkeypatch.setattr(StratumRun, "take_back", fails)
    with refunds(url) as made:
        with pytest.raises(dpf.LedgerError, match="does not answer"):
            made.generate_all(executor=remote, worker_backend=fleet.sure)
        assert [one.text for one in made.generate_all(resume=True)] == [TEXT]
    assert draws_left(url) == [PLANNED - TOKENS]


def test_an_error_of_a_worker_is_that_of_a_local_run_and_holds_nothing_private(
    url: str, engine: Executor
) -> None:
    raised = set()
    remotely: dict[str, Any] = {"executor": engine, "worker_backend": fleet.Failing}
    for options in ({}, remotely):
        with synthesizer(url, fleet.Failing()) as made, pytest.raises(dpf.BackendError) as caught:
            made.generate_all(**options)
        raised.add(str(caught.value))
        assert fleet.SECRET not in collected(caught.value)
        told = with_locals(caught.value)  # before the assertion has a local of its own
        assert "ticket number" not in told
        url += "2"
    assert len(raised) == 1


def with_locals(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def failing(secret: str) -> Sentence:
    raise RuntimeError(secret)


def run_with_key(made: dpf.Synthesizer, executor: Any, *, asynchronous: bool) -> None:
    """None of its own variables holds the key."""
    if asynchronous:
        asyncio.run(made.agenerate_all(executor=executor, worker_backend=partial(failing, KEY)))
    else:
        made.generate_all(executor=executor, worker_backend=partial(failing, KEY))


@pytest.mark.parametrize("executor", [None, 7, "pool"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_variable_of_a_traceback_holds_the_key_of_a_workers_backend(
    executor: Any, asynchronous: bool
) -> None:
    with ThreadPoolExecutor(1) as pool, synthesizer() as made, pytest.raises(dpf.DPFewShotError) as raised:
        run_with_key(made, pool if executor == "pool" else executor, asynchronous=asynchronous)
    told = with_locals(raised.value)
    assert KEY not in told


class Hours:
    """A hook of workers with hours of work, which count their draws."""

    def __init__(self, at: int = 0, event: Callable[[], object] = lambda: None) -> None:
        self.drawn, self.at, self.event = 0, at, event
        self.lock = threading.Lock()

    def few(self) -> bool:
        """Whether far fewer were drawn than were asked for, and no more are."""
        drawn = self.drawn
        time.sleep(0.1)
        return self.drawn == drawn < 2 * SHOTS * TOKENS / 3

    def __call__(self, _: int) -> None:
        with self.lock:
            self.drawn += 1
            now = self.drawn == self.at
        if now:
            self.event()
        time.sleep(0.02)


@pytest.mark.parametrize("error", [GONE, dpf.BackendError("odd")], ids=str)
def test_a_backend_that_is_gone_stops_the_others_and_another_failure_does_not(
    url: str, engine: Executor, error: dpf.BackendError
) -> None:
    """Else which texts there are would depend on how long each stratum's records take."""

    def fails() -> None:
        raise error

    hook, told = Hours(8, fails), list[dpf.Demonstration]()
    with synthesizer(url, shots_per_label=SHOTS) as made, pytest.raises(dpf.BackendError, match=str(error)):
        made.generate_all(executor=engine, worker_backend=fleet.hooked(hook), on_demonstration=told.append)
    assert (hook.few(), len(told) >= SHOTS) == ((True, False) if error is GONE else (False, True))


class Late(fleet.Remote):
    """Begins its tasks after their run was cancelled."""

    def __init__(self, begin: threading.Event) -> None:
        super().__init__()
        self.begin = begin

    def _work(self, *arguments: Any) -> None:
        assert self.begin.wait(fleet.SECONDS)
        super()._work(*arguments)


@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_cancelled_run_ends_with_its_draws_and_another_resumes_it(
    url: str, engine: Executor, begins: str
) -> None:
    hook, begin = Hours(), threading.Event()
    options = {"shots_per_label": SHOTS}
    if begins == "after" and isinstance(engine, fleet.Remote):
        engine = Late(begin)

    async def cancelled(made: dpf.Synthesizer) -> None:
        run = made.agenerate_all(executor=engine, worker_backend=fleet.hooked(hook))
        running = asyncio.create_task(run)
        await asyncio.sleep(0.3)
        while begins == "before" and hook.drawn < 8:  # noqa: ASYNC110 - threads
            await asyncio.sleep(0.01)
        running.cancel()
        asyncio.get_running_loop().call_later(0.3, begin.set)
        with pytest.raises(asyncio.CancelledError):
            await running

    with synthesizer(url, **options) as made:
        asyncio.run(cancelled(made))
        assert hook.few()
    with synthesizer(url, **options) as made:
        assert [one.text for one in made.generate_all(resume=True)] == [TEXT] * 2 * SHOTS
    assert all(left >= SHOTS * (PLANNED - TOKENS) - 2 for left in draws_left(url))


def test_closing_ends_a_run(url: str, engine: Executor) -> None:
    made = synthesizer(url, shots_per_label=SHOTS)
    closing = threading.Thread(target=made.close)
    hook = Hours(8, closing.start)
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        made.generate_all(executor=engine, worker_backend=fleet.hooked(hook))
    closing.join(fleet.SECONDS)
    drawn = hook.drawn
    assert drawn < 2 * SHOTS * TOKENS / 2
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        made.generate_all(executor=engine)
    assert hook.drawn == drawn
    with synthesizer(url, shots_per_label=SHOTS) as other:
        assert len(other.generate_all(resume=True)) == 2 * SHOTS


def test_an_error_of_the_callers_callback_ends_the_run(url: str, engine: Executor) -> None:
    class Stubborn(Exception):
        pass

    def fails(one: dpf.Demonstration) -> None:
        raise Stubborn(one.label)

    with synthesizer(url) as made, pytest.raises(Stubborn):
        made.generate_all(executor=engine, worker_backend=fleet.sure, on_demonstration=fails)
    with synthesizer(url) as made:
        assert len(made.generate_all(resume=True)) == 2
    assert PLANNED - TOKENS in draws_left(url)


@pytest.mark.parametrize("later", ["alone", "executor"])
def test_interrupted_demonstrations_of_several_strata_resume(url: str, engine: Executor, later: str) -> None:
    both = threading.Barrier(2, timeout=fleet.SECONDS)

    def fails(asked: int) -> None:
        if asked == 3:
            both.wait()
            raise GONE

    with synthesizer(url) as made, pytest.raises(dpf.BackendError, match="gone"):
        made.generate_all(executor=engine, worker_backend=fleet.hooked(fails))
    assert draws_left(url) == [PLANNED - 3] * 2
    options = {"executor": engine, "worker_backend": fleet.sure} if later == "executor" else {}
    with synthesizer(url) as made:
        done = made.generate_all(resume=True, **options)  # type: ignore[arg-type]
    assert [(one.label, one.text) for one in done] == [(label, TEXT) for label in OPTIONS["labels"]]
    assert draws_left(url) == [PLANNED - TOKENS - 1] * 2


def test_a_worker_makes_what_a_row_with_texts_lacks(url: str, remote: fleet.Remote) -> None:
    def stops(_: dpf.Demonstration) -> None:
        raise KeyboardInterrupt

    with refunds(url, shots_per_label=3) as made, pytest.raises(KeyboardInterrupt):
        made.generate_all(on_demonstration=stops)
    with refunds(url, shots_per_label=3) as made:
        done = made.generate_all(resume=True, executor=remote, worker_backend=fleet.sure)
    assert (len(done), acts(url)["release"]) == (3, 3)


class Unreachable(Sentence):
    """A server of which the tokenizer is part, and which goes down after the first demonstration."""

    asked, down = 0, False

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        self.asked += support is not None
        self.down = self.down or self.asked == PLANNED
        return super().next_token_logprobs(prompts, support)

    def tokenize(self, text: str) -> list[int]:
        if self.down:
            raise dpf.BackendError("the server is down", retryable=True)
        return super().tokenize(text)


@pytest.mark.parametrize("has_executor", [False, True])
def test_a_tokenizer_that_is_down_costs_no_draw(url: str, has_executor: bool) -> None:
    backend = Unreachable([" my"], sure=0.999999)
    with ThreadPoolExecutor(1) as pool, refunds(url, backend, shots_per_label=2) as made:
        run: dict[str, Any] = {"resume": True} | ({"executor": pool} if has_executor else {})
        for _ in range(2):
            with pytest.raises(dpf.BackendError, match="down"):
                made.generate_all(**run)
        backend.down, backend.asked = False, PLANNED + 1
        assert [one.token_count for one in made.generate_all(**run)] == [PLANNED, PLANNED]


class Hears(Observer):
    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in {"reserved", "started", "released", "failed", "stopped"}:
            self.heard[name] += 1
        return super().__getattribute__(name)


def test_the_caller_is_told_one_call_at_a_time_and_observers_hear_of_all(url: str, engine: Executor) -> None:
    telling, told, observer = threading.Lock(), [], Hears()

    def tell(one: dpf.Demonstration) -> None:
        assert telling.acquire(blocking=False)
        time.sleep(0.02)
        told.append(one)
        telling.release()

    with synthesizer(url, shots_per_label=2, observers=[observer]) as made:
        released = made.generate_all(executor=engine, worker_backend=fleet.sure, on_demonstration=tell)
    assert sorted(told, key=str) == sorted(released, key=str)
    assert observer.heard == {"reserved": 2, "started": 4, "released": 4}


def test_an_account_of_a_ledger_pickles_as_its_address(url: str) -> None:
    stored = dpf.open_account(url, "tickets", create=dpf.PrivacyBudget(1.0, 1e-6))
    copy = pickle.loads(pickle.dumps(stored))  # noqa: S301 - our own
    assert (copy.dataset, copy.budget, copy.chain_tip) == (stored.dataset, stored.budget, stored.chain_tip)
