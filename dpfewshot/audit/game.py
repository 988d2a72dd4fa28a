"""The canary game: do releases reveal more about a record than the plan's ε allows?

The game plays against a synthesizer's own plan, mechanism and draws, through the code that generates its
demonstrations. It can refute a set-up, never prove one sound (docs/proofs/audit.md).
"""

from __future__ import annotations

from functools import partial

from tqdm import tqdm

from dpfewshot.audit.findings import Finding
from dpfewshot.audit.plays import Table
from dpfewshot.audit.premises import Answers, asked_in_company
from dpfewshot.audit.verdict import Counted, verdict_of
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.generation.bodies import Bodies
from dpfewshot.generation.set_up import SetUp
from dpfewshot.planning.plan import GenerationPlan, StratumPlan
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.synthesizer import Synthesizer
from dpfewshot.values import Record

BETA = 1e-3
"""The largest probability that a sound set-up fails by chance."""

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
    texts_only: bool = False,
) -> Finding:
    """Play with and without canaries, and bound ε from below.

    The game charges nothing and discards its tokens. Its result is confidential: it depends on the number of
    private records and on the model's answers to them.

    Args:
        synthesizer: the set-up, with a budget. Its account is not used.
        label: a planned label; by default, one of the stratum with the fewest units.
        plays: the number of plays of each game, with canaries and again without, at least 100.
        beta: β, the probability that a sound set-up fails.
        batches: the number of draws of records whose prompts the backend answers, each four times for
            the mechanism's candidates and four times for all tokens.
        texts_only: whether to play with the user's model and records, and to look at nothing but the texts
            that a run of the plan releases (Meeus et al. 2025). A play then costs what these texts cost.
            Draws and answers are not checked.

    Returns:
        A confidential finding of kind "canary". It fails if the lower bound exceeds the plan's ε, if units
        are not drawn as the proof requires, or if the backend's answer to a prompt depends on other prompts.

    Raises:
        InvalidPlan: the plan has no certified ε or no such label, or an argument is out of range.
        BackendError: the model or its server failed.
    """
    if plays < _LEAST_PLAYS or batches < 1 or not 0 < beta < 1:
        raise InvalidPlan("a canary game needs plays >= 100, batches >= 1 and 0 < beta < 1")
    set_up = synthesizer.set_up
    label = _smallest(set_up.plan) if label is None else label
    stratum = set_up.plan.stratum_of(label)
    if stratum.spend is None or not set_up.certified:
        raise InvalidPlan(
            "the canary game tests a certified epsilon, which this plan does not have (certified=False)"
        )
    with tqdm(desc="canary game", unit="play", disable=None, leave=False) as bar:
        table = Table(set_up, label, plays, beta / (2 if texts_only else _BOUNDS), bar.update)
        bar.total = 2 * plays + plays // 4 if texts_only else table.ticks
        counted = partial(Counted, label, set_up.plan.relation, beta)
        if texts_only:
            return verdict_of(set_up.mechanism, stratum, counted((table.released_texts(),), (), None))
        of_one_draw = [table.one_token(), table.one_block()]
        demonstration, draws = table.one_demonstration()
    games = (*(one for one in of_one_draw if one is not None), demonstration)
    units = set_up.bodies(set_up.parts(stratum)[0])
    answers = sum((_asked(set_up, stratum, label, units) for _ in range(batches)), Answers())
    return verdict_of(set_up.mechanism, stratum, counted(games, draws, answers))


def _smallest(plan: GenerationPlan) -> str:
    return min(plan.strata, key=lambda stratum: stratum.population).labels[0]


def _asked(set_up: SetUp, stratum: StratumPlan, label: str, units: Bodies) -> Answers:
    """Draw records once, and ask their prompts alone and among others."""
    prompts = set_up.writer.for_label(label)
    subsets = units.of(set_up.sampler(stratum).draw(units.sizes))
    suffixes = [each for subset in subsets if (each := prompts.suffix(subset, []))]
    return asked_in_company(
        set_up.backend,
        prompts,
        suffixes,
        _canaries(set_up, label),
        tokens=stratum.draws.tokens_per_draw,
        top_k=set_up.mechanism.top_k,
    )


def _canaries(set_up: SetUp, label: str) -> tuple[list[int], list[int]]:
    """Two prompts unlike any other: one repeated word, and the first tokens of the vocabulary."""
    cap = set_up.plan.settings.record_token_cap
    writer, backend = set_up.writer, set_up.backend
    texts = ("canary " * cap, backend.detokenize(range(min(cap, backend.vocabulary_size))))
    prompts = writer.for_label(label)
    first, last = (prompts.suffix([writer.body(Record(text=text, label=label))], []) for text in texts)
    if first is None or last is None:
        raise BackendError("the backend cannot tokenize plain text")
    return first, last
