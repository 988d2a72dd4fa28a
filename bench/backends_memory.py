"""The peak memory of a real generation: `python -m bench.backends_memory SETTING`.

Prints the process' largest resident set in GiB, after one demonstration on one draw (R = T) of M prompts of about 200
tokens. There are as many records as prompts, so that the draw holds all of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path

BODY_TOKENS = 160
"""Tokens of a record; the instruction, the label and the fields make it 200."""


@dataclass(frozen=True)
class Setting:
    """The loading of the model, and the prompts of a draw.

    Attributes:
        context_tokens: see `LlamaCpp`.
        kept_prompts: see `LlamaCpp`.
        weights: see `LlamaCpp`; None for the file's.
        prompts: M.
    """

    context_tokens: int
    kept_prompts: int
    weights: str | None
    prompts: int


SETTINGS = (
    Setting(context_tokens=256, kept_prompts=15, weights=None, prompts=15),
    Setting(context_tokens=256, kept_prompts=90, weights=None, prompts=80),
    Setting(context_tokens=256, kept_prompts=90, weights="bf16", prompts=80),
    Setting(context_tokens=512, kept_prompts=75, weights=None, prompts=80),
)


def main(setting: Setting) -> None:
    """Generate four tokens."""
    text = " ".join(f"word {number}" for number in range(BODY_TOKENS))
    records = [dpf.Record(f"{number} {text}", "Location") for number in range(setting.prompts)]
    with LlamaCpp(
        packaged_model_path(),
        context_tokens=setting.context_tokens,
        kept_prompts=setting.kept_prompts,
        weights=setting.weights,
    ) as backend:
        synthesizer = dpf.Synthesizer(
            dpf.tasks.TREC,
            records,
            backend,
            budget=dpf.PrivacyBudget(epsilon=4, delta=1e-5),
            prompts_per_draw=setting.prompts,
            max_tokens=4,
            tokens_per_draw=4,
            labels=["Location"],
            record_token_cap=BODY_TOKENS,
        )
        synthesizer.generate("Location")
    print(largest_resident_set())


def largest_resident_set() -> float:
    """This program's peak, GiB. `getrusage` would also count what the process was before exec."""
    kilobytes = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert kilobytes  # noqa: S101 - Linux has it
    return int(kilobytes[1]) / 2**20


def gigabytes(setting: Setting) -> float:
    """The peak of the setting's generation in a process of its own, GiB."""
    arguments = [sys.executable, "-m", "bench.backends_memory", str(SETTINGS.index(setting))]
    return float(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)  # noqa: S603


if __name__ == "__main__":
    main(SETTINGS[int(sys.argv[1])])
