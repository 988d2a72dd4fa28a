"""A small random model of transformers in a folder, on one thread."""

from __future__ import annotations

import pytest

from tests.support.tiny_models import SIZES, save_tiny_model

SMALL = {"device": "cpu", "context_tokens": 96, "kept_prompts": 15}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small matrices gain nothing from threads, and threads that wait for a core lose much."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), **SIZES)
