"""Which library of llama.cpp is loaded; a prebuilt one with other structs is refused."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfewshot.backends.llama_cpp import library
from dpfewshot.backends.llama_cpp.model import _load
from dpfewshot.errors import BackendError

STRUCTS = {
    "llama_model_default_params": library.MODEL_FIELDS,
    "llama_context_default_params": library.CONTEXT_FIELDS,
}
UNKNOWN = r"is not the prebuilt llama\.cpp that this version of dpfewshot knows"


@pytest.fixture
def without_compiled(monkeypatch):
    """As where llama-cpp-python is not installed."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    library.load_library.cache_clear()
    yield
    library.load_library.cache_clear()


@pytest.mark.usefixtures("without_compiled")
def test_without_a_compiled_library_the_prebuilt_one_is_taken():
    found = library.load_library()
    assert found.name == f"xllamacpp {library.FITTING}, prebuilt from llama.cpp b11549"
    assert not found.converts
    assert all(file.is_file() for file in found.files)
    assert found.llama_context_default_params().n_ctx == 512
    assert b"AVX2 = 1" in found.llama_print_system_info() or platform.machine() != "x86_64"


def no_libgomp(_):
    raise OSError("libgomp.so.1: cannot open shared object file")


@pytest.mark.usefixtures("without_compiled")
@pytest.mark.parametrize(
    ("place", "name", "value", "says"),
    [
        (
            sys.modules,
            "llama_cpp",
            SimpleNamespace(__version__="0.9"),
            r"python 0\.9 has no llama_\w+: .*'\.\[llama-cpp\]'",
        ),
        (library, "FITTING", "2027.1.1", r"xllamacpp 2026\.\S+ is not .*knows, 2027\.1\.1: .*'\.\[demo\]'"),
        (library, "MODEL_FIELDS", library.MODEL_FIELDS[:-1], UNKNOWN),
        (library, "CONTEXT_FIELDS", library.CONTEXT_FIELDS[:-1], UNKNOWN),
        (library.FUNCTIONS, "llama_no_such_function", (None,), UNKNOWN),
        (library.ctypes, "CDLL", no_libgomp, r"does not load: .*libgomp1"),
    ],
    ids=["compiled without a function", "version", "model", "context", "without a function", "not loaded"],
)
def test_a_library_that_does_not_fit_is_refused(monkeypatch, place, name, value, says):
    set_to = monkeypatch.setitem if isinstance(place, dict) else monkeypatch.setattr
    set_to(place, name, value)
    with pytest.raises(BackendError, match=says):
        library.load_library()


@pytest.fixture
def shared(request):
    request.getfixturevalue("without_compiled")
    (file,) = library.load_library().files
    return ctypes.CDLL(str(file))


def off_by_one(fields):
    """Every layout that lacks a field, or has a further one that is zero by default, or another value."""
    for place in range(len(fields)):
        name, kind, value = fields[place]
        yield f"no {name}", fields[:place] + fields[place + 1 :]
        yield f"other {name}", (*fields[:place], (name, kind, (value or 0) + 1), *fields[place + 1 :])
    for place in range(len(fields) + 1):
        for kind, value in ((ctypes.c_uint8, 0), (ctypes.c_int32, 0), (ctypes.c_void_p, None)):
            further = ("further", kind, value)
            yield f"{kind.__name__} at {place}", (*fields[:place], further, *fields[place:])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere a further last field goes unnoticed")
@pytest.mark.parametrize("function", STRUCTS)
def test_a_layout_that_is_off_by_one_field_is_noticed(shared, function):
    fields = STRUCTS[function]
    assert library.is_laid_out(shared, function, fields)
    assert [what for what, wrong in off_by_one(fields) if library.is_laid_out(shared, function, wrong)] == []


@pytest.mark.parametrize(
    ("system", "used"), [(b"AVX512 = 1 | AMX_INT8 = 1 | ", False), (b"AVX2 = 1 | ", True)]
)
def test_amx_kernels_are_not_used(system: bytes, used: bool) -> None:
    """The process may end in them, so that only a stand-in can show it on every machine."""
    asked: list[bool] = []

    def load(_path: bytes, parameters: SimpleNamespace) -> None:
        asked.append(parameters.use_extra_bufts)

    stand_in = SimpleNamespace(
        llama_model_default_params=lambda: SimpleNamespace(n_gpu_layers=-1, use_extra_bufts=True),
        llama_print_system_info=lambda: system,
        llama_model_load_from_file=load,
    )
    with pytest.raises(BackendError, match="cannot load the model file"):
        _load(stand_in, Path("model.gguf"), 0)
    assert asked == [used]
