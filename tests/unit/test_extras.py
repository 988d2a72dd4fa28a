"""What an extra brings is imported when it is used, and named where it is missing."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.hugging_face import HuggingFace
from dpfewshot.backends.llama_cpp.files import local_file
from dpfewshot.errors import MissingExtra
from dpfewshot.records import index_records, read_records
from dpfewshot.report import Sources
from tests.support.report_samples import rendered


@pytest.mark.parametrize(
    ("module", "use", "extra"),
    [
        ("transformers", HuggingFace, "huggingface"),
        ("huggingface_hub", lambda _: local_file("org/repository/small.Q4_1.gguf"), "hub"),
        ("httpcore2", lambda _: OpenAICompatible("http://127.0.0.1:1/v1", "served"), "openai"),
        ("jinja2", lambda _: rendered(Sources()), "report"),
        ("pyarrow", lambda folder: index_records(folder / "r.jsonl"), "parquet"),
        ("pyarrow", lambda folder: read_records(folder / "r.parquet"), "parquet"),
    ],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, use: Callable[[Path], object], extra: str
) -> None:
    (tmp_path / "r.jsonl").write_text('{"text": "a", "label": "x"}\n')
    (tmp_path / "r.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install '\.\[{extra}\]'"):
        use(tmp_path)
