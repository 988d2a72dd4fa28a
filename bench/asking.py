"""Ways of asking a model for next tokens, which take turns on the same prompts: in process, and a llama-server.

bench/backends.py and bench/peers compare them. `python -m bench.asking MODEL SLOTS THREADS` serves: it prints a
llama-server's address, and ends when its standard input is closed.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import dpfewshot as dpf
from bench.vectors import DATA_SETS
from dpfewshot.account.draws import Terms
from dpfewshot.account.reservation import Reservation
from dpfewshot.backends import LlamaCpp
from dpfewshot.backends.llama_cpp.model import KVStreams, Row
from dpfewshot.backends.protocol import PromptBlock, Tokens, closing_block
from dpfewshot.backends.streams.pool import FULL_DUMMY
from dpfewshot.mechanisms import Draws, Gaussian, Release, RowChange
from dpfewshot.prompts.writer import Body, PromptWriter

TOP_K = 100
SIGMA = 0.9

Subsets = Sequence[Sequence[Body]]


LABELS = {"TREC": "Location", "AG News": "World"}
"""The data sets of bench/vectors.py that are asked about, and a label of each."""


class Inputs:
    """One data set of `LABELS` as a model's tokens.

    Attributes:
        prompts: the pieces of the label's prompts.
        released: so many tokens of held-out texts. Every way of asking releases them, so that all evaluate the same
            prompts.
    """

    def __init__(self, name: str, folder: Path, backend: LlamaCpp, tokens: int) -> None:
        self.name = name
        chosen, label = DATA_SETS[name], LABELS[name]
        writer = PromptWriter(chosen.task, backend, record_token_cap=100)
        self.prompts = writer.for_label(label)
        records, held_out = (
            [record for record in dpf.read_records(folder / file) if record.label == label]
            for file in (chosen.train, chosen.test)
        )
        self._bodies: list[Body] = [writer.body(record) for record in records]
        texts = (backend.tokenize(f" {record.text}") for record in held_out)
        self.released = list(itertools.islice(itertools.chain.from_iterable(texts), tokens))

    @property
    def population(self) -> int:
        """n, the records of the label."""
        return len(self._bodies)

    def draw(self, number: int, prompts: int, records_per_prompt: int) -> list[list[Body]]:
        """M subsets of N records each, the same for equal numbers: a bench's draw, not a private one."""
        size = records_per_prompt
        drawn = random.Random(number).sample(self._bodies, prompts * size)
        return [drawn[start : start + size] for start in range(0, len(drawn), size)]

    def suffixes(self, subsets: Sequence[Sequence[Body]], released: Sequence[int]) -> list[list[int]]:
        """The rest of each subset's prompt after the prefix, with the released tokens."""
        written = (self.prompts.suffix(subset, list(released)) for subset in subsets)
        return [suffix for suffix in written if suffix is not None]


@dataclass(frozen=True)
class Step:
    """One released token: its cost, and the mean of the prompts' probabilities on the public support.

    Attributes:
        seconds: from the public prompt to the token.
        evaluated: tokens that the language model evaluated, dummies left out.
        mean: by token id, normalised over the support.
    """

    seconds: float
    evaluated: int
    mean: dict[int, float]


class InProcess:
    """The steps of `dpfewshot.generation.token_loop`, with the draws and the released tokens given."""

    def __init__(self, backend: LlamaCpp) -> None:
        self._backend = backend

    def fresh(self, inputs: Inputs, subsets: Subsets, position: int) -> Step:
        """The token at `position` ≥ 1, on a draw of its own."""
        released = inputs.released[:position]
        with self._public(inputs, position + 1) as public:
            for token in released[:-1]:
                public.append(token)
            public.next_token_logprobs()  # as the step before left it
            with _Watch() as watch:
                public.append(released[-1])
                row = public.next_token_logprobs()[0]
                suffixes = inputs.suffixes(subsets, released)
                with closing_block(self._backend, inputs.prompts.prefix, suffixes, 1) as private:
                    mean = self._step(row, private, _release(len(subsets), 1))
        return Step(watch.seconds, watch.evaluated, mean)

    def block(self, inputs: Inputs, subsets: Subsets, tokens: int) -> list[Step]:
        """Every token of a demonstration of T = R tokens, on one draw."""
        release = _release(len(subsets), tokens)
        steps = []
        with self._public(inputs, tokens) as public:
            suffixes = inputs.suffixes(subsets, [])
            with closing_block(self._backend, inputs.prompts.prefix, suffixes, tokens) as private:
                for token in inputs.released[:tokens]:
                    with _Watch() as watch:
                        mean = self._step(public.next_token_logprobs()[0], private, release)
                        public.append(token)
                        private.append(token)
                    steps.append(Step(watch.seconds, watch.evaluated, mean))
        return steps

    def _public(self, inputs: Inputs, tokens: int) -> AbstractContextManager[PromptBlock]:
        prompts = inputs.prompts
        return closing_block(self._backend, prompts.prefix, [prompts.public_suffix], tokens, public=True)

    @staticmethod
    def _step(public_row: NDArray[np.float32], private: PromptBlock, release: Release) -> dict[int, float]:
        support = release.support(public_row, frozenset())
        logprobs = np.ascontiguousarray(private.next_token_logprobs(support))
        unpaid = Reservation.make(None, Terms(None, None, 1, 1, SIGMA, {}))
        release.token(logprobs, public_row[support], unpaid.draw())
        return _mean(support, np.exp(logprobs.astype(np.float64)))


class Server:
    """A llama-server, asked as Tang et al.'s published code asks.

    First the public prompt, for its 100 likeliest tokens. Then every private prompt in a request of
    its own, with a bias of 100 on those tokens, so that the answer is the distribution over them.
    Requests are sent at once and wait for each other on as many connections, kept alive, as the
    server has slots: prompts that it evaluates at a time. With `cache_prompt`, which is the server's
    default, a slot may reuse earlier prompts.
    """

    def __init__(self, model: Path, slots: int, threads: int, *, cache_prompt: bool) -> None:
        self._serving = ExitStack()
        url = self._serving.enter_context(served(str(model), slots, threads))
        self._address = url.split("//")[-1]
        self._cache_prompt = cache_prompt
        self._connections = threading.local()
        self._pool = ThreadPoolExecutor(slots)

    def fresh(self, inputs: Inputs, subsets: Subsets, position: int) -> Step:
        """The token at `position`, from one request a prompt."""
        released = inputs.released[:position]
        started = time.perf_counter()
        public = [*inputs.prompts.prefix, *inputs.prompts.public_suffix, *released]
        likeliest = self._ask({"prompt": public, "n_probs": TOP_K})
        support = [one["id"] for one in likeliest["completion_probabilities"][0]["top_logprobs"]]
        asked = [
            {
                "prompt": [*inputs.prompts.prefix, *suffix],
                "n_probs": TOP_K,
                "logit_bias": [[token, 100.0] for token in support],
                "post_sampling_probs": True,
            }
            for suffix in inputs.suffixes(subsets, released)
        ]
        answers = list(self._pool.map(self._ask, asked))
        rows = np.array([_row(answer, support) for answer in answers])
        mean = _mean(support, rows)
        noisy = rows.sum(axis=0) + np.random.default_rng().normal(0, SIGMA, len(support))
        int(np.argmax(noisy))
        evaluated = sum(answer["timings"]["prompt_n"] for answer in [likeliest, *answers])
        return Step(time.perf_counter() - started, evaluated, mean)

    def _ask(self, what: dict[str, Any]) -> Any:
        """One request for one token, at temperature 1 from the 100 likeliest."""
        sampling = {"temperature": 1.0, "top_k": TOP_K, "top_p": 1.0, "min_p": 0.0}
        body = {"n_predict": 1, "cache_prompt": self._cache_prompt, **sampling, **what}
        reply = self._reply(json.dumps(body))
        answer = json.loads(reply.read())
        if reply.status != 200:  # noqa: PLR2004 - OK
            raise SystemExit(f"llama-server answered {reply.status}: {answer}")
        return answer

    def _reply(self, body: str) -> HTTPResponse:
        """The reply on this thread's connection, which is reopened if the server closed it as idle."""
        if not hasattr(self._connections, "open"):
            self._connections.open = HTTPConnection(self._address, timeout=300)
        connection: HTTPConnection = self._connections.open
        try:
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            return connection.getresponse()
        except (BrokenPipeError, ConnectionResetError):
            connection.close()
            return self._reply(body)

    def close(self) -> None:
        """Ends the process."""
        self._pool.shutdown()
        self._serving.close()


class _Watch:
    """Seconds and tokens of a stretch of work."""

    seconds = 0.0
    evaluated = 0

    def __enter__(self) -> Self:
        self._before, self._lock = time.perf_counter(), threading.Lock()
        extend, step = KVStreams.extend, KVStreams.step

        def extend_counted(streams: KVStreams, stream: int, start: int, tokens: Tokens) -> Row:
            self._add(len(tokens) if stream != FULL_DUMMY else 0)
            return extend(streams, stream, start, tokens)

        def step_counted(
            streams: KVStreams, first: int, tokens: Sequence[int], positions: Sequence[int], active: int
        ) -> list[Row]:
            self._add(active)
            return step(streams, first, tokens, positions, active)

        self._counted = patch.multiple(KVStreams, extend=extend_counted, step=step_counted)
        self._counted.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._counted.stop()
        self.seconds = time.perf_counter() - self._before

    def _add(self, tokens: int) -> None:
        with self._lock:  # lanes count at the same time
            self.evaluated += tokens


def _release(prompts: int, tokens: int) -> Release:
    return Gaussian(TOP_K).start(Draws(0.1, 1, tokens, prompts, RowChange.ADDED), SIGMA)


def _row(answer: Any, support: Sequence[int]) -> list[float]:
    found = {one["id"]: one["prob"] for one in answer["completion_probabilities"][0]["top_probs"]}
    return [found.get(token, 0.0) for token in support]


def _mean(support: Sequence[int], rows: NDArray[np.float64]) -> dict[int, float]:
    mean = (rows / rows.sum(axis=1, keepdims=True)).mean(axis=0)
    return dict(zip(support, mean.tolist(), strict=True))


@contextmanager
def served(model: str, slots: int, threads: int) -> Iterator[str]:
    """The URL of a llama-server in a process of its own, which ends with the block."""
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "bench.asking", model, str(slots), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = next(line for line in process.stdout or () if line.startswith("address "))
        yield line.removeprefix("address ").strip()
    finally:
        process.kill()
        process.wait()


def serve(model: str, slots: int, threads: int) -> None:
    """Serves, with 512 tokens of context a slot and llama-server's defaults otherwise."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = 512 * slots
    parameters.n_parallel = slots
    parameters.kv_unified = slots > 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.n_gpu_layers = 0
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)
    print(f"address {server.listening_address}", flush=True)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
