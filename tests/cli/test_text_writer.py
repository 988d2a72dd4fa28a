"""A project file's `text_writer`: what is said of it, and whose texts the commands write."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.backends.servers.client import server_address
from dpfewshot.sample_data import SUPPORT_TICKETS
from tests.cli.test_init import edit, folder, made
from tests.generation.test_text_writer import answer
from tests.support.commands import Run
from tests.support.servers import scripted

__all__ = ["folder", "made"]

NAME, URL = "text_writer = 'm'", "text_writer_url = 'http://localhost/v1'"

SENT = "large at {} writes the texts: it is sent the task, noisy counts once they are paid for, and earlier"


def test_a_named_model_writes_the_texts_of_all_commands(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfewshot.backends.chat_writer._SECONDS", 0.1)
    number, bodies = count(1), []

    def page(_path: str, body: dict[str, object]) -> object:
        bodies.append(body)
        return answer(" ".join("my" if next(number) >> bit & 1 else "parcel" for bit in range(6)))

    with scripted(page) as server:
        url = server.base_url
        edit(top_k="# top_k", max_tokens="max_tokens = 8", shots="shots = 1")
        edit(text_writer='text_writer = "large"', text_writer_url=f'text_writer_url = "{url}"')
        status, out, err = made("plan")
        assert (status, SENT.format(server_address(url).netloc) in err) == (0, True), err
        assert re.search(r"Account: (my|parcel)( my| parcel){5}\n", out), out
        status, _, err = made("generate")
        assert (status, SENT.format(server_address(url).netloc) in err) == (0, True), err
        lines = [json.loads(line) for line in Path("demos.jsonl").read_text().splitlines()]
        assert len(lines) == len({line["text"] for line in lines}) == 5
        assert {line["certificate"]["model"] for line in lines} == {"writer:large"}
        assert made("replace", "2")[0] == 0
        sent = Path("sent.txt").read_text()
        assert sent.count("Write 6 texts") + sent.count("Write 18 texts") == len(bodies)
        assert all(body["messages"][0]["content"] in sent for body in bodies)
        assert made("verify")[0] == 0
        assert made("report")[0] == 0
        assert "model <code>writer:large</code>, which read no record" in Path("report.html").read_text()
        status, out, err = made("plan", "--output", "free.jsonl")
        assert (status, "free.jsonl has them, at epsilon 0" in out) == (0, True), err
        free = dpf.Demonstrations.from_jsonl("free.jsonl")
        assert [one.label for one in free] == sorted(SUPPORT_TICKETS.labels or ())
        assert {(one.certified, one.spent) for one in free} == {(True, dpf.PrivacySpend(0, 0))}
        assert made("prompt", "--demonstrations", "free.jsonl", "Where is it?")[0] == 0
        assert "cannot write free.jsonl: File exists" in made("plan", "--output", "free.jsonl")[2]
    assert all(body["model"] == "large" for body in bodies)
    out = made("plan", "--set", "epsilon=1")[1]  # nobody answers
    assert "without records is not known: " in out
    assert "--output" not in out
    status, _, err = made("replace", "3")
    assert (status, "does not answer" in err) == (2, True), err
    assert len(Path("demos.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"text_writer_url": URL}, "text_writer and text_writer_url go together"),
        ({"text_writer": NAME}, "text_writer and text_writer_url go together"),
        (
            {"text_writer": f"{NAME}\ntext_writer_key_env = 'NO'", "text_writer_url": URL},
            "variable NO is unset",
        ),
        ({"text_writer": NAME, "text_writer_url": "text_writer_url = 'x'"}, "text_writer_url or its key"),
        (
            {"text_writer": NAME, "text_writer_url": URL, "mechanism": "mechanism = 'gaussian'"},
            "none are counted",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(made: Run, lines: dict[str, str], message: str) -> None:
    edit(top_k="# top_k", **lines)
    status, _, err = made("plan")
    assert status
    assert message in err
