"""The packaged model cut down: the same kernels in less time, for tests of how a model is asked."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dpfewshot import backends

BYTES = {4: 4, 5: 4, 6: 4, 7: 1}
"""Bytes of a value in the file, by its type, but for those of the next two types."""
STRING, ARRAY = 8, 9
BY_TOKEN = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}
ALL_LAYERS, ALL_TOKENS = 30, 49152
HEADER = struct.Struct("<4sIQQ")


class Reader:
    """Reads a GGUF file from its start."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, HEADER.size

    def number(self, form: str) -> int:
        self.at += struct.calcsize(form)
        return int.from_bytes(self.data[self.at - struct.calcsize(form) : self.at], "little")

    def skip(self, kind: int, count: int = 1) -> None:
        for _ in range(count):
            length = self.number("<Q") if kind == STRING else BYTES[kind]
            self.at += length

    def text(self) -> str:
        start = self.at + 8
        self.skip(STRING)
        return self.data[start : self.at].decode()


def small_model(path: Path, *, layers: int = ALL_LAYERS, tokens: int = ALL_TOKENS) -> Path:
    """Write the first layers of the packaged model, with the first tokens of its vocabulary; the path."""
    read = Reader(backends.packaged_model_path().read_bytes())
    magic, version, tensors, values = HEADER.unpack_from(read.data)
    settings = [_setting(read, layers, tokens) for _ in range(values)]
    listed = []
    for _ in range(tensors):
        name, shape = read.text(), [read.number("<Q") for _ in range(read.number("<I"))]
        listed.append((name, shape, read.number("<I"), read.number("<Q")))
    data = read.data[-(-read.at // 32) * 32 :]
    ends = [*(offset for *_, offset in listed[1:]), len(data)]
    names, weights = [], b""
    for (name, shape, kind, offset), end in zip(listed, ends, strict=True):
        if not name.startswith("blk.") or int(name.split(".")[1]) < layers:
            part = tokens if shape[-1] == ALL_TOKENS else shape[-1]
            length = (end - offset) * part // shape[-1]
            sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[:-1], part)
            place = struct.pack("<IQ", kind, len(weights))
            names.append(struct.pack("<Q", len(name)) + name.encode() + sizes + place)
            weights += data[offset : offset + length] + bytes(-length % 32)
    written = HEADER.pack(magic, version, len(names), values) + b"".join(settings + names)
    path.write_bytes(written + bytes(-len(written) % 32) + weights)
    return path


def _setting(read: Reader, layers: int, tokens: int) -> bytes:
    """Read a setting of the file, and return it as it is of the small model."""
    start, name, kind = read.at, read.text(), read.number("<I")
    changed = {"llama.block_count": layers, "llama.vocab_size": tokens}
    if name in changed:
        value = read.at
        read.skip(kind)
        return read.data[start:value] + struct.pack("<I", changed[name])
    if kind != ARRAY:
        read.skip(kind)
        return read.data[start : read.at]
    of, count = read.number("<I"), read.number("<Q")
    value, fewer = read.at, count - (ALL_TOKENS - tokens) * (name in BY_TOKEN)
    read.skip(of, fewer)
    kept = read.data[start : value - 8] + struct.pack("<Q", fewer) + read.data[value : read.at]
    read.skip(of, count - fewer)
    return kept


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenth of the layers and tokens: what it answers has no meaning."""
    return small_model(tmp_path_factory.mktemp("small") / "small.gguf", layers=3, tokens=4096)


@pytest.fixture
def small_packaged(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model is the packaged one, to whoever asks for it by name or by default."""
    monkeypatch.setattr(backends, "packaged_model_path", lambda: small)
