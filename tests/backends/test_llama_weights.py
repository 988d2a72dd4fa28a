"""Converted weights: the same model and guarantees, other kernels."""

from __future__ import annotations

import ctypes
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.backends.llama_cpp import backend as llama_cpp
from dpfewshot.backends.llama_cpp.library import FILE_TYPES
from dpfewshot.backends.llama_cpp.model import FILE, converted
from dpfewshot.errors import BackendError, MissingExtra

PROMPTS = ["The capital of France is", "Rome", "What country did Ponce de Leon come from ?"]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def after_a_step(backend, suffixes):
    with closing(backend.open_block([], suffixes, 2)) as block:
        block.append(5)
        return block.next_token_logprobs()


@pytest.mark.model
@pytest.mark.usefixtures("converting")
def test_converted_weights_are_the_same_model_and_leave_no_file(temporary):
    settings = {"context_tokens": 256, "kept_prompts": 7, "decode_batch": 8, "threads": 1}
    with LlamaCpp(packaged_model_path(), weights="file", **settings) as plain:
        prompts = [plain.tokenize(prompt) for prompt in PROMPTS]
        expected = plain.next_token_logprobs(prompts)
    with LlamaCpp(packaged_model_path(), weights="bf16", **settings) as loaded:
        assert list(temporary.iterdir()) == []
        found = loaded.next_token_logprobs(prompts)
        alone = after_a_step(loaded, prompts[:1])
        assert after_a_step(loaded, [prompts[2], prompts[0], prompts[1]])[1].tobytes() == alone[0].tobytes()
    np.testing.assert_allclose(np.exp(found), np.exp(expected), atol=0.1)
    assert (found != expected).any()


def library_that_writes(content, status=0):
    class Parameters(ctypes.Structure):
        _fields_ = (("allow_requantize", ctypes.c_bool), ("ftype", ctypes.c_int))

    def quantize(_, target, __):
        Path(target.decode()).write_bytes(content)
        return status

    return SimpleNamespace(
        converts=True,
        llama_model_quantize_default_params=Parameters,
        llama_model_quantize=quantize,
        **dict.fromkeys(FILE_TYPES.values(), 1),
    )


def convert(library):
    with converted(library, Path("m.gguf"), "f16"):
        pass


def test_what_cannot_be_converted_says_what_to_do_and_leaves_no_file(temporary, monkeypatch):
    with pytest.raises(MissingExtra, match=r"weights='f16' needs .*pip install '\.\[llama-cpp\]'"):
        convert(SimpleNamespace(converts=False))
    with pytest.raises(BackendError, match=r"cannot convert .* to f16: is there room"):
        convert(library_that_writes(b"half", status=1))
    assert list(temporary.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "nowhere"))
    with pytest.raises(BackendError, match=r"No such file.*TMPDIR"):
        convert(library_that_writes(b""))


def test_a_process_that_is_killed_leaves_no_converted_file(temporary):
    with converted(library_that_writes(b"whole"), Path("m.gguf"), "f16") as file:
        assert file.read_bytes() == b"whole"
        assert list(temporary.iterdir()) == [], "the file has no name that could stay"


def test_a_split_model_is_all_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    library = SimpleNamespace(files=(first,), name="1", llama_print_system_info=lambda: b"")
    monkeypatch.setattr(llama_cpp, "load_library", lambda: library)
    before = llama_cpp.build_facts(first)["model"]
    second.write_bytes(b"another")
    assert llama_cpp.build_facts(first)["model"] != before


@pytest.mark.model
def test_the_files_own_form_is_the_default() -> None:
    with LlamaCpp(packaged_model_path(), context_tokens=128, kept_prompts=7, decode_batch=8) as backend:
        assert backend.weights == FILE
        assert "weights" not in backend.describe()
