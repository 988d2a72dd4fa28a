"""The composition root: private records in, demonstrations with a guarantee out.

It checks, plans, opens the account and hands the pieces to `generation`, whose `token_loop` is Algorithm 1.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from inspect import iscoroutinefunction
from typing import Final, Self

from dpfewshot.account.account import Account, account_of_run
from dpfewshot.backends.chat_writer import TextWriter
from dpfewshot.backends.protocol import LogprobBackend, check_invariance, states_invariance
from dpfewshot.demonstrations import Demonstrations, line_hashes
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.runner import OnDemonstration, release_all
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.telemetry import LogObserver, Observer, Observers
from dpfewshot.generation.units import check_every_label_has_units, labels_of, planned_labels, units_by_scope
from dpfewshot.generation.workers import BackendFactory, Workers
from dpfewshot.mechanisms import Mechanism
from dpfewshot.planning.defaults import decide, planned_mechanism
from dpfewshot.planning.description import describe
from dpfewshot.planning.plan import GenerationPlan
from dpfewshot.planning.planner import Planner
from dpfewshot.planning.population import Population, public_stratum, relation_of
from dpfewshot.planning.settings import CERTIFIED, PUBLISHED, TANG, Settings, preset
from dpfewshot.planning.speed import estimated_seconds
from dpfewshot.prompts.chat import in_chat
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.records import as_records
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.runtime.stopping import StopSignal, in_thread
from dpfewshot.sampling import partition_of_units
from dpfewshot.tasks import Task
from dpfewshot.values import (
    Demonstration,
    NoPrivacy,
    PrivacyBudget,
    PrivacySpend,
    Record,
    check_whole,
    columns_of,
    unit_of,
)

_PLANNED: Final = Settings()


class Synthesizer:
    """Generates synthetic few-shot demonstrations from private labelled text, with a certified (ε, δ).

    Use it in a `with` statement, which closes it.

    Args:
        records: private: `Record` objects, mappings, a DataFrame or a Dataset.
        backend: a trusted language model.
        budget: the (ε, δ) of everything that this object releases, or `NO_PRIVACY`.
        max_tokens: T_max, the most tokens of a demonstration that are released; the model may complete a cut
            sentence with up to 24 more, without records.
        shots_per_label: demonstrations planned for each label.
        mechanism: what reads the records. The planner decides it, M and R where they are None, from public
            numbers alone: `plan.reasons` says what and why.
        population: public n of each label, {label: n}, or one number if labels are free. With it, neighbours
            add or remove one unit. Without it, n is counted, and neighbours zero a unit out.
        labels: the labels to generate, public input; by default the task's. Required if its labels are free.
        account: what pays: `open_account(url, name)`, which outlives the process and which many share, or
            `Account.in_memory(budget)`. None is one in memory of this budget.
        settings: M, N, R and what else only experts set.
        text_writer: a chat model that writes the texts in the backend's place, from counted words alone:
            `backends.ChatWriter`, or a function of a prompt that returns its answer and calls nothing of this
            object. No record is sent to it.
        observers: are told what is released (`dpfewshot.generation.telemetry`, docs/how-to/service.md), after
            a `LogObserver`, which logs to "dpfewshot".

    Raises:
        InvalidPlan: settings that no plan can honour.
        InvalidRecords: a record's label is not the task's.
        BackendNotBatchInvariant: the backend does not state batch invariance.
        LedgerError: the account is for another relation or unit.
    """

    _random_source: RandomSource | None = None
    """Tests override it in a subclass; results then say `certified=False`. None: the operating system's."""

    @redacts_errors(None)
    def __init__(
        self,
        task: Task,
        records: Iterable[Record] | object,
        backend: LogprobBackend,
        *,
        budget: PrivacyBudget | NoPrivacy,
        max_tokens: int = 40,
        shots_per_label: int = 1,
        mechanism: Mechanism | None = None,
        population: Population = None,
        labels: Sequence[str] | None = None,
        account: Account | None = None,
        settings: Settings = _PLANNED,
        text_writer: TextWriter | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._seconds: float | None = None
        _check_kinds(task, budget, settings)
        check_invariance(backend, allowed=settings.allow_batch_variance)
        limit = None if isinstance(budget, NoPrivacy) else budget
        paper = TANG if settings.preset is None and settings.accounting == PUBLISHED else settings.preset
        if paper is not None:
            of_paper, numbers = preset(paper, task, limit, backend.vocabulary_size)
            mechanism, settings = mechanism or of_paper, settings.filled(numbers)
        open_settings = settings.decided(max_tokens=max_tokens, shots_per_label=shots_per_label)
        sampling = settings.sampling
        relation = relation_of(sampling, population)
        records = as_records(records)
        why: list[str] = []
        if mechanism is None:
            mechanism, *why = planned_mechanism(task, settings, backend.vocabulary_size)
        if mechanism.draws_once:
            task = in_chat(task, backend)
        elif text_writer is not None:
            raise InvalidPlan(
                f"text_writer= writes from counted words, and {mechanism.name} counts none: pass "
                "mechanism=dpf.mechanisms.WordHistogram(), for a task of one text field"
            )
        if text_writer is not None and (
            isinstance(text_writer, type) or iscoroutinefunction(text_writer) or not callable(text_writer)
        ):
            raise InvalidPlan("text_writer= must be a function of a prompt that returns its answer")
        planned = planned_labels(task, labels)
        units = units_by_scope(task, records, planned)
        strata = tuple(
            public_stratum(sampling, population, scope, labels_of(scope, planned), len(members))
            for scope, members in units.items()
        )
        writer = PromptWriter(task, backend, settings.record_token_cap)
        undecided = Planner(mechanism, writer, open_settings, limit, strata, relation)
        undecided.check_lengths()
        self._planner, reasons = decide(undecided, settings)
        plan = self._planner.plan((*why, *reasons))
        sound = (
            states_invariance(backend) and self._random_source is None and settings.accounting == CERTIFIED
        )
        certified = limit is not None and sound
        if text_writer is not None and not certified:
            raise InvalidPlan(
                "text_writer= is told what the plan releases, and without a guarantee that may be words of "
                "single records"
            )
        unit = unit_of(records)
        self._unit = "unit" if unit == "" else unit
        paying = account_of_run(account, limit if certified else None, relation=relation, unit=unit)
        if account is not None and account.parallel and unit is not None:
            check_every_label_has_units(task, records, relation)
        partition = partition_of_units(task, records, open_settings.division, open_settings.disjoint_parts)
        set_up = SetUp(
            task, backend, mechanism, plan, units, certified, partition, self._random_source, text_writer
        )
        public = {"mechanism": mechanism.name, "relation": relation}
        told = Observers(public, [LogObserver(), *observers])
        identity = {
            "budget": None if limit is None else dataclasses.asdict(limit),
            **columns_of(records).identity(),
            "text_column": columns_of(records).text,
            "vocabulary": backend.vocabulary_size,
        }
        self._generation = Generation(set_up, paying, told, identity)
        changed = None if paying is None else paying.changed_records(set_up.account_populations())
        if changed is not None and self.newest_run() is None:
            warnings.warn(changed, stacklevel=3)  # behind the redaction

    def __str__(self) -> str:
        return f"Synthesizer({self.set_up.plan})"

    @property
    def plan(self) -> GenerationPlan:
        """Everything that is decided before anything is spent: σ, q, steps, ε, δ, tokens."""
        return dataclasses.replace(self.set_up.plan, estimated_seconds=self._seconds)

    def describe(self) -> str:
        """The plan in plain words: what is written, what it costs, how the texts will read.

        After `probe` also how long it takes, at most.
        """
        writer = self.set_up.text_writer
        name = None if writer is None else getattr(writer, "model", "the text writer")
        return describe(self.plan, self._unit, writer=name)

    def preview(self, label: str) -> Demonstration:
        """Write a text of a label without any record, as `dpfewshot plan` shows them: it costs nothing.

        Raises:
            InvalidPlan: the label is not planned.
            BackendError: the model failed.
        """
        self.plan.stratum_of(label)  # refuses a label that is not planned
        return self.set_up.without_records(label, (), self.plan.settings.max_tokens)

    @property
    def set_up(self) -> SetUp:
        """What generates, for audits: the plan, the mechanism, the backend and the records.

        Read-only: changing it has no effect on what this object releases.
        """
        return self._generation.set_up

    @property
    def account(self) -> Account | None:
        """What pays; None without a guarantee."""
        return self._generation.account

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged on the account; (0, 0) without one."""
        return PrivacySpend(0.0, 0.0) if self.account is None else self.account.spent

    @property
    def unfinished(self) -> bool:
        """Whether the account has a run of this plan, of whichever process, that nobody has finished."""
        return self._generation.unfinished

    def newest_run(self, name: str = "") -> str | None:
        """The run of this plan and name, finished or not, which `resume` continues, as certificates name it.

        None if the account has no such run.
        """
        return self._generation.newest_run(name)

    def probe(self, seconds: float = 2.0) -> GenerationPlan:
        """Measure the backend on public prompts of the plan's lengths; return the plan with its seconds.

        The plan that generates stays as it is. From now on `plan` states the estimate too.

        Args:
            seconds: about how long to measure; one round of prompts is asked for in any case.
        """
        writes = self.set_up.text_writer is None
        self._seconds = estimated_seconds(self._planner, self.set_up.plan, seconds, writes=writes)
        return self.plan

    def generate(self, label: str, *, max_tokens: int | None = None) -> Demonstration:
        """Release one demonstration of a label. Threads may call it at the same time; one label takes turns.

        Args:
            label: one of the planned labels.
            max_tokens: fewer tokens than planned, to use what earlier demonstrations left.

        Raises:
            BudgetExceeded: the plan or the account does not allow it, or it is closed; nothing is drawn.
            BackendError: the model or its server failed. What was drawn stays charged.
            LedgerError: the charge could not be recorded; nothing is drawn without it. Or the demonstration
                could not be: call again, which returns it and draws nothing.
        """
        return self._generation.release(label, self._at_most(max_tokens))

    def generate_all(
        self,
        *,
        on_demonstration: OnDemonstration | None = None,
        resume: bool | str = False,
        keep: Iterable[Demonstration] | None = None,
        executor: Executor | None = None,
        worker_backend: BackendFactory | None = None,
    ) -> Demonstrations:
        """Release every planned demonstration, with a progress bar on a terminal.

        Args:
            on_demonstration: called with each demonstration as it is released, one call at a time; first with
                those that an earlier process released, which may have ended before it was told.
            resume: continue the newest run of this plan in the account, which must be a ledger's, or begin
                one. What it released is returned and not paid for again. A process that still runs it draws
                no more of what it has begun (docs/proofs/resuming.md). A string names the run, for those who
                make several with one plan: one a night, say.
            keep: of the run's texts those to keep; None: all. Others, of planned labels, are replaced by new
                ones at no cost, so it needs a mechanism whose one draw serves all texts, as the default's,
                and a run that has drawn for all labels. Choose by how texts read: the guarantee covers no
                choice by the records.
            executor: makes the demonstrations, of several strata at a time: a `ThreadPoolExecutor`, a
                `ProcessPoolExecutor` or a `RayExecutor` (docs/how-to/scale.md). Workers in other processes
                need an account of a ledger.
            worker_backend: makes the backend of each worker: a function without arguments, or
                "package.module:factory". None: threads share the synthesizer's; other processes need one.

        Raises:
            InvalidPlan: `resume` without a ledger; `keep` where others would have a cost, or of another run;
                or a worker has no backend or another model.
            BudgetExceeded, BackendError, LedgerError: as `generate`. All demonstrations that draws are left
                for are made before BudgetExceeded names those that cannot be; of labels that have not begun,
                none if they do not all fit the budget.
        """
        try:
            workers = Workers.of(executor, self.set_up.backend, worker_backend)
        finally:
            del worker_backend  # its representation may hold a key, and this frame is in tracebacks
        return self._generate_all(on_demonstration, workers, StopSignal(), resume=resume, keep=keep)

    def counted_words(self) -> dict[str, list[str]]:
        """The records' words that stand out of the noise of each label's count, the commonest first.

        They are released: what the texts of a `WordHistogram` say of the records comes from them, and from
        counts of first words, lengths and ends. Some may be noise: half of them, if a label has few. Labels
        that are not counted are missing, and all of them without a guarantee. Free labels share one count.
        """
        return self._generation.counted_words()

    def close(self) -> None:
        """Give back what never drew, and refuse every later call with `BudgetExceeded`.

        What an unfinished run on a ledger has left stays open to `generate_all(resume=True)`. Never call this
        in a signal handler (docs/how-to/service.md).

        Raises:
            LedgerError: something could not be given back; it stays spent, until this is called again.
        """
        self._generation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def agenerate(self, label: str, *, max_tokens: int | None = None) -> Demonstration:
        """`generate` for asyncio: in a thread, so that the event loop stays free.

        When it is cancelled, the thread stops before the next token, but for a count of words that has begun.
        What was drawn stays charged, a plan that drew nothing is given back, and nothing stays locked.
        """
        self.set_up.plan.stratum_of(label)  # refuses a label that is not planned
        tokens = self._at_most(max_tokens)
        thread = self._generation.threads[label]
        return await in_thread(thread, lambda stop: self._generation.release(label, tokens, stop))

    async def agenerate_all(
        self,
        *,
        on_demonstration: OnDemonstration | None = None,
        resume: bool | str = False,
        keep: Iterable[Demonstration] | None = None,
        executor: Executor | None = None,
        worker_backend: BackendFactory | None = None,
    ) -> Demonstrations:
        """`generate_all` for asyncio. It is cancelled as `agenerate` is; the callback runs in a thread."""
        try:
            workers = Workers.of(executor, self.set_up.backend, worker_backend)
        finally:
            del worker_backend  # its representation may hold a key, and this frame is in tracebacks
        return await in_thread(
            self._generation.threads[None],
            lambda stop: self._generate_all(on_demonstration, workers, stop, resume=resume, keep=keep),
        )

    def _generate_all(
        self,
        on_demonstration: OnDemonstration | None,
        workers: Workers | None,
        stop: StopSignal,
        *,
        resume: bool | str,
        keep: Iterable[Demonstration] | None,
    ) -> Demonstrations:
        if not isinstance(resume, bool | str) or resume == "":  # type: ignore[redundant-expr]  # 1 begins another
            raise InvalidPlan("resume must be True, False or the name of a run")
        kept = None if keep is None else self._hashes(keep)
        if resume is not False:
            self._generation.resume("" if resume is True else resume)
        if kept is not None:
            self._generation.keep(kept)
        continues = kept is not None or resume is not False
        return release_all(self._generation, on_demonstration, stop, workers, resume=continues)

    def _hashes(self, keep: Iterable[Demonstration]) -> Counter[str]:
        if not self.set_up.mechanism.draws_once:
            raise InvalidPlan(
                f"keep= replaces texts at no cost, and {self.plan.mechanism} draws for each text"
            )
        try:
            return line_hashes(keep)
        except (TypeError, AttributeError):
            what = "keep= takes demonstrations, as generate_all and Demonstrations.from_jsonl return"
            raise InvalidPlan(what) from None

    def _at_most(self, max_tokens: int | None) -> int:
        planned = self._planner.settings.max_tokens
        tokens = planned if max_tokens is None else max_tokens
        check_whole("max_tokens", tokens)
        if tokens > planned:
            raise InvalidPlan(f"max_tokens must lie between 1 and the plan's {planned}, not {tokens}")
        return tokens


def _check_kinds(task: object, budget: object, settings: object) -> None:
    """Refuse what is of another kind by its name: what fails later may not show its message."""
    for name, value, kinds, what in (
        ("task", task, Task, "a Task"),
        ("budget", budget, (PrivacyBudget, NoPrivacy), "PrivacyBudget(epsilon, delta) or NO_PRIVACY"),
        ("settings", settings, Settings, "Settings(...)"),
    ):
        if not isinstance(value, kinds):
            raise InvalidPlan(f"{name}= takes {what}, not {type(value).__name__}")
