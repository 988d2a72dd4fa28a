"""The shares of a real run's time, for bench/backends.py: the language model, its backend, and the rest."""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, PromptBlock, packaged_model_path
from dpfewshot.backends.protocol import Logprobs, Tokens

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
    """The `llama_cpp` module, with a clock on the functions that evaluate."""

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
        self.append, self.close = block.append, block.close

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """See `PromptBlock.next_token_logprobs`."""
        with self._clock.running():
            return self._block.next_token_logprobs(support)


class TimedLlamaCpp(LlamaCpp):
    """llama.cpp with clocks on the library, on blocks and on opening them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(packaged_model_path(), **settings)
        self._loaded.library = self.library = TimedLibrary(self._loaded.library)
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
        dpf.BudgetLedger.open(url).create("trec", dpf.PrivacyBudget(epsilon=4, delta=1e-5))
        synthesizer = dpf.Synthesizer(
            dpf.tasks.TREC,
            records,
            backend,
            budget=dpf.PrivacyBudget(epsilon=4, delta=1e-5),
            prompts_per_draw=prompts,
            max_tokens=tokens,
            tokens_per_draw=every,
            labels=["Location"],
            ledger=url,
            dataset="trec",
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


def heaviest(backend: LlamaCpp, records: list[dpf.Record], count: int) -> list[tuple[str, int, float]]:
    """The package's most expensive functions beside answering, with what they call.

    Args:
        backend: the model.
        records: TREC's.
        count: functions to return.

    Returns:
        Name, calls and seconds under the profiler, which overstates small functions.
    """
    profile = cProfile.Profile()
    profile.runcall(generate, backend, records, 20, 5, 1)
    stats = pstats.Stats(profile).get_stats_profile()
    package = Path(dpf.__file__).parent
    found = [
        (f"{Path(one.file_name).stem}.{name}", int(one.ncalls.split("/")[0]), one.cumtime)
        for name, one in stats.func_profiles.items()
        if Path(one.file_name).is_relative_to(package)
        and not Path(one.file_name).is_relative_to(package / "backends")
        and one.cumtime < stats.total_tt / 2  # more than half: a function that waits for the model
    ]
    return sorted(found, key=lambda entry: -entry[2])[:count]
