"""The options that choose a backend, and what `doctor` says of the one that they name."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from dpfewshot import backends
from dpfewshot.backends import Scripted
from dpfewshot.backends.conformance import CHECKS
from dpfewshot.cli.doctor import remedy
from dpfewshot.cli.models import Model, open_backend
from dpfewshot.cli.options import takes
from dpfewshot.cli.project import Project
from dpfewshot.errors import BackendError
from tests.support.commands import Run

SECRET = "swordfish"


def test_the_packaged_model_has_a_name() -> None:
    assert Model(model="packaged") == Model()
    assert Model(backend="hugging-face", model="packaged").model == "packaged"  # a folder


BACKENDS = """
import numpy as np
from dpfewshot.backends import Scripted

LETTERS = [*map(chr, range(32, 127)), "\\n"]

class Sound(Scripted):
    def __init__(self):
        super().__init__(LETTERS, lambda _: [1 / 96] * 96)

class Leaky(Sound):
    def describe(self):
        return "vLLM 0.11 at http://gpu:8000"

    def next_token_logprobs(self, prompts, support=None):
        return super().next_token_logprobs(prompts, support) - np.float32(1e-6) * len(prompts)

class Humble(Sound):
    def __init__(self):
        super().__init__()
        self.batch_invariant = False
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in, with backends of one's own."""
    (tmp_path / "own_backends.py").write_text(BACKENDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "own_backends", raising=False)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What the backends of other extras were made with, in place of making them."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in (("OpenAICompatible", "servers.openai_compatible"), ("HuggingFace", "hugging_face")):

        def make(name: str = name, **arguments: Any) -> Scripted:
            found[name] = arguments
            return Scripted(["a"], lambda _: [1.0])

        stub = SimpleNamespace(**{name: make})
        monkeypatch.setitem(sys.modules, f"dpfewshot.backends.{module}", stub)  # type: ignore[arg-type]
    return found


Chosen = Callable[..., object]


@pytest.fixture
def choose() -> Chosen:
    """The backend that a command line names."""

    made: list[object] = []

    @click.command()
    @takes(Model)
    def command(*, project: Project, as_json: bool) -> None:  # noqa: ARG001 - every command has it
        made.append(open_backend(project.model, prompts=25))

    def call(*arguments: str) -> object:
        command.main(arguments, standalone_mode=False)
        return made[-1]

    return call


def test_a_server_or_its_replicas_and_hugging_face(choose: Chosen, made: dict[str, dict[str, Any]]) -> None:
    urls = ("http://one/v1", "http://two/v1")
    way = ("--set=proxy=http://proxy:3128", "--set=ca_bundle=authority.pem", f"--set=base_url={list(urls)}")
    choose("--backend", "openai", "--model", "m", *way)
    assert made["OpenAICompatible"] == {
        "proxy": "http://proxy:3128",
        "ca_bundle": "authority.pem",
        "base_url": urls,
        "model": "m",
        "api_key": None,
    }
    choose("--backend", "hugging-face", "--model", "gpt2", "--set", "device=cpu", "--set", "dtype=float32")
    expected = {"model": "gpt2", "device": "cpu", "dtype": "float32"}
    assert made["HuggingFace"] == {**expected, "kept_prompts": 45}


def test_the_key_reaches_the_backend_and_no_message(
    choose: Chosen, made: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ["--backend", "openai", "--set=base_url=http://host/v1", "--model", "m", "--set=dialect=vllm"]
    monkeypatch.setenv("SERVER_KEY", SECRET)
    choose(*server, "--set", "api_key_env=SERVER_KEY")
    assert made["OpenAICompatible"]["api_key"] == SECRET
    monkeypatch.setenv("SERVER_KEY", "")
    with pytest.raises(BackendError, match="api_key_env 'SERVER_KEY': this environment variable is unset"):
        choose(*server, "--set", "api_key_env=SERVER_KEY")


def test_llama_cpp_has_room_for_nearly_every_draw(choose: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(backends, "LlamaCpp", found.update, raising=False)
    choose("--model", "model.gguf", "--set", "gpu_layers=-1", "--set", "threads=3", "--set", "weights=bf16")
    given = {"model": "model.gguf", "gpu_layers": -1, "threads": 3, "weights": "bf16"}
    assert found == {**given, "context_tokens": 256, "kept_prompts": 45}
    sizes = ("--set=kept_prompts=300", "--set=context_tokens=512", "--set=decode_batch=1")
    choose("--model", "model.gguf", *sizes)
    assert (found["kept_prompts"], found["context_tokens"], found["decode_batch"]) == (300, 512, 1)


def test_an_installed_backend_is_named_like_our_own(choose: Chosen, tmp_path: Path) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dpfewshot.backends]\ntheirs = own_backends:Sound\n")
    sys.path.append(str(tmp_path))
    assert type(choose("--backend", "theirs")).__name__ == "Sound"
    with pytest.raises(BackendError, match="theirs has no model: it takes no settings"):
        choose("--backend", "theirs", "--model", "m")
    with pytest.raises(BackendError, match="choose llama-cpp, openai, hugging-face, theirs, or package"):
        choose("--backend", "others")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--backend", "crystal-ball"],
            "unknown --backend 'crystal-ball'; choose llama-cpp, openai, hugging-face, or package.module:f",
        ),
        (["--backend", "openai", "--model", "m"], "openai needs --set base_url=..., or"),
        (["--backend", "openai"], "openai needs --set base_url=... and --model, or"),
        (["--backend", "hugging-face"], "hugging-face needs --model"),
        (["--backend", "openai", "--set", "threads=2"], "openai has no threads: it takes model, base_url"),
        (["--set", "device=cpu", "--set", "dialect=vllm"], "llama-cpp has no dialect, device"),
        (["--backend", "own_backends:Sound", "--model", "m"], "has no model: it takes no settings"),
        (["--backend", "own_backends:Other"], "has no 'Other'"),
    ],
)
def test_what_does_not_go_together_is_refused(choose: Chosen, arguments: list[str], says: str) -> None:
    with pytest.raises(BackendError) as raised:
        choose(*arguments)
    assert says in str(raised.value)


def test_doctor_passes_a_sound_backend_of_ones_own(command: Run) -> None:
    doctor = ["doctor", "--backend", "own_backends:Sound", "--json"]
    status, out, err = command(*doctor)
    report = json.loads(out)
    assert (status, report["well"]) == (0, True)
    assert [check["check"] for check in report["checks"]][-len(CHECKS) :] == list(CHECKS)
    assert {check["remedy"] for check in report["checks"]} == {None}
    assert "this takes minutes with a model" in err
    status, _, err = command(*doctor, "--quiet")
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("converts", "flags", "says"),
    [
        (True, "avx2 avx512_bf16", "this one, which is faster than the prebuilt one"),
        (
            False,
            "avx2 avx512_bf16",
            "this one; a compiled one reads prompts about twice as fast on this processor: ",
        ),
        (False, "avx2", "this one; a compiled one may read prompts faster on this processor: "),
    ],
)
def test_doctor_names_the_library_of_llama_cpp_and_the_faster_one(
    command: Run, monkeypatch: pytest.MonkeyPatch, converts: bool, flags: str, says: str
) -> None:
    library = SimpleNamespace(name="this one", converts=converts)
    monkeypatch.setattr("dpfewshot.backends.llama_cpp.library.load_library", lambda: library)
    monkeypatch.setattr("dpfewshot.backends.machine.processor", lambda: flags)
    letters = [*map(chr, range(32, 127)), "\n"]
    sound = Scripted(letters, lambda _: [1 / 96] * 96)
    monkeypatch.setattr("dpfewshot.cli.doctor.open_backend", lambda *_, **__: sound)
    status, out, _ = command("doctor", "--model", "packaged")
    assert (status, f"ok   llama.cpp: {says}" in out) == (0, True)
    assert ("pip install '.[llama-cpp]'" in out) is not converts
    assert "ok   which model: the packaged model is for trying out" in out


def test_doctor_names_a_leaky_server_and_says_how_to_start_it(command: Run) -> None:
    status, out, _ = command("doctor", "--backend", "own_backends:Leaky")
    assert (status, "ok   model: vLLM 0.11 at http://gpu:8000, 96 tokens" in out) == (2, True)
    assert "FAIL batch invariance: " in out
    assert "what to do: start it with one sequence at a time" in out
    assert "--max-num-seqs 1" in out


def test_doctor_fails_a_backend_that_claims_nothing(command: Run) -> None:
    status, out, _ = command("doctor", "--backend", "own_backends:Humble", "--json")
    (ill,) = (check for check in json.loads(out)["checks"] if not check["well"])
    assert (status, "does not state" in ill["says"]) == (2, True)
    assert "no epsilon holds" in ill["remedy"]


def test_remedies_are_for_the_backend_that_failed() -> None:
    leak = {"about_invariance": True}
    assert "--set decode_batch=1" in remedy("llama-cpp", "llama.cpp", "block invariance", **leak)
    assert "--parallel 1 --no-cache-prompt" in remedy("openai", "llama-server", "batch invariance", **leak)
    assert "--set decode_batch=1" in remedy("hugging-face", "cuda", "claim", **leak)
    assert "no epsilon holds" in remedy("a:b", "Own", "batch invariance", **leak)
    for check in CHECKS:
        assert remedy("a:b", "Own", check, about_invariance=False)
