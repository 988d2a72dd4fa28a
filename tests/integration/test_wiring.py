"""What the rooms hand to each other in a whole generation, seen by witnesses at every border.

A room can be right by itself and be handed the wrong thing: a private row for the public one, the rate of
another label, the records of the draw before. Every test here states what has to cross a border.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.amounts import EventCost
from dpfewshot.accounting import PoissonGaussian, epsilon
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.mechanisms import Mechanism, RowChange
from dpfewshot.values import PrivacyBudget
from tests.support import factory
from tests.support.scripts import TASK

FREE = dpf.Task(name="films", instruction="Write.", label_field="Kind", text_field="Film")
BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)
TOKENS = 6
IMPOSSIBLE = 1e-9
"""A sound generation is this far from the expected once in a thousand million runs."""

# ---- witnesses: everything that crosses a border in a generation goes into a journal -----------------------

VOCABULARY = 12
PUBLIC_TEXT, FIRST_RECORD = 500, 1000


def record(number: int, label: str, unit: str | None = None) -> dpf.Record:
    """A record that a witness knows again in a prompt."""
    return dpf.Record(f"r{number}", label, unit)


@dataclass(frozen=True)
class Asked:
    """What the language model was asked: every prompt, and which tokens."""

    prompts: tuple[tuple[int, ...], ...]
    support: tuple[int, ...] | None

    @property
    def private(self) -> bool:
        return any(token >= FIRST_RECORD for prompt in self.prompts for token in prompt)

    def records(self, released: Sequence[int] = ()) -> list[tuple[int, ...]]:
        """The numbers of the records in each prompt, which ends in exactly what was released."""
        for prompt in self.prompts:
            end = [token for token in prompt[len(prompt) - len(released) - 1 :] if token < VOCABULARY]
            assert end == list(released)
        return [
            tuple(token - FIRST_RECORD for token in prompt if token >= FIRST_RECORD)
            for prompt in self.prompts
        ]


class Witness(LogprobBackend):
    """A language model that writes down all it is asked. Records move its answers far away."""

    def __init__(self, journal: list[Any]) -> None:
        self.vocabulary_size = VOCABULARY
        self.end_token_ids = frozenset()
        self.batch_invariant = True
        self.journal = journal

    def tokenize(self, text: str) -> list[int]:
        word = text.strip()
        return [FIRST_RECORD + int(word[1:]) if word[:1] == "r" and word[1:].isdigit() else PUBLIC_TEXT]

    def detokenize(self, tokens: Tokens) -> str:
        return "".join("abcdefghijkl"[token] for token in tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        asked = tuple(tuple(prompt) for prompt in prompts)
        self.journal.append(Asked(asked, None if support is None else tuple(support)))
        rows = np.array([self._answer(prompt) for prompt in prompts])
        return rows if support is None else np.ascontiguousarray(rows[:, list(support)])

    def _answer(self, prompt: Tokens) -> Logprobs:
        """Each prompt favours tokens of its own: one half of them without records, the other with some."""
        records = [token for token in prompt if token >= FIRST_RECORD]
        half = VOCABULARY // 2
        favourite = (len(prompt) % half) + half if not records else sum(records) % half
        distance = (np.arange(VOCABULARY) - favourite) % VOCABULARY
        scores = -distance.astype(np.float64)
        return (scores - np.log(np.exp(scores).sum())).astype(np.float32)


@dataclass(frozen=True)
class Started:
    draws: Any
    noise_multiplier: float
    random_source: Any


@dataclass(frozen=True)
class Supported:
    public: bytes
    excluded: frozenset[int]
    support: tuple[int, ...]


@dataclass(frozen=True)
class Released:
    public: bytes
    rows: int = field(compare=False)
    permit: Any = field(compare=False)
    token: int


class SpyingMechanism:
    """A mechanism whose every argument is written down, and whose tokens no private number has a say in."""

    def __init__(self, mechanism: Mechanism, journal: list[Any]) -> None:
        self._mechanism = mechanism
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def start(self, draws: Any, noise_multiplier: float, random_source: Any = None) -> Any:
        self._journal.append(Started(draws, noise_multiplier, random_source))
        return SpyingRelease(self._mechanism.start(draws, noise_multiplier, random_source), self._journal)


class SpyingRelease:
    def __init__(self, release: Any, journal: list[Any]) -> None:
        self._release = release
        self._journal = journal
        self._tokens = 0

    def support(self, public_logprobs: Any, excluded: frozenset[int]) -> list[int]:
        support: list[int] = self._release.support(public_logprobs, excluded)
        self._journal.append(Supported(public_logprobs.tobytes(), excluded, tuple(support)))
        return support

    def token(self, logprobs: Any, public_logprobs: Any, permit: Any) -> int:
        self._release.token(logprobs, public_logprobs, permit)
        self._tokens += 1
        token = self._tokens % logprobs.shape[1]
        self._journal.append(Released(public_logprobs.tobytes(), len(logprobs), permit, token))
        return token


@dataclass(frozen=True)
class Told:
    act: str
    arguments: tuple[Any, ...]


class SpyingAccount(Account):
    """An account that writes down what it is told; the numbers of its entries are no matter."""

    def __init__(self, budget: PrivacyBudget, journal: list[Any]) -> None:
        super().__init__(Account.in_memory(budget)._store)  # noqa: SLF001 - of its own class
        self._journal = journal

    def reserve(self, scope: Any, cost: Any, details: Any, draws: Any = None) -> Reserved:
        self._journal.append(Told("reserve", (scope, cost, dict(details))))
        return super().reserve(scope, cost, details, draws)

    def draw(self, entry: int, lease: str, progress: str = "") -> None:
        self._journal.append(Told("charge", ()))
        super().draw(entry, lease, progress)


def draws_of(journal: Sequence[Any], tokens: int) -> Iterator[list[list[tuple[int, ...]]]]:
    """The records in each prompt, at each token, one demonstration after another.

    Args:
        journal: of demonstrations whose support the mechanism chose before each token.
        tokens: of each demonstration.
    """
    released: list[int] = []
    steps: list[list[tuple[int, ...]]] = []
    support: tuple[int, ...] = ()
    seen: list[tuple[int, ...]] = []
    for entry in journal:
        match entry:
            case Supported():
                support, seen = entry.support, []
            case Asked() if entry.private:
                seen = entry.records(released)
            case Released():
                released.append(support[entry.token])
                steps.append(seen)
                if len(steps) == tokens:
                    yield steps
                    released, steps = [], []


@dataclass
class Seen:
    """A whole generation, and everything that crossed a border in it."""

    journal: list[Any]
    synthesizer: dpf.Synthesizer
    labels: Sequence[str]

    def all(self, kind: type[Any]) -> list[Any]:
        return [entry for entry in self.journal if isinstance(entry, kind)]

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """What the account was told of each label's plan."""
        reserved = [entry.arguments for entry in self.all(Told) if entry.act == "reserve"]
        return {
            label: {"cost": cost, **details}
            for label, (_, cost, details) in zip(self.labels, reserved, strict=True)
        }

    @property
    def demonstrations(self) -> list[list[list[tuple[int, ...]]]]:
        """Of each demonstration, at each token: the records in each prompt."""
        return list(draws_of(self.journal, TOKENS))


def generated(
    records: Sequence[dpf.Record], *, task: dpf.Task = TASK, shots: int = 1, **options: Any
) -> Seen:
    journal: list[Any] = []
    made = factory.synthesizer(
        Witness(journal),
        records,
        task=task,
        budget=BUDGET,
        mechanism=SpyingMechanism(dpf.mechanisms.Gaussian(top_k=3), journal),  # type: ignore[arg-type]
        max_tokens=TOKENS,
        shots_per_label=shots,
        account=SpyingAccount(BUDGET, journal),
        **options,
    )
    labels = [label for part in made.plan.strata for label in part.labels]
    for label in labels * shots:
        made.generate(label)
    return Seen(journal, made, labels)


def both_labels(refund: int, delivery: int) -> list[dpf.Record]:
    return [record(i, "refund") for i in range(refund)] + [
        record(500 + i, "delivery") for i in range(delivery)
    ]


# ---- what is public ----------------------------------------------------------------------------------------

PUBLIC = (Started, Supported, Released, Told)
UNITS = st.lists(
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["refund", "delivery"])), min_size=1, max_size=4),
    min_size=2,
    max_size=12,
)


def public_part(seen: Seen) -> list[Any]:
    """Everything in the journal that has to be a function of public numbers, in order."""
    return [
        entry
        for entry in seen.journal
        if isinstance(entry, PUBLIC) or (isinstance(entry, Asked) and not entry.private)
    ]


@given(UNITS, UNITS, st.sampled_from(list(itertools.product([1, 2], [1, 4]))), st.booleans(), st.data())
@settings(max_examples=15, phases=[Phase.generate])  # shrinking would take minutes
def test_support_centre_and_charge_are_the_same_whatever_the_records_are(
    units: Any, others: Any, sizes: tuple[int, int], free: bool, data: st.DataObject
) -> None:
    """On neighbours (a unit less), and on data replaced altogether."""
    records_per_prompt, tokens_per_draw = sizes
    options: dict[str, Any] = {
        "records_per_prompt": records_per_prompt,
        "tokens_per_draw": tokens_per_draw,
        "prompts_per_draw": 10 // records_per_prompt,
        "population": 12 if free else {"refund": 12, "delivery": 20},
        "task": FREE if free else TASK,
        "labels": ["refund", "delivery"] if free else None,
    }
    fewer = list(units)
    fewer.pop(data.draw(st.integers(0, len(fewer) - 1)))
    told = [
        public_part(
            generated(
                [record(n, label, f"u{u}") for u, unit in enumerate(these) for n, label in unit], **options
            )
        )
        for these in (units, fewer, others)
    ]
    assert len(told[0]) > 3 * TOKENS
    assert told[0] == told[1]
    assert told[0] == told[2]


def test_the_witness_says_other_things_with_records_than_without() -> None:
    """Else the test above would hold nothing: private rows and the public one have no candidate in common."""
    witness = Witness([])
    public, private = witness.next_token_logprobs([[500, 500], [500, 1003, 500]])
    assert not set(public.argsort()[-3:]) & set(private.argsort()[-3:])


# ---- who is drawn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records_per_prompt", [1, 2])
@pytest.mark.parametrize("tokens_per_draw", [1, 2, 6])
def test_tokens_share_their_draw_within_r_and_never_beyond(
    records_per_prompt: int, tokens_per_draw: int
) -> None:
    """At q = 1/2 two independent draws of 64 units are equal with a probability of 2^-64."""
    seen = generated(
        both_labels(64, 64),
        prompts_per_draw=32 // records_per_prompt,
        records_per_prompt=records_per_prompt,
        tokens_per_draw=tokens_per_draw,
        shots=2,
    )
    draws = []
    for steps in seen.demonstrations:
        for start in range(0, TOKENS, tokens_per_draw):
            block = steps[start : start + tokens_per_draw]
            assert all(step == block[0] for step in block), "the tokens of a draw have the same prompts"
            draws.append(frozenset(itertools.chain(*block[0])))
    assert len(draws) == 4 * TOKENS // tokens_per_draw
    assert len(set(draws)) == len(draws)
    permits = {id(entry.permit): entry.permit for entry in seen.all(Released)}
    assert len(permits) == len(draws), "every draw is charged for"
    assert {permit.tokens for permit in permits.values()} == {tokens_per_draw}


def test_draws_are_independent() -> None:
    """A unit is in two draws with probability q², one after the other or not."""
    seen = generated(
        [record(i, "refund") for i in range(400)], labels=["refund"], prompts_per_draw=200, shots=2
    )
    draws = [frozenset(itertools.chain(*step)) for steps in seen.demonstrations for step in steps]
    for one, other in itertools.pairwise(draws):
        assert binomtest(len(one & other), 400, 1 / 4).pvalue > IMPOSSIBLE
    assert {entry.arguments for entry in seen.all(Told) if entry.act == "charge"} == {()}


@pytest.mark.parametrize("records_per_prompt", [1, 2])
def test_each_label_is_drawn_at_the_rate_that_its_entry_states(records_per_prompt: int) -> None:
    """Of labels of different populations, which are public and other than the counts."""
    counted = {"refund": 150, "delivery": 480}
    seen = generated(
        both_labels(*counted.values()),
        prompts_per_draw=20,
        records_per_prompt=records_per_prompt,
        population={"refund": 200, "delivery": 800},
        shots=3,
    )
    found: Counter[str] = Counter()
    for label, steps in zip(seen.labels * 3, seen.demonstrations, strict=True):
        for step in steps:
            drawn = [number for prompt in step for number in prompt]
            assert len(set(drawn)) == len(drawn)
            assert {number >= 500 for number in drawn} <= {label == "delivery"}
            assert seen.entries[label]["records_per_prompt"] == records_per_prompt
            found[label] += len(drawn)
            if records_per_prompt > 1:
                assert len(step) <= 20
            else:
                assert all(len(prompt) == 1 for prompt in step)
    for label, count in counted.items():
        rate = Fraction(seen.entries[label]["sampling_rate"])
        assert rate == Fraction(20 * records_per_prompt, seen.synthesizer.plan.stratum_of(label).population)
        assert binomtest(found[label], count * TOKENS * 3, float(rate)).pvalue > IMPOSSIBLE


@pytest.mark.parametrize("task", [TASK, FREE])
def test_a_unit_counts_once_and_shows_one_of_its_records(task: dpf.Task) -> None:
    """However many it has. 40 customers have five records each, 40 have one."""
    records = [record(10 * i + k, "refund", f"c{i}") for i in range(80) for k in range(5 if i < 40 else 1)]
    records += [record(900, "delivery", "another")] if task is TASK else []  # every label has units
    seen = generated(records, task=task, labels=["refund"], prompts_per_draw=40, shots=4)
    [part] = seen.synthesizer.plan.strata
    assert part.population == 80
    assert Fraction(seen.entries["refund"]["sampling_rate"]) == Fraction(1, 2)
    shown: Counter[int] = Counter()
    drawn = 0
    for step in itertools.chain(*seen.demonstrations):
        customers = [number // 10 for prompt in step for number in prompt]
        assert len(set(customers)) == len(customers)
        drawn += len(customers)
        shown.update(number % 10 for prompt in step for number in prompt if number < 400)
    assert binomtest(drawn, 80 * TOKENS * 4, 0.5).pvalue > IMPOSSIBLE
    for which in range(5):
        assert binomtest(shown[which], shown.total(), 1 / 5).pvalue > IMPOSSIBLE


# ---- how much noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("records_per_prompt", [1, 2])
@pytest.mark.parametrize("tokens_per_draw", [1, 4])
def test_the_noise_of_every_token_is_what_its_entry_states(
    records_per_prompt: int, tokens_per_draw: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """σ times the sensitivity: 1 where a unit adds a row, √2 where it changes one into another."""
    scales: list[int] = []
    release = _core.noisy_sum_of_probabilities

    def spy(rows: Any, scale: int, source: Any) -> Any:
        scales.append(scale)
        assert source is None
        return release(rows, scale, source)

    monkeypatch.setattr(_core, "noisy_sum_of_probabilities", spy)
    seen = generated(
        both_labels(60, 120),
        prompts_per_draw=10,
        records_per_prompt=records_per_prompt,
        tokens_per_draw=tokens_per_draw,
    )
    rows = 1 if records_per_prompt == 1 else 2
    assert len(scales) == 2 * TOKENS
    for number, label in enumerate(seen.labels):
        entry, part = seen.entries[label], seen.synthesizer.plan.stratum_of(label)
        started = seen.all(Started)[number]
        assert started == Started(part.draws, entry["noise_multiplier"], None)
        assert started.draws.row_change is (RowChange.ADDED if rows == 1 else RowChange.REPLACED)
        assert (entry["steps"], entry["tokens_per_step"]) == (-(-TOKENS // tokens_per_draw), tokens_per_draw)
        needed = Fraction(entry["noise_multiplier"]) ** 2 * rows * _core.grid**2
        for scale in scales[number * TOKENS : (number + 1) * TOKENS]:
            assert needed <= scale**2 <= needed * Fraction(1001, 1000)
        smallest = min(scales[number * TOKENS : (number + 1) * TOKENS]) / _core.grid / rows**0.5
        event = PoissonGaussian(
            float(Fraction(entry["sampling_rate"])), smallest / tokens_per_draw**0.5, entry["steps"]
        )
        assert entry["cost"] == EventCost(part.cost, part.event)
        assert part.spend.epsilon == pytest.approx(epsilon(event, BUDGET.delta).upper, rel=1e-3)
    assert {label: entry["noise_multiplier"] for label, entry in seen.entries.items()} == {
        part.scope: part.noise_multiplier for part in seen.synthesizer.plan.strata
    }
    assert len({entry["noise_multiplier"] for entry in seen.entries.values()}) == 2, (
        "labels differ in their noise"
    )


def test_a_plan_is_reserved_and_charged_before_its_first_records_are_read() -> None:
    seen = generated(both_labels(60, 60), prompts_per_draw=30)
    for label, start in zip(seen.labels, (0, len(seen.journal) // 2), strict=True):
        del label
        acts = [
            entry.act if isinstance(entry, Told) else "records"
            for entry in seen.journal[start : start + len(seen.journal) // 2]
            if isinstance(entry, Told) or (isinstance(entry, Asked) and entry.private)
        ]
        assert acts[:3] == ["reserve", "charge", "records"]


def test_each_label_has_as_many_prompts_as_its_own_plan() -> None:
    """Of 30 and 90 records, two in a prompt, all of which are drawn: at most 15 prompts, and 45."""
    seen = generated(both_labels(30, 90), prompts_per_draw=None, records_per_prompt=2, tokens_per_draw=TOKENS)
    assert [one.draws.prompts for one in seen.synthesizer.plan.strata] == [15, 45]
    few, many = (len(demonstration[0]) for demonstration in seen.demonstrations)
    assert few <= 15 < many <= 45
    assert sum(map(len, seen.demonstrations[0][0])) == 30
    assert sum(map(len, seen.demonstrations[1][0])) == 90
