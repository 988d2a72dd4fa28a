"""A model by its name on the hub, which a stand-in serves, or in Ollama, from a made-up folder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.backends.llama_cpp.files import local_file
from tests.support.servers import scripted

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


def hub(path: str, _: object) -> tuple[int, dict[str, str], bytes]:
    """The two answers that a download needs: a file's facts, and its content."""
    if path == f"/org/repository/resolve/main/{Path(NAME).name}":
        return 200, {"X-Repo-Commit": "0" * 40, "ETag": '"1234"'}, CONTENT
    return 404, {"X-Error-Code": "EntryNotFound"}, b""


def test_a_name_is_fetched_from_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    fetch = [sys.executable, "-c", FETCH]
    with scripted(hub) as server:
        of_hub = {"HF_ENDPOINT": server.base_url.removesuffix("/v1"), "HF_HOME": str(tmp_path)}
        environment = os.environ | of_hub | {"HF_HUB_DISABLE_XET": "1"}
        told = subprocess.check_output(
            fetch, env=environment, cwd=tmp_path, text=True, stderr=subprocess.PIPE
        )
    first, refusal = told.splitlines()
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


OLLAMA = "application/vnd.ollama.image."
MODEL = f"{OLLAMA}model"
DIGEST = hashlib.sha256(b"a model").hexdigest()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def fetched(folder: Path, place: str, *kinds: str) -> Path:
    """Lay out a model as Ollama does, and return the path of its weights."""
    manifest = folder / "manifests" / place
    manifest.parent.mkdir(parents=True)
    layers = [{"mediaType": kind, "digest": f"sha256:{DIGEST}", "size": 7} for kind in kinds]
    layers.append({"mediaType": f"{OLLAMA}license", "digest": "sha256:1"})
    docker = "application/vnd.docker"
    config = {"mediaType": f"{docker}.container.image.v1+json", "digest": "sha256:0"}
    facts = {"schemaVersion": 2, "mediaType": f"{docker}.distribution.manifest.v2+json", "config": config}
    manifest.write_text(json.dumps({**facts, "layers": layers}))
    return folder / "blobs" / f"sha256-{DIGEST}"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("smollm2", "registry.ollama.ai/library/smollm2/latest"),
        ("qwen2.5:1.5b-instruct-q4_K_M", "registry.ollama.ai/library/qwen2.5/1.5b-instruct-q4_K_M"),
        ("someone/model:tag", "registry.ollama.ai/someone/model/tag"),
        ("hf.co/someone/model-GGUF:Q4_K_M", "hf.co/someone/model-GGUF/Q4_K_M"),
        ("localhost:5000/someone/model", "localhost:5000/someone/model/latest"),
    ],
)
def test_a_name_is_the_file_that_its_manifest_names(folder: Path, name: str, place: str) -> None:
    blob = fetched(folder, place, MODEL)
    assert local_file(f"ollama:{name}") == blob


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["", "a b", "../x", "a/../b", "a/b/c/d", "x:", "/etc/passwd", "a:b:c"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(dpf.BackendError, match="is not a name of Ollama's"):
        local_file(f"ollama:{name}")


def test_what_was_not_fetched_says_how_to_fetch_it(folder: Path) -> None:
    with pytest.raises(dpf.BackendError, match=r"ollama pull smollm2") as raised:
        local_file("ollama:smollm2")
    assert str(folder) in str(raised.value)
    manifest = folder / "manifests" / "registry.ollama.ai" / "library" / "smollm2" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{")
    with pytest.raises(dpf.BackendError, match="ollama pull"):
        local_file("ollama:smollm2")


@pytest.mark.parametrize("kinds", [[], [MODEL, MODEL], [MODEL, f"{OLLAMA}adapter"], [f"{OLLAMA}tensor"]])
def test_a_model_that_is_not_one_file_is_refused(folder: Path, kinds: list[str]) -> None:
    fetched(folder, "registry.ollama.ai/library/odd/latest", *kinds)
    with pytest.raises(dpf.BackendError, match="is not one GGUF file"):
        local_file("ollama:odd")


def test_without_the_variable_it_is_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    blob = fetched(tmp_path / ".ollama" / "models", "registry.ollama.ai/library/smollm2/latest", MODEL)
    assert local_file("ollama:smollm2") == blob


@pytest.mark.model
def test_llama_cpp_runs_the_file(folder: Path) -> None:
    """The file has no ending .gguf there."""
    packaged = dpf.backends.packaged_model_path()
    blob = fetched(folder, "registry.ollama.ai/library/smollm2/135m", MODEL)
    blob.parent.mkdir()
    blob.symlink_to(packaged)
    prompt, rows = "Where is my parcel?", []
    settings = {"context_tokens": 64, "kept_prompts": 1, "decode_batch": 1, "weights": "file"}
    for model in ("ollama:smollm2:135m", packaged):
        backend = dpf.backends.LlamaCpp(model, **settings)  # type: ignore[arg-type]
        rows.append(backend.next_token_logprobs([backend.tokenize(prompt)]))
        backend.close()
    assert np.array_equal(*rows)
