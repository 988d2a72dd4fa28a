"""What a contrast to the public prompt does to the tokens: the tables of docs/decisions/contrast.md.

    python -m bench.contrast DATA        # DATA as in bench/utility.py; needs `make models`

Gemma 3 270M writes one text for each of ten categories of bank messages (banking77) and four of news, nearly without
noise and with the contrast; the predictions of all prompts are kept. On these steps each rule then chooses again, with
noise. A chosen token t is judged by the mean p of all prompts and by the public q:

    worth(t) = log max(p_t, .003) - ½ log(q_t + .01)

*Lost* is the worth of the best token among those with p of a tenth of the largest, less that of the chosen one, in
nats; *out of place* is the share of tokens with p below 2 %; *habit* the share that is the mean's likeliest token.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import dpfewshot as dpf
from bench.batched import Batched
from bench.utility import MODELS
from dpfewshot.account.permit import Permit
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms import (
    BaseRelease,
    Draws,
    Gaussian,
    Mechanism,
    Predictions,
    PublicCentred,
    Release,
    RowChange,
    SoftmaxChoice,
)

POOL = 120
"""Prompts whose predictions are kept of a step; a rule gets M of them."""

PROMPTS = 60
PLAYS = 2
OUT_OF_PLACE = 0.02
NOISES = (0.04, 0.07, 0.10, 0.15)

RULES: dict[str, Mechanism] = {
    "gaussian": Gaussian(),
    "gaussian, contrast": Gaussian(contrast=0.5),
    "public-centred": PublicCentred(contrast=0),
    "public-centred, contrast": PublicCentred(),
    "softmax-choice": SoftmaxChoice(contrast=0),
    "softmax-choice, half": SoftmaxChoice(contrast=0.5),
    "softmax-choice, by noise": SoftmaxChoice(),
}

TOPICS = {
    "top up": "top_up|topping",
    "money transfer": "transfer|beneficiary",
    "exchange rate": "exchange|currenc|fiat",
    "card PIN": "pin_|passcode",
    "cash withdrawal": "cash|atm",
    "refund": "refund",
    "card payment": "card_payment|direct_debit",
    "lost or stolen card": "lost|stolen|compromised",
    "new card": "arrival|delivery|getting_spare|getting_virtual|order_physical|activate",
    "identity check": "identity|verif",
}
"""Ten categories of banking77's labels, by expressions."""

BANK = dpf.Task(
    "bank messages",
    "Given a category, write a message that a customer sends to a bank about it.",
    "Category",
    "Message",
    tuple(TOPICS),
)


class Step(NamedTuple):
    """One step of a text: log-probabilities of the prompts with records, (prompts, support), and without."""

    private: NDArray[np.float32]
    public: NDArray[np.float32]


@dataclass(frozen=True)
class Recording(Gaussian):
    """Tang's mechanism, which keeps what it is shown."""

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        return _Recorder(super().start(draws, noise_multiplier, random_source))


SEEN: list[Step] = []


@dataclass
class _Recorder:
    inner: Release

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        return self.inner.support(public_logprobs, excluded)

    def token(
        self, logprobs: NDArray[np.float32], public_logprobs: NDArray[np.float32], permit: Permit
    ) -> int | None:
        SEEN.append(Step(logprobs.copy(), public_logprobs.copy()))
        return self.inner.token(logprobs, public_logprobs, permit)


def messages(folder: Path) -> list[dpf.Record]:
    """banking77's questions, by topic."""
    records = dpf.read_records(folder / "banking77.train.jsonl.gz")
    topics = (
        (record, topic) for record in records for topic in TOPICS if re.search(TOPICS[topic], record.label)
    )
    first = {record.text: replace(record, label=topic) for record, topic in reversed([*topics])}
    return list(first.values())


def watched(folder: Path) -> Iterator[Step]:
    """The steps of one text for each category of both tasks."""
    backend = Batched(MODELS["gemma"][1], threads=2, context_tokens=2048)
    news = dpf.read_records(folder / "agnews.train_subset.jsonl.gz")
    for task, records, tokens in ((BANK, messages(folder), 16), (dpf.tasks.AGNEWS, news, 24)):
        with dpf.Synthesizer(
            task,
            records,
            backend,
            budget=dpf.PrivacyBudget(epsilon=200, delta=1e-5),
            max_tokens=tokens,
            mechanism=Recording(contrast=0.5),
            settings=dpf.Settings(prompts_per_draw=POOL, tokens_per_draw=tokens, allow_batch_variance=True),
        ) as synthesizer:
            for one in synthesizer.generate_all():
                print(f"{one.label}: {one.text}", file=sys.stderr)
    yield from SEEN


def probabilities(logprobs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Softmax of rows."""
    finite = np.where(np.isfinite(logprobs), logprobs, -1e9).astype(np.float64)
    weights = np.exp(finite - finite.max(-1, keepdims=True))
    shares: NDArray[np.float64] = weights / weights.sum(-1, keepdims=True)
    return shares


def judged(rule: Mechanism, noise: float, steps: list[Step], coins: np.random.Generator) -> tuple[float, ...]:
    """What is lost, out of place and habit; means over steps and plays."""
    draws = Draws(0.1, 1, 1, PROMPTS, RowChange.ADDED)
    sigma = noise / (rule.noise_on_mean(draws, 1.0) or 1.0)
    found = []
    for step in steps * PLAYS:
        mean, public = probabilities(step.private).mean(0), probabilities(step.public)
        worth = np.log(np.maximum(mean, 0.003)) - 0.5 * np.log(public + 0.01)
        rows = step.private[coins.permutation(len(step.private))[:PROMPTS]]
        release = rule.start(draws, sigma)
        assert isinstance(release, BaseRelease)  # noqa: S101 - all of RULES are
        token = release.choose(Predictions(rows, step.public))
        lost = worth[mean >= 0.1 * mean.max()].max() - worth[token]
        found.append((lost, mean[token] < OUT_OF_PLACE, token == np.argmax(mean)))
    return tuple(np.mean(found, axis=0))


def main() -> None:
    """Prints the table in Markdown."""
    steps = list(watched(Path(sys.argv[1])))
    coins = np.random.default_rng(0)  # of public data; the noise is the mechanisms' own
    print(f"{len(steps)} steps, M = {PROMPTS}; lost in nats / out of place in % / habit in %\n")
    print(f"| noise on the mean | {' | '.join(map(str, NOISES))} |")
    print("|---|" + "---|" * len(NOISES))
    for name, rule in RULES.items():
        cells = [judged(rule, noise, steps, coins) for noise in NOISES]
        shown = (f"{lost:.3f} / {100 * junk:.1f} / {100 * habit:.0f}" for lost, junk, habit in cells)
        print(f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
