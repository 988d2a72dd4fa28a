"""Chooses, under DP, the prompt that a task's records are best labelled with, and says how good it is.

A part of the units is held out from generation. A Poisson sample of it is divided once more: some units score
all candidates, and permute-and-flip (McKenna and Sheldon 2020) chooses one; the others measure the chosen one
and the prompt without demonstrations. A search has a part of the units for each of its rounds, and what one
round chose may decide what the next one tries. Every unit serves one release at most, so all of them have the
full ε, and the accuracy is not that of the units that chose. Proof: docs/proofs/choice.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Amount, pure_cost
from dpfewshot.account.history import Details
from dpfewshot.account.permit import Permit
from dpfewshot.account.reservation import Reservation
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import DPFewShotError, InvalidPlan, InvalidTask
from dpfewshot.exact import RandomSource
from dpfewshot.icl import Classifier, Extractor
from dpfewshot.planning.population import Population
from dpfewshot.records import as_records
from dpfewshot.records.units import UnitSequence
from dpfewshot.releases import scoring, selection
from dpfewshot.releases.candidates import MOST_CANDIDATES, Candidate, Choice, checked_candidates
from dpfewshot.releases.payment import open_payment
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.sampling import drawable
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacyBudget, Record, by_label, check_whole

ACCURACY: Final = "accuracy"
LIKELIHOOD: Final = "likelihood"

MOST_ROUNDS: Final = 100

_LIKELY, _ROUGH = 0.7, 0.1
"""An accuracy, and half the width of an interval around it that is too wide to tell prompts apart."""

_SLICES: Final = 5
"""Steps of the progress bar for each prompt, model and part: public, unlike the number of records."""

Proposer = Callable[[Sequence[Candidate]], Iterable[Candidate | Sequence[object]]]
"""Given the prompts that the rounds before chose, returns those to try next. It never sees a record."""


@redacts_errors(DPFewShotError, "the choice")
def choose(
    task: Task,
    records: Iterable[Record] | object,
    backend: LogprobBackend | Sequence[LogprobBackend],
    candidates: Iterable[Candidate | Sequence[object]] | Proposer,
    *,
    rounds: int = 1,
    budget: PrivacyBudget,
    account: Account | None = None,
    population: Population = None,
    unit: str | None = None,
    holdout: float = 0.0,
    scored_units: int = 1000,
    score: str = ACCURACY,
    balanced: bool = False,
    proxy: bool = False,
    record_token_cap: int = scoring.RECORD_TOKEN_CAP,
    on_progress: scoring.Progress | None = None,
    random_source: RandomSource | None = None,
) -> Choice:
    """Choose the prompt that labels the records best, under (ε, 0), and release its accuracy.

    Args:
        task: with labels, the likeliest one counts; with free labels, what the model writes.
        records: the private records, as in `Synthesizer`.
        backend: the trusted model that will use the demonstrations; or several models, whose scores are
            averaged, as a proxy for one that must not see records. Each must state batch invariance.
        candidates: sequences of released demonstrations, of which an empty one is zero-shot, or `Candidate`
            objects. All of them are public. Or what names them in each round: see `search`.
        budget: its ε is what the choice spends, and no δ.
        account, unit: as in `Synthesizer`.
        population: as in `Synthesizer`; with labels, {label: n} for all of them, or their sum.
        holdout: the fraction of units that choose, as it was given to `Synthesizer`, which then keeps them
            out of generation: an account counts the greater of both costs. 0, the default of both, reads all
            units, and both costs add.
        scored_units: units to score on average, at least 1. The sample is random, and amplifies ε.
        score: "accuracy" chooses by right or wrong; "likelihood" by the probability of the label.
        balanced: whether every label counts alike, whatever its public number of units. A label that no unit
            belongs to has no number, and each of its records weighs 1.
        proxy: whether the choice is for another model; so it always is with several.
        record_token_cap: the most tokens of a record's text in a prompt.
        on_progress: called with the steps done and all steps, of each round: five with each model for each
            candidate, and in the last round five more for each prompt that may be measured. An interrupt
            before the last step of the first round spends nothing.
        random_source: n to n uniform bytes, for tests alone: the choice says `certified=False`.

    Raises:
        InvalidPlan: an argument is outside its range, a prompt may exceed a backend's context, or a
            candidate's calibration is another prompt's.
        InvalidRecords: a record cannot be used, or has a label that the task does not have; or the file of
            indexed records has changed. An indexed record that cannot be read has no answer.
        InvalidTask: a candidate has a label that the task does not have.
        BackendNotBatchInvariant: a backend does not state batch invariance, or no longer does at the end.
        BackendError: a model or its server failed; nothing is spent. Only a process that is killed while it
            scores leaves ε spent: an account cannot tell whether it released anything.
        BudgetExceeded: the account does not allow it; nothing is scored or spent.
        LedgerError: as in `Synthesizer`; nothing is drawn.
    """
    first = checked_candidates(task, _first(candidates) if callable(candidates) else candidates)
    models = _models(backend)
    check_whole("scored_units", scored_units)
    _check(task, candidates, rounds, score, balanced=balanced)
    cost = Amount(Amount.of_budget(budget).epsilon, 0)  # what an account of the same budget can pay
    checked, certified = as_records(records, unit=unit), random_source is None
    payment = open_payment(
        task,
        checked,
        budget=budget if certified else None,
        account=account,
        population=population,
        holdout=holdout,
    )
    if balanced and not payment.counts:
        raise InvalidPlan("balanced=True needs population={label: n}, the public number of each label")
    sampling_rate = drawable(min(Fraction(1), scored_units / payment.population))
    rate = selection.amplified(Fraction(cost.as_target().epsilon), sampling_rate)
    _warn_if_rough(float(payment.population * sampling_rate / (rounds + 1)), rate)
    contest = _Contest(task, models, candidates, score, record_token_cap, rate, on_progress, random_source)
    tried = [contest.prompt_of(one) for one in first]
    plain = contest.baseline(tried)
    weights = selection.label_weights(payment.counts, min(payment.counts.values())) if balanced else {}
    details: Details = {
        "mechanism": "choice",
        "candidates": len(first),
        "rounds": rounds,
        "models": len(models),
        "score": score,
        "balanced": int(balanced),
        "q": str(sampling_rate),
        "epsilon": cost.as_spend().epsilon,
    }
    with payment.reserved(
        pure_cost(cost, sampling_rate=sampling_rate, rate=rate),
        uses=rounds + 1,
        noise_multiplier=selection.scale_of(rate),
        details=details,
    ) as reservation:
        parts = parts_of(payment.units, weights, sampling_rate, rounds + 1, random_source)
        winner, counts = contest.hold(tried, plain, parts, reservation)
    accuracy, baseline = _accuracies(counts, rate)
    return Choice(
        index=tried.index(winner),
        candidate=winner.candidate,
        accuracy=accuracy,
        baseline=baseline,
        spent=cost.as_spend() if certified else None,
        relation=payment.relation,
        unit=payment.unit,
        certified=certified,
        total=payment.total if account is not None else None,
        balanced=balanced,
        proxy=proxy or len(models) > 1,
    )


@redacts_errors(DPFewShotError, "the search")
def search(
    task: Task,
    records: Iterable[Record] | object,
    backend: LogprobBackend | Sequence[LogprobBackend],
    *,
    proposer: Proposer,
    budget: PrivacyBudget,
    rounds: int = 2,
    **options: Any,
) -> Choice:
    """Search for the prompt that labels the records best: `choose` in rounds that build on each other.

    All rounds together cost the ε of one choice, for each has its own part of the sampled units. What is not
    named here is as in `choose`.

    Args:
        proposer: names the candidates of a round, given what the rounds before it chose; `Variations` is one.
            The winner of a round stays in the next one.
        rounds: 1 to 100. Each has 1/(rounds + 1) of the sampled units; the last part measures.

    The errors are those of `choose`, with one difference: the first round is charged when it chooses, so a
    model that fails later leaves ε spent. A proposer that fails then, names a candidate that cannot be used
    or more than 1,024 of them only causes a warning.
    """
    return choose(task, records, backend, proposer, rounds=rounds, budget=budget, **options)


def _check(task: Task, candidates: object, rounds: int, score: str, *, balanced: bool) -> None:
    """Refuse what is outside its range, before a record is read."""
    check_whole("rounds", rounds)
    if rounds > MOST_ROUNDS:
        raise InvalidPlan(f"rounds must be at most {MOST_ROUNDS}, not {rounds}")
    if score not in (ACCURACY, LIKELIHOOD):
        raise InvalidPlan(f"unknown score {score!r}; choose {ACCURACY!r} or {LIKELIHOOD!r}")
    if balanced and task.labels is None:
        raise InvalidPlan("balanced=True needs a task with labels of its own")
    if rounds > 1 and not callable(candidates):
        raise InvalidPlan(f"rounds={rounds} needs a proposer, which names the candidates of each round")


def _first(propose: Proposer) -> list[Candidate | Sequence[object]]:
    """What a proposer wants to try in the first round."""
    try:
        return list(propose(()))
    except Exception as error:  # noqa: BLE001 - somebody else's code, whose frames may hold anything
        raise InvalidPlan(f"the proposer failed with {type(error).__name__}; nothing is spent") from None


def _accuracies(counts: NDArray[np.float64], rate: Fraction) -> tuple[selection.Estimate, selection.Estimate]:
    """The accuracies of the winner and of the baseline, which may be the same prompt, from noisy counts."""
    noise = selection.Noise(selection.scale_of(rate), terms=counts.ndim)
    by_prompt = [np.moveaxis(counts, axis, 0) for axis in range(counts.ndim)]
    estimates = [
        selection.estimate(float(right.sum()), float(wrong.sum()), noise) for wrong, right in by_prompt
    ]
    return estimates[0], estimates[-1]


def _warn_if_rough(measuring: float, rate: Fraction) -> None:
    """Warn, before anything is spent, of an accuracy that tells little; `measuring` is the units expected."""
    noise = selection.Noise(selection.scale_of(rate), terms=2)
    likely = selection.estimate(_LIKELY * measuring, (1 - _LIKELY) * measuring, noise)
    width = (likely.high - likely.low) / 2
    if width > _ROUGH:
        warn_caller(
            f"about {measuring:.0f} units measure the accuracy, which will be known to about "
            f"± {100 * width:.0f} points: that may not tell a good prompt from a bad one. More records, a "
            "larger holdout or a larger epsilon help; nothing is spent before a prompt is chosen"
        )


def warn_caller(message: str, *, stacklevel: int = 5) -> None:
    """Warn the caller of a release that goes on without what failed."""
    with suppress(UserWarning):  # a filter that turns warnings into errors must lose nothing that is paid
        warnings.warn(message, stacklevel=stacklevel)


def _models(backend: LogprobBackend | Sequence[LogprobBackend]) -> tuple[LogprobBackend, ...]:
    models = tuple(backend) if isinstance(backend, Sequence) else (backend,)
    if not models:
        raise InvalidPlan("there is no backend to score with")
    for model in models:
        if not isinstance(model, LogprobBackend):
            raise InvalidPlan(f"backend must be a LogprobBackend, or several, not {type(model).__name__}")
    return models


def _scorer(task: Task, model: LogprobBackend, prompt: Candidate, record_token_cap: int) -> scoring.Scorer:
    """Return the scorer of a task's labels, or of extraction where labels are free. Reads no record."""
    words = prompt.format or task
    if task.labels is None:
        return scoring.ExtractionScorer(
            Extractor(words, model, prompt.demonstrations, scoring.EXTRACTED_TOKENS), record_token_cap
        )
    shown, calibrated = prompt.demonstrations, prompt.calibrated
    classifier = Classifier(words, model, shown, calibrated, calibration=prompt.calibration)
    return scoring.LabelScorer(classifier, record_token_cap)


@dataclass(frozen=True, eq=False)
class _Prompt:
    """A candidate, and its scorer for each model."""

    candidate: Candidate
    scorers: Sequence[scoring.Scorer] = field(repr=False)


@dataclass(frozen=True)
class _Part:
    """The units of one part of the sample. Private.

    Records stand unit by unit; None is one that cannot be read, which stays in its unit's size.
    """

    records: Sequence[Record | None] = field(repr=False)
    sizes: Sequence[int] = field(repr=False)
    weights: selection.Integers = field(repr=False)

    def outcomes(self, scorers: Sequence[scoring.Scorer], advance: Callable[[], None]) -> selection.Outcomes:
        """Score the records with every model."""
        columns = []
        for scorer in scorers:
            found = []
            for numbers in np.array_split(np.arange(len(self.records)), _SLICES):
                found.append(scorer.outcomes([self.records[number] for number in numbers]))
                advance()
            columns.append([np.concatenate(each) for each in zip(*found, strict=True)])
        right, likelihood = zip(*columns, strict=True)
        return selection.Outcomes(np.column_stack(right), np.column_stack(likelihood))


@dataclass(frozen=True, eq=False)
class _Contest:
    """Rounds of candidates, each on its own part of the sampled units, and a part that measures the winner.

    What is not named here is as in `choose`.

    Attributes:
        candidates: of the first round, or what proposes those of each round.
        rate: the ε of a release, on the units of its part.
    """

    task: Task
    models: Sequence[LogprobBackend]
    candidates: object
    score: str
    record_token_cap: int
    rate: Fraction
    on_progress: scoring.Progress | None
    random_source: RandomSource | None

    def prompt_of(self, candidate: Candidate) -> _Prompt:
        """A candidate, ready to score."""
        scorers = [_scorer(self.task, model, candidate, self.record_token_cap) for model in self.models]
        return _Prompt(candidate, scorers)

    def baseline(self, tried: Sequence[_Prompt]) -> _Prompt:
        """The prompt without anything released."""
        for one in tried:
            if not (len(one.candidate.demonstrations) or one.candidate.calibration):
                return one
        return self.prompt_of(Candidate())

    def hold(
        self, tried: list[_Prompt], plain: _Prompt, parts: Sequence[_Part], reservation: Reservation
    ) -> tuple[_Prompt, NDArray[np.float64]]:
        """Release the last round's winner, and who of it and the baseline is right, as noisy counts.

        `tried` takes what a proposer names for the later rounds.
        """
        *choosing, measuring = parts
        listed, winners = [*tried], list[_Prompt]()
        permit: Permit
        for part in choosing:
            if winners:
                proposed = self._proposed([one.candidate for one in winners])
                listed = [winners[-1], *proposed]
                tried += proposed
            finalists = list(dict.fromkeys((*listed, plain))) if part is choosing[-1] else []
            steps = (len(listed) + len(finalists)) * len(self.models) * _SLICES
            with scoring.scoring_progress(steps, self.on_progress) as advance:
                scores = self._scores(part, listed, advance)
                measured = {one: measuring.outcomes(one.scorers, advance) for one in finalists}
            for scorer in listed[0].scorers:
                scorer.check_backend()
            if not winners:  # a model that failed before this has cost nothing
                permit = reservation.draw()
            winners.append(listed[selection.best_of(scores, self.rate, permit, self.random_source)])
        shown = [measured[one] for one in dict.fromkeys((winners[-1], plain))]
        cells = selection.cells_of(shown, measuring.weights, measuring.sizes)
        return winners[-1], selection.noisy_counts(cells, self.rate, permit, self.random_source)

    def _scores(
        self, part: _Part, listed: Sequence[_Prompt], advance: Callable[[], None]
    ) -> selection.Integers:
        """The sums of the candidates' scores on one part. Private."""
        likelihood = self.score == LIKELIHOOD
        outcomes = [part.outcomes(one.scorers, advance) for one in listed]
        sums = [
            selection.scores_of(each, part.weights, part.sizes, likelihood=likelihood) for each in outcomes
        ]
        return np.array(sums, dtype=np.int64)

    def _proposed(self, winners: Sequence[Candidate]) -> list[_Prompt]:
        """What a proposer wants to try next. The budget is spent by now: what fails here only warns."""
        found, warn = list[_Prompt](), partial(warn_caller, stacklevel=6)
        try:
            proposals = list(self.candidates(tuple(winners))) if callable(self.candidates) else []
        except Exception as error:  # noqa: BLE001 - as in `_first`
            warn(f"the proposer failed with {type(error).__name__}: its round keeps the winner")
            return found
        if len(proposals) > MOST_CANDIDATES:
            warn(f"the proposer named {len(proposals)} candidates: the first {MOST_CANDIDATES} are tried")
        for one in proposals[:MOST_CANDIDATES]:
            try:
                (candidate,) = checked_candidates(self.task, [one])
            except Exception as error:  # noqa: BLE001 - a candidate may be an iterator of the proposer's
                said = str(error) if isinstance(error, DPFewShotError) else type(error).__name__
                warn(f"a proposed candidate is left out: {said}")
                continue
            try:
                found.append(self.prompt_of(candidate))
            except (InvalidPlan, InvalidTask) as error:
                warn(f"a proposed candidate is left out: {error}")
        return found


def parts_of(
    units: UnitSequence,
    weights: Mapping[str, Fraction],
    sampling_rate: Fraction,
    count: int,
    random_source: RandomSource | None,
) -> list[_Part]:
    """Sample each unit by itself, and put it in one of so many parts: each serves one release."""
    q = sampling_rate.as_integer_ratio()
    drawn, part_of = _core.poisson_subsets(len(units), *q, count, random_source)
    parts = []
    for part in range(count):
        chosen = units.chosen(drawn[part_of == part])
        records = chosen.records()
        parts.append(_Part(records, chosen.sizes.tolist(), selection.weights_of(records, weights)))
    return parts


@dataclass(frozen=True)
class Variations:
    """A proposer for `dpf.search` that changes one thing at a time.

    The first round tries no demonstrations and one text a label, as often as there are other texts, then
    the last order reversed and labels that are not calibrated. Each further round tries the winner with one
    label's text exchanged or left out, and the two changes above.

    Args:
        demonstrations: released; with several texts a label there is more to try.
        most: candidates of a round, at least 1. If there are more, they are taken evenly from all.
    """

    demonstrations: Sequence[Demonstration] = field(repr=False)
    most: int = 12

    def __post_init__(self) -> None:
        check_whole("most", self.most)

    def __call__(self, winners: Sequence[Candidate]) -> list[Candidate]:
        """The candidates of the next round."""
        found = [*self._changed(winners[-1])] if winners else [*self._first()]
        step = max(1.0, len(found) / self.most)
        return [found[int(number * step)] for number in range(min(self.most, len(found)))]

    def _first(self) -> Iterator[Candidate]:
        yield Candidate()
        texts = [*by_label(self.demonstrations).values()]
        for number in range(max(map(len, texts), default=0)):
            shown = [each[number % len(each)] for each in texts]
            yield Candidate(shown, name=f"text {number + 1} of each label")
            if not number:
                yield from _presented(Candidate(shown, name="text 1 of each label"))

    def _changed(self, winner: Candidate) -> Iterator[Candidate]:
        shown = [*winner.demonstrations]
        yield from _presented(winner)
        for place, old in enumerate(shown):
            rest = shown[:place], shown[place + 1 :]
            for number, new in enumerate(by_label(self.demonstrations).get(old.label, [])):
                if new not in shown:
                    name = f"{winner.name}, {old.label}: text {number + 1}"
                    yield replace(winner, demonstrations=[*rest[0], new, *rest[1]], name=name)
            if len(shown) > 1:
                name = f"{winner.name}, without demonstration {place + 1}"
                yield replace(winner, demonstrations=[*rest[0], *rest[1]], name=name)


def _presented(prompt: Candidate) -> Iterator[Candidate]:
    """The same demonstrations, presented in another way."""
    if len(prompt.demonstrations) > 1:
        yield replace(prompt, demonstrations=prompt.demonstrations[::-1], name=f"{prompt.name}, reversed")
    calibrated = "not calibrated" if prompt.calibrated else "calibrated"
    yield replace(
        prompt, calibrated=not prompt.calibrated, calibration=None, name=f"{prompt.name}, {calibrated}"
    )
