"""The LlamaIndex pack as its README uses it: one demonstration through an OpenAI-compatible server.

Runs in the environment of the pack. Reads the server's address, the records and the settings; prints the ε that the pack
states, then what a call gave: seconds, requests and characters, or the error's type and message.
"""

import importlib.metadata
import json
import sys
import time
from typing import Any


def main() -> None:
    """Answers one request."""
    request = json.load(sys.stdin)
    names = ("llama-index-packs-diff-private-simple-dataset", "llama-index-core", "llama-index-llms-openai")
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in names}}), flush=True)
    try:
        pack, mechanism = made(request)
    except ImportError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    for setting in request["stated"]:
        print(json.dumps({**setting, **stated(pack, mechanism, setting)}), flush=True)
    for call in request["calls"]:
        print(json.dumps({**call, **generated(pack, request, call)}), flush=True)


def made(request: Any) -> Any:
    """The pack on the records."""
    from llama_index.core.llama_dataset.simple import LabelledSimpleDataExample, LabelledSimpleDataset
    from llama_index.llms.openai import OpenAI
    from llama_index.packs.diff_private_simple_dataset.base import DiffPrivateSimpleDatasetPack, PromptBundle
    from llama_index.packs.diff_private_simple_dataset.privacy_mechanism import PrivacyMechanism

    examples = [
        LabelledSimpleDataExample(reference_label=one["label"], text=one["text"])
        for one in request["records"]
    ]
    model = OpenAI(
        model="gpt-3.5-turbo-instruct",
        max_tokens=1,
        logprobs=True,
        top_logprobs=request["top_logprobs"],
        api_base=f"{request['address']}/v1",
        api_key="none",
        max_retries=0,
    )
    bundle = PromptBundle(
        instruction=request["instruction"], text_heading=request["text"], label_heading=request["heading"]
    )
    pack = DiffPrivateSimpleDatasetPack(
        llm=model,
        tokenizer=str.split,
        prompt_bundle=bundle,
        simple_dataset=LabelledSimpleDataset(examples=examples),
        sephamore_counter_size=request["connections"],
        show_progress=False,
    )
    return pack, PrivacyMechanism.GAUSSIAN


def stated(pack: Any, mechanism: Any, setting: Any) -> dict[str, Any]:
    """ε by its own formula, or the error."""
    try:
        return {
            "epsilon": float(
                pack.sigma_to_eps(setting["sigma"], mechanism, setting["size"], setting["tokens"])
            )
        }
    except Exception as error:  # noqa: BLE001 - whatever a package raises is the measurement
        return {"error": f"{type(error).__name__}: {error}"}


def generated(pack: Any, request: Any, call: Any) -> dict[str, Any]:
    """Seconds of one demonstration, or the error."""
    started = time.perf_counter()
    try:
        found = pack.generate_dp_synthetic_example(
            label=request["label"],
            t_max=call["tokens"],
            sigma=call["sigma"],
            num_splits=call["prompts"],
            num_samples_per_split=call["records"],
        )
    except Exception as error:  # noqa: BLE001 - whatever a package raises is the measurement
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - started}
    return {"seconds": time.perf_counter() - started, "characters": len(found.text)}


if __name__ == "__main__":
    main()
