"""What an extra brings is imported when it is used, and named where it is missing."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dpfewshot
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


def test_a_source_folder_that_hides_the_installed_package_says_so(tmp_path: Path) -> None:
    """Servers such as uvicorn look for modules in the working folder first."""
    shutil.copytree(
        Path(dpfewshot.__path__[0]),
        tmp_path / "dpfewshot",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    found = subprocess.run(
        [sys.executable, "-c", "import dpfewshot"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "not compiled and hides an installed package" in found.stderr
