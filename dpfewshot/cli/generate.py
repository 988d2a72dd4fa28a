"""`dpfewshot generate`: releases demonstrations, one JSON line each."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from dpfewshot.account.draws import ANY_TOKENS
from dpfewshot.account.scopes import scope_text
from dpfewshot.cli.ledger import unfinished_runs
from dpfewshot.cli.lines import Lines, lines_of
from dpfewshot.cli.options import takes
from dpfewshot.cli.plan import account_line
from dpfewshot.cli.printing import quiet_option, say, stages, warn, wrapped
from dpfewshot.cli.project import GENERATION, Project, refusals
from dpfewshot.cli.project_file import FILE_NAME
from dpfewshot.cli.prompt import UNPROTECTED
from dpfewshot.cli.replace import JUDGE, at_terminal, replace_asked
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BudgetExceeded, DPFewShotError, LedgerError
from dpfewshot.values import (
    Demonstration,
    amount_text,
    believed,
    counted,
    epsilon_text,
    on_one_line,
    percent_text,
    rounded_up_text,
    spend_text,
    unit_noun,
)

if TYPE_CHECKING:
    from dpfewshot.account.account import Account
    from dpfewshot.synthesizer import Synthesizer


NEWEST: Final = "the newest"
"""The value of --resume without a name."""

_WORDS: Final = 12
"""The most counted words of a label that are shown."""

_TELLING: Final = 200
"""Units kept for `choose`, of which half measure: to about ± 10 points."""

_TOO_FEW: Final = ", and so few tell only what differs much: better judge by reading"

_STOPPING: Final = "\nstopping after this text; once more stops now, {}\n"


@click.command()
@takes(
    *(*GENERATION, "workers", "ray", "output"),
    required=("task", "records", "epsilon"),
    files={"demonstrations": "output"},
    output={"help": "A .jsonl file to append to. Default: standard output."},
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[NAME]",
    help="Continue the newest run of this plan in the account, or begin one. What it released is written and "
    "not paid for again. NAME tells runs of one plan apart, such as nights. Needs --ledger.",
)
@quiet_option
def generate(*, project: Project, resume: str | None, as_json: bool) -> None:
    """Release demonstrations of private records under (epsilon, delta).

    \b
    Example:
      dpfewshot generate
      dpfewshot generate --task trec --records trec.jsonl.gz --label Location --epsilon 4 \\
        --max-tokens 15 --output demos.jsonl
    """
    output, ledger = project.output, project.account.ledger
    if resume == "":
        raise click.UsageError("--resume '' names no run: name one, or leave the name out")
    run: bool | str = resume is not None and (resume == NEWEST or resume)
    if run and ledger is None:
        raise click.UsageError("--resume needs --ledger, which keeps what a run has released")
    there = lines_of(output).total()
    project.account.check_counts(str(output), there=there > 0)
    with (
        nullcontext() if run or ledger is None else _naming_resume(project, there),
        Lines(output, held=as_json and output is None) as lines,  # opened before anything is spent
        project.generating_workers() as work,
        project.synthesizer(
            resuming=bool(run), described=not click.get_current_context().params["quiet"]
        ) as synthesizer,
    ):
        _tell_plan(project, synthesizer, resuming=bool(run))
        if synthesizer.unfinished and not run:
            warn("--resume continues the unfinished run of this plan in the account; this begins another")
        elif project.counts_words and not run and synthesizer.newest_run():
            warn(
                "--resume adds what this plan's run in the account lacks, such as more shots, at no cost; "
                "this counts the words again, and is paid for"
            )
        if there and not run:
            warn(f"{output} has {counted(there, 'line')} already: this run's are appended")
        begins = not run or _begins(synthesizer, run)
        if begins:
            _confirm(synthesizer)
        demonstrations = _release(
            synthesizer, lines, work, resume=run, verb="generating" if begins else "resuming"
        )
        lines.close()
        tip = _chain_tip(synthesizer.account) if ledger is not None else {}
        if as_json:
            lists = {"plan": synthesizer.plan.as_dict(), "demonstrations": demonstrations.to_lines()}
            click.echo(json.dumps({**lists, **tip}))
        elif output is not None:
            durable = synthesizer.account is not None and synthesizer.account.durable
            replaceable = (
                project.counts_words and durable and not isinstance(run, str) and Path(output).is_file()
            )
            _tell_words(synthesizer)
            _conclude(demonstrations, synthesizer.account, replaceable=replaceable)
            if replaceable and at_terminal():
                _ask(synthesizer, project, work)
            _tell_next(project, synthesizer)


def _chain_tip(account: Account | None) -> dict[str, str]:
    """The last entry's hash, which is printed where a log keeps it."""
    with suppress(LedgerError):  # nothing that is paid for is lost
        if account is not None:
            tip = account.chain_tip
            if not sys.stderr.isatty():
                stages()(f"account {on_one_line(account.dataset or 'in memory')}: chain tip {tip}")
            return {"chain_tip": tip}
    return {}


def _tell_plan(project: Project, synthesizer: Synthesizer, *, resuming: bool) -> None:
    """Say what is written and what it costs; on a terminal how long it takes, too, which is not for a log."""
    tell = stages()
    if sys.stderr.isatty():
        tell("measuring the model's speed")
        synthesizer.probe()
    tell(synthesizer.describe())
    if not resuming:
        tell(f"      {account_line(project.account, synthesizer.account, synthesizer)[0]}")


def _begins(synthesizer: Synthesizer, resume: Literal[True] | str) -> bool:
    """Whether --resume finds no run to continue, so that one begins, and say so."""
    if synthesizer.newest_run("" if resume is True else resume):
        return False
    begun = unfinished_runs(synthesizer.account) if resume is True and synthesizer.account else []
    if begun:  # --resume most likely means that one
        raise LedgerError(
            "the account has no such run to resume, but one with other settings or another name is "
            f"unfinished, or still runs: {_settings_of(begun[-1])}. Give its options, and its name if it has "
            "one: --resume NAME. Without --resume a new run begins, and is paid for"
        )
    if synthesizer.account is not None:
        with refusals(synthesizer.account, None, by_stratum=True):  # before anybody is asked
            synthesizer.account.check(synthesizer.set_up.account_costs())
    stages()("this account has no such run with these settings: a new one begins, and is paid for")
    return True


def _confirm(synthesizer: Synthesizer) -> None:
    """Ask on a terminal whether to spend the budget, which nothing gives back; not with --quiet."""
    plan = synthesizer.plan
    if plan.epsilon is None or click.get_current_context().params["quiet"]:
        return
    texts = counted(plan.demonstrations, "text")
    question = f"a spent budget does not come back: spend epsilon {epsilon_text(plan.epsilon)} on {texts}?"
    at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if at_terminal and not click.confirm(wrapped(question, err=True), default=False, err=True):
        raise click.Abort("nothing is spent")


def _tell_words(synthesizer: Synthesizer) -> None:
    """Say which of the records' words the budget has bought."""
    from dpfewshot.planning.description import LISTED

    try:
        counted_words = synthesizer.counted_words()
    except DPFewShotError as error:  # the run is written and paid for
        warn(f"the words that were counted cannot be shown: {error}")
        return
    told = dict[str, list[str]]()  # one count may serve several labels
    for label, words in counted_words.items():
        told.setdefault(", ".join(words[:_WORDS]), []).append(on_one_line(label))
    if 0 < len(told) <= LISTED:
        stages()(
            "words that stand out in the noisy count of your records; of a label's few, half may be noise:"
        )
        for line, labels in told.items():
            stages()(f"  {', '.join(labels)}: {line or 'none that stands out of the noise'}")


def _conclude(demonstrations: Demonstrations, account: Account | None, *, replaceable: bool) -> None:
    """Say what the texts cost and are good for."""
    if demonstrations.certified and (spent := demonstrations.spent):
        stages()(f"spent: {spend_text(spent)}")
        with suppress(LedgerError):
            if account is not None and (in_all := spend_text(account.spent)) != spend_text(spent):
                stages()(f"spent from the account in all: {in_all}")
        stages()(
            "you may publish these texts, or use them in prompts to any model, without limit; names and "
            "facts in them may be invented"
        )
        discarded = "texts that you would not use: "
        if replaceable:
            discarded += "dpfewshot replace writes others in their place, at no cost"
        else:
            discarded += "delete their lines"
        stages()(f"{discarded}; {JUDGE}")


def _ask(synthesizer: Synthesizer, project: Project, work: Mapping[str, Any]) -> None:
    """Ask which texts to replace. Whatever fails, the run is written and paid for, which is no failure."""
    try:
        replace_asked(synthesizer, project, work)
    except (DPFewShotError, click.UsageError) as error:
        warn(f"{error}. The texts of this run are paid for: once that is mended, dpfewshot replace goes on")


def _tell_next(project: Project, synthesizer: Synthesizer) -> None:
    """Say what comes next, in the words of a project file."""
    if config := click.get_current_context().params.get("config"):
        elsewhere = "" if config == FILE_NAME else f" --config {config}"
        stages()(f'a prompt with them for any model: dpfewshot prompt{elsewhere} "a new text"; {UNPROTECTED}')
        if share := project.holdout:
            kept = round(share * sum(stratum.population for stratum in synthesizer.plan.strata))
            units = counted(kept, unit_noun(project.data.unit))
            stages()(
                f"next: dpfewshot choose tests whether they help, on about {units} kept for it, at no "
                f"further cost; it takes up to an hour{_TOO_FEW if kept < _TELLING else ''}"
            )


@contextmanager
def _naming_resume(project: Project, there: int) -> Iterator[None]:
    """Make a refusal for lack of budget name first what is free: to resume a run, or to replace its texts."""
    from dpfewshot.account.rule import Admission

    try:
        yield
    except BudgetExceeded as refusal:
        account, larger = project.account.opened(), "dpfewshot ledger change-budget"
        free = "generate --resume ends an interrupted run"  # it may have stopped between two labels
        # elsewhere what is short of a plan is not the difference of two amounts
        adds_up = account is not None and account.parallel and account.rule == Admission.SUM
        if account is not None and adds_up and refusal.asked is not None and refusal.remaining is not None:
            (_, delta_asked), (epsilon_left, delta_left) = refusal.asked, refusal.remaining
            epsilon = account.budget.epsilon + max(0.0, project.budget.epsilon - epsilon_left)
            delta = account.budget.delta + max(0.0, delta_asked - delta_left)
            larger += (
                f" --epsilon {rounded_up_text(epsilon, 5)} --delta {rounded_up_text(delta, 3)}, for "
                f"good: 50 % sure becomes at most {percent_text(believed(0.5, epsilon))} sure"
            )
        if account is not None and unfinished_runs(account):
            free = (
                "a run is unfinished, or still runs (then wait): generate --resume, with its options, takes "
                "it over, and pays for labels that have not begun"
            )
        elif there and project.counts_words and account is not None and account.entries:
            further = "" if project.task.labels else ", generate --resume those of further labels"
            free = (
                f"{project.output} has {counted(there, 'text')}: if this plan wrote them, dpfewshot replace "
                "writes others in their place, and more or longer ones once shots or max_tokens are raised"
                f"{further}, at no cost; {free}"
            )
        raise refusal.saying(
            f"{free}. A further run is refused: {refusal}. It needs a larger budget: {larger}"
        ) from None


def _release(
    synthesizer: Synthesizer, lines: Lines, work: Mapping[str, Any], *, resume: bool | str, verb: str
) -> Demonstrations:
    """Generate and write all demonstrations. Ctrl-C tells what there is, what is spent, and how to resume."""
    tell, planned = stages(), synthesizer.plan.demonstrations
    tell(f"{verb} {counted(planned, 'demonstration')}")
    if not sys.stderr.isatty():
        tell("a line follows when a text is done, the first one after a minute or more with a real model")
    released, between, counts = 0, False, synthesizer.set_up.mechanism.draws_once
    resumes = counts and synthesizer.account is not None and synthesizer.account.durable
    notice = _STOPPING.format("and --resume writes it" if resumes else "and loses it")

    # workers have several texts in progress
    with _interrupted_after_a_text("" if work else notice) as interrupted:

        def on_demonstration(one: Demonstration) -> None:
            nonlocal released, between
            released += 1
            lines.write(one, again=bool(resume))
            if lines.output is not None and one.certified and sys.stdout.isatty():  # no log that is kept
                say(f"[{on_one_line(one.label)}] {on_one_line(one.text)}")
            if not sys.stderr.isatty():  # which has a bar
                tell(f"generated {released} of {planned}: {on_one_line(one.label)}")
            if interrupted() and released < planned:
                between = True
                raise KeyboardInterrupt

        try:
            demonstrations = synthesizer.generate_all(
                on_demonstration=on_demonstration, resume=resume, **work
            )
        except KeyboardInterrupt:
            again = f"--resume {resume}" if isinstance(resume, str) else "--resume"
            told = _interrupted(synthesizer.account, again, between=between, counts=counts)
            raise click.Abort(f"interrupted: {lines.holding(released, planned)}. {told}") from None
    most = synthesizer.plan.settings.max_tokens
    cut = [one.label for one in demonstrations if not one.finished and one.token_count < most]
    if cut:
        labels = ", ".join(map(on_one_line, cut))
        warn(f"{counted(len(cut), 'text')} ended early ({labels}): an interruption took the rest of the draw")
    tell(f"done: {counted(released, 'demonstration')} in {lines.output}" if lines.output else "done")
    return demonstrations


@contextmanager
def _interrupted_after_a_text(notice: str) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM wait for the text that is being written; yields whether there was one.

    One draw serves a whole text by default, so that an interrupted text could not be continued. The second
    signal interrupts at once, and so does the first one without a notice.
    """
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        with suppress(AttributeError, OSError, ValueError):  # nobody may read it, or no longer
            os.write(sys.stderr.fileno(), notice.encode())  # a print may be under way, and cannot begin again

    ours = notice and threading.current_thread() is threading.main_thread()
    interrupting = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if ours and signal.getsignal(number) is signal.default_int_handler  # else someone else decides
    ]
    for number in interrupting:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        for number in interrupting:
            signal.signal(number, signal.default_int_handler)


def _settings_of(run: Mapping[str, Any]) -> str:
    """What the event that reserved a run says of it."""
    scope, details = run["scope"], run["details"]
    each = details["tokens_per_step"]
    tokens = "texts of any length" if each == ANY_TOKENS else f"{details['steps'] * each} tokens in all"
    return (
        f"{'the whole data set' if scope is None else on_one_line(scope_text(scope))}, "
        f"epsilon={amount_text(run['epsilon'])}, delta={amount_text(run['delta'])}, "
        f"mechanism={details['mechanism']}, {tokens}, "
        f"records_per_prompt={details['records_per_prompt']}"
    )


def _interrupted(account: Account | None, again: str, *, between: bool, counts: bool) -> str:
    """What is spent after Ctrl-C, and how to resume; `between` two texts nothing is lost.

    Nor is it once words are counted: counting them takes a moment, writing from them most of the time.
    """
    if account is None or not account.durable:
        return "This run cannot be resumed, and its budget is gone; --ledger keeps both"
    others = "the others, within what is reserved"
    if not between:
        lost = "the text that was being written lost its draw: it may end early or be missing"
        others = f"the others; {'a label whose words were just being counted has none' if counts else lost}"
    spent = "" if account.spent.epsilon else "Nothing is spent yet. "
    return (
        f"{spent}The same command with {again} makes {others}; labels that have not begun reserve theirs then"
    )
