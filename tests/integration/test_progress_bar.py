"""The progress bar on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.support.processes import environment

BAR = """
from tests.support.factory import synthesizer
from tests.support.scripts import Sentence

synthesizer(Sentence(sure=0.999999), prompts_per_draw=100).generate_all()
print("done")
"""


def shown(errors: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", BAR],
        stdout=subprocess.PIPE,
        stderr=errors,
        check=True,
        timeout=120,
        env=environment(COLUMNS="140", TQDM_MININTERVAL="0"),
    )


def until_closed(terminal: int) -> str:
    pieces = []
    with (
        os.fdopen(terminal, "rb", buffering=0) as opened,
        suppress(OSError),
    ):  # how a terminal says that it ended
        while piece := opened.read(4096):
            pieces.append(piece)
    return b"".join(pieces).decode()


@pytest.mark.parametrize("size", [(24, 160), (0, 0)])
def test_the_bar_shows_texts_time_and_budget_on_a_terminal(size: tuple[int, int]) -> None:
    """A container's terminal states no size."""
    terminal, its_end = pty.openpty()
    termios.tcsetwinsize(its_end, size)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(until_closed, terminal)
        done = shown(its_end)
        os.close(its_end)
        text = reading.result()
    assert done.stdout == b"done\n"
    assert "writing for " in text
    assert re.search(r"1 of 2 texts \[\d\d:\d\d<\d\d:\d\d, epsilon (3\.99\d\d|4\.0000) for all\]", text)


def test_the_bar_is_silent_in_a_pipe() -> None:
    done = shown(subprocess.PIPE)
    assert done.stderr == b""
