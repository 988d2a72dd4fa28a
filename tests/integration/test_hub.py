"""A model by its name on the hub: a stand-in on this machine serves it, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dpfewshot.backends.llama_cpp.files import local_file
from dpfewshot.errors import MissingExtra

NAME = "org/repository/small.Q4_1.gguf"
CONTENT = b"GGUF and the rest of a model"
FETCH = f"""
from dpfewshot.backends.llama_cpp.files import local_file
from dpfewshot.errors import BackendError
print(local_file({NAME!r}).read_bytes() == {CONTENT!r})
try:
    local_file("org/repository/other.gguf")
except BackendError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """The two answers that a download needs: a file's facts, and its content."""

    def do_HEAD(self) -> None:
        there = self.path == f"/org/repository/resolve/main/{Path(NAME).name}"
        self.send_response(200 if there else 404)
        if there:
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", '"1234"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(CONTENT) if there else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_name_is_fetched_from_the_hub(endpoint: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FETCH],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    first, refusal = done.stdout.splitlines()
    assert first == "True"
    assert "'org/repository/other.gguf' is no file here" in refusal
    assert "NotFound" in refusal


@pytest.mark.parametrize("model", ["model.gguf", "/no/such/model.gguf", "./a/b/model.gguf", "a/b/model.bin"])
def test_other_texts_are_paths(model: str) -> None:
    assert local_file(model) == Path(model)
    assert local_file(Path(NAME)) == Path(NAME)


def test_a_file_or_folder_that_is_here_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    assert local_file(NAME) == Path(NAME)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[hub\]'"):
        local_file(NAME)
