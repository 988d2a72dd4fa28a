"""The time that privacy costs (Tang et al., Table 22), into docs/results/raw/overhead.json: `python -m bench.overhead`.

Seconds a token with each mechanism, against the same prompts without noise and against one prompt without records:
in turns, in one process, on the packaged model and synthetic tickets. Ratios with their spread over rounds; absolute
times mean little.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.mechanisms import AdaDPSyn, Gaussian, Mechanism, PublicCentred, ReportNoisyMax
from dpfewshot.runtime.files import write_whole
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.values import NoPrivacy

RAW = Path(__file__).parents[1] / "docs/results/raw/overhead.json"
ROUNDS = 5
TOKENS = 8
PROMPTS = 20
MECHANISMS: dict[str, Mechanism] = {
    "Gaussian": Gaussian(),
    "public-centred, three rounds": PublicCentred(),
    "AdaDPSyn": AdaDPSyn(),
    "report noisy max": ReportNoisyMax(),
}


def main() -> None:
    """Measure in turns."""
    records = support_tickets()
    with dpf.backends.LlamaCpp(
        dpf.backends.packaged_model_path(), context_tokens=256, kept_prompts=45
    ) as backend:
        ways: dict[str, Callable[[], dpf.Demonstration]] = {
            "no noise": planned(records, backend, Gaussian(), dpf.NO_PRIVACY)
        }
        for name, mechanism in MECHANISMS.items():
            ways[name] = planned(records, backend, mechanism, dpf.PrivacyBudget(4.0, 1e-5))
        ways["one prompt, no records"] = lambda: dpf.instruction_only_demonstrations(
            SUPPORT_TICKETS, backend, ["Refund"], max_tokens=TOKENS
        )[0]
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(ROUNDS + 1):
            for name, way in ways.items():
                started = time.perf_counter()
                made = way()
                if turn > 0:  # the first warms caches
                    seconds[name].append((time.perf_counter() - started) / made.token_count)
    ratios = {
        name: sorted(one / other for one, other in zip(spent, seconds["no noise"], strict=True))
        for name, spent in seconds.items()
    }
    found = {
        name: {
            "ratio": round(statistics.median(each), 3),
            "least": round(each[0], 3),
            "most": round(each[-1], 3),
        }
        for name, each in ratios.items()
    }
    write_whole(
        RAW,
        json.dumps({"rounds": ROUNDS, "prompts": PROMPTS, "tokens": TOKENS, "ratios": found}, indent=1)
        + "\n",
    )


def planned(
    records: list[dpf.Record],
    backend: dpf.backends.LlamaCpp,
    mechanism: Mechanism,
    budget: dpf.PrivacyBudget | NoPrivacy,
) -> Callable[[], dpf.Demonstration]:
    """A function that generates one demonstration after another. Planning is not counted."""
    synthesizer = dpf.Synthesizer(
        SUPPORT_TICKETS,
        records,
        backend,
        budget=budget,
        mechanism=mechanism,
        prompts_per_draw=PROMPTS,
        max_tokens=TOKENS,
        tokens_per_draw=TOKENS,
        shots_per_label=ROUNDS + 1,
    )
    return lambda: synthesizer.generate("Refund")


if __name__ == "__main__":
    main()
