"""HuggingFace on one device: batch invariance, the speed of batched steps, the error of half precision.

    python -m bench.hugging_face cuda [model] >> docs/results/hugging-face.md

The model is the packaged one, or a GGUF file, a folder or a name on the hub.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from dpfewshot.backends import packaged_model_path
from dpfewshot.backends.conformance import sample_prompts
from dpfewshot.backends.hugging_face import HuggingFace
from dpfewshot.backends.protocol import Logprobs

PROMPTS = 80
STEPS = 3
DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "bfloat16", "float16")}


def block_of(backend: HuggingFace) -> tuple[Logprobs, float]:
    """The block's last answers, shape (80, V), and the median seconds of a step."""
    prefix, samples, released = sample_prompts(backend)
    suffixes = [samples[index % len(samples)] for index in range(PROMPTS)]
    block = backend.open_block(prefix, suffixes, STEPS + 1)
    answers, seconds = block.next_token_logprobs(), []
    for token in released[:STEPS]:
        started = time.perf_counter()
        block.append(token)
        answers = block.next_token_logprobs()
        seconds.append(time.perf_counter() - started)
    block.close()
    return answers, float(np.median(seconds))


def main(device: str, model: str | None = None) -> None:
    """One row a dtype."""
    model = model or str(packaged_model_path())
    print(
        "| device | dtype | what the constructor found | one step of 80 prompts, one by one / batched | worst probability off float32 |"
    )
    print("|---|---|---|---|---|")
    exact: Logprobs | None = None
    for dtype in DTYPES[device.partition(":")[0]]:
        settings: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "context_tokens": 128,
            "kept_prompts": PROMPTS,
        }
        with HuggingFace(model, **settings) as backend:
            answers, batched = block_of(backend)
            found = backend.describe().rpartition("attention, ")[2]
        with HuggingFace(model, decode_batch=1, **settings) as backend:
            _, single = block_of(backend)
        exact = answers if exact is None else exact
        off = float(np.abs(np.exp(answers) - np.exp(exact)).max())
        print(f"| {device} | {dtype} | {found} | {single / batched:.1f} | {off:.2g} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
