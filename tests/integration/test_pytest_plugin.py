"""`pytest --dpfewshot-backend`: in a pytest of its own, as a user has it."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpfewshot.backends.conformance import CHECKS

BACKENDS = """
from dpfewshot.backends import Scripted

LETTERS = [*map(chr, range(32, 127)), "\\n"]

class Sound(Scripted):
    def __init__(self):
        super().__init__(LETTERS, lambda _: [1 / 96] * 96)

    def close(self):
        if getattr(self, "closed", False):
            return
        self.closed = True
        self.next_token_logprobs = refuse
        print("closed once")

def refuse(*_):
    from dpfewshot.errors import BackendError
    raise BackendError("closed")

class Unnormalised(Sound):
    def next_token_logprobs(self, prompts, support=None):
        return super().next_token_logprobs(prompts, support) + 1

def absent():
    raise RuntimeError("no model here")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "backends.py").write_text(BACKENDS)
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_sound_backend_passes_one_test_a_check_beside_the_users_own(folder: Path) -> None:
    """In another order too: tests may run after the one that closes."""
    (folder / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.hookimpl(trylast=True)\n"
        "def pytest_collection_modifyitems(items):\n    items.reverse()\n"
    )
    status, out = run(folder, "--dpfewshot-backend", "backends:Sound", "-v", "-s")
    assert status == 0, out
    assert f"{len(CHECKS) + 1} passed" in out
    assert "conformance[batch invariance] PASSED" in out
    assert out.count("closed once") == 2


def test_a_failure_is_the_finding_in_one_line_and_tests_can_be_chosen(folder: Path) -> None:
    chosen = "conformance and (normalisation or shapes or closing)"
    status, out = run(folder, "--dpfewshot-backend", "backends:Unnormalised", "-k", chosen)
    assert status == 1
    assert "1 failed, 2 passed" in out
    assert "normalisation: 27 of 27 rows are not normalised" in out
    assert "Traceback" not in out


def test_without_the_option_it_is_not_there_and_loads_nothing(folder: Path) -> None:
    heavy = (
        "import sys\n\ndef test_own():\n    assert not {'numpy', 'dpfewshot.backends'} & set(sys.modules)\n"
    )
    (folder / "test_own.py").write_text(heavy)
    status, out = run(folder)
    assert status == 0, out
    assert "1 passed" in out
    assert run(folder, "-p", "no:dpfewshot")[0] == 0
