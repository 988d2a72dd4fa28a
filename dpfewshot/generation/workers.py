"""The workers of a run: an executor gives each a whole stratum, which it reserves, charges and releases.

A worker in another process shares the ledger with its caller, and nothing else: the stratum's row says what
was released, and whoever resumes the row takes the stratum from whoever had it (docs/proofs/resuming.md).
"""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from dpfewshot.account.account import Account
from dpfewshot.account.draws import RunKey
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, DPFewShotError, InvalidPlan
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.stopping import Stopped, StopSignal
from dpfewshot.generation.stratum import StratumRun
from dpfewshot.generation.telemetry import NO_OBSERVERS
from dpfewshot.generation.worker_backend import BackendFactory, WorkerBackend
from dpfewshot.prompts.writer import LabelPrompts
from dpfewshot.runtime.redaction import portable, redacted, redacts_errors
from dpfewshot.values import Demonstration

_DEATHS: Final = 3
"""Workers that may die in a row on one stratum, without a demonstration, before the run gives up."""

_POLL: Final = 0.1
"""Seconds after which a caller that waits for a worker checks whether it was stopped."""

_BROKEN: Final = (
    "a worker process died, or could not read its task, and its pool runs nothing more. "
    "Run again with a new pool and resume=True, which continues"
)
_INTERRUPTED: Final = "a worker was interrupted: run again with resume=True, which continues"
_REFUSED: Final = "the executor takes no tasks: was it shut down?"
_NOT_SENT: Final = (
    "a stratum could not be sent to a worker, or its answer could not be read; worker_backend must be a "
    "function that workers can import"
)
_NO_ANSWER: Final = "the executor's future must hold what its task returned, and holds an object of type "


class Workers:
    """Makes the demonstrations of one run on an executor, a stratum at a time.

    Args:
        executor: runs tasks. Its `worker_deaths` are the exceptions that say that a worker died and that
            others are left; without this attribute there are none.
        backend: of the workers.
    """

    def __init__(self, executor: Executor, backend: WorkerBackend) -> None:
        self._executor = executor
        self._backend = backend
        self._deaths: tuple[type[BaseException], ...] = getattr(executor, "worker_deaths", ())

    @classmethod
    @redacts_errors(None)  # the representation of a factory may hold a key
    def of(
        cls, executor: Executor | None, own: LogprobBackend, factory: BackendFactory | None
    ) -> Self | None:
        """The workers of an executor; None without one.

        Args:
            executor: as above.
            own: the caller's backend.
            factory: makes the backend of each worker; None: they use the caller's.

        Raises:
            InvalidPlan: a factory without an executor, or something else in place of an executor.
        """
        if executor is not None:
            _check_executor(executor)
            return cls(executor, WorkerBackend.of(own, factory))
        if factory is not None:
            raise InvalidPlan("worker_backend= is for the workers of executor=, which is None")
        return None

    def make(self, run: StratumRun, labels: Sequence[str], stop: StopSignal) -> Iterator[Demonstration]:
        """Make a stratum's demonstrations, and yield each that a worker released, however the worker ended.

        Args:
            run: of the stratum.
            labels: of the demonstrations to make. The others find too few draws left.
            stop: ends the wait; a worker in another process then loses the stratum.

        Raises:
            Stopped: the run was cancelled.
            BudgetExceeded: the account does not allow the stratum's plan.
            BackendError: the model failed, or workers keep dying.
            LedgerError: a charge could not be recorded.
        """
        deaths, to_do = 0, list(labels)
        while to_do:
            known = len(run.released)
            task = StratumTask(run, tuple(to_do), self._backend, stop)
            error = self._ended(task, stop)
            if task.travelled:
                run.take_back()
            new = run.released[known:]
            for one in new:
                to_do.remove(one.label)
                if task.travelled:
                    run.observers.generation(one.label, partial(_same, one))
                yield one
            if error is None:
                return
            deaths = 1 if new else deaths + 1
            if not isinstance(error, self._deaths):
                raise error
            if deaths == _DEATHS:
                raise BackendError(f"{deaths} workers died in a row on one stratum", retryable=True)

    def _ended(self, task: StratumTask, stop: StopSignal) -> BaseException | None:
        """How a task ended; None if it is done."""
        try:
            return self._answer(self._executor.submit(make_stratum, task), task, stop)
        except self._deaths as error:
            return error
        except BrokenExecutor:
            return BackendError(_BROKEN, retryable=True)
        except (CancelledError, RuntimeError):
            return BackendError(_REFUSED, retryable=True)
        except DPFewShotError as error:  # accounts and backends that cannot travel say so
            return redacted(error, None)
        except Exception as error:  # noqa: BLE001 - its message may quote a record
            return BackendError(f"{_NOT_SENT}: {type(error).__name__}")

    def _answer(
        self, future: Future[BaseException | None], task: StratumTask, stop: StopSignal
    ) -> BaseException | None:
        if not callable(getattr(future, "result", None)) or not callable(getattr(future, "cancel", None)):
            return BackendError(f"the executor's submit must return a future, not {type(future).__name__}")
        while not wait([future], timeout=_POLL).done:
            try:
                stop.check()
            except Stopped as stopped:
                if future.cancel():
                    return stopped
                if task.travelled:
                    task.run.take_back()  # the worker's next charge is refused, and ends it
                wait([future])
                return stopped
        found: object = future.result()
        if found is None or isinstance(found, BaseException):
            return found
        return BackendError(_NO_ANSWER + type(found).__name__)


@dataclass(eq=False, repr=False)
class StratumTask:
    """A stratum for a worker. Private: it holds the records to draw from.

    A worker in the caller's process continues the caller's run. Pickled, the task leaves the run to the
    ledger, where the worker takes it over. It does not pickle if its account lives in memory, or if the
    worker would have no backend of its own.

    Attributes:
        run: of the stratum.
        labels: of the demonstrations to make.
        backend: the worker's.
        stop: ends the work between two tokens.
        travelled: whether it was pickled.
    """

    run: StratumRun
    labels: tuple[str, ...]
    backend: WorkerBackend
    stop: StopSignal
    travelled: bool = field(default=False, init=False)

    @property
    def model(self) -> _Model:
        """What the worker's model must have in common with the caller's."""
        return _model_of(self.run.set_up, self.labels[0])

    def work(self, stop: StopSignal) -> None:
        """Make the demonstrations on the backend of this worker.

        Raises:
            InvalidPlan: the backend is another model.
            BudgetExceeded, BackendError, LedgerError: as `StratumRun.release`.
        """
        backend = self.backend.here()
        if backend is self.run.set_up.backend:
            self.run.make_all(self.labels, stop)
            return
        mine = copy.copy(self.run)
        mine.set_up = _same_model(replace(self.run.set_up, backend=backend), self.model)
        try:
            mine.make_all(self.labels, stop)
        finally:
            self.run.reservation = mine.reservation

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for another process opens the run's row.

        Raises:
            LedgerError: the account is in memory.
            InvalidPlan: nothing says how to make a backend there.
        """
        run, set_up = self.run, self.run.set_up
        if run.account is None:
            raise InvalidPlan("workers in other processes need a ledger, and this run has no account")
        run.account.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # refuses if it is in memory
        self.travelled = True
        run.hand_over()
        arguments = {
            "task": set_up.task,
            "mechanism": set_up.mechanism,
            "plan": replace(set_up.plan, strata=(run.plan,)),
            "units": {run.plan.scope: set_up.units[run.plan.scope]},
            "certified": set_up.certified,
            "partition": set_up.partition,
            "random_source": set_up.random_source,
        }
        stratum = run.part, run.labels, run.account, run.key
        return _TravelledTask, (arguments, stratum, self.labels, len(run.released), self.backend, self.model)


@dataclass(frozen=True, repr=False)
class _TravelledTask:
    """A task in another process. Private, as `StratumTask` is.

    Attributes:
        arguments: of the set-up, but the backend.
        stratum: part, labels, account and key of its run.
        labels: of the demonstrations to make.
        known: how many the caller knew that the run had released.
        backend: the worker's.
        model: of the caller's, which the worker's must equal.
    """

    arguments: dict[str, Any]
    stratum: tuple[int, tuple[str, ...], Account, RunKey]
    labels: tuple[str, ...]
    known: int
    backend: WorkerBackend
    model: _Model

    @property
    def stop(self) -> StopSignal:
        """The caller stops it by taking the stratum back."""
        return StopSignal()

    def work(self, stop: StopSignal) -> None:
        """Make the demonstrations that the row has not released by now, and leave the row.

        Raises:
            BudgetExceeded, BackendError, LedgerError: as `StratumRun.release`.
            BackendError: the backend cannot be made.
            InvalidPlan: the plan states less than its draws cost, or the backend is another model.
        """
        set_up = _same_model(SetUp(backend=self.backend.here(), **self.arguments), self.model)
        part, labels, account, key = self.stratum
        run = StratumRun(set_up.plan.strata[0], part, labels, set_up, account, NO_OBSERVERS, key)
        run.take_back()
        to_do = Counter(self.labels) - Counter(one.label for one in run.released[self.known :])
        try:
            run.make_all(tuple(to_do.elements()), stop)
        finally:
            run.close()


def _same(one: Demonstration) -> Demonstration:
    return one


_Model = tuple[str, tuple[int, ...], str]
"""A label, its public prompt in tokens, and the tokens of the task's schema (`TokenLoop.vocabulary`)."""


def _model_of(set_up: SetUp, label: str) -> _Model:
    return label, public_prompt(set_up.writer.for_label(label)), set_up.loop.vocabulary


def _same_model(set_up: SetUp, expected: _Model) -> SetUp:
    """The set-up of a worker.

    Raises:
        InvalidPlan: its backend is another model than the caller's.
    """
    _, prompt, vocabulary = _model_of(set_up, expected[0])
    for what, same in (
        ("writes the public prompt in other tokens", prompt == expected[1]),
        ("has other tokens for the task's schema", vocabulary == expected[2]),
    ):
        if not same:
            raise InvalidPlan(
                f"a worker's backend {what} than the synthesizer's: worker_backend must make the same model"
            )
    return set_up


def public_prompt(prompts: LabelPrompts) -> tuple[int, ...]:
    """A label's prompt without records, what follows a record, and the names of further fields."""
    names = (token for name in prompts.further for token in name)
    return (*prompts.prefix, *prompts.public_suffix, *prompts.between, *names)


def make_stratum(task: StratumTask | _TravelledTask) -> BaseException | None:
    """Make a stratum's demonstrations, and return what ended it early. What a worker runs; never raises."""
    try:
        stop = task.stop
        with _interrupts_set(stop):
            task.work(stop)
    except Stopped as stopped:
        return stopped if isinstance(task, StratumTask) else BackendError(_INTERRUPTED, retryable=True)
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


def _check_executor(executor: object) -> None:
    if isinstance(executor, type):
        raise InvalidPlan(f"executor= is the class {executor.__name__}: pass an object of it")
    if not callable(getattr(executor, "submit", None)):
        raise InvalidPlan(f"executor= is of type {type(executor).__name__}, which has no submit")
