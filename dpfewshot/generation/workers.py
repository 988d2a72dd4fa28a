"""The workers of a run: an executor gives each a whole stratum, which it reserves, charges and releases.

A worker in another process shares the ledger with its caller, and nothing else: the stratum's row says what
was released, and whoever resumes the row takes the stratum from whoever had it (docs/proofs/resuming.md).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, Self

from dpfewshot.account.account import Account
from dpfewshot.account.draws import RunKey
from dpfewshot.backends.factory import backend_from, made_by
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.backends.servers.openai_compatible import OpenAICompatible
from dpfewshot.errors import BackendError, BudgetExceeded, DPFewShotError, InvalidPlan, LedgerError
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.stratum import StratumRun, without
from dpfewshot.generation.telemetry import NO_OBSERVERS
from dpfewshot.runtime.redaction import portable, redacted, redacts_errors
from dpfewshot.runtime.stopping import POLL, Stopped, StopSignal
from dpfewshot.values import Demonstration

BackendFactory = Callable[[], LogprobBackend] | str
"""A function without arguments that makes a backend, or "package.module:factory"."""

_DEATHS: Final = 3
"""Workers that may die in a row on one stratum, without a demonstration, before the run gives up."""

_made = threading.local()
"""The last backend that this thread made: its process, its key and itself."""


class _Model(NamedTuple):
    """What a worker's backend must have in common with the caller's, as far as both state it."""

    weights: str | None
    identity: str | None  # certificates name it
    prompt: tuple[int, ...]  # public, of a label
    schema: str | None  # the fingerprint of its vocabulary


class Workers:
    """Makes the demonstrations of one run on an executor, a stratum at a time.

    Args:
        executor: runs tasks. Its `worker_deaths` are the exceptions that say that a worker died and that
            others are left; without this attribute there are none.
    """

    def __init__(self, executor: Executor, backend: WorkerBackend | None) -> None:
        self._executor = executor
        self._backend = backend
        self._deaths: tuple[type[BaseException], ...] = getattr(executor, "worker_deaths", ())

    @classmethod
    @redacts_errors(None)  # the representation of a factory may hold a key
    def of(
        cls, executor: Executor | None, own: LogprobBackend, factory: BackendFactory | None
    ) -> Self | None:
        """The workers of an executor; None without one. A factory makes each its backend; else they share."""
        if executor is None:
            if factory is not None:
                raise InvalidPlan("worker_backend= is for the workers of executor=, which is None")
            return None
        if isinstance(executor, type):
            raise InvalidPlan(f"executor= is the class {executor.__name__}: pass an object of it")
        if not callable(getattr(executor, "submit", None)):
            raise InvalidPlan(f"executor= is of type {type(executor).__name__}, which has no submit")
        if factory is None:
            return cls(executor, None)
        _check_no_client(own)
        return cls(executor, WorkerBackend(factory, _key(factory)))

    def make(self, run: StratumRun, labels: Sequence[str], stop: StopSignal) -> Iterator[Demonstration]:
        """Make a stratum's demonstrations, and yield each that a worker released, however the worker ended.

        `stop` ends the wait; a worker in another process then loses the stratum. Errors are those of
        `StratumRun.release`, or workers keep dying.
        """
        deaths, to_do = 0, list(labels)
        while to_do:
            stop.check()
            known = len(run.released_ever)
            task = StratumTask(run, tuple(to_do), self._backend, stop)
            error = self._ended(task)
            if task.travelled:
                run.take_back()
            new = run.released_ever[known:] if task.travelled else list(task.made)
            for one in new:
                if one.label not in to_do:
                    continue  # another process's, of shared words
                to_do.remove(one.label)
                if task.travelled:
                    run.observers.generation(one.label, lambda: one)  # noqa: B023 - called at once
                yield one
            if error is None:
                return
            deaths = 1 if new else deaths + 1
            if not isinstance(error, self._deaths):
                raise error
            if deaths == _DEATHS:
                raise BackendError(f"{deaths} workers died in a row on one stratum", retryable=True)

    def _ended(self, task: StratumTask) -> BaseException | None:
        """How a task ended; None if it is done."""
        try:
            return self._answer(self._executor.submit(make_stratum, task), task)
        except self._deaths as error:
            return error
        except BrokenExecutor:
            return BackendError(
                "a worker process died, or could not read its task, and its pool runs nothing more. Run "
                "again with a new pool and resume=True, which continues",
                retryable=True,
            )
        except (CancelledError, RuntimeError):
            return BackendError("the executor takes no tasks: was it shut down?", retryable=True)
        except DPFewShotError as error:  # accounts and backends that cannot travel say so
            return redacted(error, None)
        except Exception as error:  # noqa: BLE001 - its message may quote a record
            return BackendError(
                "a stratum could not be sent to a worker, or its answer could not be read; worker_backend "
                f"must be a function that workers can import: {type(error).__name__}"
            )

    def _answer(self, future: object, task: StratumTask) -> BaseException | None:
        if not isinstance(future, Future):
            return BackendError(f"the executor's submit must return a future, not {type(future).__name__}")
        while not _is_done(future):
            try:
                task.stop.check()
                task.run.check_open()
            except (Stopped, BudgetExceeded) as ended:
                if not future.cancel():
                    self._await_end(future, task)
                return ended
        found: object = future.result()
        if found is None or isinstance(found, BaseException):
            return found
        return BackendError(
            "the executor's future must hold what its task returned, and holds an object of type "
            f"{type(found).__name__}"
        )

    def _await_end(self, future: Future[Any], task: StratumTask) -> None:
        """Wait for a worker that is to stop. One in another process is refused its next charge, and ends."""
        while not _is_done(future):
            if task.travelled:
                with suppress(LedgerError):
                    task.run.take_back()  # again, if it only now took the stratum


def _is_done(future: Future[Any]) -> bool:
    """Whether it is, after a while."""
    wait([future], timeout=POLL)  # never ends for one that its executor dropped
    return future.done()


@dataclass(eq=False, repr=False)
class StratumTask:
    """A stratum for a worker. Private: it holds the records to draw from.

    A worker in the caller's process continues the caller's run. Pickled, the task leaves the run to the
    ledger, where the worker takes it over. It does not pickle if its account lives in memory, or if the
    worker would have no backend of its own.

    Attributes:
        backend: makes the worker's; None: it uses the caller's.
        travelled: whether it was pickled.
        made: what a worker in the caller's process released.
    """

    run: StratumRun
    labels: tuple[str, ...]
    backend: WorkerBackend | None
    stop: StopSignal
    travelled: bool = field(default=False, init=False)
    made: list[Demonstration] = field(default_factory=list, init=False)

    def work(self) -> None:
        """Make those that no worker has made yet, on the backend of this one."""
        set_up = own = self.run.set_up
        if self.backend is not None:
            set_up = replace(own, backend=self.backend.here())
            _check_model(_model(set_up, self.labels[0]), _model(own, self.labels[0]))
        for one in self.run.make_all(without(self.labels, self.made), self.stop, set_up):
            self.made.append(one)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for another process opens the run's row."""
        run, set_up = self.run, self.run.set_up
        if run.account is None:
            raise InvalidPlan("workers in other processes need a ledger, and this run has no account")
        run.account.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # refuses if it is in memory
        if self.backend is None:
            _check_no_client(set_up.backend)
            raise InvalidPlan(
                "workers in other processes need a backend of their own: pass worker_backend=, a function "
                "without arguments that makes one"
            )
        self.travelled = True
        run.hand_over()
        arguments = {each.name: getattr(set_up, each.name) for each in fields(set_up) if each.init}
        del arguments["backend"]  # the worker has its own
        arguments["plan"] = replace(set_up.plan, strata=(run.plan,))
        arguments["units"] = {run.plan.scope: set_up.units[run.plan.scope]}
        model = _model(set_up, self.labels[0])
        stratum = run.part, run.labels, run.account, run.key
        return _TravelledTask, (arguments, stratum, self.labels, len(run.released_ever), self.backend, model)


@dataclass(frozen=True, repr=False)
class _TravelledTask:
    """A task in another process. Private, as `StratumTask` is.

    Attributes:
        arguments: of the set-up, but the backend.
        stratum: part, labels, account and key of its run.
        known: how many the caller knew that the run had released.
        model: `_model` of the caller's.
        stop: for interrupts; the caller stops it by taking the stratum back.
    """

    arguments: dict[str, Any]
    stratum: tuple[int, tuple[str, ...], Account, RunKey]
    labels: tuple[str, ...]
    known: int
    backend: WorkerBackend
    model: _Model
    stop: StopSignal = field(default_factory=StopSignal, init=False)

    def work(self) -> None:
        """Make the demonstrations that the row has not released by now, and leave the row."""
        set_up = SetUp(backend=self.backend.here(), **self.arguments)
        _check_model(_model(set_up, self.labels[0]), self.model)
        part, labels, account, key = self.stratum
        run = StratumRun(set_up.plan.strata[0], part, labels, set_up, account, NO_OBSERVERS, key)
        run.take_back()
        try:
            for _ in run.make_all(without(self.labels, run.released_ever[self.known :]), self.stop, set_up):
                pass  # the row has it
        finally:
            run.close()


def _model(set_up: SetUp, label: str) -> _Model:
    automaton = set_up.loop.automaton
    return _Model(
        set_up.backend.weights,
        set_up.backend.model_identity,
        set_up.writer.for_label(label).public,
        None if automaton is None else automaton.fingerprint,
    )


def _check_model(worker: _Model, caller: _Model) -> None:
    forms = f"weights={worker.weights!r}, and the synthesizer's weights={caller.weights!r}"
    same = "worker_backend must make the same model"
    troubles = (
        f"model has {forms}: name one form for both",
        f"model is {worker.identity}, and the synthesizer's {caller.identity}: {same}",
        f"backend has other tokens for the public prompt than the synthesizer's: {same}",
        f"backend has other tokens for the task's schema than the synthesizer's: {same}",
    )
    for its, own, trouble in zip(worker, caller, troubles, strict=True):
        if None not in (its, own) and its != own:
            raise InvalidPlan(f"a worker's {trouble}")


def make_stratum(task: StratumTask | _TravelledTask) -> BaseException | None:
    """Make a stratum's demonstrations, and return what ended it early. What a worker runs; never raises."""
    try:
        with _interrupts_set(task.stop):
            task.work()
    except Stopped as stopped:
        if isinstance(task, StratumTask):
            return stopped
        interrupted = "a worker was interrupted: run again with resume=True, which continues"
        return BackendError(interrupted, retryable=True)
    except BaseException as raised:  # noqa: BLE001 - the caller raises it, redacted
        return portable(redacted(raised, BackendError, "generation"))
    return None


@contextmanager
def _interrupts_set(stop: StopSignal) -> Iterator[None]:
    """In the main thread of a worker process, let Ctrl-C and cancellation end the work between two tokens.

    An interrupt within a transaction could leave the ledger locked for as long as the worker lives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


# ---- the backend of a worker


@dataclass(frozen=True, repr=False)
class WorkerBackend:
    """Makes a backend in each worker, which keeps it.

    Attributes:
        key: of the factory: equal ones make one backend a worker.
    """

    factory: BackendFactory
    key: str

    def here(self) -> LogprobBackend:
        """The backend of the thread that asks."""
        # a forked child must not use its parent's backend
        mine = (os.getpid(), self.key)
        if getattr(_made, "key", None) != mine:
            _made.key = _made.backend = None  # before a second model is loaded, which may fail
            factory = self.factory
            made = backend_from(factory) if isinstance(factory, str) else made_by(factory, "worker_backend")
            _check_no_client(made)
            _made.backend = made
            _made.key = mine
        backend: LogprobBackend = _made.backend
        return backend


def _check_no_client(backend: LogprobBackend) -> None:
    """Refuse a backend of which each worker would have one with a count of requests of its own."""
    if isinstance(backend, OpenAICompatible):
        raise InvalidPlan(
            "OpenAICompatible must send all requests to its server, so that what one draw gets does not "
            "depend on another's: use a ThreadPoolExecutor without worker_backend=, whose threads share the "
            "synthesizer's"
        )


def _key(factory: BackendFactory) -> str:
    try:
        return hashlib.sha256(pickle.dumps(factory)).hexdigest()
    except Exception:  # noqa: BLE001 - a closure, which only some executors can send
        return uuid.uuid4().hex
