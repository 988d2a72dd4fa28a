"""The in-process backend's cost: prints the tables of docs/results/backends.md.

    python -m bench.backends DATA [--only speed]

DATA is a folder with `trec.train.jsonl.gz`, `trec.test.jsonl.gz`, `agnews.train_subset.jsonl.gz` and
`agnews.test.jsonl.gz`. Needs the extra `bench` (llama-server comes from xllamacpp). Some ten minutes on two cores that
are otherwise idle; progress goes to standard error. The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import dpfewshot as dpf
from bench.asking import LABELS, InProcess, Inputs, Server, Step
from bench.records import peak
from dpfewshot.backends import LlamaCpp, PromptBlock, packaged_model_path
from dpfewshot.backends.conformance import random_tokens
from dpfewshot.backends.llama_cpp.library import load_library
from dpfewshot.backends.protocol import Logprobs, Tokens

SHORT, LONG = 15, 40
"""T, released tokens of a demonstration."""

PROMPTS = 20
"""M, in sections that use a single one."""

REST_TARGET = 0.02
MEMORY_TARGET = 1.5


# Against one request a prompt and a token


POSITIONS = {SHORT: (7,), LONG: (7, 32)}
"""The tokens that are measured for a demonstration of T. A step's work grows linearly with its position,
and the mean of these positions is that of 0 to T-1."""

FRESH_TARGET = 2.0
BLOCK_TARGETS = {SHORT: 6.0, LONG: 10.0}

PUBLISHED = "llama-server, four slots, prompt cache"
INVARIANT = "llama-server, one slot, no prompt cache"
REPEATED = f"{PUBLISHED}, one draw (R = T)"
FRESH = "in process, a fresh draw every token"
BLOCK = "in process, one draw (R = T)"

SERVERS = (PUBLISHED, INVARIANT)


def verdict(holds: bool) -> str:
    """The word for it in the tables."""
    return "holds" if holds else "MISSED"


def spread(values: Sequence[float]) -> str:
    """The median, with the minimum and the maximum."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def speed(options: argparse.Namespace) -> Iterator[str]:
    """In process against one request a prompt and a token."""
    if find_spec("xllamacpp") is None:
        raise SystemExit("llama-server is not installed: pip install '.[bench]'")
    with ExitStack() as stack:
        model = packaged_model_path()
        form = "bf16" if load_library().converts else "file"
        backend = stack.enter_context(
            LlamaCpp(model, context_tokens=256, threads=options.threads, kept_prompts=75, weights=form)
        )
        yield f"In process: {backend.describe()}.\n"
        ways: Ways = {
            PUBLISHED: stack.enter_context(closing(Server(model, 4, options.threads, cache_prompt=True))),
            INVARIANT: stack.enter_context(closing(Server(model, 1, options.threads, cache_prompt=False))),
        }
        ways[FRESH] = InProcess(backend)
        for name in LABELS:
            yield from compared(Inputs(name, options.data, backend, LONG), ways, options.rounds)


Ways = dict[str, Server | InProcess]

Round = dict[tuple[str, int], Step]
"""Cost of a demonstration of T tokens, by way of asking and T."""


def compared(inputs: Inputs, ways: Ways, rounds: int) -> Iterator[str]:
    """One data set: a table of all ways of asking, and the targets."""
    apart = warmed(inputs, ways)
    measured = [one_round(inputs, ways, number) for number in range(rounds)]
    yield f"### {inputs.name}, M = {PROMPTS}, N = 1\n"
    for tokens in (SHORT, LONG):
        yield f"| T = {tokens}, asked | seconds | tokens evaluated | times a fresh draw in process | times one draw in process |"
        yield "|---|---|---|---|---|"
        for name in (*ways, REPEATED, BLOCK):
            steps = [one[name, tokens] for one in measured]
            factors = " | ".join(spread(factor(measured, tokens, name, way)) for way in (FRESH, BLOCK))
            evaluated = statistics.mean(step.evaluated for step in steps)
            yield f"| {name} | {spread([step.seconds for step in steps])} | {evaluated:,.0f} | {factors} |"
        yield ""
    yield from targets(measured)
    yield (
        "By how much the mean probability of a token differs at most from that in process: "
        f"{', '.join(f'{name} {most:.3f}' for name, most in apart.items())}.\n"
    )


def targets(measured: Sequence[Round]) -> Iterator[str]:
    """The targets, against the server as it comes, and with batch-invariant settings."""
    yield f"| as fast as one request a prompt | T | target | {' | | '.join(SERVERS)} | |"
    yield f"|---|---|---|{'---|---|' * len(SERVERS)}"
    for tokens in (SHORT, LONG):
        for way in (FRESH, BLOCK):
            target = FRESH_TARGET if way == FRESH else BLOCK_TARGETS[tokens]
            found = [factor(measured, tokens, server, way) for server in SERVERS]
            cells = (f"{spread(one)} | {verdict(statistics.median(one) >= target)}" for one in found)
            yield f"| {way} | {tokens} | at least {target:g} | {' | '.join(cells)} |"
    yield ""


def factor(measured: Sequence[Round], tokens: int, name: str, way: str) -> list[float]:
    """The ratio of two ways' times in each round."""
    return [one[name, tokens].seconds / one[way, tokens].seconds for one in measured]


def warmed(inputs: Inputs, ways: Ways) -> dict[str, float]:
    """Runs every way of asking once, untimed, and returns the largest difference of a mean probability from ours."""
    subsets = inputs.draw(-1, PROMPTS, 1)
    means = {name: way.fresh(inputs, subsets, SHORT // 2).mean for name, way in ways.items()}
    ours = means.pop(FRESH)
    return {
        name: max(abs(ours[token] - other[token]) for token in ours.keys() & other.keys())
        for name, other in means.items()
    }


def one_round(inputs: Inputs, ways: Ways, number: int) -> Round:
    """Runs every way of asking once on the same draws, in alternating order."""
    draws = {position: inputs.draw(100 * number + position, PROMPTS, 1) for position in POSITIONS[LONG]}
    found: Round = {}
    names = list(ways) if number % 2 else list(reversed(ways))
    for name in names:
        steps = {position: ways[name].fresh(inputs, drawn, position) for position, drawn in draws.items()}
        found |= _demonstrations(name, steps)
    again = {
        position: ways[PUBLISHED].fresh(inputs, drawn, position + 1) for position, drawn in draws.items()
    }
    found |= _demonstrations(REPEATED, again)
    way = ways[FRESH]
    assert isinstance(way, InProcess)  # noqa: S101 - for mypy
    of_block = way.block(inputs, draws[POSITIONS[LONG][0]], LONG)
    found |= {(BLOCK, tokens): _sum(of_block[:tokens]) for tokens in POSITIONS}
    print(f"{inputs.name}, round {number}", file=sys.stderr)
    return found


def _demonstrations(name: str, steps: dict[int, Step]) -> Round:
    """Extrapolates the steps at the measured positions to whole demonstrations."""
    return {
        (name, tokens): Step(
            tokens * statistics.mean(steps[position].seconds for position in positions),
            round(tokens * statistics.mean(steps[position].evaluated for position in positions)),
            {},
        )
        for tokens, positions in POSITIONS.items()
    }


def _sum(steps: Sequence[Step]) -> Step:
    return Step(sum(step.seconds for step in steps), sum(step.evaluated for step in steps), {})


# The shares of a real run's time

EVALUATION = {"llama_decode", "llama_get_logits_ith"}
"""The functions of llama.cpp in which the language model is computed; the second waits for the first."""


@dataclass
class Clock:
    """The seconds measured so far: those in which at least one thread was in a block of `running`."""

    seconds: float = 0.0
    _started: float = 0.0
    _threads: int = 0
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the clock run in the block."""
        with self._lock:
            if not self._threads:
                self._started = time.perf_counter()
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self.seconds += time.perf_counter() - self._started


class TimedLibrary:
    """llama.cpp's functions, with a clock on those that evaluate."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.clock = Clock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        return self._timed(found) if name in EVALUATION else found

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            with self.clock.running():
                return function(*arguments)

        return timed


class TimedBlock:
    """A block with a clock on its answers."""

    def __init__(self, block: PromptBlock, clock: Clock) -> None:
        self._block = block
        self._clock = clock
        self.append, self.keep, self.close = block.append, block.keep, block.close

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """See `PromptBlock.next_token_logprobs`."""
        with self._clock.running():
            return self._block.next_token_logprobs(support)


class TimedLlamaCpp(LlamaCpp):
    """llama.cpp with clocks on the library, on blocks and on opening them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(packaged_model_path(), **settings)
        self._model.library = self.library = TimedLibrary(self._model.library)  # type: ignore[assignment]  # timed
        self.clock = Clock()

    def open_block(  # type: ignore[override]  # the block is timed
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> TimedBlock:
        """See `BlockBackend.open_block`. A block of several tokens allocates its streams at the first."""
        with self.clock.running():
            block = super().open_block(prefix, suffixes, tokens, public=public)
        return TimedBlock(block, self.clock)


@dataclass(frozen=True)
class Shares:
    """One demonstration, from the constructor to its text, and the shares of its wall time.

    Attributes:
        tokens: released.
        seconds: wall time.
        model: share of llama.cpp.
        backend: share of the rest of the backend: batches filled, logits into log-probabilities.
        rest: share of all else: reading prompts into tokens, plan, accounting, ledger, draws, aggregation, noise.
    """

    tokens: int
    seconds: float
    model: float
    backend: float
    rest: float


def generate(backend: LlamaCpp, records: list[dpf.Record], prompts: int, tokens: int, every: int) -> int:
    """Generates a demonstration of TREC's Location with a ledger in a file, and returns its token count."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'budget.db'}"
        budget = dpf.PrivacyBudget(epsilon=4, delta=1e-5)
        synthesizer = dpf.Synthesizer(
            dpf.tasks.TREC,
            records,
            backend,
            budget=budget,
            settings=dpf.Settings(prompts_per_draw=prompts, tokens_per_draw=every),
            max_tokens=tokens,
            labels=["Location"],
            account=dpf.open_account(url, "trec", create=budget),
        )
        return synthesizer.generate("Location").token_count


def shares(
    backend: TimedLlamaCpp, records: list[dpf.Record], prompts: int, tokens: int, every: int
) -> Shares:
    """The shares of one run."""
    before = backend.library.clock.seconds, backend.clock.seconds
    started = time.perf_counter()
    released = generate(backend, records, prompts, tokens, every)
    seconds = time.perf_counter() - started
    model = backend.library.clock.seconds - before[0]
    answering = backend.clock.seconds - before[1]
    return Shares(released, seconds, model / seconds, (answering - model) / seconds, 1 - answering / seconds)


# Memory

BODY_TOKENS = 160
"""Tokens of a record; the instruction, the label and the fields make it 200."""


@dataclass(frozen=True)
class Setting:
    """What `LlamaCpp` is loaded with, and M."""

    context_tokens: int
    kept_prompts: int
    weights: str
    prompts: int


SETTINGS = (
    Setting(context_tokens=256, kept_prompts=15, weights="file", prompts=15),
    Setting(context_tokens=256, kept_prompts=90, weights="file", prompts=80),
    Setting(context_tokens=256, kept_prompts=90, weights="bf16", prompts=80),
    Setting(context_tokens=512, kept_prompts=75, weights="file", prompts=80),
)


def use(setting: Setting) -> None:
    """Generates four tokens, and prints this program's peak."""
    text = " ".join(f"word {number}" for number in range(BODY_TOKENS))
    records = [dpf.Record(f"{number} {text}", "Location") for number in range(setting.prompts)]
    with LlamaCpp(
        packaged_model_path(),
        context_tokens=setting.context_tokens,
        kept_prompts=setting.kept_prompts,
        weights=setting.weights,
    ) as backend:
        synthesizer = dpf.Synthesizer(
            dpf.tasks.TREC,
            records,
            backend,
            budget=dpf.PrivacyBudget(epsilon=4, delta=1e-5),
            max_tokens=4,
            labels=["Location"],
            settings=dpf.Settings(
                prompts_per_draw=setting.prompts, tokens_per_draw=4, record_token_cap=BODY_TOKENS
            ),
        )
        synthesizer.generate("Location")
    print(peak() / 1024)


def gigabytes(setting: Setting) -> float:
    """The peak of the setting's generation in a process of its own, GiB."""
    arguments = [sys.executable, "-m", "bench.backends", "memory of", str(SETTINGS.index(setting))]
    return float(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)  # noqa: S603


# The two libraries of llama.cpp

COMPILED = Path(".venv/llama-cpp").resolve()
"""Where `make compiled` puts llama-cpp-python."""

LIBRARIES = (("prebuilt", "file"), ("compiled", "file"), ("compiled", "bf16"))
"""A library and the form of its weights. The first is what the others are compared with."""

READ, STEPPED = 64, 16
"""Tokens of the prompt that is read, and streams that then take a step together."""


def measure_library(which: str, weights: str) -> None:
    """For each line of input, prints the processor seconds of a prompt and of a step, on one thread."""
    if which == "prebuilt":
        sys.modules["llama_cpp"] = None  # type: ignore[assignment]  # as where it is not installed
    from dpfewshot.backends.llama_cpp.model import LlamaModel

    with ExitStack() as stack:
        model = stack.enter_context(closing(LlamaModel(packaged_model_path(), 1, weights=weights)))
        if model.library.converts != (which == "compiled"):
            raise SystemExit("llama-cpp-python is not installed: make compiled")
        streams = stack.enter_context(closing(model.open_streams(STEPPED, 256, 1)))
        prompt = random_tokens("library", READ, model.vocabulary_size)
        for stream in range(STEPPED):
            streams.extend(stream, 0, prompt)
        print(model.library.name, flush=True)
        for _ in sys.stdin:
            times = [time.process_time()]
            streams.extend(0, 0, prompt)
            times.append(time.process_time())
            streams.step(0, prompt[:STEPPED], [READ] * STEPPED, STEPPED)
            times.append(time.process_time())
            print(times[1] - times[0], times[2] - times[1], flush=True)


def libraries(options: argparse.Namespace) -> Iterator[str]:
    """Both libraries of llama.cpp, taking turns; processor seconds, which neighbours change little."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(COMPILED), os.environ.get("PYTHONPATH", "")]),
    }
    with ExitStack() as stack:
        running = []
        for which, weights in LIBRARIES:
            command = [sys.executable, "-m", "bench.backends", "library", which, weights]
            program = subprocess.Popen(  # noqa: S603
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            running.append(stack.enter_context(program))
        names = [_line(program) for program in running]
        rounds = [[_asked(program) for program in running] for _ in range(1 + 8 * options.rounds)][1:]
        for program in running:
            program.stdin.close()  # type: ignore[union-attr]  # a pipe
    yield "| library | weights | a prompt of 64 tokens, s | times the first | a step of 16 prompts, s | times the first |"
    yield "|---|---|---|---|---|---|"
    for place, (name, (_, weights)) in enumerate(zip(names, LIBRARIES, strict=True)):
        cells = []
        for kind in (0, 1):
            cells.append(spread([one[place][kind] for one in rounds]))
            cells.append(spread([one[place][kind] / one[0][kind] for one in rounds]))
        yield f"| {name} | {weights} | {' | '.join(cells)} |"
    yield ""


def _line(program: subprocess.Popen[str]) -> str:
    line: str = program.stdout.readline()  # type: ignore[union-attr]  # a pipe
    if not line:
        raise SystemExit("a library of llama.cpp could not be measured: make compiled")
    return line.strip()


def _asked(program: subprocess.Popen[str]) -> tuple[float, float]:
    program.stdin.write("\n")  # type: ignore[union-attr]  # a pipe
    first, second = map(float, _line(program).split())
    return first, second


# Sections


def rest(options: argparse.Namespace) -> Iterator[str]:
    """The time that a real run spends outside of the language model."""
    yield "| M | R | tokens | seconds | llama.cpp | backend beside it | all the rest | target | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    records = dpf.read_records(options.data / "trec.train.jsonl.gz")
    with TimedLlamaCpp(context_tokens=256, threads=options.threads) as backend:
        generate(backend, records, 1, 1, 1)  # imports are lazy
        for prompts, tokens, every in ((20, SHORT, 1), (80, 5, 1), (80, SHORT, SHORT)):
            found = shares(backend, records, prompts, tokens, every)
            yield (
                f"| {prompts} | {every} | {found.tokens} | {found.seconds:.1f} | {found.model:.2%} | {found.backend:.2%} "
                f"| {found.rest:.2%} | at most {REST_TARGET:.0%} | {verdict(found.rest <= REST_TARGET)} |"
            )
    yield ""


def memory(_: argparse.Namespace) -> Iterator[str]:
    """The largest resident set of a generation."""
    yield "| context_tokens | kept_prompts | weights | M, prompts of 200 tokens | largest resident set, GiB | target | |"
    yield "|---|---|---|---|---|---|---|"
    for setting in SETTINGS:
        found = gigabytes(setting)
        yield (
            f"| {setting.context_tokens} | {setting.kept_prompts} | {setting.weights} | {setting.prompts} "
            f"| {found:.2f} | below {MEMORY_TARGET} | {verdict(found < MEMORY_TARGET)} |"
        )
    yield ""


SECTIONS = {"speed": speed, "libraries": libraries, "rest": rest, "memory": memory}


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with the data sets")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all ways of asking")
    parser.add_argument("--threads", type=int, default=2, help="worker threads, of the server as well")
    chosen = parser.parse_args()
    missed = False
    for name in chosen.only or SECTIONS:
        for line in SECTIONS[name](chosen):
            print(line, flush=True)
            missed |= "MISSED" in line
    return int(missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory of"]:
        use(SETTINGS[int(sys.argv[2])])
    elif sys.argv[1:2] == ["library"]:
        measure_library(*sys.argv[2:])
    else:
        sys.exit(main())
