"""`dpfewshot generate`: releases demonstrations, one JSON line each."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from dpfewshot.cli.models import Model, worker_options, workers_of
from dpfewshot.cli.plan import describe
from dpfewshot.cli.printing import json_option, quiet_option, stages, warn
from dpfewshot.cli.project import AccountName, Budget, Data, PlanOptions, Project, takes
from dpfewshot.demonstrations import Demonstrations, json_line
from dpfewshot.errors import BudgetExceeded, DPFewShotError, LedgerError
from dpfewshot.generation.checkpoint import Progress
from dpfewshot.values import Demonstration, counted, on_one_line

if TYPE_CHECKING:
    from dpfewshot.synthesizer import Synthesizer

CHECKPOINT = ".checkpoint"
"""What a checkpoint adds to the name of the output file."""


@click.command()
@takes(
    *(Data, Model, Budget, PlanOptions, AccountName, "output"),
    required=("task", "records", "epsilon"),
    output={"help": "A .jsonl file to append to. Default: standard output."},
)
@click.option(
    "--resume",
    is_flag=True,
    help="Keep OUTPUT.checkpoint when the run is finished, so that the same command pays for nothing again. "
    "With --ledger and --output an interrupted run resumes anyway.",
)
@worker_options
@quiet_option
@json_option
def generate(*, project: Project, resume: bool, ray: str | None, workers: int | None, as_json: bool) -> None:
    """Release demonstrations of private records under (epsilon, delta).

    \b
    Example:
      dpfewshot generate --task trec --records trec.jsonl.gz --label Location --epsilon 4 \\
        --max-tokens 15 --output demos.jsonl
      dpfewshot generate ... --preset tang
    """
    output, ledger, prompts = project.output, project.account.ledger, project.settings.prompts_per_draw
    if resume and output is None:
        raise click.UsageError("--resume needs --output: its checkpoint is kept beside that file")
    checkpoint = _checkpoint_of(output, ledger, resume=resume)
    with (
        _Lines(output, held=as_json and output is None) as lines,  # opened before anything is spent
        workers_of(project.model, prompts=prompts, ray=ray, workers=workers, ledger=ledger) as work,
    ):
        resuming = checkpoint is not None and checkpoint.exists()
        if lines.there and not resuming:
            warn(f"{output} has {counted(lines.there, 'line')} already: this run's are appended")
        synthesizer = project.synthesizer(resuming=resuming)
        stages()(describe(synthesizer.plan, project.data.unit))
        if ledger is None and synthesizer.plan.epsilon is not None:
            click.echo("no --ledger: nothing adds up what several runs on these records cost", err=True)
        with _kept(checkpoint, always=resume):
            demonstrations = _release(synthesizer, lines, checkpoint, work, ledger=ledger)
            synthesizer.close()
    document = {"plan": synthesizer.plan.as_dict(), "demonstrations": demonstrations.to_lines()}
    with suppress(LedgerError), project.account.opened() as account:  # nothing that is paid for is lost
        if account is not None:
            document["chain_tip"] = account.chain_tip
            stages()(f"account {on_one_line(account.dataset or 'in memory')}: chain tip {account.chain_tip}")
    if as_json:
        click.echo(json.dumps(document))


def _release(
    synthesizer: Synthesizer,
    lines: _Lines,
    checkpoint: Path | None,
    work: Mapping[str, Any],
    *,
    ledger: str | None,
) -> Demonstrations:
    """Generate and write all demonstrations. Ctrl-C tells what there is, what is spent, and how to resume."""
    tell, planned = stages(), synthesizer.plan.demonstrations
    if checkpoint is not None and checkpoint.exists():
        tell(f"resuming the run in {checkpoint}")
    tell(f"generating {counted(planned, 'demonstration')}")
    released: list[Demonstration] = []

    def on_demonstration(one: Demonstration) -> None:
        if checkpoint is not None and not released:
            released.extend(Demonstrations.from_jsonl(checkpoint)[:-1])  # of earlier runs
        released.append(one)
        lines.write(one)
        if not sys.stderr.isatty():  # which has a bar
            tell(f"generated {len(released)} of {planned}: {on_one_line(one.label)}")

    try:
        demonstrations = synthesizer.generate_all(
            on_demonstration=on_demonstration, checkpoint=checkpoint, **work
        )
    except (BudgetExceeded, KeyboardInterrupt) as error:
        if checkpoint is not None:  # which has the others
            released = list(Demonstrations.from_jsonl(checkpoint))
            lines.complete(released)
        if isinstance(error, BudgetExceeded):
            raise
        there = lines.holding(len(released), planned)
        raise click.Abort(_interrupted(there, checkpoint, ledger)) from None
    if checkpoint is not None:
        lines.complete(demonstrations)
    tell("done")
    return demonstrations


def _interrupted(there: str, checkpoint: Path | None, ledger: str | None) -> str:
    """What there is after Ctrl-C, what is spent, and how to resume."""
    if checkpoint is not None:
        return (
            f"interrupted: {there}. The same command makes the others: it continues from {checkpoint} within "
            "what is reserved, and labels that have not begun reserve theirs then"
        )
    spent = "what labels that began have reserved stays spent" if ledger else "its budget ended with it"
    return f"interrupted: {there}. This run cannot be resumed, and {spent}: with --ledger and --output it can"


# ---- checkpoints -----------------------------------------------------------------------------------------


def _checkpoint_of(output: str | None, ledger: str | None, *, resume: bool) -> Path | None:
    """Where a run records its progress; None if it cannot be resumed."""
    if output is None or (ledger is None and not resume):
        return None
    if not resume and os.path.lexists(output) and not Path(output).is_file():  # such as a terminal or a pipe
        return None
    return Path(f"{output}{CHECKPOINT}")


@contextmanager
def _kept(checkpoint: Path | None, *, always: bool) -> Iterator[None]:
    """Keep the checkpoint of an unfinished run, or always; one without draws only hinders other plans."""
    try:
        yield
    except BaseException:
        if checkpoint is not None:
            _remove_if_empty(checkpoint)
        raise
    if checkpoint is not None and not always:
        checkpoint.unlink(missing_ok=True)


def _remove_if_empty(checkpoint: Path) -> None:
    """Remove a checkpoint without demonstrations and draws for a later run, unless another run holds it."""
    progress = Progress()
    with suppress(OSError, LookupError, TypeError, ValueError), checkpoint.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for line in file.read().splitlines()[1:]:
            progress.add(json.loads(line))
        if not (progress.finished or progress.reserved):
            checkpoint.unlink()


# ---- lines -----------------------------------------------------------------------------------------------


class _Lines:
    """Writes each line as soon as it is released, so that an interruption loses nothing that was paid for."""

    def __init__(self, output: str | None, *, held: bool = False) -> None:
        self._output = output
        self._held = held  # until all are printed as one object
        self._file: FileIO | None = None
        self._is_new = False
        self.there = 0
        """The lines of the file before this run."""

    def __enter__(self) -> Self:
        if self._output is not None:
            self._is_new = not os.path.lexists(self._output)
            try:
                self._file = Path(self._output).open("ab+", buffering=0)
            except OSError as error:
                raise DPFewShotError(f"cannot write {self._output}: {error.strerror}") from None
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self.there = len(Path(self._output).read_bytes().splitlines())
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._file is None or self._output is None:
            return
        is_empty = os.fstat(self._file.fileno()).st_size == 0
        self._file.close()
        if kind is not None and self._is_new and is_empty:  # a failed run leaves no file behind
            with suppress(OSError):
                Path(self._output).unlink()

    def write(self, demonstration: Demonstration) -> None:
        if self._held:
            return
        line = json_line(demonstration)
        if self._file is None:
            click.echo(line, nl=False)
            return
        data = _missing_end(self._file.fileno()) + line.encode(errors="replace")
        before = os.fstat(self._file.fileno()).st_size
        try:
            whole, reason = self._file.write(data) == len(data), "the disk is full"
        except OSError as error:
            whole, reason = False, str(error.strerror)
        if not whole:
            with suppress(OSError):  # half a line would make the whole file unreadable
                self._file.truncate(before)
            click.echo(line, nl=False)  # it was paid for, so it must not be lost
            raise DPFewShotError(
                f"cannot write {self._output}: {reason}; the last line went to standard output"
            )

    def complete(self, demonstrations: Iterable[Demonstration]) -> None:
        """Write what only the checkpoint has: a run may die between the two files."""
        if self._file is None:
            return
        self._file.seek(0)
        there = Counter((self._file.readall() or b"").split(b"\n"))
        for one in demonstrations:
            line = json_line(one).encode(errors="replace").rstrip(b"\n")
            if there[line]:
                there[line] -= 1
            else:
                self.write(one)
        with suppress(OSError):  # not every file can be forced to disk
            os.fsync(self._file.fileno())  # before the checkpoint goes

    def holding(self, released: int, planned: int) -> str:
        """Where what an interrupted run released is."""
        if not released:
            as_before = f", and {self._output} is as it was before" if self._output else ""
            return f"this run released no demonstration{as_before}"
        where = "not printed" if self._held else f"in {self._output}" if self._output else "printed"
        are = "is" if released == 1 else "are"
        return f"{released} of this run's {counted(planned, 'demonstration')} {are} {where}"


def _missing_end(file: int) -> bytes:
    """The line end that a file lacks, so that a truncated line stays a line of its own."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return b""
    return b"" if os.pread(file, 1, status.st_size - 1) == b"\n" else b"\n"
