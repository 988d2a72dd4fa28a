"""InvisibleInk's package as its README uses it: demonstrations from the records of one label.

Runs in the environment of the package. Reads {"model", "records", "description", "epsilon", "batch", "tokens", ...} and
prints what a call gave: seconds a text, tokens that the model evaluated, the ε that it states; or the error. The model is
loaded before the clock starts. `"mended": true` changes what this interpreter cannot parse or this machine does not have
(see `MENDED`), in memory.
"""

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import io
import json
import sys
import time
from typing import Any

MENDED = (
    ('{"all devices" if device_map == "auto" else device_map}', "{device_map}"),  # nested quotes: Python 3.12
    ("not torch.cuda.is_bf16_supported()", "False"),  # else half precision without CUDA, which is slower
)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
"""For a model without a chat template: the messages one after the other."""


class Mended:
    """Finds invink.utils, and changes `MENDED` in its text."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        del target
        if name != "invink.utils":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Changed(spec.loader.name, spec.loader.path)
        return spec


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a file with `MENDED` changed."""

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 - importlib's signature
        """Compiles the changed text."""
        text = self.get_data(self.path).decode()
        for old, new in MENDED:
            text = text.replace(old, new)
        return compile(text, self.path, "exec")


def main() -> None:
    """Answers one request."""
    request = json.load(sys.stdin)
    names = ("invink", "torch", "transformers", "numpy")
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in names}}), flush=True)
    if request["mended"]:
        sys.meta_path.insert(0, Mended())
    for answer in answers(request):
        print(json.dumps(answer), flush=True)


def answers(request: Any) -> Any:
    """The clip and ε of its formulas, then what generating gave."""
    try:
        from invink import utils
    except (SyntaxError, ImportError) as error:
        yield {"error": f"{type(error).__name__}: {error.args[0]}"}
        return
    for each in request["stated"]:
        clip = utils.get_clip(each["epsilon"], each["tokens"], 1.0, each["batch"], each["delta"])
        yield {"clip": clip, "formula": True, **each}
    for call in request["calls"]:
        yield generated(request, call)


def generated(request: Any, call: Any) -> dict[str, Any]:
    """Seconds and tokens a text, or the error."""
    generate = importlib.import_module("invink.generate")
    counted = {"tokens": 0}
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            preload(generate, request, counted)
            started = time.perf_counter()
            found = generate.generate(
                txt_list_or_path=call["records"],
                model_name_or_path=request["model"],
                dataset_desc=request["description"],
                epsilon=call["epsilon"],
                delta=call["delta"],
                batch_size=call["batch"],
                num=call["texts"],
                max_toks=call["tokens"],
                device_map=-1,
                **call.get("options", {}),
            )
            seconds = time.perf_counter() - started
    except Exception as error:  # noqa: BLE001 - whatever a package raises is the measurement
        return {"call": call["name"], "error": f"{type(error).__name__}: {error}"[:300]}
    return {
        "call": call["name"],
        "seconds": seconds / call["texts"],
        "tokens": counted["tokens"] // call["texts"],
        "stated": max(found.epsilon_spent),
        "length": max(found.lens),
        "same_as": hashlib.sha256(repr(found.texts).encode()).hexdigest()[:12],
    }


def preload(generate: Any, request: Any, counted: dict[str, int]) -> None:
    """Loads model and tokenizer once by the package's own functions, and counts what the model evaluates."""
    if hasattr(generate, "loaded"):
        model, tokenizer = generate.loaded
    else:
        from invink import utils

        model = utils.load_hf_model(request["model"], dtype=request["dtype"], device_map="cpu")
        tokenizer = utils.load_hf_tokenizer(request["model"], dtype=request["dtype"])
        if request["mended"] and tokenizer.chat_template is None:
            tokenizer.chat_template = TEMPLATE
        generate.loaded = model, tokenizer
        generate.forward = model.forward
    forward = generate.forward

    def counting(*given: Any, **named: Any) -> Any:
        counted["tokens"] += int(named["input_ids"].numel())
        return forward(*given, **named)

    model.forward = counting
    generate.load_hf_model = lambda **_: model
    generate.load_hf_tokenizer = lambda **_: tokenizer


if __name__ == "__main__":
    main()
