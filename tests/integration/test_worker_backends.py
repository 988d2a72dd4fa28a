"""`generate_all(executor=, worker_backend=)`: whose backend makes a draw, and what is refused."""

from __future__ import annotations

import asyncio
import traceback
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.backends.factory import weights_for_worker
from tests.support import factory, fleet
from tests.support.scripted_servers import LlamaServer
from tests.support.scripts import Sentence
from tests.support.servers import scripted

TOKENS = 5
OPTIONS: dict[str, Any] = {"prompts_per_draw": 100, "labels": ["refund", "delivery"]}
KEY = "sk-hunter2"


@pytest.fixture
def account(tmp_path: Path) -> dict[str, Any]:
    return {"ledger": f"sqlite:///{tmp_path / 'budget.db'}"}


def server_of_one_slot() -> LlamaServer:
    return LlamaServer(slots=1)  # type: ignore[no-untyped-call]


def synthesizer(**options: Any) -> dpf.Synthesizer:
    return factory.synthesizer(fleet.sure(), **(OPTIONS | options))


@pytest.mark.parametrize(
    ("executor", "words"), [(7, "int, which has no submit"), (ThreadPoolExecutor, "class ThreadPoolExecutor")]
)
def test_what_is_no_executor_is_refused(executor: Any, words: str) -> None:
    with pytest.raises(dpf.InvalidPlan, match=words):
        synthesizer().generate_all(executor=executor)


def failing(secret: str) -> Sentence:
    raise RuntimeError(secret)


def run_with_key(made: dpf.Synthesizer, executor: Any, *, asynchronous: bool) -> None:
    if asynchronous:
        asyncio.run(made.agenerate_all(executor=executor, worker_backend=partial(failing, KEY)))
    else:
        made.generate_all(executor=executor, worker_backend=partial(failing, KEY))


@pytest.mark.parametrize("executor", [None, 7, "pool"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_variable_of_a_traceback_holds_the_key_of_a_workers_backend(
    executor: Any, asynchronous: bool
) -> None:
    made = synthesizer()
    with ThreadPoolExecutor(1) as pool, made, pytest.raises(dpf.DPFewShotError) as raised:
        run_with_key(made, pool if executor == "pool" else executor, asynchronous=asynchronous)
    told = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    assert KEY not in "".join(told.format())


@pytest.mark.parametrize("own", ["server", "model"])
def test_workers_never_make_clients_of_their_own_of_a_server(threads: Executor, own: str) -> None:
    with scripted(server_of_one_slot()) as served:
        client = partial(dpf.backends.OpenAICompatible, served.base_url, "served")
        with client() as backend:
            made = factory.synthesizer(backend if own == "server" else fleet.sure(), **OPTIONS)
            with pytest.raises(dpf.InvalidPlan, match="ThreadPoolExecutor"):
                made.generate_all(executor=threads, worker_backend=client)
            assert made.spent.epsilon == 0


def test_processes_of_a_server_are_told_to_be_threads(account: dict[str, Any]) -> None:
    with (
        scripted(server_of_one_slot()) as served,
        dpf.backends.OpenAICompatible(served.base_url, "served") as backend,
        fleet.processes(1) as pool,
        factory.synthesizer(backend, **OPTIONS, **account) as made,
        pytest.raises(dpf.InvalidPlan, match="ThreadPoolExecutor"),
    ):
        made.generate_all(executor=pool)


class Formed(Sentence):
    """A model that names the form of its weights, and takes the caller's if none is given."""

    def __init__(self, weights: str | None = None) -> None:
        super().__init__(sure=0.999999)
        self.weights = weights or weights_for_worker() or "measured"


def test_a_worker_refuses_other_weights_before_a_draw(threads: Executor) -> None:
    with factory.synthesizer(Formed("file"), **OPTIONS) as made:
        with pytest.raises(dpf.InvalidPlan, match=r"worker's model has weights='bf16'.* weights='file'"):
            made.generate_all(executor=threads, worker_backend=partial(Formed, "bf16"))
        assert made.spent.epsilon == 0


class Named(Sentence):
    """A model that says which one it is."""

    def __init__(self, name: str) -> None:
        super().__init__(sure=0.999999)
        self.model_identity = f"sha256:{name}"


def test_a_worker_of_another_model_is_refused_since_certificates_name_it(threads: Executor) -> None:
    with factory.synthesizer(Named("ab"), **OPTIONS) as made:
        with pytest.raises(dpf.InvalidPlan, match=r"worker's model is sha256:cd, and the .* sha256:ab"):
            made.generate_all(executor=threads, worker_backend=partial(Named, "cd"))
        assert made.spent.epsilon == 0
        [one, _] = made.generate_all(executor=threads, worker_backend=partial(Named, "ab"))
    assert one.certificate is not None
    assert (one.certificate.model, one.certificate.tokenizer) == ("sha256:ab", None)


def test_a_worker_takes_the_weights_of_each_run() -> None:
    with ThreadPoolExecutor(1) as pool:
        for weights in ("file", "bf16"):
            with factory.synthesizer(Formed(weights), **OPTIONS) as made:
                assert len(made.generate_all(executor=pool, worker_backend=Formed)) == 2
    assert weights_for_worker() is None


@pytest.mark.parametrize(("first", "later"), [("file", "bf16"), (None, "bf16"), ("file", None)])
def test_a_checkpoint_is_of_one_form_if_it_is_known(
    tmp_path: Path, first: str | None, later: str | None
) -> None:
    path = tmp_path / "run.jsonl"
    for weights in (first, later):
        backend = fleet.sure() if weights is None else Formed(weights)
        with factory.synthesizer(backend, **OPTIONS) as made:
            if weights == later and None not in {first, later}:
                with pytest.raises(dpf.InvalidPlan, match="checkpoint's model has weights='file'"):
                    made.generate_all(checkpoint=path)
            else:
                assert len(made.generate_all(checkpoint=path)) == 2


def broken() -> Sentence:
    raise RuntimeError("no model")


def test_a_factory_that_fails_leaves_its_worker_fit_for_the_next_run() -> None:
    with ThreadPoolExecutor(1) as pool:
        for worker_backend in (fleet.sure, broken, fleet.sure):
            run = partial(
                synthesizer(labels=["refund"]).generate_all, executor=pool, worker_backend=worker_backend
            )
            if worker_backend is broken:
                with pytest.raises(dpf.BackendError, match="RuntimeError"):
                    run()
            else:
                assert [one.token_count for one in run()] == [TOKENS]
