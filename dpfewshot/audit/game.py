"""The canary game: does what comes out tell of a record more than the plan's ε allows?

It plays against a synthesizer as it is set up: its plan, mechanism and draws, by the code that its own
demonstrations come from. It cannot prove that a set-up is sound; it can show that one is not
(docs/proofs/audit.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from tqdm import tqdm

from dpfewshot.audit.findings import Finding
from dpfewshot.audit.plays import Table
from dpfewshot.audit.premises import Answers, asked_in_company
from dpfewshot.audit.verdict import Counted, verdict_of
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.generation.set_up import SetUp
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from dpfewshot.prompts.writer import Body
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.synthesizer import Synthesizer
from dpfewshot.values import Record

BETA = 1e-3
"""How often a sound set-up fails by chance, at most."""

_BOUNDS = 12
_LEAST_PLAYS = 100


@redacts_errors(BackendError, "the canary game")
def canary_game(
    synthesizer: Synthesizer,
    *,
    label: str | None = None,
    plays: int = 1000,
    beta: float = BETA,
    batches: int = 2,
) -> Finding:
    """Play with and without canaries, and bound ε from below.

    Nothing is charged and nothing released: the tokens of the game are thrown away. Its result comes from
    the private records too (their number, the model's answers to them): keep it.

    Args:
        synthesizer: the set-up, with a budget. Its account is not touched.
        label: a planned label; by default one of the part with the fewest units.
        plays: of each game, with canaries and again without, at least 100.
        beta: β, the probability that a sound set-up fails.
        batches: draws of records whose prompts the backend is asked, each four times for
            the mechanism's candidates and four times for all tokens.

    Returns:
        A private finding of the kind "canary". It failed if the lower bound is above the plan's ε, if units
        are not drawn as the proof has it, or if the backend answers a prompt otherwise in other company.

    Raises:
        InvalidPlan: a plan without a certified ε, a label that is not planned, or a setting out of range.
        BackendError: the model or its server failed.
    """
    if plays < _LEAST_PLAYS or batches < 1 or not 0 < beta < 1:
        raise InvalidPlan("a canary game needs plays >= 100, batches >= 1 and 0 < beta < 1")
    set_up = synthesizer.set_up
    label = _smallest(set_up.plan) if label is None else label
    part = set_up.plan.stratum_of(label)
    if part.spend is None or not set_up.certified:
        raise InvalidPlan("the canary game tests a certified epsilon, and this plan has none (private=False)")
    with tqdm(desc="canary game", unit="play", disable=None, leave=False) as bar:
        table = Table(set_up, label, plays, beta / _BOUNDS, bar.update)
        bar.total = table.ticks
        of_one_draw = [table.one_token(), table.one_block()]
        demonstration, draws = table.one_demonstration()
    units = set_up.bodies(part)[0]
    return verdict_of(
        set_up.mechanism,
        part,
        Counted(
            label=label,
            relation=set_up.plan.relation,
            beta=beta,
            games=(*(one for one in of_one_draw if one is not None), demonstration),
            draws=draws,
            answers=sum((_asked(set_up, part, label, units) for _ in range(batches)), Answers()),
        ),
    )


def _smallest(plan: GenerationPlan) -> str:
    return min(plan.strata, key=lambda part: part.population).labels[0]


def _asked(set_up: SetUp, part: StratumPlan, label: str, units: Sequence[Sequence[Body]]) -> Answers:
    """One draw of records, whose prompts are asked with and without others."""
    prompts = set_up.writer.for_label(label)
    drawn = set_up.sampler(part).draw([len(unit) for unit in units])
    subsets = [[units[unit][record] for unit, record in subset] for subset in drawn]
    suffixes = [each for subset in subsets if (each := prompts.suffix(subset, []))]
    return asked_in_company(
        set_up.backend,
        prompts,
        suffixes,
        _canaries(set_up, label),
        tokens=part.draws.tokens_per_draw,
        top_k=set_up.mechanism.top_k,
    )


def _canaries(set_up: SetUp, label: str) -> tuple[list[int], list[int]]:
    """Two prompts unlike all others: of one word again and again, and of what the vocabulary begins with."""
    cap = set_up.plan.settings.record_token_cap
    writer, backend = set_up.writer, set_up.backend
    texts = ("canary " * cap, backend.detokenize(range(min(cap, backend.vocabulary_size))))
    prompts = writer.for_label(label)
    first, last = (prompts.suffix([writer.body(Record(text=text, label=label))], []) for text in texts)
    if first is None or last is None:
        raise BackendError("the backend cannot make tokens of plain text")
    return first, last
