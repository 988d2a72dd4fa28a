"""`dpfewshot replace`: writes new texts in place of those that nobody would use, at no cost."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.certificates import line_hash
from dpfewshot.cli.lines import Lines
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import quiet_option, say, stages, warn
from dpfewshot.cli.project import GENERATION, Project
from dpfewshot.demonstrations import Demonstrations, json_line, line_hashes, numbered_lines
from dpfewshot.errors import BudgetExceeded, DPFewShotError, InvalidPlan, LedgerError
from dpfewshot.runtime.files import read_text, write_errors, write_whole
from dpfewshot.values import Demonstration, by_label, counted, on_one_line

if TYPE_CHECKING:
    from dpfewshot.synthesizer import Synthesizer

JUDGE: Final = (
    "judge each text by itself: is it a plausible one of its label? Do not compare it with the records"
)
"""How to choose among texts: the guarantee covers no choice that depends on the records."""

_NUMBERS: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")

_OTHERS: Final = (
    "Records, all labels, the task's name, model, budget, account and the version of dpfewshot must be those "
    "of the run whose texts are to be replaced"
)

_TURNS: Final = 2
"""Rounds of replacing after which a hint follows."""

_DESCRIBE: Final = (
    "if texts of a label stay wrong, stop here, change its description in `label_descriptions`, and run "
    "dpfewshot replace: that costs nothing either"
)

_RECORDED: Final = (
    "New texts are in the ledger: dpfewshot generate --resume adds them, and the lines that they replace can "
    "be deleted"
)


@click.command()
@click.argument("numbers", nargs=-1)
@takes(
    *(*GENERATION, "workers", "ray", "output"),
    required=("task", "records", "epsilon", "ledger", "output"),
    files={"demonstrations": "output"},
    output={"help": "The .jsonl file that `generate` wrote."},
)
@quiet_option
def replace(*, project: Project, numbers: Sequence[str], as_json: bool) -> None:
    """Write new texts in place of those that you would not use, at no cost.

    NUMBERS are lines of the output: 2 5-7. Lines that you deleted are replaced, too, so that each label has
    as many texts as planned. On a terminal it then lists the texts, and asks for more. New ones come from
    the counts that `generate` paid for. Judge only how texts read, not by your records.

    \b
    Example:
      dpfewshot replace 2 5-7
    """
    output, chosen = str(project.output), _chosen(numbers)
    if Path(output).exists() and not Path(output).is_file():
        raise click.UsageError(f"{output} is no file that can be rewritten")
    there = _texts_of(output)
    if chosen and max(chosen) > max(there, default=0):
        raise click.UsageError(f"{output} has {counted(len(there), 'text')}, and no line {max(chosen)}")
    if not project.counts_words:
        raise click.UsageError(
            "replace needs a mechanism that counts words once for all texts, as the default does: this one "
            "draws for each text"
        )
    project.account.check_counts(output, there=bool(there))
    if project.account.opened() is None:
        raise LedgerError(f"the account has no texts to replace yet. {_OTHERS}")
    asks = not as_json and at_terminal()
    with (
        project.generating_workers() as work,
        project.synthesizer(resuming=True, described=True) as synthesizer,
    ):
        before = _checked(synthesizer, project, chosen)
        new = _replaced(synthesizer, project, chosen, work)
        if asks:
            replace_asked(synthesizer, project, work, known=before.values())
            return
    if as_json:
        lines = Demonstrations(_texts_of(output).values()).to_lines()
        click.echo(json.dumps({"replaced": new, "demonstrations": lines}))
    elif not new and not chosen:
        stages()(f"nothing to replace: {output} has all texts of the plan. Name lines: dpfewshot replace 2 5")


def at_terminal() -> bool:
    """Whether somebody reads and answers, and did not ask for quiet."""
    quiet = click.get_current_context().params["quiet"]
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty() and not quiet


def replace_asked(
    synthesizer: Synthesizer,
    project: Project,
    work: Mapping[str, Any],
    *,
    known: Collection[Demonstration] = (),
) -> None:
    """List the texts of the run, and replace those that the user names, until none is named.

    Those that are not known have a mark, if any are.
    """
    for turn in count(1 + bool(known)):  # if texts are known, there was a round before
        texts = _checked(synthesizer, project, frozenset())
        chosen = _asked(texts, known or texts.values())
        if not chosen:
            return
        if turn == _TURNS:
            stages()(_DESCRIBE)
        _replaced(synthesizer, project, chosen, work, shown=texts)
        known = list(texts.values())


def _replaced(
    synthesizer: Synthesizer,
    project: Project,
    chosen: frozenset[int],
    work: Mapping[str, Any],
    *,
    shown: Mapping[int, Demonstration] | None = None,
) -> int:
    """Write new texts in place of the chosen lines, and at the end for those that lack; how many.

    Nothing is replaced if the file has other texts by now than those that were shown.
    """
    output, new = str(project.output), list[Demonstration]()
    with Lines(output, alone=True):
        ours = _checked(synthesizer, project, frozenset() if shown else chosen)
        if shown not in (None, ours):
            stages()(f"{output} was changed meanwhile, so nothing is replaced: its texts once more")
            return 0
        kept = [one for number, one in ours.items() if number not in chosen]
        failure, discarded = None, [ours[number] for number in chosen]
        planned = Counter(synthesizer.plan.labels * synthesizer.plan.settings.shots_per_label)
        lacking = planned - Counter(one.label for one in kept)
        if lacking:
            stages()(f"writing {counted(lacking.total(), 'text')}, at no cost")
        if surplus := (Counter(one.label for one in discarded) - lacking).total():
            stages()(
                f"nothing in place of {counted(surplus, 'line')}: the labels have as many texts as planned "
                "without"
            )
        try:
            failure = _write(synthesizer, kept, new, work)
        except BaseException as error:
            if new or not Path(output).exists():
                _put_in_place(output, [], [*kept, *discarded], new)
            if not isinstance(error, KeyboardInterrupt):
                raise
            written = f"{counted(len(new), 'new text')} in {output}, and no line is taken out yet"
            again = "dpfewshot replace goes on, with the lines as they are numbered now"
            raise click.Abort(f"interrupted: {written}; {again}") from None
        if new or chosen:
            _put_in_place(output, discarded, kept, new)
            stages()(f"done: {counted(len(new), 'new text')} in {output}, at no further cost")
    if failure is not None:
        raise failure
    return len(new)


def _write(
    synthesizer: Synthesizer,
    kept: Sequence[Demonstration],
    new: list[Demonstration],
    work: Mapping[str, Any],
) -> BudgetExceeded | None:
    """Generate what lacks beside the kept texts into `new`; the refusal of a label whose count was lost."""
    told, tell = line_hashes(kept), stages()

    def on_demonstration(one: Demonstration) -> None:
        digest = line_hash(one.as_line())
        if told[digest]:  # a kept one: they are told first
            told[digest] -= 1
        else:
            new.append(one)
            if not sys.stderr.isatty():  # which has a bar
                tell(f"written: {on_one_line(one.label)}")

    try:
        synthesizer.generate_all(on_demonstration=on_demonstration, resume=True, keep=kept, **work)
    except BudgetExceeded as refusal:
        return refusal
    except InvalidPlan:
        raise LedgerError(
            "the run has labels whose words are to be counted, which dpfewshot generate --resume does; or "
            "another run of this plan has begun since, which dpfewshot replace goes on with"
        ) from None
    return None


def _checked(synthesizer: Synthesizer, project: Project, chosen: frozenset[int]) -> dict[int, Demonstration]:
    """The lines of the newest run, which must be as they were released, and have the chosen among them."""
    from dpfewshot.audit.certified import check_certificates

    output, run = str(project.output), synthesizer.newest_run()
    if run is None:
        raise LedgerError(f"the account has no run of this plan, so no counts are paid for. {_OTHERS}")
    there = _texts_of(output)
    ours = {number: one for number, one in there.items() if one.certificate and one.certificate.run == run}
    others = sorted(chosen - ours.keys())
    if others or (there and not ours):
        number = others[0] if others else min(there)
        raise click.UsageError(f"{output}: line {number} has no text of this plan's newest run")
    with BudgetLedger.open(str(project.account.ledger)) as ledger:
        checked = check_certificates(ours.values(), ledger, ours)
    if ours and not checked.verified:
        problems = (problem for one in checked.entries for problem in one.problems)
        raise LedgerError(
            f"{output} does not agree with the ledger: {next(problems, 'see dpfewshot verify')}"
        )
    return ours


def _texts_of(output: str) -> dict[int, Demonstration]:
    """The demonstrations of the file by their lines; none if the whole file was deleted."""
    return dict(numbered_lines(output)) if Path(output).exists() else {}


def _put_in_place(
    output: str,
    discarded: Sequence[Demonstration],
    kept: Sequence[Demonstration],
    new: Sequence[Demonstration],
) -> None:
    """Rewrite the file: a new text stands where one of its label was discarded, and others at the end.

    Lines are found by what they say: an editor may have written the file meanwhile, or have deleted it.
    """
    out, waiting = line_hashes(discarded), by_label(new)
    try:
        there = _texts_of(output)
        raw = Path(output).read_text(encoding="utf-8-sig").split("\n") if there else []
        lines, old = [] if Path(output).exists() else [json_line(one) for one in kept], list[str]()
        for number, one in there.items():
            digest = line_hash(one.as_line())
            if not out[digest]:
                lines.append(f"{raw[number - 1]}\n")
                continue
            out[digest] -= 1
            old.append(raw[number - 1])
            if waiting.get(one.label):
                lines.append(json_line(waiting[one.label].pop(0)))
        lines += [json_line(one) for some in waiting.values() for one in some]
        if old:
            _keep(old, f"{output}.replaced")
        with write_errors(output):
            write_whole(output, "".join(lines))
    except DPFewShotError as error:
        raise DPFewShotError(f"{error}. {_RECORDED}") from None


def _keep(old: Sequence[str], path: str) -> None:
    """Add lines to a file of those that were taken out, from which a user can put one back."""
    try:
        there = read_text(path, DPFewShotError).split("\n") if Path(path).is_file() else []
        with write_errors(path):
            write_whole(path, "".join(f"{line}\n" for line in dict.fromkeys([*there, *old]) if line))
        stages()(f"the old lines are in {path}")
    except DPFewShotError as error:  # their texts are in the ledger
        warn(f"the old lines are not kept: {error}")


def _asked(texts: Mapping[int, Demonstration], known: Collection[Demonstration]) -> frozenset[int]:
    """The lines that the user would not use, of texts that are listed by label, new ones with a mark."""
    for number, one in sorted(texts.items(), key=lambda each: (each[1].label, each[0])):
        mark = " " if one in known else "*"
        say(f"{number:4} {mark} [{on_one_line(one.label)}] {on_one_line(one.text)}")
    stages()(JUDGE)
    mark = "*: new; " * any(one not in known for one in texts.values())
    question = f"replace which lines, such as 2 5-7 ({mark}Enter: none)"
    while True:
        try:
            answer = click.prompt(question, default="", show_default=False, err=True)
        except click.Abort:  # Ctrl-C or Ctrl-D: what is written is paid for and done
            return frozenset()
        try:
            chosen = _chosen([each for each in re.split(r"[\s,;]+", answer) if each])
        except click.UsageError as error:
            stages()(error.message)
            continue
        if chosen <= texts.keys():
            return chosen
        stages()(f"line {min(chosen - texts.keys())} has no text of this run")


def _chosen(numbers: Sequence[str]) -> frozenset[int]:
    """The lines that numbers and ranges name."""
    chosen: set[int] = set()
    for each in numbers:
        found = _NUMBERS.fullmatch(each)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last:
            raise click.UsageError(f"{each!r} is no line of the output: give numbers such as 2, or 5-7")
        chosen.update(range(first, last + 1))
    return frozenset(chosen)
