"""`dpfewshot model` on a package index of made-up wheels, which a server on this machine serves."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.backends.downloads import DOWNLOADS, Download, advice, recommended
from dpfewshot.backends.llama_cpp.files import local_file
from dpfewshot.errors import BackendError
from tests.support.commands import Run, Terminal

PIECES = [b"GGUF" + bytes(300_000), 40 * b"the rest of the model"]
WHOLE = b"".join(PIECES)
PACKAGES = tuple(f"made-up-part{number}==1.0" for number in (1, 2))
NAME = "qwen-1.5b"


class Index(SimpleHTTPRequestHandler):
    """Lists the wheels of a folder, as a package index does, and notes which it gave."""

    given: list[str]

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.given.append(Path(self.path).name.partition("-")[0])
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def publish(folder: Path, number: int) -> None:
    """Put the wheel of one piece into an index."""
    name = f"made_up_part{number}"
    place = folder / f"made-up-part{number}"
    place.mkdir()
    with zipfile.ZipFile(place / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('nothing of a model is run')")
        wheel.writestr(f"{name}/piece.bin", PIECES[number - 1])
        facts = f"{name}-1.0.dist-info"
        needs = "Requires-Dist: a-package-that-nobody-has"
        wheel.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}\n")
        wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{facts}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an index that pip is told of; a model in two pieces; a user without files."""
    folder = tmp_path / "index"
    folder.mkdir()
    for variable in [one for one in os.environ if one.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    digest = hashlib.sha256(WHOLE).hexdigest()
    made_up = Download("Made-up", "Its licence", "made-up.gguf", len(WHOLE), digest, 10**9, PACKAGES)
    monkeypatch.setitem(DOWNLOADS, NAME, made_up)  # type: ignore[arg-type]  # a dict, which nobody else changes
    Index.given = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=str(folder))) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder
        server.shutdown()


def left(tmp_path: Path) -> list[str]:
    """The files of the user's folder of models, and of folders in it."""
    return sorted(one.name for one in (tmp_path / "cache/dpfewshot/models").rglob("*") if one.is_file())


def test_a_model_is_fetched_once_and_found_by_its_name(index: Path, tmp_path: Path, command: Run) -> None:
    publish(index, 1)
    publish(index, 2)
    status, out, err = command("model", "get", NAME)
    assert (status, err) == (0, "Made-up, 0 MB, up to 1.0 GB of memory, licence Its licence\n")
    assert out.endswith(f"now give --model {NAME}\n")
    assert local_file(NAME).read_bytes() == WHOLE
    assert left(tmp_path) == ["made-up.gguf"]
    assert command("model", "get", NAME)[0] == 0
    assert Index.given == ["made_up_part1", "made_up_part2"]
    listed = json.loads(command("model", "--json")[1])["models"]
    assert {one["name"]: one["path"] for one in listed}[NAME] == str(local_file(NAME))
    assert f"{NAME}: {err.strip()}, on this machine\n" in command("model")[1]
    Path(NAME).touch()  # a file here comes before the name
    assert local_file(NAME) == Path(NAME)


def test_what_came_before_an_interruption_is_kept(index: Path, tmp_path: Path, command: Run) -> None:
    publish(index, 1)
    status, _, err = command("model", "get", NAME, "--to", "here")
    assert status == 2
    assert "pip did not get made-up-part2==1.0 (ERROR: " in err
    Path("here/made-up.pieces/of-a-killed-process").mkdir()
    publish(index, 2)
    status, out, _ = command("model", "get", NAME, "--to", "here", "--json")
    assert (status, json.loads(out)["path"]) == (0, "here/made-up.gguf")
    assert Path("here/made-up.gguf").read_bytes() == WHOLE
    assert Index.given == ["made_up_part1", "made_up_part2"]
    assert left(tmp_path) == []  # all of it is in the folder that was named


def test_another_file_is_refused(
    index: Path, tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.PIECES", [PIECES[0], 40 * b"another rest"])
    publish(index, 1)
    publish(index, 2)
    status, _, err = command("model", "get", NAME)
    assert (status, "another file for qwen-1.5b, by its SHA-256: nothing is kept" in err) == (2, True)
    assert left(tmp_path) == []


def test_a_full_disk(index: Path, tmp_path: Path, command: Run) -> None:
    """Of which a limit for a file's size stands: a wheel is below it, its piece is not."""
    publish(index, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        status, _, err = command("model", "get", NAME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 2
    assert err.endswith("made-up.gguf: File too large\n")
    assert left(tmp_path) == []


def test_a_disk_with_too_little_room(index: Path, command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(index, 1)
    room = shutil.disk_usage(index)._replace(free=len(WHOLE))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    status, _, err = command("model", "get", NAME)
    assert (status, Index.given) == (2, [])
    assert "qwen-1.5b needs 1 MB of disk in " in err


@pytest.mark.usefixtures("index")
def test_without_a_network(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    status, _, err = command("model", "get", NAME)
    assert (status, "is the package index within reach?" in err) == (2, True)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("script", "says"),
    [
        (r"sys.stderr.buffer.write(b'\xe9t\xe9 \x1b[2J\n\n'); sys.exit(1)", "(\ufffdt\ufffd \\x1b[2J)"),
        ("", "(without a reason)"),
        ("open(sys.argv[-2] + '/made_up.whl', 'w')", "pip got a broken package for made-up-part1==1.0"),
    ],
)
def test_a_pip_that_fails_oddly(
    tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    for folder, program in ((tmp_path / "path/pip", script), (tmp_path / "pip", "raise SystemError")):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "__main__.py").write_text(f"import sys\n{program}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))  # the other one is in the working folder
    status, _, err = command("model", "get", NAME)
    assert (status, says in err) == (2, True), err


@pytest.mark.usefixtures("index")
def test_a_model_that_nobody_fetched_says_how(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match=r"not on this machine; run: dpfewshot model get qwen-0\.5b"):
        dpf.backends.LlamaCpp("qwen-0.5b")
    assert "run: dpfewshot model get qwen-1.5b" in command("doctor", "--model", "qwen-1.5b")[1]
    assert (
        "'gemma' is not one of 'gemma-3-270m', 'qwen-0.5b', 'qwen-1.5b'"
        in command("model", "get", "gemma")[2]
    )
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", classmethod(_no_home))
    assert "set XDG_CACHE_HOME" in command("model", "get", NAME)[2]


def _no_home(_: type[Path]) -> Path:
    raise RuntimeError


# ---- what doctor and init say ------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
def test_the_packaged_model_is_for_trying_out(monkeypatch: pytest.MonkeyPatch) -> None:
    how = f"give --model {NAME}"
    assert advice().endswith(f"dpfewshot model get {NAME}, then {how}")
    place(NAME)
    assert advice().endswith(f"far better: {how}")
    monkeypatch.setattr("dpfewshot.backends.downloads.usable_memory", lambda: 10**8)
    assert advice().endswith("this machine has too little memory for a better one")


@pytest.mark.parametrize(
    ("memory", "name"), [(4 * 10**9, "qwen-1.5b"), (2 * 10**9, "qwen-0.5b"), (10**9, None)]
)
def test_the_recommended_model_fits_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, name: str | None
) -> None:
    monkeypatch.setattr("dpfewshot.backends.downloads.usable_memory", lambda: memory)
    assert recommended() == name


INIT = ("init", "asked.jsonl", "--unit", "none", "--force")


@pytest.fixture
def asked(index: Path) -> Path:
    """The index, and a file of records."""
    rows = [{"text": f"Where is parcel {number}?", "label": "ab"[number % 2]} for number in range(40)]
    Path("asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return index


@pytest.mark.usefixtures("asked")
def test_init_takes_a_better_model_than_the_packaged_one(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = command(*INIT, "--yes")[1]
    assert f"model: {NAME}\n" in told
    assert told.endswith(f"next: dpfewshot model get {NAME}, then dpfewshot plan\n")
    assert dpf.load().project.model.model == NAME
    place(NAME)
    assert command(*INIT, "--yes")[1].endswith("next: dpfewshot plan\n")
    assert "trying out" not in command(*INIT, "--yes", "--model", "mine.gguf")[1]
    monkeypatch.setattr("dpfewshot.backends.downloads.usable_memory", lambda: 10**8)
    assert "model: packaged; the packaged model is for trying out" in command(*INIT, "--yes")[1]
    assert dpf.load().project.model.model is None


def test_init_fetches_the_model_if_somebody_agrees(
    asked: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that fails loses no answer."""
    publish(asked, 1)

    def answered(last: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.stdin", Terminal(f"\n\ny\na message\n\n\n\n\n{NAME}\n\n{last}\n"))
        status, out, err = command(*INIT)
        assert status == 0
        return out.splitlines()[-1], err

    get = (
        f"wrote dpfewshot.toml: correct what is wrong; next: dpfewshot model get {NAME}, then dpfewshot plan"
    )
    assert answered("n")[0] == get
    said, err = answered("y")
    assert (said, "warning: pip did not get made-up-part2==1" in err) == (get, True), err
    publish(asked, 2)
    said, err = answered("")
    assert said.endswith("; next: dpfewshot plan")
    assert "Fetch Made-up, 0 MB, up to 1.0 GB of memory, licence Its licence?" in err
    assert local_file(NAME).read_bytes() == WHOLE


def place(name: str) -> None:
    """Make a file that was fetched."""
    path = Path("cache/dpfewshot/models") / DOWNLOADS[name].file
    path.parent.mkdir(parents=True)
    path.touch()
