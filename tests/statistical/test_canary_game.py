"""The canary game passes what is sound, and fails what is broken in any of the ways that it is there for.

A sound set-up fails once in a million games. Those that are broken fail by a margin of five standard errors.
"""

import json
from dataclasses import replace

import pytest
from scipy.stats import norm

from dpfewshot.accounting import PoissonGaussian
from dpfewshot.audit import canary_game
from dpfewshot.audit.bounds import Counts, Rate, TradeOff, epsilon_at_least, noise_at_most
from dpfewshot.audit.canaries import EchoCanary
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Gaussian, ReportNoisyMax, SparseVector
from tests.support import set_ups
from tests.support.chats import Chat
from tests.support.scripts import TASK
from tests.support.set_ups import SECRET, ForgetsBlocks, LessNoise, Mixing, set_up, set_up_of_echoes

PLAYS = 500
BETA = 1e-6
DELIVERY, LONGER = {"label": "delivery"}, {"plays": 1000}
GROUPED = {"units": 20, "prompts": 5, "records_per_prompt": 4}
SAMPLED = {"units": 100, "prompts": 10, "max_tokens": 3}


def played(synthesizer, plays=PLAYS, **settings):
    return canary_game(synthesizer, plays=plays, beta=BETA, **settings)


def holds(finding):
    """That it passed, and bounds ε below the certified one; or failed, and bounds it above."""
    bound = finding.figure("epsilon, lower bound")
    assert bound.value < bound.reference if finding.verdict == "passed" else bound.value > bound.reference
    return finding.verdict == "passed"


@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [
        (None, SAMPLED),
        pytest.param(None, {**GROUPED, "units": 40}, marks=pytest.mark.soak),
        pytest.param(None, {**GROUPED, "sampling": "fixed-size"}, marks=pytest.mark.soak),
        (ReportNoisyMax(), {}),
        (SparseVector(Gaussian(), threshold=1.0, releases=1), {"max_tokens": 3, "tokens_per_draw": 3}),
    ],
)
def test_a_sound_set_up_passes(mechanism, settings):
    finding = played(set_up(mechanism, **settings))
    assert holds(finding), finding.statement


@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [
        (LessNoise(), {"epsilon": 1.0}),
        pytest.param(LessNoise(), SAMPLED, marks=pytest.mark.soak),
        pytest.param(LessNoise(), GROUPED, marks=pytest.mark.soak),
        (LessNoise(ReportNoisyMax(), share=0.3), {"max_tokens": 4}),
    ],
)
def test_less_noise_than_planned_is_caught(mechanism, settings):
    assert not holds(played(set_up(mechanism, **settings)))


@pytest.mark.parametrize(
    ("made", "label"),
    [(set_ups.set_up_of_customers, None), *((set_ups.set_up_of_unequal_labels, one) for one in TASK.labels)],
)
def test_a_set_up_of_customers_and_free_labels_and_one_of_unequal_labels_pass(made, label):
    finding = played(made(), plays=200, label=label)
    assert finding.verdict == "passed", finding.statement


@pytest.mark.parametrize(
    ("wire_wrongly", "made", "settings", "says"),
    [
        (set_ups.slice_by_position, lambda: set_up(**GROUPED), {}, "share of pairs in one prompt"),
        (set_ups.draw_once, lambda: set_up(**SAMPLED), {}, "share of draws that hold a unit"),
        (set_ups.draw_once_a_demonstration, lambda: set_up(**SAMPLED), {}, "repeat the one before"),
        (set_ups.draw_all_at_the_largest_rate, set_ups.set_up_of_unequal_labels, DELIVERY, "hold a unit"),
        (set_ups.count_records_as_units, set_ups.set_up_of_customers, {}, "hold a unit twice"),
        (set_ups.draw_twice_as_long, lambda: set_up(**SAMPLED), {}, "longer draws than planned"),
        pytest.param(
            *(set_ups.start_as_for_one_record, lambda: set_up(**GROUPED), LONGER, "revealed canaries"),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_is_wired_wrongly_is_caught(wire_wrongly, made, settings, says, monkeypatch):
    """Each room is right by itself; only who plays through all of them sees the fault."""
    wire_wrongly(monkeypatch)
    finding = played(made(), **({"plays": 100} | settings))
    assert finding.verdict == "failed"
    assert says in finding.statement


@pytest.mark.parametrize(
    ("settings", "plays"),
    [
        pytest.param({**SAMPLED, "prompts": 20}, 2 * PLAYS, marks=pytest.mark.soak),
        ({**GROUPED, "units": 40}, PLAYS),
    ],
)
def test_a_mechanism_that_forgets_how_many_tokens_share_a_draw_is_caught(settings, plays):
    """A demonstration of sampled draws shows nothing: a claim is carried loosely over canaries there.

    With 500 plays, the rehearsal of the sampled set-up chose a blind threshold in one game of eight.
    """
    blocks = {**settings, "max_tokens": 10, "tokens_per_draw": 10}
    assert played(set_up(**blocks), plays=200).verdict == "passed"
    finding = played(set_up(ForgetsBlocks(), **blocks), plays=plays)
    assert not holds(finding)
    assert "one block revealed canaries" in finding.statement


@pytest.mark.parametrize("backend", [Mixing(), Mixing(supports_alone=True)])
def test_a_backend_that_mixes_batches_is_caught(backend):
    finding = played(set_up(backend=backend, max_tokens=2, tokens_per_draw=2), plays=100)
    assert finding.verdict == "failed"
    assert finding.figure("answers changed by other prompts").value > 0


def test_the_game_spends_nothing_and_says_nothing_of_a_record():
    synthesizer = set_up()
    finding = played(synthesizer, plays=100)
    assert synthesizer.spent.epsilon == 0
    assert synthesizer.generate("refund").certified
    assert finding.confidential
    assert SECRET not in json.dumps(finding.as_dict())


def test_only_a_certified_epsilon_is_tested():
    sound = set_up()
    with pytest.raises(InvalidPlan, match="certified"):
        played(set_up(random_source=bytes))
    with pytest.raises(InvalidPlan, match="plays"):
        canary_game(sound, plays=10)
    with pytest.raises(InvalidPlan, match="no label"):
        played(sound, label="praise")


@pytest.mark.parametrize("units", [1, 4])
def test_the_claim_of_a_gaussian_is_its_trade_off_curve(units):
    claim = TradeOff(PoissonGaussian(1.0, 1.5, 1))
    for probability in (0.01, 0.1, 0.5, 0.9):
        exact = norm.cdf(norm.ppf(probability) + units / 1.5)
        assert exact <= claim.most(probability, units) <= exact + 0.02


def test_perfect_counts_bound_the_noise_of_a_gaussian():
    plays, noise = 10**6, 1.2
    rates = (Rate(round(plays * norm.sf(at)), plays, 1e-3) for at in (2, 2 - 3 / noise))
    counts = Counts(*rates, 3)

    def event(at):
        return PoissonGaussian(1.0, at, 1)

    for planned in (0.8, 2.0):
        found = noise_at_most(event, planned, counts)
        assert noise < found < 1.1 * noise


def test_counting_alone_bounds_randomised_response():
    plays, epsilon = 10**6, 2.0
    yes = round(plays * 1 / (1 + 2.718281828**-epsilon))
    counts = Counts(Rate(plays - yes, plays, 1e-3), Rate(yes, plays, 1e-3), 1)
    assert 0.97 * epsilon < epsilon_at_least(1e-9, counts) < epsilon
    assert epsilon_at_least(0.9, counts) == 0


@pytest.mark.parametrize("asked", [{"schema": "[a-z]{3,9}"}, {"chat": True}, {"no_repeat_ngram_size": 2}])
def test_what_a_task_asks_of_the_users_model_is_not_asked_of_the_games(asked):
    settings = {"units": 40, "prompts": 10, "records_per_prompt": 2, "max_tokens": 12}
    synthesizer = set_up(task=replace(TASK, **asked), backend=Chat(), **settings)
    assert played(synthesizer, plays=100).verdict == "passed"


WHOLE = Gaussian(top_k=None)


def played_on_texts(synthesizer, **settings):
    return played(synthesizer, plays=200, texts_only=True, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"shots_per_label": 3, "epsilon": 4.0}, marks=pytest.mark.soak),
        {"sampling": "fixed-size"},
        {"tokens_per_draw": 1},
    ],
)
def test_texts_of_a_sound_set_up_bound_epsilon_below_the_certified_one(settings):
    finding = played_on_texts(set_up_of_echoes(WHOLE, **settings))
    assert holds(finding), finding.statement
    rate = finding.figure("released texts, true positives")
    assert rate.low < rate.reference


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"shots_per_label": 3, "epsilon": 4.0}, marks=pytest.mark.soak)]
)
def test_texts_that_echo_canaries_refute_a_set_up_without_noise(settings):
    finding = played_on_texts(set_up_of_echoes(LessNoise(WHOLE, share=0.02), **settings))
    assert not holds(finding)
    assert "released texts revealed canaries" in finding.statement


def test_texts_of_a_model_that_ignores_records_show_no_lack_of_noise():
    """What the worst-case model is there for: `test_less_noise_than_planned_is_caught`."""
    broken = set_up(LessNoise(), epsilon=1.0)
    assert played_on_texts(broken).verdict == "passed"
    assert played(broken).verdict == "failed"


def test_a_canary_begins_as_texts_do_and_ends_in_its_least_likely_candidates():
    synthesizer = set_up_of_echoes(Gaussian(top_k=8))
    canary = EchoCanary.following([0, 1], synthesizer.set_up, "refund")
    assert canary.record.text.split() == ["w0.", "w1.", "w7.", "w7."]
    assert canary.rare == 2
    alike, unlike = ["w0. w1. w7. w7."], ["w0. w1. w2. w3."]
    assert canary.echo(alike) > canary.echo(unlike)
    assert canary.echo([*unlike, *alike]) > canary.echo([*unlike, *unlike])
    assert "w1" not in repr(canary)
