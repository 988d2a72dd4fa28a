"""The settings that every command is built from: one value, whose fields are the keys of a project file.

What is given often is an option, too. A command names the settings that it uses (`cli.options.takes`) and is
called with a `Project`. The project checks what needs no model before one is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from dpfewshot.account.amounts import Amount, in_words, left_in_words
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.names import dataset_name, similar
from dpfewshot.account.rule import Admission
from dpfewshot.account.scopes import stratum_of
from dpfewshot.cli.models import Model, open_backend, setting, workers_of
from dpfewshot.cli.printing import in_options, stages, warn
from dpfewshot.errors import BackendError, BudgetExceeded, DPFewShotError, InvalidPlan, LedgerError
from dpfewshot.tasks import Task, by_name
from dpfewshot.values import (
    NO_PRIVACY,
    NoPrivacy,
    PrivacyBudget,
    PrivacySpend,
    Records,
    Relation,
    StoredRecords,
    counted,
    on_one_line,
    unit_of,
)

if TYPE_CHECKING:
    from dpfewshot.account.account import Account
    from dpfewshot.backends import ChatWriter
    from dpfewshot.generation.telemetry import Observer
    from dpfewshot.mechanisms import Mechanism
    from dpfewshot.planning.settings import Settings
    from dpfewshot.synthesizer import Synthesizer

WORD_HISTOGRAM: Final = "word-histogram"

MECHANISM_NAMES: Final = (
    "gaussian",
    "public-centred",
    "adadpsyn",
    "report-noisy-max",
    "private-prediction",
    "invisible-ink",
    WORD_HISTOGRAM,
)
"""A copy of the names of `mechanisms.by_name`: --help must not import NumPy. A test compares the two."""

HOLDOUT: Final = 0.2
"""The default of `holdout`: `generate` comes before `choose`."""

LEDGER_VARIABLE: Final = "DPFEWSHOT_LEDGER"
"""Stands for --ledger: a password need not stand in the arguments, which other users can list."""

_PLANNED: Final = "Default: planned for the least noise."


# ---- values of options -----------------------------------------------------------------------------------


def finite_or_inf(text: object) -> float:
    """The value of --epsilon: infinity for the word inf alone, and for no number too large for a float."""
    if text in {"inf", math.inf}:
        return math.inf
    with suppress(ValueError):
        if math.isfinite(number := float(str(text))):
            return number
    raise click.BadParameter(f"{str(text)!r} is neither a finite number nor the word inf for no privacy")


# ---- the sections of a project ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """The task, and the private records with their columns. Empty if a command does not ask for them."""

    task: str | Task = setting(  # noqa: RUF009 - a field
        "", "A built-in task (agnews, dbpedia, trec, mit-g, mit-d) or a .toml file.", type=click.UNPROCESSED
    )
    records: str = setting("", "Private records: .jsonl, .csv, .tsv (also .gz) or .parquet.", path=True)
    text: str | Mapping[str, str] = setting("text")  # or each text field's column
    label_column: str = setting("label")
    unit: str | None = setting(None, "The column that names whom a record belongs to (a customer id).")
    mask_identifiers: str | None = setting(None)

    def read(self, path: str | None = None) -> Records:
        """Read the records, or those of another file with the same columns."""
        from dpfewshot.records import read_records

        return read_records(path or self.records, text=self.text, label=self.label_column, unit=self.unit)

    def read_masked(self) -> Records | StoredRecords:
        """Read the records, masked if that is asked for."""
        from dpfewshot.records import mask_identifiers

        records, language = self.read(), self.mask_identifiers
        with self.lines_named():
            return records if language is None else mask_identifiers(records, language=language)

    @contextmanager
    def lines_named(self) -> Iterator[None]:
        """Make an error of a record name its line in the file."""
        from dpfewshot.records.reading import place_of

        try:
            yield
        except DPFewShotError as error:
            if found := _RECORD.match(str(error)):
                row, path, rest = int(found[1]), self.records, str(error)[found.end() :]
                place = place_of(path, row, text=self.text, label=self.label_column, unit=self.unit)
                error.args = (f"{path}: {place}{rest}",)
            raise


_RECORD: Final = re.compile(r"record (\d+)\b")

SENT: Final = "sent.txt"
"""The file that gets each request to a text writer, beside the project file."""

COLUMNS: Final = ("text", "label_column", "unit")
"""The settings that name the columns of records."""


@dataclass(frozen=True)
class Budget:
    """What a command may spend, and the public numbers that it is stated for. ε = 0 is refused."""

    epsilon: float = setting(0.0, "Epsilon; the word inf means no privacy.", type=finite_or_inf)
    delta: float | None = setting(
        None,
        "Default: the smaller of 1e-5 and 1/(100 n); n counts all units, or is the population if given.",
        type=float,
    )
    population: Mapping[str, int] | int | None = setting(None)

    def of(self, records: Records | StoredRecords) -> PrivacyBudget | NoPrivacy:
        """The budget, with the default δ for these records (`planning.population.default_delta`)."""
        from dpfewshot.planning.population import default_delta

        if self.epsilon == math.inf:
            return NO_PRIVACY
        delta = default_delta(self.population, records) if self.delta is None else self.delta
        return PrivacyBudget(self.epsilon, delta)


@dataclass(frozen=True)
class AccountName:
    """The account of a ledger that pays; without a ledger, the budget ends with the command."""

    ledger: str | None = setting(
        None, "A durable budget: sqlite:///budget.db.", envvar=LEDGER_VARIABLE, show_envvar=True
    )
    account: str | None = setting(
        None, "The account's name, as in `ledger create`.", "--account", "--dataset"
    )
    create: bool = setting(False)

    def check(self) -> None:
        """Refuse a ledger without an account, or the other way round."""
        if self.account is not None and self.ledger is None:
            raise click.UsageError("--account needs --ledger: without one, the budget ends with this run")
        if self.ledger is not None and not self.account:
            raise click.UsageError("--ledger needs --account, the name of the account")
        if self.create and self.ledger is None:
            raise click.UsageError("create needs --ledger and --account: it creates an account there")

    def check_counts(self, texts: str, *, there: bool) -> None:
        """Refuse to create the account if there are texts already, which then would count for nothing.

        A project folder that was copied or restored without its ledger would else get its whole budget again.
        `texts` says where they are.
        """
        self.check()
        if there and self.create and self.opened() is None:
            raise LedgerError(
                f"there are texts in {texts}, and the ledger has no account {self.account!r} that counts "
                "them: put the ledger back, or name another file if those texts are of other records"
            )

    def opened(
        self,
        relation: str | None = None,
        unit: str | None = None,
        budget: PrivacyBudget | NoPrivacy | None = None,
    ) -> Account | None:
        """The account, bound to a run's relation and unit, if any; None if nobody names one.

        One that `create` asks for is created with the budget; without a budget it is None, too.
        """
        if self.ledger is None or self.account is None:
            return None
        ledger, stated = BudgetLedger.open(self.ledger), relation or Relation.ZERO_OUT
        if self.create and dataset_name(self.account) not in ledger.datasets():
            if not isinstance(budget, PrivacyBudget):
                return None
            if others := ledger.datasets():
                stages()(
                    f"a new account counts apart from the {counted(len(others), 'account')} that the ledger "
                    "has: what is spent on the same people adds up"
                )
            return ledger.create(self.account, budget, relation=stated, unit=unit)
        account = ledger.account(self.account, relation=stated, unit=unit)
        if relation is not None:
            account.bind(frozenset({relation}), unit)
        return account


@dataclass(frozen=True)
class PlanOptions:
    """What is generated, and how. None leaves a setting to the planner or to a preset."""

    labels: tuple[str, ...] = setting(
        (), "A label to generate; repeat it for several. Default: all.", "--label", multiple=True
    )
    shots: int = setting(1, "Demonstrations of each label.")
    prompts_per_draw: int | None = setting(
        None, f"Prompts of a draw. {_PLANNED}", "--prompts-per-draw", "-M", type=int
    )
    max_tokens: int = setting(40, "The most tokens of a demonstration.")
    mechanism: str | None = setting(
        None, f"What turns private numbers into a token. {_PLANNED}", type=click.Choice(MECHANISM_NAMES)
    )
    preset: str | None = setting(None, type=click.Choice(["tang", "adadpsyn"]))
    records_per_prompt: int | None = setting(None)
    tokens_per_draw: int | None = setting(None)
    prompt_token_limit: int = setting(20_000)
    top_k: int | Literal["all"] | None = setting(None)
    clip: float | None = setting(None)
    temperature: float | None = setting(None)
    top_p: float | None = setting(None)
    sampling: str = setting("poisson", type=click.Choice(["poisson", "fixed-size"]))
    accounting: str = setting("certified", type=click.Choice(["certified", "published"]))
    holdout: float | None = setting(None)
    disjoint_parts: int = setting(1)
    record_token_cap: int = setting(100)

    def made_mechanism(self) -> Mechanism | None:
        """The mechanism that is named or described; None leaves it to the planner or the preset."""
        from dpfewshot.mechanisms import by_name as mechanism_by_name
        from dpfewshot.planning.defaults import INK_TEMPERATURE, INK_TOP_K

        settings = {name: getattr(self, name) for name in ("top_k", "clip", "temperature", "top_p")}
        given = {name: value for name, value in settings.items() if value is not None}
        if self.mechanism is not None:
            return mechanism_by_name(self.mechanism, **given)
        if not given:
            return None
        if self.preset is not None:
            raise InvalidPlan(f"{next(iter(given))} with preset needs --mechanism")
        if self.sampling == "fixed-size" or not given.keys() <= {"top_k", "temperature"}:
            return mechanism_by_name("public-centred", **given)
        planned = {"top_k": INK_TOP_K, "temperature": INK_TEMPERATURE}  # but for what is given
        return mechanism_by_name("invisible-ink", **(planned | given))


@dataclass(frozen=True)
class Project:
    """What a command works on. What it does not use has its default."""

    data: Data = field(default_factory=Data)
    budget: Budget = field(default_factory=Budget)
    account: AccountName = field(default_factory=AccountName)
    model: Model = field(default_factory=Model)
    settings: PlanOptions = field(default_factory=PlanOptions)
    text_writer: str | None = setting(None, section="model")
    text_writer_url: str | None = setting(None, section="model")
    text_writer_key_env: str | None = setting(None, section="model")
    text_writer_proxy: str | None = setting(None, section="model")
    text_writer_ca_bundle: str | None = setting(None, section="model", path=True)
    text_writer_log: str = setting(SENT, section="model", path=True)
    probe_seconds: float = setting(2.0, section="plan")
    workers: int | None = setting(None, section="generate")
    ray: str | None = setting(None, section="generate")
    scored_units: int = setting(1000, section="choose")
    score: str = setting("accuracy", section="choose", type=click.Choice(["accuracy", "likelihood"]))
    balanced: bool = setting(False, section="choose")
    no_demonstrations: bool = setting(True, section="choose")
    instruction_only: bool = setting(False, section="choose")
    proxy_choice: bool = setting(False, section="choose")
    rounds: int = setting(2, section="search")
    most_candidates: int = setting(12, section="search")
    user_model: str | None = setting(None, section="evaluate")
    public_data: bool = setting(False, section="evaluate")
    plays: int = setting(1000, section="audit")
    beta: float = setting(1e-3, section="audit")
    texts_only: bool = setting(False, section="audit")
    baseline: str | None = setting(None, section="audit", path=True)
    items: int = setting(100, section="audit")
    title: str = setting("Privacy report", section="report")
    # `takes` gives the next three to options
    demonstrations: str | None = setting(None, section="output", path=True)
    chosen: str | None = setting(None, section="output", path=True)
    report: str | None = setting(None, section="output", path=True)
    output: str | None = setting(None, "The file to write.")

    @property
    def task(self) -> Task:
        """The task that is named, or that a project file describes."""
        task = self.data.task
        return task if isinstance(task, Task) else by_name(task)

    @property
    def holdout(self) -> float:
        """The value of `holdout`, or its default: none where there can be none, or where a paper has none."""
        settings = self.settings
        if settings.holdout is not None:
            return settings.holdout
        by_masked_text = self.data.mask_identifiers is not None and self.data.unit is None
        of_a_paper = settings.sampling != "poisson" or settings.preset is not None
        return 0.0 if of_a_paper or by_masked_text or self.budget.epsilon == math.inf else HOLDOUT

    @property
    def counts_words(self) -> bool:
        """Whether one count of words serves all texts of a label, so that further ones cost nothing."""
        from dpfewshot.planning.defaults import counts_words

        mechanism = self.settings.made_mechanism()
        return counts_words(self.task, self.expert_settings()) if mechanism is None else mechanism.draws_once

    def check_labels(self) -> None:
        """Refuse a label that the task lacks, and repeat it: somebody typed it, so it is no record's."""
        for label in self.settings.labels:
            try:
                self.task.check_label(label)
            except DPFewShotError as error:
                close = similar(label, self.task.labels or ())
                meant = f" (did you mean {close[0]!r}?)" if close else ""
                error.args = (f"{label!r}{meant}: {error}",)
                raise

    def expert_settings(self) -> Settings:
        """What only experts set."""
        from dpfewshot.planning.settings import Settings

        same = set(names_of(Settings)) & set(names_of(PlanOptions))
        values = {name: getattr(self.settings, name) for name in same}
        return Settings(**(values | {"holdout": self.holdout}))

    def synthesizer(
        self, *, resuming: bool = False, described: bool = False, observers: Iterable[Observer] = ()
    ) -> Synthesizer:
        """Read the records, load the model and plan. Spends nothing.

        What needs no model is checked before it is loaded, the account too, unless an earlier run has
        reserved some of the plan. If the caller describes how the texts will read, no warning repeats it.
        """
        from dpfewshot.mechanisms.word_histogram import CANDIDATES
        from dpfewshot.planning.population import relation_of

        options, account = self.settings, self.account
        account.check()
        task, mechanism, records = self.task, options.made_mechanism(), self.data.read_masked()
        budget = self.budget.of(records)
        with self.data.lines_named():
            scopes = self._checked_scopes(task, records, budget)
        uncertified = budget is NO_PRIVACY or options.accounting != "certified"
        if uncertified and account.ledger is not None:
            raise InvalidPlan("a run without a guarantee (certified=False) is refused a ledger account")
        run = relation_of(options.sampling, self.budget.population), unit_of(records)
        opened = account.opened(*run, None)
        if opened is not None and isinstance(budget, PrivacyBudget) and not resuming:
            check_budget(opened, scopes, PrivacySpend(budget.epsilon, budget.delta))
        writer = self.chat_writer()
        prompts = CANDIDATES if self.counts_words else options.prompts_per_draw  # none of them has a record
        backend = open_backend(self.model, prompts=prompts)
        from dpfewshot.planning.plan import noise_warnings
        from dpfewshot.synthesizer import Synthesizer

        stages()("planning")
        synthesizer = Synthesizer(
            task,
            records,
            backend,
            budget=budget,
            mechanism=mechanism,
            max_tokens=options.max_tokens,
            shots_per_label=options.shots,
            population=self.budget.population,
            labels=options.labels or None,
            account=opened or account.opened(*run, budget),
            settings=self.expert_settings(),
            text_writer=writer,
            observers=observers,
        )
        told = noise_warnings(synthesizer.plan) if described else []
        for warning in synthesizer.plan.warnings:
            if warning not in told:
                warn(in_options(warning))
        if opened is not None and not resuming:  # of all strata, before the first one generates
            with refusals(opened, None, by_stratum=True):
                opened.check(synthesizer.set_up.account_costs())
        return synthesizer

    def generating_workers(self) -> AbstractContextManager[dict[str, Any]]:
        """The workers that generate, as arguments of `Synthesizer.generate_all`; none if none are named."""
        prompts, ledger = self.settings.prompts_per_draw, self.account.ledger
        return workers_of(self.model, workers=self.workers, ray=self.ray, prompts=prompts, ledger=ledger)

    def chat_writer(self) -> ChatWriter | None:
        """The model that writes texts in the backend's place, if one is named; it says what is sent to it."""
        from dpfewshot.backends import ChatWriter

        if self.text_writer is None and self.text_writer_url is None:
            return None
        if self.text_writer is None or self.text_writer_url is None:
            raise InvalidPlan(
                "text_writer and text_writer_url go together: a model's name, and its server's address, such "
                "as http://localhost:8000/v1"
            )
        if not self.counts_words:
            raise InvalidPlan(
                "text_writer writes from counted words, and here none are counted: "
                'set mechanism = "word-histogram", for a task of one text field'
            )
        try:
            writer = ChatWriter(
                self.text_writer,
                self.text_writer_url,
                api_key_env=self.text_writer_key_env,
                proxy=self.text_writer_proxy,
                ca_bundle=self.text_writer_ca_bundle,
                log=self.text_writer_log,
            )
        except BackendError as error:
            raise InvalidPlan(f"text_writer, text_writer_url or its key: {error}") from None
        stages()(
            f"{on_one_line(writer.model)} at {writer.host} writes the texts: it is sent the task, noisy "
            "counts once they are paid for, and earlier texts, but no record "
            f"(each request is in {on_one_line(self.text_writer_log)})"
        )
        return writer

    def _checked_scopes(
        self, task: Task, records: Records | StoredRecords, budget: PrivacyBudget | NoPrivacy
    ) -> list[str | None]:
        """Check what needs no model, as `Synthesizer` does; return the scopes that the plan draws from."""
        from dpfewshot.generation.units import labels_of, planned_labels, units_by_scope
        from dpfewshot.planning.planner import rate_of
        from dpfewshot.planning.population import public_stratum
        from dpfewshot.planning.settings import TANG, TOP_K, preset
        from dpfewshot.sampling import partition_of_units

        options, settings, population = self.settings, self.expert_settings(), self.budget.population
        self.check_labels()
        labels = planned_labels(task, options.labels or None)
        paper = options.preset or (TANG if options.accounting == "published" else None)
        if paper is not None:
            limit = budget if isinstance(budget, PrivacyBudget) else None
            settings = settings.filled(preset(paper, task, limit, TOP_K)[1])
        planned = settings.decided(max_tokens=options.max_tokens, shots_per_label=options.shots)
        units = units_by_scope(task, records, labels)
        strata = [
            public_stratum(planned.sampling, population, scope, labels_of(scope, labels), len(members))
            for scope, members in units.items()
        ]
        rate_of(planned, min(strata, key=lambda each: each.population))  # what fits the smallest fits all
        partition = partition_of_units(task, records, planned.division, planned.disjoint_parts)
        return [
            partition.generating(scope, part) for scope in units for part in range(planned.disjoint_parts)
        ]


def check_budget(
    account: Account, scopes: Sequence[str | None], cost: PrivacySpend, *, by_stratum: bool = True
) -> None:
    """Refuse what an account cannot pay, for each scope, before a model is loaded and the cost is planned.

    By sums a plan costs nearly its whole budget: calibration ends within a thousandth of ε. A Rényi rule may
    count far less, so that only an account with nothing left refuses.
    """
    least = Amount.of_cost(PrivacySpend(0.999 * cost.epsilon, cost.delta))
    if account.rule == Admission.RENYI:
        least = Amount(1, 0)
    with refusals(account, cost, by_stratum=by_stratum):
        account.check([(scope, least) for scope in scopes])


@contextmanager
def refusals(account: Account, asked: PrivacySpend | None, *, by_stratum: bool) -> Iterator[None]:
    """Make a refusal say which of ε and δ is short; `asked` is None for what the refused plan costs."""
    try:
        yield
    except BudgetExceeded as refusal:
        if refusal.asked is None or refusal.remaining is None:
            raise
        epsilon, delta = refusal.asked
        needed = PrivacySpend(epsilon, delta) if asked is None else asked
        left = PrivacySpend(*refusal.remaining)
        lacking = (("epsilon", epsilon > left.epsilon), ("delta", delta > left.delta))
        short = [f"{name} is short" for name, lacks in lacking if lacks]
        message = (
            f"this does not fit the budget of the account {account.dataset!r}: "
            f"{' and '.join(short) or 'its Rényi rule has no room'}. It needs {in_words(needed)}, and "
            f"{left_in_words(left)} is left"
        )
        strata = [
            stratum_of(scope)
            for scope, (some, rest) in (refusal.remaining_by_scope or {}).items()
            if by_stratum and scope is not None and (epsilon > some or delta > rest)
        ]
        raise refusal.saying(message + (f", for {'; '.join(strata)}" if strata else "")) from None


# ---- the table of settings -------------------------------------------------------------------------------

PARTS: Final[Mapping[str, type]] = {
    one.name: one.default_factory  # type: ignore[misc]
    for one in fields(Project)
    if one.default_factory is not MISSING
}
"""The dataclass of each of a project's fields that hold several settings."""

SETTINGS: Final[Mapping[str, Field[Any]]] = {
    one.name: one for part in (*PARTS.values(), Project) for one in fields(part) if one.metadata
}

GENERATION: Final[Sequence[type | str]] = (
    *(Data, Model, Budget, PlanOptions, AccountName),
    *(name for name in SETTINGS if name.startswith("text_writer")),
)
"""The settings of a generation, with those of a model that writes the texts in the backend's place."""


def names_of(part: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [one.name for one in fields(part)]


def project_of(given: Mapping[str, Any]) -> Project:
    """The project of these settings; the others have their defaults."""
    parts = {
        name: part(**{key: given[key] for key in names_of(part) if key in given})
        for name, part in PARTS.items()
    }
    single = {one.name: given[one.name] for one in fields(Project) if one.metadata and one.name in given}
    return Project(**parts, **single)
