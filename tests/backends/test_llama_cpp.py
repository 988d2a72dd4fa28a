"""LlamaCpp on the packaged model: the same bits in any batch; what it refuses to load."""

from __future__ import annotations

import hashlib
from contextlib import closing, nullcontext

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, conformance, packaged_model_path
from dpfewshot.backends.llama_cpp.library import load_library
from dpfewshot.errors import BackendError
from tests.support import inside, llama_prompts
from tests.support.llama_prompts import backend, prefix, short_prompts, suffixes, wide
from tests.support.small_models import small
from tests.support.streams import answers, evaluated, same_bits

FIXTURES = (backend, prefix, short_prompts, small, suffixes, wide)
pytestmark = pytest.mark.model


@pytest.mark.parametrize("prompts", [3, pytest.param(24, marks=pytest.mark.soak)])
def test_it_passes_the_whole_suite(backend, prefix, short_prompts, prompts):
    """Of a block of 24, fifteen prompts are kept, and the others take steps in waves."""
    released = backend.tokenize(" What is the")[:3]
    samples = conformance.Samples(prefix, short_prompts[:prompts], released, texts=())
    conformance.require(conformance.examine(backend, samples, closing=False))
    texts = [llama_prompts.INSTRUCTION, *llama_prompts.QUESTIONS, *llama_prompts.SHORT]
    assert conformance.check_text(backend, [*texts, "", " ", "\x00\u200b"]).passed
    assert conformance.check_end_tokens(backend, short_prompts[:1], texts).passed


class OneBatch:
    """llama.cpp the wrong way, as a control: all prompts in one decode call, in one unified KV buffer."""

    def __init__(self, backend):
        self._model = model = inside.model(backend)
        self._library = library = model.library
        parameters = library.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max, parameters.n_batch, parameters.n_ubatch = 4096, 80, 4096, 512
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.kv_unified = True
        self._context = library.llama_init_from_model(model.handle, parameters)
        self._batch = library.llama_batch_init(4096, 0, 1)

    def next_token_logprobs(self, prompts, support=None):
        library, batch = self._library, self._batch
        library.llama_memory_seq_rm(library.llama_get_memory(self._context), -1, -1, -1)
        last, count = [], 0
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                batch.token[count], batch.pos[count] = token, position
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, sequence
                batch.logits[count] = position == len(prompt) - 1
                count += 1
            last.append(count - 1)
        batch.n_tokens = count
        assert library.llama_decode(self._context, batch) == 0
        size = self._model.vocabulary_size
        rows = [
            np.ctypeslib.as_array(library.llama_get_logits_ith(self._context, index), shape=(size,)).copy()
            for index in last
        ]
        return np.stack(rows) if support is None else np.stack(rows)[:, support]

    def close(self):
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)


def test_the_same_check_catches_one_batch_in_a_unified_buffer(small):
    with LlamaCpp(small, context_tokens=256, decode_batch=1, threads=1) as loaded:
        prompts = [loaded.tokenize(llama_prompts.trec(question)) for question in llama_prompts.QUESTIONS]
        control = OneBatch(loaded)
        try:
            finding = conformance.check_batch_invariance(control, prompts)
        finally:
            control.close()
        assert not finding.passed
        assert conformance.check_batch_invariance(loaded, prompts).passed


def test_a_step_has_the_bits_of_llama_cpp_on_its_own(backend, prefix, suffixes):
    """Blocks agree with whole prompts to 0.046 only: one-token kernels round in another way than those
    of many, and this model has four bits. So compare with the same calls in a context of one stream."""
    released = backend.tokenize(" What is the")
    found = answers(backend, prefix, suffixes[:2], released)[-1][0]
    whole = [*prefix, *suffixes[0]]
    streams = inside.model(backend).open_streams(1, 256, 1)
    try:
        streams.extend(0, 0, whole)
        for index, token in enumerate(released):
            logits = streams.extend(0, len(whole) + index, [token]).astype(np.float64)
    finally:
        streams.close()
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    np.testing.assert_allclose(np.exp(found), expected, atol=1e-3)


def test_an_empty_suffix_is_the_prefix_alone(backend, prefix, suffixes):
    block = answers(backend, prefix, [suffixes[0], [], suffixes[1]], [11])
    whole = backend.next_token_logprobs([prefix, [*prefix, 11]])
    assert np.abs(np.exp(block[0][1]) - np.exp(whole[0])).max() < 1e-2
    assert np.abs(np.exp(block[1][1]) - np.exp(whole[1])).max() < 0.1


def test_more_prompts_than_a_context_has_streams_for_are_kept_in_several(small, monkeypatch):
    """Eight prompts: seven in one context of 24 streams, one in another, with the bits of one context."""
    prefix, prompts = [11, 12, 13], [[20 + index] * (1 + index) for index in range(8)]
    settings = {"context_tokens": 256, "kept_prompts": 14, "decode_batch": 8, "threads": 1}
    with LlamaCpp(small, **settings) as one:
        expected = answers(one, prefix, prompts, [100])
        assert inside.contexts_of_blocks(one) == 1
    monkeypatch.setattr(load_library(), "llama_max_parallel_sequences", lambda: 24)
    with LlamaCpp(small, **settings) as two:
        assert all(map(same_bits, expected, answers(two, prefix, prompts, [100])))
        assert inside.contexts_of_blocks(two) == 2
        with evaluated() as count, closing(two.open_block(prefix, prompts, 2)) as block:
            block.next_token_logprobs()
            block.append(1)
            block.next_token_logprobs()
        assert count.tokens == sum(map(len, prompts)) + 8, "all were kept"


def test_a_context_that_cannot_be_made_frees_the_ones_before(small, monkeypatch):
    library = load_library()
    monkeypatch.setattr(library, "llama_max_parallel_sequences", lambda: 24)
    make, made = library.llama_init_from_model, []

    def fail_the_second(*arguments):
        made.append(make(*arguments) if not made else None)
        return made[-1]

    freed = []
    monkeypatch.setattr(library, "llama_init_from_model", fail_the_second)
    monkeypatch.setattr(library, "llama_free", freed.append)
    settings = {"context_tokens": 256, "kept_prompts": 14, "decode_batch": 8}
    monkeypatch.setattr(LlamaCpp, "_passes", lambda *_: True)  # the checks take contexts too
    with LlamaCpp(small, **settings) as loaded:
        with pytest.raises(BackendError, match="lower kept_prompts"):
            loaded.open_block([], [[1]], 2)
        assert freed == made[:1]
        monkeypatch.undo()
        library.llama_free(made[0])


def test_a_copy_takes_nothing_of_the_stream_with_it(backend):
    """A stream that an earlier prompt left is overwritten whole, beyond the new prompt's tokens too."""
    streams = inside.model(backend).open_streams(3, 256, 1)
    try:
        streams.extend(1, 0, [1, 2, 3])
        streams.copy(1, 2)
        expected = streams.extend(2, 3, [4]).copy()
        streams.extend(2, 0, [9] * 200)
        streams.copy(1, 2)
        assert same_bits(streams.extend(2, 3, [4]), expected)
    finally:
        streams.close()


@pytest.mark.soak
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
    ("setting", "value"),
    [
        *(("decode_batch", 12), ("decode_batch", 0), ("decode_batch", 128), ("kept_prompts", -1)),
        *(("context_tokens", 0), ("context_tokens", 1_000_000)),
        *(("threads", 0), ("gpu_layers", -1), ("weights", "q3")),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(setting, value, monkeypatch):
    monkeypatch.setattr(load_library(), "llama_supports_gpu_offload", lambda: False)
    with pytest.raises(BackendError, match=setting):
        LlamaCpp(packaged_model_path(), **{setting: value})


def test_files_that_are_no_model_are_refused_and_llama_cpp_prints_nothing(tmp_path, capfd):
    text, damaged = tmp_path / "model.gguf", tmp_path / "damaged.gguf"
    text.write_text("not a model")
    damaged.write_bytes(b"GGUF" + bytes(64))
    for path, message in (
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path, "Is a directory; name a .gguf"),
        (tmp_path / ("a" * 300), "File name too long"),
        (text, "is not GGUF"),
        (damaged, "cannot load"),
    ):
        with pytest.raises(BackendError, match=message):
            LlamaCpp(path)
    with LlamaCpp(packaged_model_path(), context_tokens=256, threads=1) as loaded:
        loaded.next_token_logprobs([[1]])
        whole = hashlib.sha256(packaged_model_path().read_bytes()).hexdigest()  # as sha256sum prints it
        assert loaded.model_identity == f"sha256:{whole}"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("holds", [pytest.param(True, marks=pytest.mark.soak), False])
def test_on_a_gpu_the_suite_decides_what_the_backend_claims(monkeypatch, small, holds):
    """A build that says it has a GPU; what it computes with makes no difference to who decides."""
    library = load_library()
    monkeypatch.setattr(library, "llama_supports_gpu_offload", lambda: True)
    found = conformance.Finding("block invariance", passed=holds, detail="", about_invariance=True)
    if not holds:
        monkeypatch.setattr(conformance, "check_block_invariance", lambda *_, **__: found)
    settings = {"context_tokens": 256, "kept_prompts": 7, "decode_batch": 8, "gpu_layers": -1}
    expected = nullcontext() if holds else pytest.warns(RuntimeWarning, match="one by one")
    with expected, LlamaCpp(small, **settings) as loaded:
        assert loaded.batch_invariant is holds
        assert inside.decode_batch(loaded) == (8 if holds else 1)
        assert "GPU" in loaded.describe()
