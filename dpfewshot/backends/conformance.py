"""The conformance suite: checks of a backend on the loaded model.

Each check asks the backend about public prompts and returns a `Finding`, which reports counts and
differences, never text. `examine` runs all checks; `require` raises for those that failed:

    require(examine(backend))

It takes `Samples` of your own, of twenty or more mixed lengths, since a small batch may hide what a large one
shows. From a shell, run `dpfewshot doctor --backend NAME` or `pytest --dpfewshot-backend NAME`.
"""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.backends.text import END_NAMES
from dpfewshot.errors import BackendError, BackendNotBatchInvariant

NORMALISATION = 1e-3
"""The largest deviation of the log of a row's total probability from 0 that passes, in nats."""

AGREEMENT = 0.1
"""The largest difference of a block's probabilities from those of whole prompts that passes."""

WIDE = 100
"""Tokens of a wide support: the mechanisms' default number."""

SMALL = 17
"""Batches of up to this many prompts are tested in every rotation."""

CROWD = 65
"""Prompts of the largest batch: vLLM's batch-invariant mode has known faults from 44 to 65 on."""

LONG_TOKENS = 320
"""Tokens of a long prompt: vLLM's batch-invariant mode has known faults in steps of over 256 tokens."""

FEW = 5
"""Prompts for checks that need few."""

THREADS = 4
"""Threads that ask at once."""

SAMPLE_PREFIX = "Write a question about a place.\n\nText:"

SAMPLE_TEXT = (
    "What is the name of the river , 2,850 km long , that runs through ten countries and four capitals "
    "before it reaches the Black Sea ?"
)

SAMPLE_TEXTS = (SAMPLE_PREFIX, SAMPLE_TEXT, "Text: a  b\n\nText:", "It's 7.5% (or 8)!", "")
"""Plain ASCII, which every tokenizer can represent."""

CONTROL_TEXTS = (
    *("<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|user|>", "<|assistant|>"),
    *("<bos>", "<start_of_turn>"),
    *(name for name in END_NAMES if name != "</s>"),
)
"""Control tokens of common models, without those that also occur in texts, such as `<s>` in HTML."""


# ---- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        detail: what was compared, and by how much it differed.
        about_invariance: whether a failure means that answers depend on other prompts.
    """

    check: str
    passed: bool
    detail: str
    about_invariance: bool = False


def require(findings: Iterable[Finding]) -> None:
    """Raise an error for failed findings.

    Raises:
        BackendNotBatchInvariant: answers depend on other prompts.
        BackendError: the backend violates `LogprobBackend` in another way.
    """
    failed = [finding for finding in findings if not finding.passed]
    if not failed:
        return
    message = "; ".join(f"{finding.check}: {finding.detail}" for finding in failed)
    if any(finding.about_invariance for finding in failed):
        raise BackendNotBatchInvariant(f"the backend is not batch invariant: {message}")
    raise BackendError(f"the backend does not conform: {message}")


class Comparison:
    """Compares rows bit for bit and records the largest difference."""

    def __init__(self) -> None:
        self.rows = 0
        self.different = 0
        self.worst = 0.0

    def add(self, expected: Logprobs, found: Logprobs) -> None:
        """Compare two answers of the same shape, row by row; NaN equals NaN of the same bits."""
        for one, other in zip(expected, found, strict=True):
            self.rows += 1
            if one.tobytes() != other.tobytes():
                self.different += 1
                with np.errstate(invalid="ignore"):
                    change = np.abs(one.astype(np.float64) - other)
                self.worst = max(self.worst, float(np.nan_to_num(change, nan=np.inf).max()))

    def finding(self, check: str, *, about_invariance: bool = True) -> Finding:
        """Return a finding that passes if every row is the same, bit for bit."""
        detail = f"{self.different} of {self.rows} rows differ, the worst by {self.worst:.3g} nats"
        return Finding(check, self.different == 0, detail, about_invariance)


# ---- samples ---------------------------------------------------------------------------------------------


def random_tokens(name: str, count: int, vocabulary_size: int) -> list[int]:
    """Return pseudo-random tokens, the same for the same name: a public prompt."""
    digests = (hashlib.sha256(f"{name}, {place}".encode()).digest() for place in range(count))
    return [int.from_bytes(digest[:8]) % vocabulary_size for digest in digests]


def mixed_texts() -> list[str]:
    """Return 27 public texts. Short and long ones alternate, so that small batches mix them."""
    words = SAMPLE_TEXT.split()
    ends = [len(words) - place if place % 2 else 1 + place for place in range(len(words))]
    return [" ".join(words[:end]) for end in ends]


@dataclass(frozen=True)
class Samples:
    """Public inputs of the checks.

    Attributes:
        prefix: token ids that all prompts begin with.
        suffixes: the rest of each prompt: at least two, of mixed lengths.
        released: the tokens that continue blocks, at least one.
        texts: texts that must survive tokenising and detokenising.
    """

    prefix: Tokens
    suffixes: Sequence[Tokens]
    released: Tokens
    texts: Sequence[str]

    @classmethod
    def of(cls, backend: LogprobBackend) -> Self:
        """Return 27 suffixes of mixed lengths, with the rest, in the backend's tokens."""
        suffixes = [backend.tokenize(f" {text}\n\nText:") for text in mixed_texts()]
        released = backend.tokenize(" Where is the")[:3]
        return cls(backend.tokenize(SAMPLE_PREFIX), suffixes, released, SAMPLE_TEXTS)

    @property
    def prompts(self) -> list[list[int]]:
        """The whole prompts."""
        return [[*self.prefix, *suffix] for suffix in self.suffixes]


# ---- text and tokens -------------------------------------------------------------------------------------


def check_vocabulary(backend: LogprobBackend) -> Finding:
    """Check that end tokens are in the vocabulary, and that spelling one in a text does not produce it."""
    end_tokens = sorted(backend.end_token_ids)
    strange = [token for token in end_tokens if not 0 <= token < backend.vocabulary_size]
    parsed = [
        token
        for token in end_tokens
        if token not in strange and token in backend.tokenize(f"a{backend.detokenize([token])}b")
    ]
    detail = f"end tokens outside the vocabulary: {strange}; parsed out of plain text: {parsed}"
    return Finding("vocabulary", not strange and not parsed, detail)


def check_text(backend: LogprobBackend, texts: Iterable[str]) -> Finding:
    """Check that `detokenize` inverts `tokenize`, except for a leading space that some models add."""
    changed = sum(backend.detokenize(backend.tokenize(text)) not in {text, f" {text}"} for text in texts)
    return Finding("text", changed == 0, f"{changed} texts do not survive tokenising and detokenising")


def check_special_tokens(backend: LogprobBackend) -> Finding:
    """Check that the text of a control token is not parsed as one: a record could otherwise open a turn."""
    parsed = [
        text
        for text in CONTROL_TEXTS
        if any(backend.detokenize([token]).strip() == text for token in backend.tokenize(f"a{text}b"))
    ]
    return Finding("special tokens", not parsed, f"parsed out of plain text: {', '.join(parsed) or 'none'}")


# ---- single answers --------------------------------------------------------------------------------------


def check_shapes(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that answers are float32, one row per prompt, and that a support selects columns in its order."""
    size = backend.vocabulary_size
    support = [size - 1, 0, size // 2]
    whole = backend.next_token_logprobs(prompts)
    cut = backend.next_token_logprobs(prompts, support)
    wrong = [
        name
        for name, answer, shape in (
            ("the whole vocabulary", whole, (len(prompts), size)),
            ("a support", cut, (len(prompts), len(support))),
            ("an empty support", backend.next_token_logprobs(prompts, []), (len(prompts), 0)),
            ("no prompts", backend.next_token_logprobs([]), (0, size)),
            ("no prompts and a support", backend.next_token_logprobs([], support), (0, len(support))),
        )
        if answer.shape != shape or answer.dtype != np.float32
    ]
    if not wrong and cut.tobytes() != np.ascontiguousarray(whole[:, support]).tobytes():
        wrong.append("the values of a support")
    return Finding("shapes", not wrong, f"wrong: {', '.join(wrong) or 'none'}")


def check_support(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a wide support, in any order, has the bits of its columns in the whole vocabulary."""
    whole = backend.next_token_logprobs(prompts)
    likeliest = np.argsort(-whole[0], kind="stable")[:WIDE].tolist()
    comparison = Comparison()
    for support in (likeliest, likeliest[::-1], sorted(likeliest), likeliest[-1:]):
        comparison.add(whole[:, support], backend.next_token_logprobs(prompts, support))
    return comparison.finding("support", about_invariance=False)


def check_normalisation(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that each row's probabilities sum to 1, or to less if some are unknown (-inf)."""
    good = _normalised(backend.next_token_logprobs(prompts))
    detail = f"{int((~good).sum())} of {len(good)} rows are not normalised"
    return Finding("normalisation", bool(good.all()), detail)


def check_end_tokens(backend: LogprobBackend, prompts: Sequence[Tokens], texts: Iterable[str]) -> Finding:
    """Check that end tokens have a probability, so that a demonstration can end, and are not in plain text.

    A server that ignores end tokens, or enforces a minimum number of tokens, fails here.
    """
    ends = sorted(backend.end_token_ids.intersection(range(backend.vocabulary_size)))
    within = sorted({token for text in texts for token in backend.tokenize(text)}.intersection(ends))
    untold = np.isneginf(backend.next_token_logprobs(prompts))
    banned = bool(ends) and bool(untold[:, ends].all()) and not np.delete(untold, ends, axis=1).any()
    says = "only they have no probability" if banned else f"in plain text: {within or 'none'}"
    return Finding("end tokens", not within and not banned, f"{len(ends)} end tokens; {says}")


def check_empty_prompt(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that an empty prompt gives a row of NaN or of probabilities, and changes no neighbour's row."""
    alone, comparison = _among(backend, [], prompts)
    if comparison.different:
        return comparison.finding("empty prompt")
    passed = bool(np.isnan(alone).all() or _normalised(alone).all())
    answer = "a row of NaN" if np.isnan(alone).any() else "a row of its own"
    return Finding("empty prompt", passed, answer if passed else "neither NaN nor probabilities")


def check_long_prompt(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt longer than the context gives a row of NaN, in blocks too, and changes no other."""
    context = backend.context_tokens
    if context is None:
        return Finding("long prompt", passed=True, detail="not tested: the backend has no context_tokens")
    filler = max(prompts, key=len)
    long = (list(filler) * (context // len(filler) + 1))[: context + 1]
    alone, comparison = _among(backend, long, prompts)
    [expected] = block_answers(backend, [], [prompts[0]], [], tokens=2)
    [found] = block_answers(backend, [], [prompts[0], long], [], tokens=2)
    comparison.add(expected, found[:1])
    if comparison.different:
        return comparison.finding("long prompt")
    passed = bool(np.isnan(alone).all() and np.isnan(found[1]).all())
    says = "a row of NaN" if passed else "answered, although they exceed the context"
    return Finding("long prompt", passed, f"{context + 1} tokens: {says}")


def _normalised(rows: Logprobs) -> NDArray[np.bool_]:
    """Return which rows sum to 1, or to less if some entries are -inf."""
    wide = rows.astype(np.float64)
    totals = np.log(np.exp(wide).sum(axis=1))
    partial = np.isneginf(wide).any(axis=1)
    good: NDArray[np.bool_] = np.where(partial, totals <= NORMALISATION, np.abs(totals) <= NORMALISATION)
    return good


def _among(
    backend: LogprobBackend, prompt: Tokens, neighbours: Sequence[Tokens]
) -> tuple[Logprobs, Comparison]:
    """Return a prompt's answer alone, and compare it and its neighbours alone and together."""
    alone = backend.next_token_logprobs([prompt])
    expected = backend.next_token_logprobs(neighbours)
    together = backend.next_token_logprobs([neighbours[0], prompt, *neighbours[1:]])
    comparison = Comparison()
    comparison.add(np.concatenate([expected[:1], alone, expected[1:]]), together)
    return alone, comparison


# ---- invariance ------------------------------------------------------------------------------------------


def check_prefix_reuse(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt has the same bits after its prefix, its extension, one with half of it, and itself.

    Caches of earlier prompts fail here: a reused prefix is computed in calls of a different shape.

    Args:
        prompts: at least two public prompts, the longest of at least two tokens.
    """
    prompt, other = max(prompts, key=len), min(prompts, key=len)
    befores = (prompt[:-1], [*prompt, prompt[0]], [*prompt[: len(prompt) // 2], *other], prompt)
    backend.next_token_logprobs([other])
    expected = backend.next_token_logprobs([prompt])
    comparison = Comparison()
    for before in befores:
        backend.next_token_logprobs([other])
        backend.next_token_logprobs([before])
        comparison.add(expected, backend.next_token_logprobs([prompt]))
    return comparison.finding("prefix reuse")


def check_concurrency(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that prompts have the same bits from several threads at once as one after the other."""
    batches = [[place] for place in range(len(prompts))]
    return _compare_threads("concurrency", backend, prompts, batches * THREADS)


def check_batch_invariance(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt has the same bits alone, anywhere in small and large batches, and after other work.

    Evaluates about 370 + 3 n prompts for n of 17 or more.

    Args:
        prompts: n public prompts of mixed lengths.
    """
    alone = [backend.next_token_logprobs([prompt]) for prompt in prompts]
    comparison = Comparison()
    for batch in _batches(len(prompts)):
        answer = backend.next_token_logprobs([prompts[index] for index in batch])
        comparison.add(np.concatenate([alone[index] for index in batch]), answer)
    for before, prompt in list(zip(alone, prompts, strict=True))[::4]:
        comparison.add(before, backend.next_token_logprobs([prompt]))
    return comparison.finding("batch invariance")


def check_load(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a prompt has its bits of a call alone while several threads ask for large batches.

    Each batch has one long prompt. A row of NaN caused by a queue, a quota or a time limit fails here: it
    would depend on which other records were drawn. Test a slow or overloaded server itself.
    """
    context = backend.context_tokens
    size = LONG_TOKENS if context is None else max(1, min(LONG_TOKENS, context - 2))
    long = [token for prompt in prompts for token in prompt]
    batches = []
    for turn in range(THREADS):
        places = [1 + (turn + place) % len(prompts) for place in range(SMALL)]
        places[turn] = 0
        batches.append(places)
    return _compare_threads("load", backend, [(long * size)[:size], *prompts], batches)


def check_block_invariance(
    backend: LogprobBackend,
    prefix: Tokens,
    suffixes: Sequence[Tokens],
    released: Tokens,
    *,
    support: Tokens | None = None,
) -> Finding:
    """Check that a block's prompt has the same bits after every token, in any place and with any neighbours.

    Compares the block of all prompts with the block in reverse order, with blocks of every second prompt and
    of single prompts, and with itself beside another open block. Every step asks for the whole vocabulary and
    for a support, as generations do.

    Args:
        suffixes: the rest of each prompt: at least two, of mixed lengths.
        released: the tokens that continue the block.
        support: the support to ask for; None for about 100 tokens, () to ask for the whole vocabulary only.
    """
    everyone = range(len(suffixes))
    if support is None:
        support = range(0, backend.vocabulary_size, max(1, backend.vocabulary_size // WIDE))
    supports = [support] * (len(released) + 1) if support else ()
    expected = block_answers(backend, prefix, suffixes, released, supports)
    comparison = Comparison()

    def compare(selection: Sequence[int]) -> None:
        found = block_answers(backend, prefix, [suffixes[index] for index in selection], released, supports)
        for before, after in zip(expected, found, strict=True):
            comparison.add(before[list(selection)], after)

    for selection in (everyone[::-1], everyone[::2], everyone[:1], everyone[-1:]):
        compare(selection)
    with closing(backend.open_block(prefix, suffixes[-1:], len(released) + 1)) as neighbour:
        neighbour.next_token_logprobs()
        compare(everyone)
    return comparison.finding("block invariance")


def check_block_agreement(
    backend: LogprobBackend, prefix: Tokens, suffixes: Sequence[Tokens], released: Tokens
) -> Finding:
    """Check that a block's probabilities are within `AGREEMENT` of those of whole prompts.

    So are those of public prompts that go on without others, each with a token of its own, and of prompts
    that were taken back to where they began.

    The bits may differ: a block evaluates the same tokens in different calls, and quantised models amplify
    the kernels' rounding (0.046 with SmolLM2-135M Q4_1; a misplaced token gives 0.97).
    """
    found = [
        ([[*prefix, *suffix, *released[:count]] for suffix in suffixes], answer)
        for count, answer in enumerate(block_answers(backend, prefix, suffixes, released))
    ]
    with closing(backend.open_block(prefix, suffixes, len(released) + 1)) as block:
        block.append(random_tokens("other", 1, backend.vocabulary_size)[0])
        block.next_token_logprobs()
        block.rewind()
        for token in released:
            block.append(token)
        prompts = [[*prefix, *suffix, *released] for suffix in suffixes]
        found.append((prompts, block.next_token_logprobs()))
    places = range(1, len(suffixes), 2)
    own = random_tokens("own", len(places), backend.vocabulary_size)
    with closing(backend.open_block(prefix, suffixes, 2, public=True)) as block:
        block.next_token_logprobs()
        block.keep(places)
        block.append_each(own)
        prompts = [[*prefix, *suffixes[place], token] for place, token in zip(places, own, strict=True)]
        found.append((prompts, block.next_token_logprobs()))
    differences = (np.exp(backend.next_token_logprobs(prompts)) - np.exp(answer) for prompts, answer in found)
    worst = max(float(np.abs(each).max()) for each in differences)
    return Finding("block agreement", worst <= AGREEMENT, f"probabilities differ by up to {worst:.2g}")


def _batches(count: int) -> list[Sequence[int]]:
    """Return batches of prompt indices: small ones in every rotation, all in two orders, and a large one."""
    everyone = range(count)
    batches: list[Sequence[int]] = [everyone, everyone[::-1], [place % count for place in range(CROWD)]]
    for size in (2, 3, SMALL):
        if size <= count:
            batches += [[(place + turn) % size for place in range(size)] for turn in range(size)]
    return batches


def _compare_threads(
    check: str, backend: LogprobBackend, prompts: Sequence[Tokens], batches: Sequence[Sequence[int]]
) -> Finding:
    """Compare prompts alone with batches of prompt indices that threads ask for at once."""
    alone = [backend.next_token_logprobs([prompt])[0] for prompt in prompts]
    start = threading.Barrier(THREADS)
    comparison = Comparison()
    with ThreadPoolExecutor(THREADS, initializer=start.wait) as threads:
        asked = [[prompts[place] for place in batch] for batch in batches]
        for batch, answer in zip(batches, threads.map(backend.next_token_logprobs, asked), strict=True):
            comparison.add(np.stack([alone[place] for place in batch]), answer)
    return comparison.finding(check)


def block_answers(
    backend: LogprobBackend,
    prefix: Tokens,
    suffixes: Sequence[Tokens],
    released: Tokens,
    supports: Sequence[Tokens] = (),
    *,
    tokens: int | None = None,
    public: bool = False,
) -> list[Logprobs]:
    """Return a block's answers before and after each released token, for its support if any and for all."""
    answers = []
    with closing(backend.open_block(prefix, suffixes, tokens or len(released) + 1, public=public)) as block:
        for step in range(len(released) + 1):
            if step > 0:
                block.append(released[step - 1])
            if supports:
                answers.append(np.array(block.next_token_logprobs(supports[step])))
            answers.append(np.array(block.next_token_logprobs()))  # the block may use its array again
    return answers


# ---- the suite -------------------------------------------------------------------------------------------


def check_closing(backend: LogprobBackend, prompts: Sequence[Tokens]) -> Finding:
    """Check that a closed backend refuses prompts with a `BackendError`, and can be closed twice.

    The backend is unusable afterwards. A backend without a `close` of its own passes.
    """
    if type(backend).close is LogprobBackend.close:
        return Finding("closing", passed=True, detail="nothing to close")
    backend.close()
    backend.close()
    try:
        backend.next_token_logprobs(prompts)
    except BackendError:
        return Finding("closing", passed=True, detail="a closed backend refuses prompts")
    return Finding("closing", passed=False, detail="a closed backend still answers")


CLOSING: Final = "closing"

CHECKS: Final[Mapping[str, Callable[[LogprobBackend, Samples], Finding]]] = {
    "vocabulary": lambda backend, _: check_vocabulary(backend),
    "text": lambda backend, given: check_text(backend, given.texts),
    "special tokens": lambda backend, _: check_special_tokens(backend),
    "shapes": lambda backend, given: check_shapes(backend, given.prompts[:3]),
    "support": lambda backend, given: check_support(backend, given.prompts[:3]),
    "normalisation": lambda backend, given: check_normalisation(backend, given.prompts),
    "end tokens": lambda backend, given: check_end_tokens(backend, given.prompts[:3], given.texts),
    "empty prompt": lambda backend, given: check_empty_prompt(backend, given.prompts[:3]),
    "long prompt": lambda backend, given: check_long_prompt(backend, given.prompts[:3]),
    "prefix reuse": lambda backend, given: check_prefix_reuse(backend, given.prompts[:FEW]),
    "concurrency": lambda backend, given: check_concurrency(backend, given.prompts[:FEW]),
    # Hundreds of prompts: without the prefix they are shorter and just as varied.
    "batch invariance": lambda backend, given: check_batch_invariance(backend, given.suffixes),
    "load": lambda backend, given: check_load(backend, given.suffixes),
    "block invariance": lambda backend, given: check_block_invariance(
        backend, given.prefix, given.suffixes, given.released
    ),
    "block agreement": lambda backend, given: check_block_agreement(
        backend, given.prefix, given.suffixes[:FEW], given.released
    ),
    CLOSING: lambda backend, given: check_closing(backend, given.prompts[:1]),
}
"""Every check by name, ordered so that a fault is found early. The last one closes the backend."""


def examine(
    backend: LogprobBackend, samples: Samples | None = None, *, closing: bool = True
) -> Iterator[Finding]:
    """Run the checks, each when its finding is asked for.

    Args:
        samples: public prompts; None for the built-in ones.
        closing: whether to close the backend at the end, and check that it then refuses prompts.
    """
    if samples is None:
        try:
            samples = Samples.of(backend)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding
            yield _raised("sample prompts", error)
            return
    for name in CHECKS:
        if closing or name != CLOSING:
            yield run_check(name, backend, samples)


def run_check(name: str, backend: LogprobBackend, samples: Samples) -> Finding:
    """Run one check of `CHECKS`; it fails if the backend raises."""
    try:
        return CHECKS[name](backend, samples)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding
        return _raised(name, error)


def _raised(name: str, error: Exception) -> Finding:
    """Return the finding for an exception. It names type and place: the message may quote a prompt."""
    *_, last = traceback.extract_tb(error.__traceback__)
    place = f"{Path(last.filename).name}, line {last.lineno}"
    return Finding(name, passed=False, detail=f"the backend raised {type(error).__name__} in {place}")
