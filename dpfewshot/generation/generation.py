"""A plan while it generates: one run for each stratum, how a demonstration is released and certified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial

from dpfewshot import __version__
from dpfewshot.account.account import Account
from dpfewshot.account.reservation import Reservation
from dpfewshot.certificates import Certificate, line_hash, plan_hash
from dpfewshot.errors import BackendError, BudgetExceeded, LedgerError
from dpfewshot.generation.checkpoint import NO_CHECKPOINT
from dpfewshot.generation.request import GenerationRequest, Worker
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.strata import Bookkeeping, StratumRun
from dpfewshot.generation.telemetry import NO_OBSERVERS, Observers
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.values import Demonstration


class Certificates:
    """Makes the certificate of each stratum.

    Args:
        account: of the generation; None without a guarantee.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._released: Counter[str] = Counter()

    def of(self, run: StratumRun) -> Certificate | None:
        """The certificate of what a run releases under its reservation; None without a guarantee."""
        cost, reservation = run.cost, run.reservation
        if cost is None or reservation is None or self._account is None:
            return None
        return Certificate(
            plan=plan_hash(*cost, run.set_up.account_details(run.plan)),
            unit=self._account.unit,
            version=__version__,
            dataset=self._account.dataset,
            reservation=reservation.identifier,
            **asdict(run.set_up.provenance.short()),
        )

    def resumed(self, finished: Iterable[Demonstration]) -> None:
        """Count what a checkpoint's earlier runs recorded, so that a record is not made twice."""
        self._released |= Counter(line_hash(one.as_line()) for one in finished)

    def record(self, run: StratumRun, demonstration: Demonstration) -> None:
        """Record a demonstration in the ledger, if it has one. Nobody may get a text before this returns.

        Raises:
            LedgerError: it could not be recorded. The call may be repeated.
        """
        made = demonstration.certificate
        if made is None or made.reservation is None or run.reservation is None:
            return
        digest = line_hash(demonstration.as_line())
        try:
            run.reservation.record_release(digest, self._released[digest] + 1)
        except LedgerError as error:
            raise LedgerError(
                f"{error}. What was released is kept until the ledger has its hash: ask for it again, which "
                "draws nothing"
            ) from None
        self._released[digest] += 1


class Generation:
    """Releases the demonstrations of one set-up and charges for them.

    `Synthesizer` keeps it private. What it draws follows from its set-up, which nothing else can change.

    Args:
        set_up: the plan, and what it is made for.
        account: charges the budget; None without a guarantee.
        observers: are told what becomes public.

    Attributes:
        set_up: as above.
        books: where draws are paid for and recorded.
        runs: by the scope of their stratum, in the plan's order.
        worker: the thread of asynchronous callers of whole runs.
    """

    def __init__(self, set_up: SetUp, account: Account | None, observers: Observers = NO_OBSERVERS) -> None:
        self.set_up = set_up
        self.books = Bookkeeping(account, observers)
        self.runs = {
            stratum.scope: StratumRun(number, stratum, set_up, self.books)
            for number, stratum in enumerate(set_up.plan.strata)
        }
        self.worker = Worker()
        self._certificates = Certificates(account)
        self._closed = False
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """Drop the parent's thread and its checkpoint, which the parent continues to write."""
        self.worker.after_fork()
        self.books.checkpoint.close()
        self.books.checkpoint = NO_CHECKPOINT

    @property
    def plan(self) -> GenerationPlan:
        """Fixed beforehand."""
        return self.set_up.plan

    @property
    def certified(self) -> bool:
        """Whether the guarantee holds. It never does where no account is charged."""
        return all(run.certified for run in self.runs.values())

    def run_of(self, label: str) -> StratumRun:
        """The run that generates a label.

        Raises:
            InvalidPlan: the label is not planned.
        """
        return self.runs[self.plan.stratum_of(label).scope]

    @redacts_errors(BackendError, "generation")
    def release(self, request: GenerationRequest) -> Demonstration:
        """Release one demonstration.

        Raises:
            BudgetExceeded: the plan or the account does not allow it, or it is closed; nothing is drawn.
            BackendError: the model or its server failed. What was drawn stays charged.
            InvalidRecords: the file of indexed records has changed. What was drawn stays charged.
            LedgerError: the charge could not be recorded; nothing is drawn without it. Or the demonstration
                could not be: the next request for its label gets it, and draws nothing.
            Stopped: the request was cancelled.
        """
        self.check_open()
        run = self.run_of(request.label)
        return self.books.observers.generation(request.label, partial(self._release, run, request))

    def demonstration(self, label: str, released: Sequence[int]) -> Demonstration:
        """The demonstration that consists of these released tokens, once the ledger has recorded it.

        Raises:
            LedgerError: it could not be recorded.
        """
        run, text = self.run_of(label), self.set_up.loop.text_of(released)
        made = Demonstration(
            text=text,
            label=label,
            token_count=len(released),
            certified=run.certified,
            spent=run.spend,
            relation=self.plan.relation,
            mechanism=self.set_up.mechanism.name,
            fields=self.set_up.task.layout.fields_of(text),
            certificate=self._certificates.of(run),
        )
        self._certificates.record(run, made)
        return made

    def resumed(self, finished: Sequence[Demonstration]) -> None:
        """Learn what earlier runs of a checkpoint released."""
        self._certificates.resumed(finished)

    def close(self) -> None:
        """Draw no more: settle what drew, give back what did not, and refuse later requests.

        What a run with a checkpoint reserved stays with the checkpoint: a later run resumes it.

        Raises:
            LedgerError: something could not be given back; it stays spent, until this is called again.
        """
        with self.no_draws(), ExitStack() as stack:
            self._closed = True
            for run in self.runs.values():
                stack.callback(run.close)  # each of them, even if another one fails

    def check_open(self) -> None:
        """Refuse further work after `close`.

        Raises:
            BudgetExceeded: it is closed.
        """
        if self._closed:
            raise BudgetExceeded(
                "the synthesizer is closed and generates no more: make a new one, with a budget of its own"
            )

    @contextmanager
    def no_draws(self) -> Iterator[None]:
        """Hold the locks of all runs."""
        with ExitStack() as stack:
            for run in self.runs.values():
                stack.enter_context(run.lock)
            yield

    def _release(self, run: StratumRun, request: GenerationRequest) -> Demonstration:
        request.stop.acquire(run.lock)
        try:
            self.check_open()  # it may have been closed while this waited
            # what the ledger could not record waits here, if no checkpoint has it
            in_file = request.checkpointed and self.books.checkpoint.resumable
            waiting: dict[str, list[int]] = {} if in_file else run.unrecorded
            with run.reserved() as reservation:
                self.check_open()  # an observer may have closed it
                if request.label not in waiting:
                    waiting[request.label] = self._drawn(run, reservation, request)
                made = self.demonstration(request.label, waiting[request.label])
                del waiting[request.label]
                return made
        finally:
            run.lock.release()

    def _drawn(self, run: StratumRun, reservation: Reservation, request: GenerationRequest) -> list[int]:
        """Draw the tokens of one demonstration."""
        set_up, plan = self.set_up, run.plan
        left = request.max_tokens - len(request.prior_tokens)
        part = reservation.part_for(-(-left // plan.draws.tokens_per_draw))
        if request.workers is not None:
            return request.workers.release(run, part, request)
        return set_up.loop.release(
            run.bodies(part),
            set_up.sampler(plan),
            set_up.release(plan),
            lambda: run.charge(part, request),
            prompts=set_up.writer.for_label(request.label),
            max_tokens=request.max_tokens,
            prior_tokens=request.prior_tokens,
            on_token=request.released,
        )


def unaccounted(set_up: SetUp) -> Generation:
    """A generation like a synthesizer's that charges nothing, logs nothing, and says `certified=False`.

    Args:
        set_up: `Synthesizer.set_up`, or one that `SetUp.over` or `dataclasses.replace` derived from it.
    """
    return Generation(replace(set_up, certified=False), None)
