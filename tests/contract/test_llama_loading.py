"""LlamaCpp as it is loaded and closed: settings, files and GPUs."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext

import pytest

from dpfewshot.backends import LlamaCpp, conformance, packaged_model_path
from dpfewshot.backends.llama_cpp.model import load_library
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.blocks import answers, same_bits
from tests.support.llama_prompts import wide

FIXTURES = (wide,)
pytestmark = pytest.mark.model


def test_a_long_neighbour_does_not_change_a_short_prompt(wide):
    """llama.cpp attends over as many cells as the longest of a call needs; dummies make that all."""
    short, long = wide.tokenize("Rome is"), wide.tokenize("Rome is " * 150)
    assert len(long) > 256
    alone = answers(wide, [], [short], [100, 200])
    beside = answers(wide, [], [long, short, [1, 2]], [100, 200])
    waves = answers(wide, [], [*[[5]] * 7, long, short], [100, 200])
    for one, two, three in zip(alone, beside, waves, strict=True):
        assert same_bits(one, two[1:2])
        assert same_bits(one, three[-1:])
        assert same_bits(two[0], three[-2])


@pytest.mark.parametrize(
    "settings",
    [
        {"decode_batch": 12},
        {"decode_batch": 0},
        {"context_tokens": 0},
        {"threads": 0},
        {"kept_prompts": -1},
        {"decode_batch": 128},
        {"gpu_layers": -1},
        {"context_tokens": 1_000_000},
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings, monkeypatch):
    monkeypatch.setattr(load_library(), "llama_supports_gpu_offload", lambda: False)
    with pytest.raises(BackendError, match=next(iter(settings))):
        LlamaCpp(packaged_model_path(), **settings)


def test_files_that_are_no_model_are_refused(tmp_path):
    text, damaged = tmp_path / "model.gguf", tmp_path / "damaged.gguf"
    text.write_text("not a model")
    damaged.write_bytes(b"GGUF" + bytes(64))
    for path, message in (
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path, "is a directory"),
        (text, "is not GGUF"),
        (damaged, "cannot load"),
    ):
        with pytest.raises(BackendError, match=message):
            LlamaCpp(path)


def test_llama_cpp_prints_nothing(tmp_path, capfd):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(BackendError):
        LlamaCpp(damaged)
    with LlamaCpp(packaged_model_path(), context_tokens=256, threads=1) as loaded:
        loaded.next_token_logprobs([[1]])
        whole = hashlib.sha256(packaged_model_path().read_bytes()).hexdigest()  # as sha256sum prints it
        assert loaded.model_identity == f"sha256:{whole}"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("holds", [True, False])
def test_on_a_gpu_the_suite_decides_what_the_backend_claims(monkeypatch, holds):
    """A build that says it has a GPU; what it computes with makes no difference to who decides."""
    library = load_library()
    monkeypatch.setattr(library, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(conformance, "sample_prompts", lambda _: ([5], [[6], [7, 8]], [9]))
    found = conformance.Finding("block invariance", passed=holds, detail="", about_invariance=True)
    if not holds:
        monkeypatch.setattr(conformance, "check_block_invariance", lambda *_, **__: found)
    settings = {"context_tokens": 256, "kept_prompts": 7, "decode_batch": 8, "gpu_layers": -1}
    expected = nullcontext() if holds else pytest.warns(RuntimeWarning, match="one by one")
    with expected, LlamaCpp(packaged_model_path(), **settings) as loaded:
        assert loaded.batch_invariant is holds
        assert inside.decode_batch(loaded) == (8 if holds else 1)
        assert "GPU" in loaded.describe()


def test_a_closed_backend_refuses():
    loaded = LlamaCpp(packaged_model_path())
    block = loaded.open_block([1], [[2]], 2)
    assert conformance.check_closing(loaded, [[1]]).passed
    block.close()
    for use in (lambda: loaded.tokenize("a"), block.next_token_logprobs, lambda: block.append(1)):
        with pytest.raises(BackendError, match="closed"):
            use()
