"""Texts with and without the contrast, in pairs, and how they serve: the last tables of docs/decisions/contrast.md.

    python -m bench.contrast_use DATA agnews --epsilon 4 --records 1000 --sets 6 --tokens 18    # needs `make models`
    python -m bench.contrast_use DATA agnews --epsilon 4 --records 1000 --sets 3 --tokens 30
    python -m bench.contrast_use DATA agnews --epsilon 1 --records 300 --sets 2
    python -m bench.contrast_use DATA banking77 --epsilon 4 --records 300 --sets 1 --tokens 16 --items 60

A set is one text a label, by Gemma 3 270M, from the first records of a shuffled file. All conditions of a set share their
records and their prompts. Of a draw that the planner decided, 20 prompts are evaluated, and the draw is made as much
sharper as the prompts are fewer: the noise on the mean is that of the plan. Many prompts share a call, so nothing is
certified. The same model then labels test texts, cut after 30 words, with contextual calibration.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

import dpfewshot as dpf
from bench.batched import Batched
from bench.utility import DATA_SETS, MODELS
from dpfewshot.generation.set_up import SetUp
from dpfewshot.icl import Classifier
from dpfewshot.mechanisms import BaseRelease, Predictions, SoftmaxChoice
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.planning.plan import StratumPlan
from dpfewshot.values import Demonstration

PROMPTS = 20
WORDS = 30


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


def messages(folder: Path) -> list[dpf.Record]:
    """banking77's questions, by topic."""
    records = dpf.read_records(folder / "banking77.train.jsonl.gz")
    topics = (
        (record, topic) for record in records for topic in TOPICS if re.search(TOPICS[topic], record.label)
    )
    first = {record.text: replace(record, label=topic) for record, topic in reversed([*topics])}
    return list(first.values())


@dataclass(frozen=True)
class Condition:
    """What is taken off the votes.

    Attributes:
        contrast: β; None follows from the noise.
        labelled: whether the public prompt has the label.
    """

    contrast: float | None = None
    labelled: bool = True


CONDITIONS = {
    "without": Condition(0.0),
    "contrast": Condition(),
    "without the label": Condition(labelled=False),
    "without the label, 0.6": Condition(0.6, labelled=False),
}


def data(folder: Path, name: str) -> tuple[dpf.Task, list[dpf.Record], list[dpf.Record]]:
    """A task, its records, and its test texts."""
    if name != "banking77":
        one = DATA_SETS[name]
        read = (dpf.read_records(folder / f"{file}.jsonl.gz") for file in (one.train, one.test))
        return one.task, *map(list, read)  # type: ignore[return-value]
    test = dpf.read_records(folder / "banking77.test.jsonl.gz")
    topics = ((one, next((t for t in TOPICS if re.search(TOPICS[t], one.label)), None)) for one in test)
    return BANK, messages(folder), [replace(one, label=topic) for one, topic in topics if topic]


def some(records: Sequence[dpf.Record], count: int, coins: np.random.Generator) -> list[dpf.Record]:
    """So many records of each label."""
    kept, seen = [], Counter[str]()
    for position in coins.permutation(len(records)):
        record = records[position]
        seen[record.label] += 1
        if seen[record.label] <= count:
            kept.append(record)
    return kept


def texts(set_up: SetUp, stratum: StratumPlan, label: str) -> Iterator[tuple[str, str]]:
    """One text of each condition, from the same prompts."""
    prompts, bodies = set_up.writer.for_label(label), set_up.bodies(stratum, 0)
    subsets = bodies.of(set_up.sampler(stratum).draw(bodies.sizes))
    written = [each for subset in subsets if (each := prompts.suffix(subset, []))]
    chosen = [written[i] for i in np.random.default_rng().permutation(len(written))[:PROMPTS]]
    draws = replace(stratum.draws, prompts=len(chosen))
    sigma = stratum.noise_multiplier * len(chosen) / stratum.draws.prompts
    task, tokens = set_up.task, set_up.plan.settings.max_tokens
    habit = set_up.backend.tokenize(f"{task.preamble()}{task.text_field}:")
    for name, condition in CONDITIONS.items():
        release = SoftmaxChoice(contrast=condition.contrast).start(draws, sigma)
        assert isinstance(release, BaseRelease)  # noqa: S101 - it is
        with ExitStack() as stack:
            opened = partial(set_up.backend.open_block, tokens=tokens)
            public, unlabelled, private = (
                stack.enter_context(closing(block))
                for block in (
                    opened(prompts.prefix, [prompts.public_suffix], public=True),
                    opened([], [habit], public=True),
                    opened(prompts.prefix, chosen),
                )
            )
            draft = set_up.loop.draft(further=prompts.further)
            for step in range(tokens):
                row = public.next_token_logprobs()[0]
                support = draft.support(partial(likeliest, top_k=100), row, tokens - step)
                weighed = row if condition.labelled else unlabelled.next_token_logprobs()[0]
                rows = np.ascontiguousarray(private.next_token_logprobs(support))
                token = support[release.choose(Predictions(rows, weighed[support]))]
                following = draft.add(token)
                if draft.finished:
                    break
                for block, added in product((public, unlabelled, private), following):
                    block.append(added)
            yield name, draft.text()


def demonstration(label: str, text: str) -> Demonstration:
    """A text as a demonstration, which is not certified."""
    return Demonstration(
        text, label, token_count=0, certified=False, spent=None, relation="add-remove", mechanism=""
    )


def main() -> None:
    """Prints each text, and of each set and condition the accuracy in per cent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("task", choices=("banking77", *DATA_SETS))
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--records", type=int, default=1000, help="of each label")
    parser.add_argument("--sets", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=18)
    parser.add_argument("--items", type=int, default=56, help="test texts")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    task, records, test = data(given.data, given.task)
    labels = task.labels or ()
    backend = Batched(MODELS["gemma"][1], threads=given.threads, context_tokens=2048, dtype="float32")
    picked = np.random.default_rng(1).permutation(len(test))[: given.items]
    asked = [" ".join(test[i].text.split()[:WORDS]) for i in picked]
    for one in range(given.sets):
        made: dict[str, list[Demonstration]] = {name: [] for name in CONDITIONS}
        with dpf.Synthesizer(
            task,
            some(records, given.records, np.random.default_rng(100 + one)),
            backend,
            budget=dpf.PrivacyBudget(epsilon=given.epsilon, delta=1e-5),
            mechanism=SoftmaxChoice(),
            max_tokens=given.tokens,
            settings=dpf.Settings(tokens_per_draw=given.tokens, allow_batch_variance=True),
        ) as synthesizer:
            for stratum in synthesizer.set_up.plan.strata:
                [label] = stratum.labels
                for name, text in texts(synthesizer.set_up, stratum, label):
                    made[name].append(demonstration(label, text))
                    print(f"{one} {label} | {name} | {text}", flush=True)
        order = np.random.default_rng(one).permutation(len(labels))
        for name, shown in made.items():
            found = Classifier(task, backend, [shown[i] for i in order]).predict(asked)
            right = np.mean([test[i].label == label for i, label in zip(picked, found, strict=True)])
            print(f"{one} | {name} | {100 * right:.0f} %", flush=True)


if __name__ == "__main__":
    main()
