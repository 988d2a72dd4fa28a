"""The packaged model in llama.cpp, and prompts in its tokens."""

from __future__ import annotations

import pytest

from dpfewshot.backends import LlamaCpp, packaged_model_path

INSTRUCTION = (
    "Given a label of answer type, generate a question based on the given answer type accordingly.\n\n"
)
QUESTIONS = [
    "What is the capital of Mongolia ?",
    "Where ?",
    "What river runs through the city of Rome , Italy , and what towns does it pass on its way to the sea ?",
    "Name the place with the most caf\u00e9s .",
    "What country did Ponce de Leon come from ?",
    "Which \U0001f30d continent is largest",
]
SHORT = [
    "Rome",
    "a",
    "Where is it",
    "\n\nText:",
    "1 2 3 4 5",
    "the capital of",
    "?",
    "caf\u00e9 ol\u00e9",
]


def trec(question):
    return f"Answer Type: Location\nText: {question}\n\nAnswer Type: Location\nText:"


@pytest.fixture(scope="module")
def backend():
    """Keeps one group of fifteen; the rest of a block runs in waves."""
    path = packaged_model_path()
    with LlamaCpp(path, context_tokens=256, kept_prompts=15, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def wide():
    """Streams of 512 tokens, where neighbours of another length would change the shape."""
    with LlamaCpp(packaged_model_path(), context_tokens=512, kept_prompts=7, decode_batch=8) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def prefix(backend):
    return backend.tokenize(INSTRUCTION)


@pytest.fixture(scope="module")
def suffixes(backend):
    return [backend.tokenize(trec(question)) for question in QUESTIONS]


@pytest.fixture(scope="module")
def short_prompts(backend):
    """Eighty prompts of 1 to 11 tokens."""
    return [backend.tokenize(SHORT[index % len(SHORT)] + chr(97 + index % 26)) for index in range(80)]
