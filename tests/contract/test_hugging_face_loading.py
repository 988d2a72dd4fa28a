"""HuggingFace as it is loaded and closed: settings, models and memory that are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dpfewshot.backends.hugging_face import HuggingFace
from dpfewshot.errors import BackendError, MissingExtra
from tests.support.small_models import SMALL, folder, one_thread
from tests.support.tiny_models import SIZES, save_tiny_model

FIXTURES = (folder, one_thread)
pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode_batch": 12}, "decode_batch"),
        ({"context_tokens": 0}, "context_tokens=0"),
        ({"kept_prompts": -1}, "kept_prompts"),
        ({"context_tokens": 257}, "context_tokens=257: at most 256, the tokens that"),
        ({"device": "cuda:77"}, "no such device"),
        ({"device": "abacus"}, "no such device"),
        ({"dtype": "int8"}, "float32, bfloat16, float16"),
        ({"attention": "flash_attention_2"}, "eager, sdpa"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(folder, settings, message):
    with pytest.raises(BackendError, match=message):
        HuggingFace(folder, **{"device": "cpu", **settings})


def test_streams_that_do_not_fit_are_refused_before_there_is_a_prompt(folder, monkeypatch):
    import torch

    zeros = torch.zeros

    def full(shape, **options):
        if len(shape) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(shape, **options)

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(BackendError, match="do not fit the memory of cpu: lower kept_prompts"):
        HuggingFace(folder, **SMALL)


def test_models_that_cannot_be_evaluated_are_refused(tmp_path):
    text = tmp_path / "model.gguf"
    text.write_text("not a model")
    mamba = {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
    for model, message in (
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path, "cannot load"),
        (text, "cannot load"),
        (save_tiny_model(tmp_path / "recurrent", "Mamba", **mamba), "not a decoder-only transformer"),
        (
            save_tiny_model(tmp_path / "window", "Mistral", **SIZES, sliding_window=32),
            "at most 32, the tokens that",
        ),
    ):
        with pytest.raises(BackendError, match=message):
            HuggingFace(model, **SMALL)


def test_it_is_imported_without_pytorch_and_asks_for_its_extra(folder, monkeypatch):
    code = "import sys, dpfewshot.backends.hugging_face; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[huggingface\]'"):
        HuggingFace(folder)


def test_a_closed_backend_refuses(folder):
    loaded = HuggingFace(folder, **SMALL)
    block = loaded.open_block([1], [[2]], 2)
    loaded.close()
    loaded.close()
    for use in (lambda: loaded.tokenize("a"), block.next_token_logprobs, lambda: block.append(1)):
        with pytest.raises(BackendError, match="closed"):
            use()
