"""No error of a generation carries anything private out of the package."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.reservation import Reservation
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.stratum import StratumRun
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.runtime.redaction import portable, redacts_errors
from dpfewshot.runtime.stopping import Stopped
from dpfewshot.values import Record
from tests.support.crash_reporter import collected
from tests.support.redaction import (
    DEMONSTRATION,
    FAILURES,
    RECORDS,
    SECRET,
    TOKENS,
    Failing,
    OwnError,
    PanicException,
    assert_says_nothing,
    raised_by,
    synthesizer,
)
from tests.support.scripts import TASK, WORDS, Sentence

# ---- the reporter itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["a message that quotes", "the server is gone", "another shape"])
def test_control_without_the_border_everything_is_there(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StratumRun, "release", StratumRun.release.__wrapped__)  # type: ignore[attr-defined]
    error = raised_by(lambda: synthesizer(Failing(FAILURES[failure][0])).generate("refund"))
    told = collected(error)
    assert TOKENS in told
    assert "-0.3141" in told
    assert SECRET in told or failure != "a message that quotes"  # in the context alone


# ---- generation --------------------------------------------------------------------------------------------


def in_a_thread(made: dpf.Synthesizer) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(made.generate, "refund").result()


CALLS: dict[str, Callable[[dpf.Synthesizer], object]] = {
    "generate": lambda made: made.generate("refund"),
    "generate_all": lambda made: made.generate_all(),
    "agenerate": lambda made: asyncio.run(made.agenerate("refund")),
    "agenerate_all": lambda made: asyncio.run(made.agenerate_all()),
    "a thread": in_a_thread,
}


@pytest.mark.parametrize("tokens_per_draw", [1, 4])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("call", CALLS)
def test_a_failing_backend_says_nothing(call: str, failure: str, tokens_per_draw: int) -> None:
    fail, kind = FAILURES[failure]
    made = synthesizer(Failing(fail), tokens_per_draw=tokens_per_draw)
    error = raised_by(lambda: CALLS[call](made))
    assert type(error) is kind
    assert_says_nothing(error)
    assert error.__cause__ is None
    assert made.spent.epsilon > 3.9, "what was drawn stays charged"


class TimesOut(BaseException):
    """As timeouts of some libraries, which remember the call that they ended."""

    def __init__(self, quoted: str) -> None:
        super().__init__(quoted)
        self.arguments, self.seconds = (quoted,), 3


def test_what_ends_a_call_keeps_its_kind_and_no_data() -> None:
    error = raised_by(lambda: synthesizer(Failing(TimesOut)).generate("refund"))
    assert type(error) is TimesOut
    assert vars(error) == {"arguments": None, "seconds": None}
    assert_says_nothing(error)
    moved = portable(error)
    assert str(moved) == "a worker ended with TimesOut, whose message is withheld"
    assert type(portable(KeyboardInterrupt())) is KeyboardInterrupt


class Uncooperative(dpf.BackendError):
    """An error of somebody's own, made without the package's initialiser, that cannot even be shown."""

    def __init__(self, quoted: str) -> None:
        Exception.__init__(self, quoted)

    def __str__(self) -> str:
        raise LookupError(*self.args)


class Unfinished(dpf.BackendError):
    """One that only lacks what the package's initialiser sets."""

    def __init__(self, _quoted: str) -> None:
        Exception.__init__(self, "the server is gone")


class Undecided(dpf.BackendError):
    """One that raises when it is asked whether to try again."""

    def __init__(self, quoted: str) -> None:
        Exception.__init__(self, quoted)

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        raise LookupError(*self.args)


@pytest.mark.parametrize("kind", [Uncooperative, Unfinished, Undecided])
@pytest.mark.parametrize("call", CALLS)
def test_an_error_that_fails_itself_is_its_kind_alone(call: str, kind: type[BaseException]) -> None:
    """Its own failure would pass the border with the chain and the frames of the first one."""
    error = raised_by(lambda: CALLS[call](synthesizer(Failing(kind))))
    assert type(error) is dpf.BackendError
    assert str(error) == (
        "the server is gone" if kind is Unfinished else "an error whose message cannot be shown"
    )
    assert not error.retryable
    assert error.__context__ is None
    assert_says_nothing(error)


@pytest.mark.parametrize("kind", [Uncooperative, Unfinished, Undecided])
def test_a_tokenizers_own_kind_of_error_makes_a_null_or_names_a_position(kind: type[BaseException]) -> None:
    class Own(Sentence):
        def tokenize(self, text: str) -> list[int]:
            if SECRET in text:
                raise kind(f"cannot read {text}")
            return super().tokenize(text)

    assert PromptWriter(TASK, Own(), 8).body(RECORDS[0]) is None
    error = raised_by(lambda: dpf.icl.Extractor(TASK, Own(), [DEMONSTRATION]).predict(["a", SECRET]))
    assert str(error) == "the backend cannot tokenise texts[1]"
    assert_says_nothing(error)


def test_an_interrupt_within_the_border_leaves_nothing() -> None:
    """At each line of the border in turn: the interrupt would have the error that was at hand behind it."""

    @redacts_errors(dpf.BackendError, "it")
    def failing() -> None:
        secret = SECRET
        raise LookupError(secret)

    def interrupted(line: int) -> BaseException:
        left = line

        def trace(frame: Any, event: str, _argument: object) -> Any:
            nonlocal left
            if frame.f_globals["__name__"] != redacts_errors.__module__:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return raised_by(failing)
        finally:
            sys.settrace(before)

    ends = []
    for line in range(1, 99):
        error = interrupted(line)
        ends.append(type(error))
        assert SECRET not in collected(error), line
    assert ends.count(KeyboardInterrupt) > 10


@pytest.mark.parametrize(
    ("kind", "says", "retryable"),
    [(OwnError, "the server is gone", True), (LookupError, "the backend failed with LookupError", False)],
)
def test_a_public_message_is_kept_and_another_error_is_its_type_alone(
    kind: Any, says: str, retryable: bool
) -> None:
    error = raised_by(lambda: synthesizer(Failing(kind)).generate("refund"))
    assert str(error) == says
    assert isinstance(error, dpf.BackendError)
    assert error.retryable is retryable


def test_a_record_that_makes_a_library_panic_is_a_null() -> None:
    class Panicking(Sentence):
        def tokenize(self, text: str) -> list[int]:
            if "swordfish 7" in text:
                raise PanicException(f"byte index 3 is not a char boundary in {text}")
            return super().tokenize(text)

        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if any(WORDS.index(" secret") in prompt for prompt in prompts):
                raise PanicException(f"index out of bounds in {prompts}")
            return super().next_token_logprobs(prompts, support)

    records = [Record(f"{SECRET} {i % 9}", "refund") for i in range(400)] + RECORDS
    made = synthesizer(Panicking(), records=records, labels=["refund"], prompts_per_draw=100)
    assert made.generate("refund").certified


@pytest.mark.parametrize(
    ("owner", "place"), [(SetUp, "sampler"), (Reservation, "draw"), (StratumRun, "_recorded")]
)
def test_a_fault_of_this_package_says_nothing(
    owner: type, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(_self: object, *arguments: object) -> None:
        raise TypeError(f"{SECRET} {arguments} {RECORDS[0].text}")

    monkeypatch.setattr(owner, place, faulty)
    error = raised_by(lambda: synthesizer(Sentence()).generate("refund"))
    assert type(error) is dpf.BackendError
    assert "failed with TypeError" in str(error)
    assert_says_nothing(error)


def test_a_charge_that_cannot_be_recorded_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"

    class Losing(Sentence):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if support is None:  # a public prompt, after the plan was reserved and before it is charged
                path.write_bytes(b"no database at all" * 999)
            return super().next_token_logprobs(prompts, support)

    made = synthesizer(Losing(), ledger=f"sqlite:///{path}")
    error = raised_by(lambda: made.generate("refund"))
    assert type(error) is dpf.LedgerError
    assert_says_nothing(error)


def test_the_callers_own_callback_raises_what_it_likes_and_is_shown_where() -> None:
    def on_demonstration(_one: dpf.Demonstration) -> None:
        raise LookupError("mine")

    backend = Failing(lambda _: None, answers=10**6)
    error = raised_by(lambda: synthesizer(backend).generate_all(on_demonstration=on_demonstration))
    assert type(error) is LookupError
    assert str(error) == "mine"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    assert trace.tb_frame.f_code is on_demonstration.__code__
    assert_says_nothing(error)


def test_a_cancelled_task_leaves_nothing_in_its_error() -> None:
    asked, go_on = threading.Event(), threading.Event()

    class Slow(Failing):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            asked.set()
            go_on.wait()
            return super().next_token_logprobs(prompts, support)

    async def cancelled(made: dpf.Synthesizer) -> BaseException:
        task = asyncio.create_task(made.agenerate("refund"))
        await asyncio.to_thread(asked.wait)
        task.cancel()
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(go_on.set)
        try:
            await task
        except asyncio.CancelledError as error:
            return error
        raise AssertionError("it was not cancelled")

    error = asyncio.run(cancelled(synthesizer(Slow(lambda _: None, answers=10**6))))
    assert_says_nothing(error)


def test_a_stop_and_an_exit_status_pass() -> None:
    @redacts_errors(dpf.BackendError, "it")
    def raising(error: BaseException) -> None:
        raise error

    stopped = Stopped(SECRET)
    assert raised_by(lambda: raising(stopped)) is stopped
    assert stopped.args == ()
    for given, status in ((3, 3), (None, None), (SECRET, 1)):
        error = raised_by(lambda given=given: raising(SystemExit(given)))  # type: ignore[misc]
        assert isinstance(error, SystemExit)
        assert error.code == status


def test_a_wrong_call_is_told_in_pythons_own_words() -> None:
    with pytest.raises(TypeError, match="missing 2 required keyword-only arguments: 'count' and 'epsilon'"):
        dpf.release_labels(RECORDS)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilonn'"):
        dpf.release_labels(RECORDS, count=1, epsilon=1.0, epsilonn=1.0)  # type: ignore[call-arg]
