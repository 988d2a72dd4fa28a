"""llama.cpp's functions from one of two shared libraries: compiled on this machine, or prebuilt in a wheel.

llama-cpp-python brings its own ctypes classes. The wheel of xllamacpp has none: its extension module exports
llama.h's functions, and the structs are laid out here for one version of it, and compared with what that
version returns. A struct that is off by one field would move every setting behind it.
"""

from __future__ import annotations

import ctypes
import platform
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from dpfewshot.backends.machine import short_spin
from dpfewshot.errors import INSTALL, BackendError, MissingExtra

WHEEL = "xllamacpp"
"""The package with a prebuilt library."""

FITTING = "2026.10.11549"
"""The version of `WHEEL` whose structs are laid out here: the last number is llama.cpp's build."""

# llama.cpp logs paths and, at some levels, prompt text. What drops a message is native code, without
# effect: Python code would raise a pending KeyboardInterrupt, which ctypes swallows.
_Log: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)
_drop_message = ctypes.cast(ctypes.CDLL(None).abs, _Log)


# ---- structs and functions of the prebuilt library ------------------------------------------------------

Fields: TypeAlias = tuple[tuple[str, Any, Any], ...]
"""Names, types, and values in what llama_*_default_params returns.

Enums are ints, callbacks are pointers. A bool is a byte here, which must be 0 or 1.
"""

MODEL_FIELDS: Final[Fields] = (
    ("devices", c_void_p, None),
    ("tensor_buft_overrides", c_void_p, None),
    ("n_gpu_layers", c_int32, -1),
    ("split_mode", c_int32, 1),
    ("load_mode", c_int32, -1),
    ("lazy_mode", c_int32, 1),
    ("main_gpu", c_int32, 0),
    ("tensor_split", c_void_p, None),
    ("progress_callback", c_void_p, None),
    ("progress_callback_user_data", c_void_p, None),
    ("kv_overrides", c_void_p, None),
    ("vocab_only", c_uint8, 0),
    ("check_tensors", c_uint8, 0),
    ("use_extra_bufts", c_uint8, 1),
    ("no_host", c_uint8, 0),
    ("no_alloc", c_uint8, 0),
    ("load_mtp", c_uint8, 0),
)
CONTEXT_FIELDS: Final[Fields] = (
    ("n_ctx", c_uint32, 512),
    ("n_batch", c_uint32, 2048),
    ("n_ubatch", c_uint32, 512),
    ("n_seq_max", c_uint32, 1),
    ("n_rs_seq", c_uint32, 0),
    ("n_outputs_max", c_uint32, 0),
    ("n_outputs_max_per_seq", c_uint32, 1),
    ("n_threads", c_int32, 4),
    ("n_threads_batch", c_int32, 4),
    ("ctx_type", c_int32, 0),
    ("rope_scaling_type", c_int32, -1),
    ("pooling_type", c_int32, -1),
    ("attention_type", c_int32, -1),
    ("flash_attn_type", c_int32, -1),
    ("rope_freq_base", c_float, 0.0),
    ("rope_freq_scale", c_float, 0.0),
    ("yarn_ext_factor", c_float, -1.0),
    ("yarn_attn_factor", c_float, -1.0),
    ("yarn_beta_fast", c_float, -1.0),
    ("yarn_beta_slow", c_float, -1.0),
    ("yarn_orig_ctx", c_uint32, 0),
    ("defrag_thold", c_float, -1.0),
    ("cb_eval", c_void_p, None),
    ("cb_eval_user_data", c_void_p, None),
    ("type_k", c_int32, 1),
    ("type_v", c_int32, 1),
    ("abort_callback", c_void_p, None),
    ("abort_callback_data", c_void_p, None),
    ("unnamed", c_void_p, None),  # eight bytes that llama-cpp-python 0.3.36 does not have; null by default
    ("embeddings", c_uint8, 0),
    ("offload_kqv", c_uint8, 1),
    ("no_perf", c_uint8, 1),
    ("op_offload", c_uint8, 1),
    ("swa_full", c_uint8, 1),
    ("kv_unified", c_uint8, 0),
    ("samplers", c_void_p, None),
    ("n_samplers", c_size_t, 0),
    ("ctx_other", c_void_p, None),
)


def _struct(fields: Fields) -> Any:
    return type("Struct", (ctypes.Structure,), {"_fields_": [(name, kind) for name, kind, _ in fields]})


_Model: Final = _struct(MODEL_FIELDS)
_Context: Final = _struct(CONTEXT_FIELDS)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "llama_backend_init": (None,),
    "llama_batch_free": (None, _Batch),
    "llama_batch_init": (_Batch, c_int32, c_int32, c_int32),
    "llama_context_default_params": (_Context,),
    "llama_decode": (c_int32, c_void_p, _Batch),
    "llama_free": (None, c_void_p),
    "llama_get_logits_ith": (POINTER(c_float), c_void_p, c_int32),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_init_from_model": (c_void_p, c_void_p, _Context),
    "llama_log_set": (None, _Log, c_void_p),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_model_chat_template": (c_char_p, c_void_p, c_char_p),
    "llama_model_default_params": (_Model,),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_is_diffusion": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_load_from_file": (c_void_p, c_char_p, _Model),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_print_system_info": (c_char_p,),
    "llama_supports_gpu_offload": (c_bool,),
    "llama_token_to_piece": (c_int32, c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
    "llama_vocab_bos": (c_int32, c_void_p),
    "llama_vocab_eos": (c_int32, c_void_p),
    "llama_vocab_get_add_bos": (c_bool, c_void_p),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
}
"""What each function that is used returns, and its arguments."""

_STATED: Final[dict[str, Any]] = {
    "LLAMA_FLASH_ATTN_TYPE_DISABLED": 0,
    "llama_max_parallel_sequences": lambda: 256,
}
"""What `FITTING` has and does not export."""

FILE_TYPES: Final = {
    "bf16": "LLAMA_FTYPE_MOSTLY_BF16",
    "f16": "LLAMA_FTYPE_MOSTLY_F16",
    "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0",
}
"""llama.cpp's names for the forms that weights can be converted to."""

_QUANTIZING: Final = ("llama_model_quantize_default_params", "llama_model_quantize", *FILE_TYPES.values())
"""What converts weights. The prebuilt library does not export it."""

_BEHIND: Final = 64
_FILL: Final = 0xA5
"""Bytes behind a struct, and what they hold: a function that returns the struct leaves them as they are."""


# ---- loading --------------------------------------------------------------------------------------------


class Library(SimpleNamespace):
    """llama.cpp's functions and constants, under their names in llama.h.

    Attributes:
        name: the package, its version and how it was built.
        files: the shared libraries.
        converts: whether it can convert a model's weights.
    """

    name: str
    files: tuple[Path, ...]
    converts: bool


@cache
def load_library() -> Library:
    """Load llama-cpp-python's library where it is installed, else xllamacpp's; silence its log for good."""
    with short_spin():
        library = _compiled() or _prebuilt()
    library.llama_log_set(_drop_message, None)
    library.llama_backend_init()
    return library


def _compiled() -> Library | None:
    try:
        import llama_cpp
    except ImportError:
        return None
    except (OSError, RuntimeError) as error:
        raise BackendError(
            "llama-cpp-python is installed, but its shared library does not load: install it again"
        ) from error
    names = (*FUNCTIONS, *_STATED, *_QUANTIZING)
    if missing := [name for name in names if not hasattr(llama_cpp, name)]:
        how = INSTALL.format(extra="llama-cpp")
        raise BackendError(f"llama-cpp-python {llama_cpp.__version__} has no {missing[0]}: {how}")
    folder = Path(llama_cpp.__file__).parent / "lib"
    return Library(
        name=f"llama-cpp-python {llama_cpp.__version__}, compiled",
        files=tuple(sorted(path for path in folder.glob("*") if path.is_file())),
        converts=True,
        **{name: getattr(llama_cpp, name) for name in names},
    )


def _prebuilt() -> Library:
    try:
        wheel = distribution(WHEEL)
    except PackageNotFoundError:
        raise MissingExtra("LlamaCpp", "demo") from None
    if wheel.version != FITTING:
        raise _unfit(wheel.version)
    files = tuple(Path(str(wheel.locate_file(WHEEL))).glob("*.so"))
    try:
        (shared,) = (ctypes.CDLL(str(file)) for file in files)
    except (OSError, ValueError) as error:
        raise BackendError(
            f"{WHEEL} is installed, but its shared library does not load: install it again, and libgomp "
            "(apt install libgomp1) if it is missing"
        ) from error
    if not _fits(shared):
        raise _unfit(wheel.version)
    return Library(
        name=f"{WHEEL} {FITTING}, prebuilt from llama.cpp b{FITTING.rpartition('.')[2]}",
        files=files,
        converts=False,
        **{name: _function(shared, name, *prototype) for name, prototype in FUNCTIONS.items()},
        **_STATED,
    )


def _unfit(version: str) -> BackendError:
    return BackendError(
        f"{WHEEL} {version} is not the prebuilt llama.cpp that this version of dpfewshot knows, {FITTING}: "
        f"{INSTALL.format(extra='demo')}"
    )


def _function(shared: ctypes.CDLL, name: str, returned: Any, *arguments: Any) -> Any:
    function = shared[name]
    function.restype, function.argtypes = returned, arguments
    return function


def _fits(shared: ctypes.CDLL) -> bool:
    """Return whether all functions are there, and structs come back as they are laid out here."""
    if not all(hasattr(shared, name) for name in FUNCTIONS):
        return False
    batch = _function(shared, "llama_batch_init", *FUNCTIONS["llama_batch_init"])(1, 0, 1)
    allocated = [bool(getattr(batch, name)) for name, _ in _Batch._fields_]
    _function(shared, "llama_batch_free", *FUNCTIONS["llama_batch_free"])(batch)
    return (
        allocated == [False, True, False, True, True, True, True]
        and is_laid_out(shared, "llama_model_default_params", MODEL_FIELDS)
        and is_laid_out(shared, "llama_context_default_params", CONTEXT_FIELDS)
    )


def is_laid_out(shared: ctypes.CDLL, function: str, fields: Fields) -> bool:
    """Return whether a function returns a struct of these fields and values, and nothing beside them."""
    struct = _struct(fields)
    if platform.machine() != "x86_64":
        found = _function(shared, function, struct)()
        return all(getattr(found, name) == value for name, _, value in fields)
    size = ctypes.sizeof(struct) + _BEHIND
    returned, expected = ((c_uint8 * size)(*[_FILL] * size) for _ in range(2))
    _function(shared, function, None, c_void_p)(returned)  # where a hidden first argument points
    laid_out = struct.from_buffer(expected)
    for name, _, value in fields:
        setattr(laid_out, name, value)
    return bytes(returned) == bytes(expected)
