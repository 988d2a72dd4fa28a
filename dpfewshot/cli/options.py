"""The options that `plan` and `generate` share, and the objects that they describe."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.accounts import existing_account, least_cost
from dpfewshot.cli.backends import Decorator, backend_options, open_backend
from dpfewshot.cli.columns import text_option
from dpfewshot.cli.identifiers import mask_option, read_private
from dpfewshot.cli.stages import quiet_option, stages
from dpfewshot.cli.tables import aligned
from dpfewshot.cli.wording import in_options
from dpfewshot.errors import InvalidPlan
from dpfewshot.tasks import Task, by_name
from dpfewshot.values import (
    NO_PRIVACY,
    NoPrivacy,
    PrivacyBudget,
    Record,
    Records,
    StoredRecords,
    counted,
    delta_text,
    epsilon_text,
    on_one_line,
    unit_of,
)

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend
    from dpfewshot.mechanisms import Mechanism
    from dpfewshot.planning.plan import GenerationPlan, StratumPlan
    from dpfewshot.planning.population import Population
    from dpfewshot.planning.settings import Settings
    from dpfewshot.synthesizer import Synthesizer

MECHANISM_NAMES = (
    "gaussian",
    "public-centred",
    "adadpsyn",
    "softmax-choice",
    "report-noisy-max",
    "private-prediction",
    "invisible-ink",
)
"""A copy of the names in `mechanisms.MECHANISMS`: --help must not import NumPy. A test compares the two."""


def finite_or_inf(text: object) -> float:
    """The value of --epsilon: a finite number, or infinity for the word inf.

    Raises:
        BadParameter: it is neither. A number too large for a float does not mean "no privacy".
    """
    if text == "inf":
        return math.inf
    try:
        number = float(str(text))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise click.BadParameter(f"{text!r} is neither a finite number nor the word inf for no privacy")
    return number


delta_option: Decorator = click.option(
    "--delta",
    type=float,
    default=None,
    help="Default: the smaller of 1e-5 and 1/(100 n); n counts all units, or is the population if given.",
)

HOLDOUT = 0.2
"""The default of --holdout in every command that has it: `generate` comes before `choose`."""

_PLANNED = "Default: planned from public numbers, for the least noise."

_DATA: tuple[Decorator, ...] = (
    click.option(
        "--task", required=True, help="A built-in task (agnews, dbpedia, trec, mit-g, mit-d) or a .toml file."
    ),
    click.option("--records", required=True, help="Private records: .jsonl, .csv (also .gz) or .parquet."),
    text_option,
    click.option("--label-column", default="label", show_default=True, help="The column of the label."),
    click.option(
        "--unit", default=None, help="The column that names whom a record belongs to (a customer id)."
    ),
    backend_options,
)

_OPTIONS: tuple[Decorator, ...] = (
    *_DATA,
    mask_option,
    click.option(
        "--label", "labels", multiple=True, help="A label to generate; repeat it for several. Default: all."
    ),
    click.option("--shots", type=int, default=1, show_default=True, help="Demonstrations of each label."),
    click.option(
        "--epsilon",
        type=finite_or_inf,
        metavar="FLOAT",
        required=True,
        help="The budget's epsilon; the word inf means no privacy.",
    ),
    delta_option,
    click.option(
        "--preset",
        type=click.Choice(["tang", "adadpsyn"]),
        default=None,
        help="The mechanism, M, N and R of a paper, where you give none: tang (a fresh draw for each token), "
        "adadpsyn.",
    ),
    click.option("--prompts-per-draw", "-M", type=int, default=None, help=f"Prompts of a draw. {_PLANNED}"),
    click.option(
        "--records-per-prompt", "-N", type=int, default=None, help="Records in a prompt. Default: 1."
    ),
    click.option("--max-tokens", type=int, default=40, show_default=True),
    click.option(
        "--tokens-per-draw",
        type=int,
        default=None,
        help=f"Tokens that share one draw of records. {_PLANNED}",
    ),
    click.option(
        "--mechanism",
        type=click.Choice(MECHANISM_NAMES),
        default=None,
        help=f"The mechanism that turns private numbers into a token. {_PLANNED}",
    ),
    click.option(
        "--prompt-token-limit",
        type=int,
        default=20_000,
        show_default=True,
        help="The most tokens that the model may have to evaluate for one demonstration; limits what is "
        "planned.",
    ),
    click.option("--top-k", default=None, help="Candidate tokens, or 'all'. Default: 100."),
    click.option("--clip", type=float, default=None, help="The mechanism's clipping norm."),
    click.option(
        "--temperature", type=float, default=None, help="0 takes the largest noisy token; more samples one."
    ),
    click.option("--top-p", type=float, default=None, help="The nucleus to sample from if temperature > 0."),
    click.option(
        "--sampling",
        type=click.Choice(["poisson", "fixed-size"]),
        default="poisson",
        show_default=True,
        help="fixed-size reproduces papers; neighbours then replace one unit.",
    ),
    click.option(
        "--accounting",
        type=click.Choice(["certified", "published"]),
        default="certified",
        show_default=True,
        help="published: the noise of a paper's own accounting, without a guarantee.",
    ),
    click.option(
        "--holdout",
        type=float,
        default=None,
        help="The share of units that never generate and are kept for choose and calibrate, at no further "
        f"cost. Default: {HOLDOUT}; 0 with --preset, draws of fixed size, no privacy, or masked texts "
        "without --unit.",
    ),
    click.option(
        "--disjoint-parts",
        type=int,
        default=1,
        show_default=True,
        help="Disjoint parts of each label's records, each with its own demonstrations at the full epsilon.",
    ),
    click.option(
        "--population",
        multiple=True,
        metavar="LABEL=N",
        help="Public number of units of a label (N if labels are free).",
    ),
    click.option("--record-token-cap", type=int, default=100, show_default=True),
)


def data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name task, records and backend."""
    for option in reversed(_DATA):
        command = option(command)
    return command


def generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of a generation, and `--quiet`."""
    command = quiet_option(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass
class Session:
    """The task, the synthesizer and the backend that the options describe."""

    task: Task
    synthesizer: Synthesizer
    backend: LogprobBackend


def open_session(
    options: dict[str, Any],
    *,
    ledger: str | None = None,
    dataset: str | None = None,
    create: bool = False,
    resuming: bool = False,
) -> Session:
    """Read the records, load the model and plan. Spends nothing.

    What needs no model is checked before it is loaded, the account too.

    Args:
        options: of `generation_options`.
        ledger: the value of --ledger.
        dataset: the value of --dataset.
        create: the value of --create.
        resuming: whether an earlier run has reserved some of the plan already.

    Raises:
        DPFewShotError: the input is wrong; says what in one line.
        BudgetExceeded: the account does not allow the plan.
    """
    from dpfewshot.planning.population import relation_of

    tell = stages()

    task = by_name(options["task"])
    mechanism = _mechanism(options)
    population = population_of(options["population"])
    records = read_private(options)
    budget = budget_of(options["epsilon"], options["delta"], population, records)
    settings = _settings(options)
    scopes = _checked_scopes(
        options, task, records, budget=budget, mechanism=mechanism, population=population, settings=settings
    )
    relation, unit = relation_of(options["sampling"], population), unit_of(records)
    if budget is NO_PRIVACY and ledger is not None:
        raise InvalidPlan("a run without a guarantee (certified=False) is refused a ledger account")
    with existing_account(ledger, dataset, relation=relation, unit=unit, create=create) as account:
        if account is not None and isinstance(budget, PrivacyBudget) and not resuming:
            least = least_cost(account, budget.epsilon, budget.delta)
            account.check([(scope, least) for scope in scopes])
    backend = open_backend(options, prompts=options["prompts_per_draw"], tell=tell)
    from dpfewshot.synthesizer import Synthesizer

    tell("planning")
    synthesizer = Synthesizer(
        task,
        records,
        backend,
        budget=budget,
        mechanism=mechanism,
        max_tokens=options["max_tokens"],
        shots_per_label=options["shots"],
        population=population,
        labels=options["labels"] or None,
        ledger=ledger,
        dataset=dataset,
        create=create,
        settings=settings,
    )
    for warning in synthesizer.plan.warnings:
        click.echo(f"warning: {in_options(warning)}", err=True)
    with existing_account(ledger, dataset, relation=relation, unit=unit) as account:
        if account is not None and not resuming:
            account.check(synthesizer.set_up.account_costs())  # of all strata, before the first one generates
    return Session(task, synthesizer, backend)


def _settings(options: Mapping[str, Any]) -> Settings:
    """What only experts set."""
    from dpfewshot.planning.settings import Settings

    same = {field.name for field in dataclasses.fields(Settings)} - {"holdout", "allow_batch_variance"}
    return Settings(holdout=holdout_of(options), **{name: options[name] for name in same})


def holdout_of(options: Mapping[str, Any]) -> float:
    """The value of --holdout, or its default: none where there can be none, or where a paper has none."""
    given: float | None = options["holdout"]
    if given is not None:
        return given
    by_masked_text = options["mask_identifiers"] is not None and options["unit"] is None
    of_a_paper = options["sampling"] != "poisson" or options["preset"] is not None
    return 0.0 if of_a_paper or by_masked_text or options["epsilon"] == math.inf else HOLDOUT


def _checked_scopes(
    options: Mapping[str, Any],
    task: Task,
    records: Records | StoredRecords,
    *,
    budget: PrivacyBudget | NoPrivacy,
    mechanism: Mechanism | None,
    population: Population,
    settings: Settings,
) -> list[str | None]:
    """Check what needs no model; return the scopes that the plan draws from.

    Raises:
        InvalidTask, InvalidRecords, InvalidPlan: as `Synthesizer`.
    """
    from dpfewshot.generation.units import labels_of, planned_labels, units_by_scope
    from dpfewshot.planning.planner import rate_of
    from dpfewshot.planning.population import public_stratum
    from dpfewshot.planning.presets import TANG, TOP_K, preset
    from dpfewshot.records.checks import check_fields
    from dpfewshot.sampling import partition_of_units

    labels = planned_labels(task, options["labels"] or None)
    paper = settings.preset or (TANG if settings.accounting == "published" else None)
    if paper is not None:
        limit = budget if isinstance(budget, PrivacyBudget) else None
        of_paper, numbers = preset(paper, task, limit, TOP_K)
        mechanism, settings = mechanism or of_paper, settings.filled(numbers)
    planned = settings.decided(max_tokens=options["max_tokens"], shots_per_label=options["shots"])
    check_fields(task, records)
    units = units_by_scope(task, records, labels)
    strata = [
        public_stratum(planned.sampling, population, scope, labels_of(scope, labels), len(members))
        for scope, members in units.items()
    ]
    for stratum in sorted(strata, key=lambda each: each.population):  # what fits the smallest fits all
        rate_of(planned, stratum)
    partition = partition_of_units(task, records, planned.division)
    return [partition.generating(scope) for scope in units]


def _mechanism(options: Mapping[str, Any]) -> Mechanism | None:
    """The mechanism that the options name or describe; None leaves it to the planner or the preset."""
    from dpfewshot.mechanisms import by_name as mechanism_by_name

    settings = {name: options[name] for name in ("clip", "temperature", "top_p")}
    given = [name for name in ("top_k", *settings) if options[name] is not None]
    name = options["mechanism"]
    if name is None and not given:
        return None
    if name is None and options["preset"] is not None:
        raise InvalidPlan(f"--{given[0].replace('_', '-')} with --preset needs --mechanism")
    mechanism = mechanism_by_name(name or "public-centred", **settings)
    if options["top_k"] is None:
        return mechanism
    return dataclasses.replace(mechanism, top_k=top_k_of(options["top_k"]))  # type: ignore[type-var]


def describe(plan: GenerationPlan, unit: str | None = None) -> str:
    """The plan in a few lines, for people.

    Args:
        plan: to describe.
        unit: the column that names whom a record belongs to; None if each record is a unit of its own.
    """
    settings = plan.settings
    sizes = (
        f"M={settings.prompts_per_draw} N={settings.records_per_prompt} T={settings.max_tokens} "
        f"R={settings.tokens_per_draw}; at most {plan.prompt_tokens:,} tokens a demonstration"
    )
    if plan.estimated_seconds is not None:
        all_of_them = counted(plan.demonstrations, "demonstration")
        sizes += f"; at most about {_duration(plan.estimated_seconds)} for {all_of_them}"
    lines = [
        (
            f"{counted(plan.demonstrations, 'demonstration')} by {plan.mechanism}, "
            f"neighbours {plan.relation}, each {on_one_line(unit or 'record')} is one unit"
        ),
        sizes,
        *aligned([_COLUMNS, *map(_cells, plan.strata)]),
        *(on_one_line(in_options(sentence)) for sentence in (*plan.reasons, *plan.notes)),
    ]
    if settings.holdout:
        lines.append(
            f"{100 * settings.holdout:g} % of the units are kept for `choose`, which then costs no further "
            "budget; the others are drawn more often, which takes more noise. --holdout 0 uses all"
        )
    return "\n".join(f"{'      ' if place else 'plan: '}{line}" for place, line in enumerate(lines))


_COLUMNS = ("stratum", "n", "q", "steps", "sigma", "noise on mean", "epsilon", "delta")


def _cells(stratum: StratumPlan) -> tuple[str, ...]:
    spent = stratum.spend
    return (
        stratum.scope or "whole data set",
        str(stratum.population),
        f"{float(stratum.sampling_rate):.4f}",
        str(stratum.steps),
        f"{stratum.noise_multiplier:.4f}",
        "none" if stratum.noise_on_mean is None else f"{stratum.noise_on_mean:.4f}",
        *(("none", "none") if spent is None else (epsilon_text(spent.epsilon), delta_text(spent.delta))),
    )


def _duration(seconds: float) -> str:
    """In seconds up to two minutes, at least one, in minutes up to two hours, else in hours."""
    for size, name in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{max(1.0, seconds):.0f} s"


def top_k_of(text: str) -> int | None:
    """The number of candidate tokens in --top-k; None for all."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise InvalidPlan(f"--top-k must be a whole number or 'all', not {text!r}")
    return int(text)


def budget_of(
    epsilon: float, delta: float | None, population: Population, records: Sequence[Record]
) -> PrivacyBudget | NoPrivacy:
    """The budget of --epsilon and --delta."""
    if epsilon == math.inf:
        return NO_PRIVACY
    return PrivacyBudget(epsilon, delta_of(delta, population, records))


def delta_of(delta: float | None, population: Population, records: Sequence[Record]) -> float:
    """The value of --delta, or its default (`planning.population.default_delta`)."""
    from dpfewshot.planning.population import default_delta

    return default_delta(population, records) if delta is None else delta


def population_of(entries: tuple[str, ...]) -> Population:
    """The value of --population."""
    if not entries:
        return None
    if len(entries) == 1 and entries[0].isdecimal():
        return int(entries[0])
    population: dict[str, int] = {}
    for entry in entries:
        label, equals, count = entry.rpartition("=")
        if not equals or not count.isdecimal():
            raise InvalidPlan(f"--population must read LABEL=N, not {entry!r}")
        population[label] = int(count)
    return population
