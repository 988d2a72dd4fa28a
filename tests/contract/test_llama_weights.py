"""Converted weights: the same model, the same guarantees, other kernels; and which form is fastest."""

from __future__ import annotations

import ctypes
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.backends.llama_cpp import model
from dpfewshot.backends.llama_cpp.model import FILE_TYPES, converted
from dpfewshot.errors import BackendError

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


@pytest.mark.model
def test_an_unknown_type_is_refused():
    with pytest.raises(BackendError, match=r"unknown weights 'q3'; choose auto, file, bf16, f16, q8_0"):
        LlamaCpp(packaged_model_path(), weights="q3")


def library_that_writes(content, status=0):
    class Parameters(ctypes.Structure):
        _fields_ = (("allow_requantize", ctypes.c_bool), ("ftype", ctypes.c_int))

    def quantize(_, target, __):
        Path(target.decode()).write_bytes(content)
        return status

    return SimpleNamespace(
        llama_model_quantize_default_params=Parameters,
        llama_model_quantize=quantize,
        **dict.fromkeys(FILE_TYPES.values(), 1),
    )


def test_a_failed_conversion_says_what_to_check(temporary):
    with (
        pytest.raises(BackendError, match=r"cannot convert .* to f16: is there room"),
        converted(library_that_writes(b"half", status=1), Path("m.gguf"), "f16"),
    ):
        pass
    assert list(temporary.iterdir()) == []


def test_a_process_that_is_killed_leaves_no_converted_file(temporary):
    with converted(library_that_writes(b"whole"), Path("m.gguf"), "f16") as file:
        assert file.read_bytes() == b"whole"
        assert list(temporary.iterdir()) == [], "the file has no name that could stay"


def test_where_open_files_have_no_names_a_folder_is_deleted(temporary, monkeypatch):
    monkeypatch.setattr(model, "OPEN_FILES", temporary / "nowhere")
    with converted(library_that_writes(b"whole"), Path("m.gguf"), "f16") as file:
        assert file.read_bytes() == b"whole"
    assert list(temporary.iterdir()) == []


def test_without_a_folder_for_temporary_files_it_says_so(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "nowhere"))
    with (
        pytest.raises(BackendError, match=r"No such file.*TMPDIR"),
        converted(library_that_writes(b""), Path("m.gguf"), "f16"),
    ):
        pass
