"""`dpfewshot doctor`: checks all that a generation needs, and says what to do about failures."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from dpfewshot import __version__
from dpfewshot.cli.backends import backend_options, open_backend
from dpfewshot.cli.remedies import remedy
from dpfewshot.cli.stages import quiet_option, stages
from dpfewshot.errors import DPFewShotError
from dpfewshot.values import epsilon_text

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend

UNWELL = 2
NINE_STANDARD_ERRORS = 0.1  # of the standard deviation of 4,096 draws, relative


@dataclass(frozen=True)
class Check:
    """The result of one check: its name, whether it passed, what was found, and what to do."""

    check: str
    well: bool
    says: str
    remedy: str | None = None


@click.command()
@backend_options
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(*, as_json: bool, **options: Any) -> None:
    """Check the installation, the backend and its batch invariance, and say what to do.

    With a real model, the checks take minutes.

    \b
    Example:
      dpfewshot doctor --model model.gguf
      dpfewshot doctor --backend package.module:factory
    """
    checks: list[Check] = []
    for check in _examine(options):
        checks.append(check)
        if not as_json:
            click.echo(f"{'ok  ' if check.well else 'FAIL'} {check.check}: {check.says}")
            if check.remedy is not None:
                click.echo(f"     what to do: {check.remedy}")
    well = all(check.well for check in checks)
    if as_json:
        click.echo(json.dumps({"well": well, "checks": [asdict(check) for check in checks]}))
    if not well:
        raise click.exceptions.Exit(UNWELL)


def _examine(options: Mapping[str, Any]) -> Iterator[Check]:
    yield _check("python", lambda: f"{platform.python_version()}, dpfewshot {__version__}, {sys.platform}")
    yield _check("exact core", _core)
    yield _check("accounting", _accounting)
    tell = stages()
    try:
        backend = open_backend(options, tell=tell)
    except DPFewShotError as error:
        yield Check("model", well=False, says=str(error))
        return
    described = backend.describe()
    yield Check("model", well=True, says=f"{described}, {backend.vocabulary_size} tokens")
    yield _claim(backend, options["backend"], described)
    from dpfewshot.backends.conformance import CHECKS, examine

    tell(f"running {len(CHECKS)} checks on the backend: this takes minutes with a model")
    for finding in examine(backend):
        what_to_do = remedy(
            options["backend"], described, finding.check, about_invariance=finding.about_invariance
        )
        yield Check(finding.check, finding.passed, finding.detail, None if finding.passed else what_to_do)


def _claim(backend: LogprobBackend, name: str, described: str) -> Check:
    """Check that the backend states batch invariance; otherwise a `Synthesizer` refuses it."""
    from dpfewshot.backends.protocol import states_invariance

    if states_invariance(backend):
        return Check("claim", well=True, says="states that it is batch-invariant")
    what_to_do = remedy(name, described, "claim", about_invariance=True)
    return Check("claim", False, "does not state that it is batch-invariant", what_to_do)


def _check(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, well=True, says=check())
    except (DPFewShotError, AssertionError, OSError) as error:
        return Check(name, well=False, says=str(error))


def _core() -> str:
    from dpfewshot import _core

    draws = _core.rounded_normals(8 * _core.grid, 4096)
    spread = float(draws.std()) / (8 * _core.grid)
    if abs(spread - 1) > NINE_STANDARD_ERRORS:
        raise DPFewShotError(
            f"4,096 draws of noise have {spread:.2f} times the expected standard deviation: reinstall"
        )
    return "compiled; noise comes from the operating system's generator"


def _accounting() -> str:
    from dpfewshot.accounting import PoissonGaussian, epsilon

    bound = epsilon(PoissonGaussian(80 / 835, 0.95, 15), delta=1 / 835).upper
    return f"TREC of the paper at sigma=0.95: epsilon at most {epsilon_text(bound)} (printed: 2)"
