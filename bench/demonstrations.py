"""Every mechanism's demonstrations of TREC, by the packaged model: the page docs/results/demonstrations.md.

    python -m bench.demonstrations trec.train.jsonl.gz > docs/results/demonstrations.md

M = 80, N = 1, T = R = 15, ε = 4 and δ = 1e-5 for each label, whose records are disjoint. About a quarter of an hour on two
cores; progress goes to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.mechanisms import (
    AdaDPSyn,
    Gaussian,
    InvisibleInk,
    Mechanism,
    PrivatePrediction,
    PublicCentred,
    ReportNoisyMax,
    SparseVector,
)
from dpfewshot.values import delta_text, epsilon_text

LABELS = ("Number", "Location", "Person", "Description", "Entity")
BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)
PARTS = 10
"""Disjoint parts of each label for the sparse vector, whose draws hold every record of a part."""

POPULATION = 80 * PARTS
"""The public population that gives a part 80 records. Every label has more, and so has every part."""

MECHANISMS: dict[str, Mechanism] = {
    "Gaussian": Gaussian(),
    "Gaussian, drawn at temperature 1 from the nucleus of 0.9": Gaussian(temperature=1.0, top_p=0.9),
    "Gaussian, whole vocabulary": Gaussian(top_k=None),
    "public-centred, three rounds": PublicCentred(),
    "AdaDPSyn, the paper's ratios for TREC at ε = 4": AdaDPSyn.preset("trec", epsilon=4),
    "report noisy max": ReportNoisyMax(),
    "private prediction, c = 10": PrivatePrediction(clip=10.0),
    "InvisibleInk, τ = 1": InvisibleInk(),
    "sparse vector around the Gaussian, θ = 0.6, r = 5, 10 disjoint parts": SparseVector(Gaussian(), 0.6, 5),
}


def page(records: list[dpf.Record], backend: LlamaCpp) -> Iterator[str]:
    """A section for each mechanism, and the two baselines that read no record or add no noise."""
    for name, mechanism in MECHANISMS.items():
        yield from section(name, records, backend, mechanism, BUDGET)
    yield from section("σ = 0 (no guarantee)", records, backend, Gaussian(), dpf.NO_PRIVACY)
    yield "## ε = 0, from the instruction alone\n"
    for one in dpf.instruction_only_demonstrations(dpf.tasks.TREC, backend, LABELS, max_tokens=15):
        yield f"- {one.label}: {one.text}"


def section(
    name: str,
    records: list[dpf.Record],
    backend: LlamaCpp,
    mechanism: Mechanism,
    budget: dpf.PrivacyBudget | dpf.values.NoPrivacy,
) -> Iterator[str]:
    """The demonstrations of every label under its own budget."""
    started = time.perf_counter()
    parts = PARTS if isinstance(mechanism, SparseVector) else 1
    synthesizer = dpf.Synthesizer(
        dpf.tasks.TREC,
        records,
        backend,
        budget=budget,
        mechanism=mechanism,
        prompts_per_draw=80,
        max_tokens=15,
        tokens_per_draw=15,
        labels=LABELS,
        population=dict.fromkeys(LABELS, POPULATION) if parts > 1 else None,
        disjoint_parts=parts,
    )
    plan = synthesizer.plan
    yield f"## {name}\n"
    if plan.epsilon is not None and plan.delta is not None:
        yield (
            f"ε = {epsilon_text(plan.epsilon)}, δ = {delta_text(plan.delta)}, neighbours {plan.relation}, "
            f"noise multiplier {plan.noise_multiplier:.3f} at the label with the fewest records.\n"
        )
    for one in synthesizer.generate_all():
        yield f"- {one.label}: {one.text}"
    yield ""
    print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


HEADER = """# Demonstrations of TREC, by mechanism

    python -m bench.demonstrations trec.train.jsonl.gz > docs/results/demonstrations.md

SmolLM2-135M-Instruct (Q4_1) in process, TREC's training questions, M = 80, N = 1, T = R = 15 (one draw a demonstration), each label under a budget of
ε = 4, δ = 1e-5. The page shows the output of one run. The model is small; [mechanisms](mechanisms.md) measures how close each mechanism stays to the
model's noiseless output.
"""

if __name__ == "__main__":
    with LlamaCpp(packaged_model_path(), context_tokens=256, kept_prompts=120) as loaded:
        print(HEADER)
        print("\n".join(page(dpf.read_records(sys.argv[1]), loaded)))
