"""The core among processes and threads: no noise is shared, and long calls let other threads run."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from dpfewshot import _core

SCALE = 8 * 2**27

FORK = """
import os, sys
from dpfewshot import _core

_core.rounded_normals(8 * 2**27, 10)  # whatever is kept between calls is there now
read, write = os.pipe()
child = os.fork()
draws = [_core.rounded_normals(8 * 2**27, 64), _core.uniform_integers(2**63, 64)]
if child == 0:
    os.write(write, b"".join(d.tobytes() for d in draws))
    os._exit(0)
os.waitpid(child, 0)
other = os.read(read, 1 << 16)
mine = b"".join(d.tobytes() for d in draws)
assert len(other) == len(mine) == 1024
words = {mine[i : i + 8] for i in range(0, 1024, 8)} & {other[i : i + 8] for i in range(0, 1024, 8)}
sys.exit(len(words))
"""


def test_parent_and_child_share_no_noise() -> None:
    """A real fork: of 128 draws with over 2^30 likely values each, not one is the same."""
    assert subprocess.run([sys.executable, "-c", FORK], check=False, timeout=60).returncode == 0


def test_threads_at_once_share_no_noise() -> None:
    start = threading.Barrier(4)

    def draw(_thread: int) -> list[int]:
        start.wait()
        return _core.uniform_integers(2**63, 20_000).tolist()

    with ThreadPoolExecutor(4) as pool:
        drawn = [word for words in pool.map(draw, range(4)) for word in words]
    assert len(set(drawn)) == len(drawn)


def test_threads_at_once_compute_the_same_sums() -> None:
    rows = np.random.default_rng(0).normal(0, 4, (40, 5_000)).astype(np.float32)
    centre = _core.sum_of_probabilities(rows[:1])
    wanted = _core.sum_around(rows, centre, 0.3)
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda _: _core.sum_around(rows, centre, 0.3), range(40)))
    assert all((found == wanted).all() for found in sums)


def ticks_during(call: Callable[[int], object], size: int) -> tuple[float, list[float]]:
    """How long the call took, and when another thread ran meanwhile, as shares of it."""
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    call(size)
    took = time.perf_counter() - start
    done.set()
    thread.join()
    return took, [(moment - start) / took for moment in ticks]


def progress_during(call: Callable[[int], object], size: int) -> int:
    """How often another thread ran in the middle half of a call that is long enough to tell."""
    while True:
        took, ticks = ticks_during(call, size)
        if took > LONG_ENOUGH:
            return sum(0.25 < share < 0.75 for share in ticks)
        size *= 2  # a faster machine than the last one


LONG_ENOUGH = 0.15  # seconds
CENTRE = _core.sum_of_probabilities(np.linspace(0, 5, 16_384, dtype=np.float32)[np.newaxis])


def zeros(rows: int) -> NDArray[np.float32]:
    return np.zeros((rows, len(CENTRE)), dtype=np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "size"),
    [
        (lambda size: _core.rounded_normals(SCALE, size), 4_000_000),
        (lambda size: _core.poisson_subsets(size, 1, 2, 7), 6_000_000),
        (lambda size: _core.sum_around(zeros(size), CENTRE, 0.1), 12_000),
        (lambda size: _core.log_softmax(zeros(size)), 3_000),
        (
            lambda size: _core.noisy_sum_of_probabilities(np.zeros((2, size), dtype=np.float32), SCALE),
            4_000_000,
        ),
    ],
    ids=["normals", "subsets", "sums", "log-softmax", "release"],
)
def test_other_threads_run_during_a_long_call(call: Callable[[int], object], size: int) -> None:
    assert progress_during(call, size) >= 3


@pytest.mark.slow
def test_control_a_call_that_holds_the_lock_is_seen() -> None:
    assert progress_during(lambda size: pow(3, size), 3_000_000) < 3
