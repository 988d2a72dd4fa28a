"""`dpfewshot plan`: shows everything about a generation before anything is spent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from dpfewshot.account.amounts import left_in_words
from dpfewshot.backends.downloads import advice
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import aligned, in_options, quiet_option, say, stages, warn
from dpfewshot.cli.project import GENERATION, WORD_HISTOGRAM, AccountName, Project
from dpfewshot.demonstrations import json_line
from dpfewshot.errors import BackendError, BudgetExceeded, LedgerError
from dpfewshot.runtime.files import write_errors
from dpfewshot.values import (
    PrivacySpend,
    amount_text,
    believed,
    counted,
    delta_text,
    duration_text,
    epsilon_text,
    on_one_line,
    percent_text,
    plural,
    spend_text,
    unit_noun,
)

if TYPE_CHECKING:
    from dpfewshot.account.account import Account
    from dpfewshot.generation.set_up import SetUp
    from dpfewshot.planning.plan import GenerationPlan, StratumPlan
    from dpfewshot.planning.planner import Enough
    from dpfewshot.synthesizer import Synthesizer


@click.command()
@takes(*GENERATION, "probe_seconds", required=("task", "records", "epsilon"))
@click.option("--details", is_flag=True, help="Show sigma, q, steps, noise and the reasons of each setting.")
@click.option(
    "--output", help="A new .jsonl file for texts without records, of all labels: they cost nothing."
)
@quiet_option
def plan(*, project: Project, details: bool, output: str | None, as_json: bool) -> None:
    """Show what generate will write, what it costs, and the expected quality. Spends nothing.

    \b
    Example:
      dpfewshot plan
      dpfewshot plan --task trec --records trec.jsonl.gz --label Location --epsilon 4 --max-tokens 15
    """
    from dpfewshot.planning.planner import enough

    project.account.check()
    in_words = not (as_json or details)
    if output is not None and not in_words:
        raise click.UsageError("--output goes without --details and --json")
    # the account is looked at below, and may have nothing left
    synthesizer = replace(project, account=AccountName()).synthesizer(described=in_words)
    stages()("measuring the model's speed")
    measured = synthesizer.probe(project.probe_seconds)
    if as_json:
        click.echo(json.dumps(measured.as_dict()))
        return
    if details:
        click.echo(in_detail(measured, project.data.unit))
        click.echo(f"      account: {on_one_line(project.account.account or 'none')}")
    else:
        named, unit = project.account, project.data.unit
        try:
            opened = named.opened(measured.relation, unit)
            account, pays = account_line(named, opened, synthesizer)
            if opened and (changed := opened.changed_records(synthesizer.set_up.account_populations())):
                warn(changed)
        except LedgerError as error:  # no reason to have no plan
            account, pays = f"account: {error}", False
        needed = enough(synthesizer.set_up.mechanism, measured)
        say(f"{synthesizer.describe()}\n      {account}")
        if project.model.is_packaged and project.text_writer is None:
            say(f"      model: {advice()}")
        shown: list[str] = []
        free = _without_records(synthesizer, shown) if output is None else _into_file(output, synthesizer)
        for line in free:  # which takes a second or more each
            say(line)
        for line in _remedies(measured, needed, unit) if needed else ():
            say(line)
        say(_next(measured, pays=pays, shown=bool(shown)))


# ---- in plain words --------------------------------------------------------------------------------------

_NEXT_TO_NOTHING: Final = 0.01
"""The share of a budget below which no further plan is of use."""

_TRIED, _TRIED_TOKENS = 10, 40
"""The most labels that the model writes for without records, and the most tokens: a second or two a text."""


def _into_file(output: str, synthesizer: Synthesizer) -> Iterator[str]:
    """All texts of all labels without records, which are of use by themselves, in a new file as they come."""
    set_up = synthesizer.set_up
    settings = set_up.plan.settings
    with write_errors(output), Path(output).open("x", encoding="utf-8") as file:
        yield _heading(set_up)
        for label in set_up.plan.labels:
            said: list[str] = []
            for _ in range(settings.shots_per_label if set_up.mechanism.draws_once else 1):
                one = set_up.without_records(label, said, settings.max_tokens)
                file.write(json_line(one))
                file.flush()
                said.append(one.text)
                yield _shown(set_up, label, said)
    yield (
        f"      {on_one_line(output)} has them, at epsilon 0. If they will do, spend nothing: "
        f'dpfewshot prompt --demonstrations {on_one_line(output)} "a new text"'
    )


def _heading(set_up: SetUp, some: str = "") -> str:
    """What stands above texts without records; `some` says of how many labels, if not of all."""
    whose = "at no cost, the model" if set_up.text_writer is None else "the text writer"
    return f"      without your data, {whose} writes{some}:"


def _shown(set_up: SetUp, label: str, said: list[str]) -> str:
    """The last text of a label, with the subject that it shall have if there are several."""
    several = len(set_up.subjects(label)) > 1
    about = f" ({set_up.task.described(label, len(said) - 1)})" if several else ""
    return f"        {on_one_line(label + about)}: {on_one_line(said[-1])}"


def _without_records(synthesizer: Synthesizer, shown: list[str]) -> Iterator[str]:
    """What the prompt says by itself for the first labels, so that its words can be mended for nothing.

    The texts are added to those that are shown.
    """
    set_up = synthesizer.set_up
    labels = set_up.plan.labels
    tokens, tried = min(set_up.plan.settings.max_tokens, _TRIED_TOKENS), _TRIED
    if set_up.task.schema:  # a text may need all tokens
        tokens, tried = set_up.plan.settings.max_tokens, 1
    shots = set_up.plan.settings.shots_per_label
    some = f", for {tried} of {len(labels)} labels" if tried < len(labels) else ""
    yield _heading(set_up, some)
    try:
        for label in labels[:tried]:
            said: list[str] = []
            for _ in range(min(shots, max(1, len(set_up.subjects(label))))):
                said.append(set_up.without_records(label, said, tokens).text)
                shown.append(said[-1])
                yield _shown(set_up, label, said)
    except BackendError as error:  # the plan is made
        yield f"      what the model writes without records is not known: {error}"
        return
    left = [on_one_line(one) for one in labels if len(set_up.subjects(one)) > shots]
    if left:
        yield f"      {', '.join(left)}: more subjects than texts, so the last get none; raise shots"
    misread = " If a label is misread, describe it in `label_descriptions`."
    if any(map(set_up.task.subjects, labels)):
        misread = (
            ' If one misses its label, change the description: say what somebody does ("changing a name"), '
            'rather than a thing ("a new name"); plan --label NAME writes of one label alone.'
        )
    yield (
        "      If yours are of another kind, or from or to somebody else, say so in `instruction`: what is "
        f"written, by whom and to whom, in words that fit every label.{misread} The fewer records a label "
        "has, the more its texts are like these"
    )


def account_line(named: AccountName, account: Account | None, synthesizer: Synthesizer) -> tuple[str, bool]:
    """What pays for a plan that is not reserved yet, what is left of it then, and whether it can pay.

    The account is None if there is none yet.
    """
    costs = synthesizer.set_up.account_costs()
    if not costs:
        return "account: none, since nothing is certified", True
    if named.ledger is None:
        return "account: none, so nothing adds up what several runs on these records cost (--ledger)", True
    all_of_it = "generate spends the whole budget: nothing is left for further texts of these labels"
    if synthesizer.set_up.mechanism.draws_once:
        all_of_it = (
            "generate spends the whole budget, on one noisy count of words. All texts from it are free: "
            "replace writes others, more, longer, or by other descriptions"
        )
    if account is None or not account.spent.epsilon:
        all_of_it += ". Other folders and scripts on these records are not counted: their epsilon adds up"
    if account is None:
        return all_of_it, True
    budget, name = account.budget, on_one_line(str(named.account))
    of = f"account: {name}, of epsilon {amount_text(budget.epsilon)}, delta {amount_text(budget.delta)}"
    try:
        (in_all, left), pays = account.check(costs), True
    except BudgetExceeded:
        in_all, left, pays = None, account.remaining, False
    words = left_in_words(left).replace("=", " ")
    verb = "is left then" if pays else "is left" + ", too little for another plan" * (words != "nothing")
    told = f"{of}: {words} {verb}"
    if pays and left.epsilon < _NEXT_TO_NOTHING * budget.epsilon:
        told = all_of_it
    return told + _together(account.spent, in_all), pays


def _together(before: PrivacySpend, in_all: PrivacySpend | None) -> str:
    """What the texts of this plan and of earlier ones tell together, if there were any."""
    if in_all is None or not before.epsilon:
        return ""
    sure = percent_text(believed(0.5, in_all.epsilon))
    return f". With what was spent before: {spend_text(in_all)}, and 50 % sure becomes at most {sure} sure"


def _remedies(plan: GenerationPlan, needed: Enough, unit: str | None) -> Iterator[str]:
    """What would be enough for texts that read well, where these do not."""
    settings = plan.settings
    whose, of_each = "records of " * (unit is not None), " of each label" if needed.scope else ""
    epsilon = math.ceil(100 * (needed.epsilon or 0)) / 100
    ways = {
        f"more data: {whose}{needed.population} {plural(unit_noun(unit))}{of_each}": needed.population,
        f"--max-tokens {needed.max_tokens}": needed.max_tokens,
        f"--epsilon {epsilon:g}: 50 % sure becomes {percent_text(believed(0.5, epsilon))}": needed.epsilon,
    }
    if any(ways.values()):
        yield "      against the warning, one of these is enough:"
    yield from (f"        {way}" for way, helps in ways.items() if helps)
    further = ["fewer --shots"] * (settings.shots_per_label > 1 and plan.mechanism != WORD_HISTOGRAM)
    if settings.holdout:
        further.append("--set holdout=0, which uses all records and leaves none to `choose` on")
    if further:
        yield f"      what also helps: {'; '.join(further)} (docs/how-to/settings.md)"


def _next(plan: GenerationPlan, *, pays: bool, shown: bool) -> str:
    """The commands to type now: texts without records may do if some are shown, and cost nothing."""
    from dpfewshot.planning.plan import epsilon_warnings, noisy_strata

    if not pays:
        free = "next: the budget pays for no other plan; generate --resume continues an unfinished run"
        if plan.mechanism == WORD_HISTOGRAM:
            free += (
                ", replace writes other texts of a finished one, or more once shots are raised, at no cost"
            )
        return free + "; plan --output FILE keeps texts like those above, which is free" * shown
    context = click.get_current_context()
    generate, in_file = "dpfewshot generate", context.params.get("config")
    given = {
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if in_file and given - {"output"} == {"labels"}:
        generate = f"dpfewshot plan for all labels, or {generate} with --label for these alone"
    elif given - {"output"} or not in_file:
        generate += ", with the same options"
    if not in_file:
        generate += " and --output demos.jsonl"
    if epsilon_warnings(plan):
        return f"next: dpfewshot plan with a smaller --epsilon; if so little protection is meant, {generate}"
    if not shown:
        return f"next{', if they will not do' * bool(context.params['output'])}: {generate}"
    if noisy := [on_one_line(one.scope or "") for one in noisy_strata(plan)]:
        which = "any label" if len(noisy) == len(plan.strata) else ", ".join(noisy)
        return (
            f"next: dpfewshot plan --output FILE, which is free: paid texts of {which} say little more than "
            f"those above; else {generate}"
        )
    return f"next: dpfewshot plan --output FILE if texts like these will do, which is free; else {generate}"


# ---- in detail -------------------------------------------------------------------------------------------


def in_detail(plan: GenerationPlan, unit: str | None = None) -> str:
    """Every number of the plan; `unit` names the column of whom a record belongs to, if any."""
    settings = plan.settings
    sizes = (
        f"N={settings.records_per_prompt} T={settings.max_tokens} R={settings.tokens_per_draw}; "
        f"at most {plan.prompt_tokens:,} tokens a demonstration"
    )
    if plan.estimated_seconds is not None:
        all_of_them = counted(plan.demonstrations, "demonstration")
        sizes += f"; at most about {duration_text(plan.estimated_seconds)} for {all_of_them}"
    columns = ("stratum", "n", "M", "q", "steps", "sigma", "noise on mean", "epsilon", "delta")
    lines = [
        (
            f"{counted(plan.demonstrations, 'demonstration')} by {plan.mechanism}, "
            f"neighbours {plan.relation}, each {on_one_line(unit or 'record')} is one unit"
        ),
        sizes,
        *aligned([columns, *map(_cells, plan.strata)]),
        *(on_one_line(in_options(sentence)) for sentence in (*plan.reasons, *plan.notes)),
    ]
    if settings.holdout:
        lines.append(
            f"{100 * settings.holdout:g} % of the units are kept for `choose`, which then costs no further "
            "budget; the others are drawn more often, which takes more noise. --set holdout=0 uses all"
        )
    return "plan: " + "\n      ".join(lines)


def _cells(stratum: StratumPlan) -> tuple[str, ...]:
    spent = stratum.spend
    return (
        stratum.scope or "whole data set",
        str(stratum.population),
        str(stratum.draws.prompts),
        f"{float(stratum.sampling_rate):.4f}",
        str(stratum.steps),
        f"{stratum.noise_multiplier:.4f}",
        "none" if stratum.noise_on_mean is None else f"{stratum.noise_on_mean:.4f}",
        *(("none", "none") if spent is None else (epsilon_text(spent.epsilon), delta_text(spent.delta))),
    )
