"""A model by its name in Ollama, from a made-up folder of Ollama's layout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot.backends.llama_cpp.files import local_file

MODEL = "application/vnd.ollama.image.model"
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
    manifest.write_text(
        json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
                "config": {
                    "mediaType": "application/vnd.docker.container.image.v1+json",
                    "digest": "sha256:0",
                },
                "layers": [
                    *layers,
                    {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:1"},
                ],
            }
        )
    )
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


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/../b", "a/b/c/d", "x:", "/etc/passwd", "a:b:c"])
def test_what_is_no_name_is_refused(folder: Path, name: str) -> None:
    del folder
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


@pytest.mark.parametrize(
    "kinds",
    [
        [],
        [MODEL, MODEL],
        [MODEL, "application/vnd.ollama.image.adapter"],
        ["application/vnd.ollama.image.tensor"],
    ],
)
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
