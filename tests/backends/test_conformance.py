"""Each check of the suite, held to a backend with a fault that no other check finds."""

from __future__ import annotations

import re
import threading
from functools import partial

import numpy as np
import pytest

from dpfewshot.backends import LogprobBackend, ReplayedBlock, Scripted, conformance
from dpfewshot.errors import BackendError, BackendNotBatchInvariant

LETTERS = [*map(chr, range(32, 127)), "\n", "<end>"]
END = len(LETTERS) - 1
TRACE = np.float32(1e-6)
SECRET = "swordfish"


def weights(prompt):
    """Probabilities that depend on every token of the prompt and its place; never 0."""
    phase = sum((place + 1) * token for place, token in enumerate(prompt)) % 1009
    raw = np.exp(150 * np.cos(np.arange(len(LETTERS)) * (1 + phase)))
    return raw / raw.sum()


class Letters(Scripted):
    """A backend without a fault; the faulty ones change one thing."""

    def __init__(self, vocabulary=LETTERS, end_token_ids=(END,)):
        super().__init__(vocabulary, next_token=self.probabilities, end_token_ids=end_token_ids)

    def probabilities(self, prompt):
        return weights(prompt)

    def tokenize(self, text):
        return [token for piece in text for token in super(Letters, self).tokenize(piece)]


class CleansUpSpaces(Letters):
    def detokenize(self, tokens):
        return super().detokenize(tokens).replace(" ,", ",")


class ParsesTurns(Letters):
    def __init__(self):
        super().__init__([*LETTERS, "<|im_start|>"])

    def probabilities(self, prompt):
        return [*weights(prompt) * 0.99, 0.01]

    def tokenize(self, text):
        return Scripted.tokenize(self, text) if "<|im_start|>" in text else super().tokenize(text)


class DoublePrecision(Letters):
    def next_token_logprobs(self, prompts, support=None):
        return super().next_token_logprobs(prompts, support).astype(np.float64)


class NarrowSupport(Letters):
    """Tells the first twenty of the tokens that it is asked for, as servers with a limit do."""

    def next_token_logprobs(self, prompts, support=None):
        rows = super().next_token_logprobs(prompts, support)
        if support is not None:
            rows[:, 20:] = -np.inf
        return rows


class Unnormalised(Letters):
    def probabilities(self, prompt):
        return weights(prompt) * (1.01 if prompt else 1)


class NeverEnds(Letters):
    def probabilities(self, prompt):
        found = weights(prompt)
        found[END] = 0
        return found / found.sum()


class RaisesOnNothing(Letters):
    def probabilities(self, prompt):
        return weights(prompt) if prompt[0] >= 0 else None


class CutsLongPrompts(Letters):
    context_tokens = 300

    def probabilities(self, prompt):
        return weights(prompt[-self.context_tokens :])


class KeepsBlocksApart(Letters):
    """Its blocks are sound whatever its other answers are."""

    def open_block(self, prefix, suffixes, tokens, *, public=False):  # noqa: ARG002
        return ReplayedBlock(Letters(), prefix, suffixes, public=public)


class ReusesLonger(KeepsBlocksApart):
    """Rounds otherwise where what it was asked before begins with the prompt, as a rewound cache may."""

    last = ()

    def next_token_logprobs(self, prompts, support=None):
        rows = super().next_token_logprobs(prompts, support)
        for place, prompt in enumerate(prompts):
            if prompt and len(self.last) > len(prompt) and list(self.last[: len(prompt)]) == list(prompt):
                rows[place] += TRACE
            self.last = prompt
        return rows


class OfOneThread(Letters):
    def __init__(self):
        super().__init__()
        self._thread = threading.get_ident()

    def next_token_logprobs(self, prompts, support=None):
        if threading.get_ident() != self._thread:
            raise RuntimeError(SECRET)
        return super().next_token_logprobs(prompts, support)


class LeaksInCrowds(KeepsBlocksApart):
    def next_token_logprobs(self, prompts, support=None):
        rows = super().next_token_logprobs(prompts, support)
        return rows + TRACE if len(prompts) > 10 else rows


class LosesLongPromptsUnderLoad(KeepsBlocksApart):
    """As a server does whose time limit includes what waits before."""

    def __init__(self):
        super().__init__()
        self._calls, self._lock = 0, threading.Condition()

    def next_token_logprobs(self, prompts, support=None):
        rows = super().next_token_logprobs(prompts, support)
        with self._lock:
            self._calls += 1
            self._lock.notify_all()
            long = [len(prompt) > 256 for prompt in prompts]
            mixed = any(long) and not all(long)
            if mixed and self._lock.wait_for(lambda: self._calls > 1, timeout=0.5):
                rows[long] = np.nan
            self._calls -= 1
        return rows


class LeakyBlock(ReplayedBlock):
    def next_token_logprobs(self, support=None):
        return super().next_token_logprobs(support) + TRACE * np.float32(len(self._prompts))


class LeaksInBlocks(Letters):
    def open_block(self, prefix, suffixes, tokens, *, public=False):  # noqa: ARG002
        return LeakyBlock(self, prefix, suffixes, public=public)


class DeafBlock(ReplayedBlock):
    def append(self, token):
        pass


class ForgetsReleasedTokens(Letters):
    def open_block(self, prefix, suffixes, tokens, *, public=False):  # noqa: ARG002
        return DeafBlock(self, prefix, suffixes, public=public)


class StubbornBlock(ReplayedBlock):
    def keep(self, places):
        self._prompts = self._prompts[: len(places)]


class KeepsTheFirst(Letters):
    def open_block(self, prefix, suffixes, tokens, *, public=False):  # noqa: ARG002
        return StubbornBlock(self, prefix, suffixes, public=public)


class OneWayBlock(ReplayedBlock):
    def rewind(self):
        pass


class NeverRewinds(Letters):
    def open_block(self, prefix, suffixes, tokens, *, public=False):  # noqa: ARG002
        return OneWayBlock(self, prefix, suffixes, public=public)


class AnswersWhenClosed(Letters):
    def close(self):
        pass


class Closes(Letters):
    """As a backend should."""

    closed = False

    def close(self):
        self.closed = True

    def next_token_logprobs(self, prompts, support=None):
        if self.closed:
            raise BackendError("closed")
        return super().next_token_logprobs(prompts, support)


class ClosesOnce(Closes):
    def close(self):
        if self.closed:
            raise ValueError(SECRET)
        super().close()


def failed(backend, **options):
    return [finding.check for finding in conformance.examine(backend, **options) if not finding.passed]


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (partial(Letters, end_token_ids=[len(LETTERS) + 7]), "vocabulary"),
        (CleansUpSpaces, "text"),
        (ParsesTurns, "special tokens"),
        (DoublePrecision, "shapes"),
        (NarrowSupport, "support"),
        (Unnormalised, "normalisation"),
        (NeverEnds, "end tokens"),
        (RaisesOnNothing, "empty prompt"),
        (CutsLongPrompts, "long prompt"),
        (ReusesLonger, "prefix reuse"),
        (OfOneThread, "concurrency"),
        (LeaksInCrowds, "batch invariance"),
        (LosesLongPromptsUnderLoad, "load"),
        (LeaksInBlocks, "block invariance"),
        (ForgetsReleasedTokens, "block agreement"),
        (KeepsTheFirst, "block agreement"),
        (NeverRewinds, "block agreement"),
        (AnswersWhenClosed, "closing"),
        (ClosesOnce, "closing"),
    ],
)
def test_each_fault_is_found_by_its_own_check_alone(faulty, check):
    found = failed(faulty())
    # what is wrong in a crowd or in a thread is wrong under load too
    assert found == [check] or found in (["concurrency", "load"], ["batch invariance", "load"])
    assert found[0] == check


@pytest.mark.parametrize("sound", [Letters, Closes, KeepsBlocksApart])
def test_a_sound_backend_passes_every_check_in_order(sound):
    findings = list(conformance.examine(sound()))
    assert [finding.check for finding in findings] == list(conformance.CHECKS)
    conformance.require(findings)


def test_every_check_has_a_fault_of_its_own():
    (marker,) = test_each_fault_is_found_by_its_own_check_alone.pytestmark
    assert {check for _, check in marker.args[1]} == set(conformance.CHECKS)


def test_an_end_token_in_plain_text_is_found():
    finding = conformance.check_end_tokens(Letters(end_token_ids=[0]), [[1]], ["a b"])
    assert not finding.passed
    assert "[0]" in finding.detail


def test_a_neighbour_of_an_empty_or_a_long_prompt_keeps_its_bits():
    class Spills(Letters):
        """Is confused by a prompt that it can make nothing of."""

        context_tokens = 300

        def next_token_logprobs(self, prompts, support=None):
            rows = super().next_token_logprobs(prompts, support)
            bad = [not 0 < len(prompt) <= self.context_tokens for prompt in prompts]
            rows[bad] = np.nan
            return rows + TRACE if any(bad) and len(prompts) > 1 else rows

    prompts = [[1, 2, 3], [4], [5, 6]]
    for finding in (
        conformance.check_empty_prompt(Spills(), prompts),
        conformance.check_long_prompt(Spills(), prompts),
    ):
        assert not finding.passed
        assert finding.about_invariance
    assert "not tested" in conformance.check_long_prompt(Letters(), prompts).detail


def test_an_exception_is_a_finding_that_names_its_type_and_place_alone():
    class Quotes(Letters):
        def probabilities(self, _):
            raise RuntimeError(SECRET)

    findings = list(conformance.examine(Quotes()))
    assert [finding.check for finding in findings] == list(conformance.CHECKS)
    assert not any(SECRET in finding.detail for finding in findings)
    assert any(
        re.search(r"RuntimeError in test_conformance.py, line \d+$", finding.detail)
        for finding in findings
        if not finding.passed
    )


def test_a_backend_that_cannot_tokenise_has_one_finding():
    class Mute(Letters):
        def tokenize(self, text):
            raise OSError(text)

    (finding,) = conformance.examine(Mute())
    assert (finding.check, finding.passed) == ("sample prompts", False)
    assert finding.detail.startswith("the backend raised OSError in test_conformance.py, line ")


def test_findings_come_one_by_one_and_closing_may_be_left_out():
    backend = Closes()
    findings = conformance.examine(backend, closing=False)
    assert next(findings).check == "vocabulary"
    assert "closing" not in [finding.check for finding in findings]
    assert not backend.closed


def test_a_leak_is_raised_as_such_and_other_faults_are_not():
    with pytest.raises(BackendNotBatchInvariant):
        conformance.require(conformance.examine(LeaksInCrowds()))
    with pytest.raises(BackendError) as raised:
        conformance.require(conformance.examine(AnswersWhenClosed()))
    assert not isinstance(raised.value, BackendNotBatchInvariant)


class LeaksWhereASupportIsAsked(KeepsBlocksApart):
    """As generations ask, and few checks."""

    open_block = LogprobBackend.open_block

    def next_token_logprobs(self, prompts, support=None):
        rows = super().next_token_logprobs(prompts, support)
        return rows if support is None else rows + TRACE * np.float32(sum(map(len, prompts)))


def test_a_trace_where_a_support_is_asked_is_found():
    prompts = [[1, 2, 3], [4], [5, 6]]
    leaky = LeaksWhereASupportIsAsked()
    assert not conformance.check_block_invariance(leaky, [0], prompts, [1]).passed
    assert conformance.check_block_invariance(leaky, [0], prompts, [1], support=()).passed


def test_an_end_token_that_a_text_spells_is_found():
    parsing = Scripted(["a", "b", "<end>"], next_token=lambda _: [0.5, 0.25, 0.25], end_token_ids=[2])
    assert not conformance.check_vocabulary(parsing).passed


def test_sample_prompts_are_many_and_of_mixed_lengths():
    samples = conformance.Samples.of(Letters())
    suffixes = samples.suffixes
    assert samples.prefix
    assert len(samples.released) == 3
    assert len(suffixes) >= conformance.SMALL
    assert len(set(map(tuple, suffixes))) == len(suffixes)
    assert len({len(suffix) for suffix in suffixes}) > 10
