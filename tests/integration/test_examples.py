"""The nightly batch and the OpenAI client, run as they stand."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.cli.application import run
from examples import nightly
from tests.support.factory import demonstration
from tests.support.scripts import TASK, Hooked, written
from tests.support.servers import scripted

# newer Pythons warn of what is tested here: a fork beside threads
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

DEMONSTRATION = demonstration(label="delivery", spent=dpf.PrivacySpend(2.0, 1e-6), token_count=5)


# ---- nightly ---------------------------------------------------------------------------------------------


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "demonstrations").mkdir()
    monkeypatch.chdir(tmp_path / "demonstrations")
    monkeypatch.setenv("DPFEWSHOT_LEDGER", "sqlite:///budget.db")
    words = shlex.split(
        next(line for line in (nightly.__doc__ or "").splitlines() if "ledger create" in line)
    )
    assert run(words[1:]) == 0
    return [*written(tmp_path), "--folder", str(tmp_path / "demonstrations")]


def spent(folder: Path) -> float:
    return dpf.open_account(f"sqlite:///{folder / 'budget.db'}", "tickets").spent.epsilon


def test_nights_add_up_until_the_budget_is_spent(arguments: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "demonstrations"
    account = dpf.open_account(f"sqlite:///{folder / 'budget.db'}", "tickets")
    for night in range(1, 3):
        assert nightly.main([*arguments, "--day", f"night {night}"], Hooked) == 0
        assert 0.1 * night < account.spent.epsilon <= 0.2 * night
    assert f"lasts for {2 + (account.plans_left or 0)}." in (nightly.__doc__ or "")
    account.change_budget(dpf.PrivacyBudget(account.spent.epsilon, 1e-5))
    assert nightly.main([*arguments, "--day", "night 1"], Hooked) == 0  # there is nothing left to do
    assert nightly.main([*arguments, "--day", "night 3"], Hooked) == nightly.BUDGET_EXCEEDED
    written = sorted(path.name for path in folder.glob("*.jsonl"))
    assert written == [f"night {night}.jsonl" for night in range(1, 3)]
    assert [
        one.label for one in dpf.Demonstrations.from_jsonl(tmp_path / "demonstrations" / written[0])
    ] == list(TASK.labels or ())


class Killed(Hooked):
    """Is killed after so many prompts, in the first text or the second."""

    def __init__(self, after: int) -> None:
        self.after = after
        super().__init__()

    def answer(self, prompt: list[int]) -> list[float]:
        if self.prompts >= self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(prompt)


@pytest.mark.parametrize("prompts", [10, 120])
def test_a_night_that_was_killed_resumes(arguments: list[str], tmp_path: Path, prompts: int) -> None:
    command = [*arguments, "--day", "night"]
    child = os.fork()
    if child == 0:
        nightly.main(command, lambda: Killed(prompts))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    before = spent(tmp_path / "demonstrations")
    assert nightly.main(command, Hooked) == 0
    assert before <= spent(tmp_path / "demonstrations") <= 0.2
    assert len(dpf.Demonstrations.from_jsonl(tmp_path / "demonstrations" / "night.jsonl")) == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_lost_ledger_ends_the_night(arguments: list[str], tmp_path: Path, first: bool) -> None:
    folder = tmp_path / "demonstrations"
    if not first:
        assert nightly.main([*arguments, "--day", "night 1"], Hooked) == 0
    left = {path for path in folder.iterdir() if not path.name.startswith("budget.db")}
    for path in set(folder.iterdir()) - left:
        path.unlink()
    with pytest.raises(dpf.LedgerError, match=r"budget\.db' does not exist, so it has no account"):
        nightly.main([*arguments, "--day", "night 2"], Hooked)
    assert set(folder.iterdir()) == left


# ---- OpenAI's client -------------------------------------------------------------------------------------


def answer(_path: str, asked: dict[str, Any]) -> tuple[int, dict[str, str], dict[str, object]]:
    """The label of the demonstration whose text was asked for: it must have been shown."""
    *messages, last = asked["messages"][1:]
    shown = {
        text["content"]: label["content"] for text, label in zip(messages[::2], messages[1::2], strict=True)
    }
    message = {"role": "assistant", "content": shown[last["content"]]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return 200, {}, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def test_the_client_shows_the_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai", reason="openai is not installed: pip install '.[examples]'")
    from examples import openai_client

    asked: list[tuple[str, Any]] = []
    path = tmp_path / "demos.jsonl"
    dpf.Demonstrations([dataclasses.replace(DEMONSTRATION, label="Number")]).to_jsonl(path)
    with scripted(lambda *request: asked.append(request) or answer(*request)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        openai_client.main(str(path), "trec", "m", "my parcel is late")
    assert capsys.readouterr().out == "Number\n"
    [(page, body)] = asked
    assert page == "/v1/chat/completions"
    assert body["messages"][0]["content"].startswith("Classify the questions")
    assert len(body["messages"]) == 4
