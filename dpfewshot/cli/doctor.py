"""`dpfewshot doctor` checks all that a generation needs; `dpfewshot demo` generates from made-up records."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import click

from dpfewshot import __version__
from dpfewshot.backends import downloads
from dpfewshot.cli.models import HUGGING_FACE, LLAMA_CPP, Model, open_backend
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import quiet_option, say, stages
from dpfewshot.cli.project import Project
from dpfewshot.errors import INSTALL, DPFewShotError
from dpfewshot.values import Demonstration, PrivacyBudget, spend_text

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend
    from dpfewshot.synthesizer import Synthesizer

UNWELL: Final = 2
NINE_STANDARD_ERRORS: Final = 0.1  # of the standard deviation of 4,096 draws, relative


@dataclass(frozen=True)
class Check:
    """The result of one check: its name, whether it passed, what was found, and what to do."""

    check: str
    well: bool
    says: str
    remedy: str | None = None


@click.command()
@takes(Model)
@quiet_option
def doctor(*, project: Project, as_json: bool) -> None:
    """Check the installation, the backend and its batch invariance, and say what to do.

    With a real model, the checks take minutes.

    \b
    Example:
      dpfewshot doctor --model model.gguf
      dpfewshot doctor --backend package.module:factory
    """
    checks: list[Check] = []
    for check in _examine(project.model):
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


def _examine(model: Model) -> Iterator[Check]:
    yield _check("python", lambda: f"{platform.python_version()}, dpfewshot {__version__}, {sys.platform}")
    yield _check("exact core", _core)
    try:
        backend = open_backend(model)
    except DPFewShotError as error:
        yield Check("model", well=False, says=str(error))
        return
    from dpfewshot.backends.conformance import CHECKS, examine
    from dpfewshot.backends.protocol import states_invariance

    described = backend.describe()
    yield Check("model", well=True, says=f"{described}, {backend.vocabulary_size} tokens")
    if model.backend == LLAMA_CPP:
        yield _check("llama.cpp", _library)
        if model.model is None:
            yield _check("which model", downloads.advice)
    states = states_invariance(backend)
    says = f"{'states' if states else 'does not state'} that it is batch-invariant"
    advice = remedy(model.backend, described, "claim", about_invariance=True)
    yield Check("claim", states, says, None if states else advice)
    stages()(f"running {len(CHECKS)} checks on the backend: this takes minutes with a model")
    for found in examine(backend):
        advice = remedy(model.backend, described, found.check, about_invariance=found.about_invariance)
        yield Check(found.check, found.passed, found.detail, None if found.passed else advice)


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


def _library() -> str:
    from dpfewshot.backends.llama_cpp.library import load_library
    from dpfewshot.backends.machine import processor

    library = load_library()
    if library.converts:
        return f"{library.name}, which is faster than the prebuilt one"
    gain = "reads prompts about twice as fast" if "bf16" in processor() else "may read prompts faster"
    return f"{library.name}; a compiled one {gain} on this processor: {INSTALL.format(extra='llama-cpp')}"


# ---- what to do about a failed check ---------------------------------------------------------------------

_ONE_BY_ONE: Final = (
    "set decode_batch = 1 in [model] of the project file and check: dpfewshot doctor --set decode_batch=1"
)
_ANY: Final = "evaluate every prompt in its own call; otherwise no epsilon holds"

_SERVERS: Final[Mapping[str, str]] = {
    "llama-server": (
        "start it with one slot, without prompt cache and flash attention: "
        "llama-server -m MODEL.gguf --parallel 1 --no-cache-prompt --flash-attn off"
    ),
    "vllm": (
        "start it with one sequence at a time, without prefix caching: "
        "vllm serve MODEL --max-logprobs -1 --max-num-seqs 1 --no-enable-prefix-caching"
    ),
}
"""By a word in the backend's description of itself."""

_BY_CHECK: Final[Mapping[str, str]] = {
    "claim": "set batch_invariant only if every check passes; until then no epsilon holds",
    "sample prompts": "tokenize any plain ASCII text without raising",
    "text": "detokenize must return what tokenize got, for all printable ASCII characters: no clean-up of "
    "spaces, no special tokens added",
    "special tokens": "turn off the parsing of special tokens in tokenize",
    "vocabulary": "turn off the parsing of special tokens in tokenize, and name end tokens from 0 to V-1",
    "end tokens": "end_token_ids must be tokens that end the model's text, and never occur inside one",
    "shapes": "return float32 of shape (prompts, support or V), in the support's order",
    "support": "take the log-softmax over the whole vocabulary first, then the support's columns",
    "normalisation": "take the log-softmax over the whole vocabulary, before temperature, bias and penalties",
    "empty prompt": "answer an empty prompt with a row of NaN, or like any other prompt",
    "long prompt": "answer a prompt of more than context_tokens with a row of NaN; never cut it, never raise",
    "prefix reuse": "do not use what an earlier call left behind",
    "concurrency": "hold a lock around the model",
    "load": "answer each prompt as if it were alone, however long it waits; a queue or quota fails them all",
    "closing": "let close() be called twice, and raise BackendError afterwards",
}


def remedy(backend: str, described: str, check: str, *, about_invariance: bool) -> str:
    """Advice in one line for a check that failed, by the value of --backend and its description of itself."""
    if about_invariance:
        for word, recipe in _SERVERS.items():
            if word in described.lower():
                return recipe
        if backend in {LLAMA_CPP, HUGGING_FACE} and check in {"claim", "block invariance"}:
            return _ONE_BY_ONE
    return _BY_CHECK.get(check, _ANY)


# ---- demo ------------------------------------------------------------------------------------------------

KEPT_FOR: Final = 45
"""M of the draws that the demo's backend keeps: a quarter of the memory of the default."""

TEXTS: Final = 3
MAX_TOKENS: Final = 24
PROMPT_TOKENS: Final = 3_400
"""Of a demonstration: two cores finish so many in a minute."""

NEXT_STEPS: Final = """
Next steps:
  your own records   {0} init tickets.csv    (offers a better model)
                     {0} plan
                     {0} generate"""


@click.command()
@takes("epsilon", "model", from_file=False, epsilon={"default": 4.0})
@quiet_option
def demo(*, project: Project, as_json: bool) -> None:
    """Generate a private demonstration for each of three labels of 1,500 made-up support tickets.

    \b
    Example:
      dpfewshot demo
    """
    started, tell = time.monotonic(), stages()
    backend = open_backend(project.model, prompts=KEPT_FOR)
    tell("planning")
    synthesizer = demo_synthesizer(backend, epsilon=project.budget.epsilon)
    if not as_json:
        reader = "a language model" if project.model.model else "a small trial model (expect clumsy texts)"
        click.echo(f"1,500 made-up support tickets, read by {reader}, on this machine only")
        click.echo(synthesizer.describe() + "\n")
    tell("generating")
    demonstrations = synthesizer.generate_all(
        on_demonstration=None if as_json else lambda one: say(f"[{one.label}] {one.text}\n")
    )
    spent = synthesizer.spent
    if as_json:
        document = {"plan": synthesizer.plan.as_dict(), "demonstrations": demonstrations.to_lines()}
        click.echo(json.dumps({**document, "spent": asdict(spent)}))
        return
    # by its name only where the shell finds it
    program = "dpfewshot" if shutil.which("dpfewshot") else os.path.relpath(sys.argv[0])
    click.echo(
        f"spent: {spend_text(spent)}, in {time.monotonic() - started:.0f} s\n"
        f"{secrets_in(demonstrations)}\n"
        f"You may publish these lines, or use them in prompts to any model, without limit.\n"
        f"{NEXT_STEPS.format(program)}"
    )


def secrets_in(demonstrations: Iterable[Demonstration]) -> str:
    """How many order numbers and addresses the texts repeat: the tickets are made up, so anybody may know."""
    from dpfewshot.sample_data import secrets, support_tickets

    texts = " ".join(one.text.lower() for one in demonstrations)
    found = sum(secret.lower() in texts for secret in secrets(support_tickets()))
    return f"{found or 'None'} of the tickets' order numbers and e-mail addresses is in them"


def demo_synthesizer(backend: LogprobBackend, *, epsilon: float = 4.0) -> Synthesizer:
    """The demo's synthesizer: planned, with work for a minute on two cores (docs/decisions/defaults.md)."""
    from dpfewshot.mechanisms import PublicCentred
    from dpfewshot.planning.population import default_delta
    from dpfewshot.planning.settings import Settings
    from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
    from dpfewshot.synthesizer import Synthesizer

    tickets = support_tickets()
    return Synthesizer(
        SUPPORT_TICKETS,
        tickets,
        backend,
        budget=PrivacyBudget(epsilon=epsilon, delta=default_delta(None, tickets)),
        mechanism=PublicCentred(),
        labels=(SUPPORT_TICKETS.labels or ())[:TEXTS],
        max_tokens=MAX_TOKENS,
        settings=Settings(prompt_token_limit=PROMPT_TOKENS, record_token_cap=32),
    )
