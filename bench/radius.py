"""The distances between the prompts' distributions: AdaDPSyn's Table 1, into docs/results/raw/radius.json.

    python -m bench.radius DATA

For each token of a demonstration without noise, the radius of the smallest ball around one of the prompts' distributions
(on the 100 likeliest public tokens) that holds 80 % of them, which GoodRadius looks for; its mean over the tokens of four
demonstrations. AdaDPSyn and the rounds of our own mechanism add noise in proportion to the radius, not to 1.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.batched import Batched
from bench.utility import backend, experiment
from bench.utility_data import DATA_SETS, DataSet
from dpfewshot.account.permit import Permit
from dpfewshot.evaluation import Trial, ZeroShot
from dpfewshot.generation.bodies import Bodies
from dpfewshot.generation.token_loop import TokenLoop
from dpfewshot.mechanisms.adadpsyn_presets import published
from dpfewshot.mechanisms.noiseless import Noiseless
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.records.units import units, units_by_label
from dpfewshot.runtime.files import write_whole
from dpfewshot.sampling import PoissonSampler

SHARE = 0.8
RAW = Path(__file__).parents[1] / "docs/results/raw/radius.json"


@dataclass
class Looking:
    """Releases without noise, and records the radius at each token."""

    noiseless: Noiseless = field(default_factory=lambda: Noiseless(100))
    radii: list[float] = field(default_factory=list)
    from_public: list[float] = field(default_factory=list)

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        """The likeliest public tokens."""
        return self.noiseless.support(public_logprobs, excluded)

    def token(
        self, logprobs: NDArray[np.float32], public_logprobs: NDArray[np.float32], permit: Permit
    ) -> int:
        """The likeliest token of the mean."""
        rows = distributions(logprobs)
        public = distributions(public_logprobs[np.newaxis])[0]
        apart = np.sort(np.linalg.norm(rows[:, np.newaxis] - rows, axis=2), axis=1)
        needed = int(np.ceil(SHARE * len(rows))) - 1
        self.radii.append(float(apart[:, needed].min()))
        self.from_public.append(float(np.sort(np.linalg.norm(rows - public, axis=1))[needed]))
        return self.noiseless.token(logprobs, public_logprobs, permit)


def distributions(logprobs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Probabilities on the support, shape as given."""
    weights = np.exp(logprobs.astype(np.float64) - logprobs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def measured(data: DataSet, folder: Path, writer: Batched) -> dict[str, float]:
    """The radii of four demonstrations of a task, with AdaDPSyn's M and N."""
    setting = published(data.task.name, epsilon=1)
    run = experiment(data, folder, writer, None, "gemma")
    prompts = PromptWriter(data.task, writer, record_token_cap=100)
    looking = Looking()
    for label in run.labels_of(Trial(ZeroShot(), 0.0, shots=4)):
        whole = units(run.records) if data.task.labels is None else units_by_label(run.records)[label]
        rate = Fraction(setting.prompts * setting.records_per_prompt, len(whole))
        sampler = PoissonSampler(rate, setting.prompts, setting.records_per_prompt)
        TokenLoop(writer, data.task.layout).release(
            Bodies(whole, prompts),
            sampler,
            looking,
            lambda: Permit.unpaid(data.max_tokens, 0.0),
            prompts=prompts.for_label(label),
            max_tokens=data.max_tokens,
        )
    return {
        "prompts": setting.prompts,
        "records_per_prompt": setting.records_per_prompt,
        "tokens": len(looking.radii),
        "radius": round(float(np.mean(looking.radii)), 4),
        "radius_around_public": round(float(np.mean(looking.from_public)), 4),
    }


def main() -> None:
    """Measures every task."""
    writer = backend("gemma", threads=1, context=1024)
    found = {name: measured(data, Path(sys.argv[1]), writer) for name, data in DATA_SETS.items()}
    write_whole(RAW, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
