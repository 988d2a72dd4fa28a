"""The LlamaIndex pack and invink as they are installed: lines of kind "run"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import dpfewshot as dpf
from bench.backends_ways import Server
from bench.peers.claims import DELTA, FLOATS
from bench.peers.environments import INVINK, PACK, PACK_NEWEST, Environment
from bench.peers.legacy import Legacy
from bench.peers.raw import Line, versions
from bench.utility import MODELS
from dpfewshot.accounting import FixedSizeGaussian, epsilon
from dpfewshot.backends.machine import usable_processors

FOLDER = Path(__file__).parents[2]
MODEL = FOLDER / f"{MODELS['gemma'][1]}.gguf"
LABEL = "Location"
TIMEOUT = 1500.0
SIGMA, DRAWN, TOKENS = 1.36, 80, 15
"""Tang et al.'s row for TREC at ε = 1."""


def measure(data: Path, store: Path) -> Iterator[Line]:
    """What each package gives, and its errors."""
    records = dpf.read_records(data / "trec.train.jsonl.gz")
    yield from the_pack(records, store)
    yield from invisible_ink([record.text for record in records if record.label == LABEL], store)


def the_pack(records: list[dpf.Record], store: Path) -> Iterator[Line]:
    """With the newest core that its pins allow; then with an older one, on llama-server and on OpenAI's form."""
    threads = usable_processors()
    with ExitStack() as stack:
        server = stack.enter_context(closing(Server(MODEL, 4, threads, cache_prompt=True)))
        legacy = stack.enter_context(closing(Legacy(server.address)))
        calls = [{"tokens": 3, "sigma": SIGMA, "prompts": 5, "records": 1}]
        stated = [{"size": size, "sigma": SIGMA, "tokens": TOKENS} for size in (DRAWN, 1)]
        ways: tuple[tuple[str, Environment, str, list[dict[str, float]]], ...] = (
            ("newest llama-index-core", PACK_NEWEST, legacy.address, []),
            ("llama-server", PACK, f"http://{server.address}", []),
            ("a server in OpenAI's form", PACK, legacy.address, stated),
        )
        for name, environment, address, formulas in ways:
            request = pack_request(records, address) | {"calls": calls, "stated": formulas}
            answers = environment.call(store, request, TIMEOUT)
            found = versions() | next((line["versions"] for line in answers if "versions" in line), {})
            for answer in answers:
                if "size" in answer:
                    yield claim(answer, len(records), sum(r.label == LABEL for r in records), found)
                elif "versions" not in answer:
                    yield {
                        "kind": "run",
                        "peer": "LlamaIndex pack",
                        "with": name,
                        **answer,
                        "versions": found,
                    }


def pack_request(
    records: list[dpf.Record], address: str, task: dpf.Task = dpf.tasks.TREC, label: str = LABEL
) -> dict[str, Any]:
    """What all calls of the pack have in common."""
    return {
        "records": [{"text": record.text, "label": record.label} for record in records],
        "address": address,
        "top_logprobs": 5,
        "instruction": task.instruction,
        "text": task.text_field,
        "heading": task.label_field,
        "label": label,
        "connections": 4,
        "calls": [],
        "stated": [],
    }


def claim(answer: dict[str, Any], whole: int, of_label: int, found: dict[str, str]) -> Line:
    """The pack's ε beside ours: its rate divides by all records, and its draws take those of a label."""
    event = FixedSizeGaussian(DRAWN, of_label, SIGMA, TOKENS)
    return {
        "kind": "run",
        "peer": "LlamaIndex pack",
        "with": "its formula",
        "setting": f"TREC {LABEL}, σ = {SIGMA:g}, size = {answer['size']}, T = {TOKENS}, δ = 1/{whole}",
        "stated": answer.get("epsilon"),
        "error": answer.get("error"),
        "own": None,
        "drawn": epsilon(event, 1 / whole).upper,
        "as_run": epsilon(event, 1 / whole).upper,
        "why": f"its rate divides by all {whole} records, and it draws from the label's {of_label}; one demonstration; {FLOATS}",
        "versions": found,
    }


def invisible_ink(texts: list[str], store: Path) -> Iterator[Line]:
    """As installed; then mended, twice the same call, and with a minibatch that does not divide the batch."""
    base = ink_request("Questions whose answer is a location.")
    calls = [
        ink_call("as in its README", texts[:7], 5),
        ink_call("the same call again", texts[:7], 5),
        ink_call("minibatches of 3", texts[:7], 5) | {"options": {"per_device_minibatch_size": 3}},
    ]
    for name, request in (
        ("as installed", {**base, "mended": False, "calls": calls[:1]}),
        ("mended", {**base, "mended": True, "calls": calls}),
    ):
        answers = INVINK.call(store, request, TIMEOUT)
        found = versions() | next((line["versions"] for line in answers if "versions" in line), {})
        for answer in answers:
            if "versions" not in answer:
                yield {"kind": "run", "peer": "invink", "with": name, **answer, "versions": found}


def ink_request(description: str) -> dict[str, Any]:
    """What all calls of invink have in common."""
    return {
        "model": str(FOLDER / MODELS["gemma"][1]),
        "dtype": "bfloat16",
        "description": description,
        "mended": True,
        "stated": [{"epsilon": e, "tokens": TOKENS, "batch": 8, "delta": DELTA} for e in (1.0, 4.0)],
        "calls": [],
    }


def ink_call(name: str, texts: list[str], tokens: int) -> dict[str, Any]:
    """One text at ε = 1, from its default batch: seven records and the public prompt."""
    call = {"epsilon": 1.0, "delta": DELTA, "batch": 8, "texts": 1, "tokens": tokens}
    return {"name": name, "records": texts, **call}
