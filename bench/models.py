"""Fetches the evaluation's models into models/, and unpacks them: `make models`.

Beside each GGUF file there is then a folder with the same weights in bfloat16, which bench/utility.py reads.
`dpfewshot model` names the models' licences.
"""

from __future__ import annotations

from pathlib import Path

from dpfewshot.backends.downloads import DOWNLOADS, fetch

FOLDER = Path("models")


def main() -> None:
    """Fetches and unpacks the missing models."""
    for name in DOWNLOADS:
        target = fetch(name, FOLDER)
        print(f"{target}: there, sha256 as expected")
        unpacked = target.with_suffix("")
        if not (unpacked / "tokenizer.json").exists():  # written last
            unpack(target, unpacked)
        print(f"{unpacked}/: there")


def unpack(source: Path, target: Path) -> None:
    """Writes a GGUF file's weights and tokenizer as a folder of Hugging Face's form, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16, quantization_config=dense)
    model.config.quantization_config = None
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)


if __name__ == "__main__":
    main()
