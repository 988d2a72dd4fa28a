"""Converted weights: the same model and guarantees, other kernels; and which form is fastest here."""

from __future__ import annotations

import ctypes
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.backends.factory import making_for_worker
from dpfewshot.backends.llama_cpp import backend as llama_cpp
from dpfewshot.backends.llama_cpp import fastest, model
from dpfewshot.backends.llama_cpp.model import FILE, FILE_TYPES, converted
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


def test_a_library_that_cannot_convert_says_which_one_can():
    library = SimpleNamespace(converts=False)
    with (
        pytest.raises(MissingExtra, match=r"weights='f16' needs .*pip install '\.\[llama-cpp\]'"),
        converted(library, Path("m.gguf"), "f16"),
    ):
        pass


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


WEIGHTS = 1000
FACTS = {"model": "00"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 4.5 bits a weight, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(WEIGHTS * 9 // 16))
    return file


class Machine:
    """Takes the given seconds for each form; a form that is not named cannot be converted to."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], memory: int = 2**40
    ) -> None:
        self.measured: list[str] = []
        self.seconds = seconds
        monkeypatch.setattr(fastest, "load_library", lambda: SimpleNamespace(converts=True))
        monkeypatch.setattr(fastest, "LlamaModel", self.load)
        monkeypatch.setattr(fastest, "_seconds", lambda model: self.seconds[model.form])
        monkeypatch.setattr(fastest, "usable_memory", lambda: memory)

    def load(self, _: Path, __: int, weights: str = FILE) -> SimpleNamespace:
        self.measured.append(weights)
        if weights not in self.seconds:
            raise BackendError("no room")
        return SimpleNamespace(form=weights, weights=weights, weight_count=WEIGHTS, close=lambda: None)


def test_the_fastest_form_is_measured_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"file": 1.0, "bf16": 0.4, "f16": 0.5, "q8_0": 0.45})
    assert [fastest.fastest_weights(path, 2, FACTS) for _ in range(2)] == ["bf16", "bf16"]
    assert machine.measured == ["file", "bf16", "f16", "q8_0"]
    machine.seconds["bf16"] = 2.0
    assert fastest.fastest_weights(path, 1, FACTS) == "q8_0", "other threads are another choice"


def test_a_little_gain_is_not_worth_the_conversion(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, {"file": 1.0, "bf16": 0.9, "f16": 0.9, "q8_0": 0.9})
    assert fastest.fastest_weights(path, 2, FACTS) == FILE


def test_a_form_that_the_disk_cannot_hold_is_left_out_this_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, {"file": 1.0, "f16": 0.5})
    assert fastest.fastest_weights(path, 2, FACTS) == "f16"
    machine.seconds |= {"bf16": 0.4, "q8_0": 0.5}
    assert fastest.fastest_weights(path, 2, FACTS) == "bf16"


def test_an_unknown_form_in_the_cache_counts_as_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, dict.fromkeys(["file", *FILE_TYPES], 1.0))
    monkeypatch.setattr(fastest, "kept_verdict", lambda *_: "q4_0")
    assert fastest.fastest_weights(path, 2, FACTS) == FILE


def test_weights_that_no_longer_convert_stay_as_in_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, {"file": 1.0, "bf16": 0.4, "f16": 0.5, "q8_0": 0.45})
    assert fastest.load_fastest(path, 2, FACTS).weights == "bf16"
    del machine.seconds["bf16"]
    with pytest.warns(RuntimeWarning, match="no room"):
        assert fastest.load_fastest(path, 2, FACTS).weights == FILE


def test_a_library_that_cannot_convert_measures_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"file": 1.0, "f16": 0.5})
    monkeypatch.setattr(fastest, "load_library", lambda: SimpleNamespace(converts=False))
    assert fastest.load_fastest(path, 2, FACTS).weights == FILE
    assert machine.measured == [FILE], "the model that is returned"


def test_a_worker_takes_its_callers_form_and_measures_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, {"file": 1.0, "f16": 0.5})
    with making_for_worker("f16"):
        assert fastest.load_fastest(path, 2, FACTS).weights == "f16"
    with making_for_worker("bf16"), pytest.raises(BackendError, match="no room"):
        fastest.load_fastest(path, 2, FACTS)
    assert machine.measured == ["f16", "bf16"]


def test_a_split_model_is_all_of_its_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (path.with_name(f"m-0000{number}-of-00002.gguf") for number in (1, 2))
    for file in (first, second):
        file.write_bytes(bytes(WEIGHTS))
    machine = Machine(monkeypatch, dict.fromkeys(["file", *FILE_TYPES], 1.0))
    fastest.fastest_weights(first, 2, FACTS)
    assert machine.measured == ["file", "bf16", "f16"], "the file has two bytes a weight"
    library = SimpleNamespace(files=(path,), name="1", llama_print_system_info=lambda: b"")
    monkeypatch.setattr(llama_cpp, "load_library", lambda: library)
    before = llama_cpp.build_facts(first)["model"]
    second.write_bytes(b"another".ljust(WEIGHTS))
    assert llama_cpp.build_facts(first)["model"] != before


@pytest.mark.parametrize(
    ("memory", "stored", "tried"),
    [
        (8 * 2 * WEIGHTS, 9 / 16, ["bf16", "f16", "q8_0"]),
        (8 * 2 * WEIGHTS - 8, 9 / 16, ["q8_0"]),
        (8 * WEIGHTS, 9 / 16, []),
        (2**40, 2.1, ["bf16", "f16"]),
        (2**40, 4, []),
    ],
)
def test_memory_and_the_files_own_precision_limit_the_forms(
    path: Path, memory: int, stored: float, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(bytes(int(stored * WEIGHTS)))
    machine = Machine(monkeypatch, dict.fromkeys(["file", *FILE_TYPES], 1.0), memory)
    fastest.fastest_weights(path, 2, FACTS)
    assert machine.measured == ["file", *tried]


@pytest.mark.model
def test_auto_is_the_default_and_names_its_form() -> None:
    with LlamaCpp(packaged_model_path(), context_tokens=128, kept_prompts=7, decode_batch=8) as backend:
        assert backend.weights in {FILE, *FILE_TYPES}
        assert (f"{backend.weights} weights" in backend.describe()) == (backend.weights != FILE)
