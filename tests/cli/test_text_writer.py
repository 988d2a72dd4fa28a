"""A project file's `text_writer`: what is said of it, and whose texts the commands write."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path

import pytest

from dpfewshot.backends.servers.client import server_address
from tests.cli.test_init import edit, folder, made
from tests.generation.test_text_writer import answer
from tests.support.commands import Run
from tests.support.servers import scripted

__all__ = ["folder", "made"]

SENT = "large at {} writes the texts: it is sent the task and released counts, and no record"


def test_a_named_model_writes_the_texts_of_all_commands(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfewshot.backends.chat_writer._SECONDS", 0.1)
    number, bodies = count(1), []

    def page(_path: str, body: dict[str, object]) -> object:
        bodies.append(body)
        return answer(" ".join("my" if next(number) >> bit & 1 else "parcel" for bit in range(6)))

    with scripted(page) as server:
        url = server.base_url
        edit(top_k="# top_k", max_tokens="max_tokens = 8", shots="shots = 1")
        edit(text_writer=f'text_writer = "large"\ntext_writer_url = "{url}"')
        status, out, err = made("plan")
        assert (status, SENT.format(server_address(url).netloc) in err) == (0, True), err
        assert re.search(r"Account: (my|parcel)( my| parcel){5}\n", out), out
        status, _, err = made("generate")
        assert (status, SENT.format(server_address(url).netloc) in err) == (0, True), err
        lines = [json.loads(line) for line in Path("demos.jsonl").read_text().splitlines()]
        assert len(lines) == len({line["text"] for line in lines}) == 5
        assert {line["certificate"]["model"] for line in lines} == {"claimed:large"}
        assert made("replace", "2")[0] == 0
        assert made("verify")[0] == 0
    assert all(body["model"] == "large" for body in bodies)
    status, _, err = made("replace", "3")  # nobody answers
    assert (status, "does not answer" in err) == (2, True), err
    assert len(Path("demos.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"text_writer": 'text_writer_url = "http://localhost/v1"'}, "text_writer_url needs text_writer"),
        ({"text_writer": 'text_writer = "m"'}, "the variable OPENAI_API_KEY is unset or empty"),
        (
            {"text_writer": 'text_writer = "m"\ntext_writer_url = "x"'},
            "text_writer_url or its key",
        ),
        ({"text_writer": 'text_writer = "m"', "mechanism": 'mechanism = "gaussian"'}, "none are counted"),
    ],
)
def test_what_contradicts_itself_is_refused(
    made: Run, lines: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    edit(top_k="# top_k", **lines)
    status, _, err = made("plan")
    assert status
    assert message in err
