"""`dpfewshot generate`: releases demonstrations, one JSON line each."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Self

import click

from dpfewshot.cli.accounts import account_options
from dpfewshot.cli.options import describe, generation_options, open_session
from dpfewshot.cli.workers import worker_options, workers_of
from dpfewshot.demonstrations import Demonstrations, json_line
from dpfewshot.errors import BudgetExceeded, DPFewShotError
from dpfewshot.values import Demonstration

CHECKPOINT = ".checkpoint"
"""What --resume adds to the name of the output file."""


@click.command()
@generation_options
@click.option("--output", default=None, help="A .jsonl file to append to. Default: standard output.")
@click.option(
    "--resume",
    is_flag=True,
    help="Keep a checkpoint in OUTPUT.checkpoint, and resume from it if it exists: finished demonstrations "
    "are not paid for again.",
)
@account_options
@worker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the plan and all lines.")
def generate(
    *,
    output: str | None,
    resume: bool,
    ledger: str | None,
    dataset: str | None,
    create: bool,
    ray: str | None,
    workers: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Release demonstrations of private records under (epsilon, delta).

    \b
    Example:
      dpfewshot generate --task trec --records trec.jsonl.gz --label Location --epsilon 4 \\
        --max-tokens 15 --output demos.jsonl
      dpfewshot generate ... --preset tang
    """
    if resume and output is None:
        raise click.UsageError("--resume needs --output: its checkpoint is kept beside that file")
    if dataset is not None and ledger is None:
        raise click.UsageError("--dataset needs --ledger: without one, the budget ends with this run")
    with (
        _Lines(output) as lines,  # opened before anything is spent
        workers_of(options, ray=ray, workers=workers, ledger=ledger) as work,
    ):
        session = open_session(options, ledger=ledger, dataset=dataset, create=create)
        click.echo(describe(session.synthesizer.plan, options["unit"]), err=True)
        if ledger is None and session.synthesizer.plan.epsilon is not None:
            click.echo(_NO_LEDGER, err=True)
        checkpoint = f"{output}{CHECKPOINT}" if resume else None
        if checkpoint is not None and sys.stderr.isatty():
            click.echo(_which_run(checkpoint), err=True)
        try:
            demonstrations = session.synthesizer.generate_all(
                on_demonstration=lambda one: None if as_json and output is None else lines.write(one),
                checkpoint=checkpoint,
                **work,
            )
        except BudgetExceeded:
            if checkpoint is not None:  # which has the others
                lines.complete(Demonstrations.from_jsonl(checkpoint))
            raise
        if resume:
            lines.complete(demonstrations)
        session.synthesizer.close()
    if as_json:
        document = {
            "plan": session.synthesizer.plan.as_dict(),
            "demonstrations": demonstrations.to_lines(),
        }
        click.echo(json.dumps(document))


_NO_LEDGER = "no --ledger: nothing adds up what several runs on these records cost"


class _Lines:
    """Writes each line as soon as it is released, so that an interruption loses nothing that was paid for."""

    def __init__(self, output: str | None) -> None:
        self._output = output
        self._file: FileIO | None = None
        self._is_new = False

    def __enter__(self) -> Self:
        if self._output is not None:
            self._is_new = not os.path.lexists(self._output)
            try:
                self._file = Path(self._output).open("ab+", buffering=0)
            except OSError as error:
                raise DPFewShotError(f"cannot write {self._output}: {error.strerror}") from None
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


def _which_run(checkpoint: str) -> str:
    """What --resume does: for people, so a pipe does not get it."""
    file = Path(checkpoint)
    if file.is_file() and file.stat().st_size:
        return f"resuming the run in {checkpoint}"
    return f"starting a new run; it can be resumed from {checkpoint}"


def _missing_end(file: int) -> bytes:
    """The line end that a file lacks, so that a truncated line stays a line of its own."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return b""
    return b"" if os.pread(file, 1, status.st_size - 1) == b"\n" else b"\n"
