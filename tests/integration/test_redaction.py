"""No error carries anything private out of the package."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot import audit, evaluation
from dpfewshot.audit.influence import influences
from dpfewshot.audit.membership import membership_inference, trials_of_records
from dpfewshot.backends.protocol import PromptBlock, ReplayedBlock
from dpfewshot.cli.application import run
from dpfewshot.evaluation import Experiment, NonPrivateSample, Results, Trial
from dpfewshot.generation.cancellation import Stopped
from dpfewshot.generation.generation import Generation
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.strata import StratumRun
from dpfewshot.ledger.database import Database
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.values import Record
from tests.support import factory
from tests.support.crash_reporter import collected
from tests.support.scripts import TASK, WORDS, Sentence

BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)
SECRET = "swordfish"
RECORDS = [Record(f"my secret is {SECRET}", label) for label in ("refund", "delivery") for _ in range(60)]
TOKENS = str([WORDS.index(" my"), WORDS.index(" secret"), WORDS.index(" is")])[1:-1]
"""How the record stands in every prompt."""

CANARIES = (SECRET, TOKENS, "-0.3141")


class OwnBlock(ReplayedBlock):
    """Lets every error of its backend out."""

    def next_token_logprobs(self, support: Any = None) -> Any:
        return self._backend.next_token_logprobs(self._prompts, support)


class Failing(Sentence):
    """Answers private prompts with a probability like no other, until it raises what a test wants.

    Args:
        failure: makes the error of the prompts at hand; what it returns is raised.
        answers: how many times private prompts are answered before.
    """

    def __init__(self, failure: Callable[[str], BaseException | None], answers: int = 2) -> None:
        super().__init__()
        self.failure = failure
        self.answers = answers

    def open_block(self, prefix: Any, suffixes: Any, tokens: int, *, public: bool = False) -> PromptBlock:
        """A block of its own, whose errors are not held against single prompts."""
        del tokens
        return OwnBlock(self, prefix, suffixes, public=public)

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        rows = super().next_token_logprobs(prompts, support)
        if support is None:
            return rows
        rows[:, 0] = -0.3141
        self.answers -= 1
        if self.answers < 0:
            quoted = f"cannot evaluate my secret is {SECRET}: {[*map(list, prompts)]} gave {rows.tolist()}"
            failure = self.failure(quoted)
            if failure is not None:
                raise failure
            return np.full((len(prompts), 1), np.nan, dtype=np.float32)  # of a wrong shape
        return rows


class OwnError(dpf.BackendError):
    """A backend's own kind of error, which carries what it failed on."""

    def __init__(self, quoted: str) -> None:
        super().__init__("the server is gone", retryable=True)
        self.prompts = quoted
        self.add_note(quoted)


class Killed(BaseException):
    """What ends a thread or a task, and no `except Exception` catches."""


PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
"""What a library in Rust raises, no `Exception` either."""


FAILURES: dict[str, tuple[Callable[[str], BaseException | None], type[BaseException]]] = {
    "the server is gone": (lambda _: dpf.BackendError("gone", retryable=True), dpf.BackendError),
    "an error of the backend's own": (OwnError, dpf.BackendError),
    "a message that quotes": (RuntimeError, dpf.BackendError),
    "a group": (lambda quoted: ExceptionGroup(quoted, [ValueError(quoted)]), dpf.BackendError),
    "a group of interrupts": (
        lambda quoted: BaseExceptionGroup(quoted, [KeyboardInterrupt(quoted)]),
        dpf.BackendError,
    ),
    "another shape": (lambda _: None, dpf.BackendError),
    "no memory": (MemoryError, dpf.BackendError),
    "an interrupt": (KeyboardInterrupt, KeyboardInterrupt),
    "an exit": (SystemExit, SystemExit),
    "an end": (Killed, Killed),
    "a panic": (PanicException, dpf.BackendError),
}


synthesizer = partial(factory.synthesizer, records=RECORDS, prompts_per_token=30)


def raised_by(call: Callable[[], object]) -> BaseException:
    """What a call raises, as a service's outermost handler holds it."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - interrupts too
        return error
    raise AssertionError("nothing was raised")


def assert_says_nothing(error: BaseException, canaries: tuple[str, ...] = CANARIES) -> None:
    told = collected(error)
    assert not [canary for canary in canaries if canary in told]


# ---- the reporter itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["a message that quotes", "the server is gone", "another shape"])
def test_control_without_the_border_everything_is_there(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generation, "release", Generation.release.__wrapped__)  # type: ignore[attr-defined]
    error = raised_by(lambda: synthesizer(Failing(FAILURES[failure][0])).generate("refund"))
    told = collected(error)
    assert TOKENS in told
    assert "-0.3141" in told
    assert SECRET in told or failure != "a message that quotes"  # in the context alone


# ---- generation --------------------------------------------------------------------------------------------


def in_a_thread(made: dpf.Synthesizer) -> object:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            made.generate("refund")
        except BaseException as error:  # noqa: BLE001 - as threading.excepthook is given it
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]
    return None


CALLS: dict[str, Callable[[dpf.Synthesizer], object]] = {
    "generate": lambda made: made.generate("refund"),
    "generate_all": lambda made: made.generate_all(),
    "agenerate": lambda made: asyncio.run(made.agenerate("refund")),
    "agenerate_all": lambda made: asyncio.run(made.agenerate_all()),
    "a thread": in_a_thread,
}


@pytest.mark.parametrize("resample_every", [1, 4])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("call", CALLS)
def test_a_failing_backend_says_nothing(call: str, failure: str, resample_every: int) -> None:
    fail, kind = FAILURES[failure]
    made = synthesizer(Failing(fail), resample_every=resample_every)
    error = raised_by(lambda: CALLS[call](made))
    assert type(error) is kind
    assert_says_nothing(error)
    assert error.__cause__ is None
    assert made.accountant.spent.epsilon > 3.9, "what was drawn stays charged"


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


def test_a_public_message_and_whether_to_try_again_are_kept() -> None:
    error = raised_by(lambda: synthesizer(Failing(OwnError)).generate("refund"))
    assert str(error) == "the server is gone"
    assert isinstance(error, dpf.BackendError)
    assert error.retryable


def test_another_error_is_named_after_its_type_alone() -> None:
    error = raised_by(lambda: synthesizer(Failing(LookupError)).generate("refund"))
    assert str(error) == "the backend failed with LookupError"


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
    made = synthesizer(Panicking(), records=records, labels=["refund"], prompts_per_token=100)
    assert made.generate("refund").private


@pytest.mark.parametrize(
    ("owner", "place"), [(SetUp, "sampler"), (StratumRun, "charge"), (Generation, "demonstration")]
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

    made = synthesizer(Losing(), ledger=f"sqlite:///{path}", dataset="tickets", create=True)
    error = raised_by(lambda: made.generate("refund"))
    assert type(error) is dpf.LedgerError
    assert_says_nothing(error)


def test_a_full_disk_under_a_checkpoint_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Failing(lambda _: None, answers=10**6)
    made = synthesizer(backend)
    write = os.write

    def full(file: int, data: bytes) -> int:
        if b'"token"' in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr("dpfewshot.generation.checkpoint.os.write", full)
    error = raised_by(lambda: made.generate_all(checkpoint=tmp_path / "run.checkpoint"))
    assert type(error) is dpf.LedgerError
    assert "No space left" in str(error)
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


# ---- loading, labels, use, evaluation and audits -----------------------------------------------------------


class Untokenisable(Sentence):
    """Its tokenizer quotes what it cannot read."""

    def tokenize(self, text: str) -> list[int]:
        if SECRET in text:
            raise RuntimeError(f"cannot read {text}")
        return super().tokenize(text)


class Choking(Sentence):
    """Fails on every prompt with a record, whose tokens it quotes."""

    open_block = Failing.open_block

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if any(WORDS.index(" secret") in prompt for prompt in prompts):
            raise RuntimeError(f"cannot evaluate {SECRET} {[*map(list, prompts)]}")
        return super().next_token_logprobs(prompts, support)


def rows() -> list[dict[str, str]]:
    return [{"text": record.text, "label": record.label} for record in RECORDS] + [{"text": SECRET}]


DEMONSTRATION = factory.demonstration()


def experiment(backend: Sentence) -> Experiment:
    return Experiment(
        task=TASK, records=RECORDS, test=RECORDS[:5], writer=backend, writer_name="m", delta=1e-5
    )


class Locked(dpf.MemoryAccount):
    """An account that fails while it handles another error."""

    def reserve(self, *arguments: Any) -> int:
        try:
            return int(f"{SECRET} {arguments}")
        except ValueError:
            raise dpf.LedgerError("the ledger is locked") from None


class Unwritable(Sentence):
    """It quotes the tokens that it cannot write out."""

    def detokenize(self, tokens: Any) -> str:
        if len(tokens) > 1:
            raise RuntimeError(f"cannot write {SECRET}")
        return super().detokenize(tokens)


PRIVATE_CALLS: dict[str, Callable[[], object]] = {
    "as_records": lambda: dpf.as_records(rows()),
    "Synthesizer": lambda: dpf.Synthesizer(TASK, rows(), Sentence(), budget=BUDGET),
    "Synthesizer, a wrong setting": lambda: dpf.Synthesizer(
        TASK, rows()[:-1], Sentence(), budget=BUDGET, max_tokens="8"
    ),
    "non_private_sample": lambda: dpf.non_private_sample(TASK, rows()),
    "release_labels": lambda: dpf.release_labels(rows(), count=1, epsilon=1.0, delta=1e-6),
    "release_labels, no ledger": lambda: dpf.release_labels(
        rows()[:-1], count=1, epsilon=1.0, delta=1e-6, account=Locked(BUDGET)
    ),
    "leak_check": lambda: audit.leak_check([DEMONSTRATION], RECORDS, Untokenisable()),
    "leak_check, rows": lambda: audit.leak_check([DEMONSTRATION], rows()),
    "canary_game": lambda: audit.canary_game(synthesizer(Choking()), plays=100, batches=1),
    "influences": lambda: influences(TASK, Untokenisable(), [DEMONSTRATION], [f"my secret is {SECRET}"]),
    "membership_inference": lambda: membership_inference(
        TASK, Untokenisable(), trials_of_records(RECORDS[:2], RECORDS[2:], each=2), loss="record"
    ),
    "evaluate": lambda: evaluation.evaluate(
        experiment(Untokenisable()), [Trial(NonPrivateSample(), None, shots=2)], Results("none.jsonl")
    ),
    "Classifier": lambda: dpf.icl.Classifier(TASK, Untokenisable(), [DEMONSTRATION]).predict([SECRET, "b"]),
    "Classifier, streamed": lambda: list(
        dpf.icl.Classifier(TASK, Choking(), [DEMONSTRATION]).stream(["my secret is", "b"])
    ),
    "Extractor": lambda: dpf.icl.Extractor(TASK, Untokenisable(), [DEMONSTRATION]).predict([SECRET]),
    "Extractor, writing": lambda: dpf.icl.Extractor(TASK, Unwritable(), [DEMONSTRATION]).predict([SECRET]),
}


@pytest.mark.parametrize("call", PRIVATE_CALLS)
def test_no_other_call_that_reads_private_text_says_any(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = raised_by(PRIVATE_CALLS[call])
    assert isinstance(error, dpf.DPFewShotError) or "wrong setting" in call
    assert_says_nothing(error)


def test_what_the_callers_own_rows_raise_is_shown_with_their_own_frames_alone() -> None:
    def reading() -> Any:
        yield rows()[0]
        raise LookupError("mine")

    error = raised_by(lambda: dpf.Synthesizer(TASK, reading(), Sentence(), budget=BUDGET))
    assert type(error) is LookupError
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-2:] == ["redacting", "reading"]


# ---- a ledger's password -----------------------------------------------------------------------------------

URL = f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/budget?sslpassword={SECRET}2"


def ledger_calls() -> dict[str, Callable[[], object]]:
    return {
        "open": lambda: dpf.BudgetLedger.open(URL),
        "Synthesizer": lambda: synthesizer(Sentence(), ledger=URL, dataset="tickets"),
        "no URL": lambda: dpf.BudgetLedger.open(f"me:{SECRET}@host"),
        "another database": lambda: dpf.BudgetLedger.open(f"mysql://me:{SECRET}@host/x"),
    }


@pytest.mark.parametrize("call", ledger_calls())
def test_a_ledgers_password_is_in_no_error(call: str) -> None:
    pytest.importorskip("psycopg")
    error = raised_by(ledger_calls()[call])
    assert type(error) is dpf.LedgerError
    assert_says_nothing(error, (SECRET,))


def test_control_without_the_border_the_password_is_there() -> None:
    pytest.importorskip("psycopg")
    plain = dpf.BudgetLedger.open.__func__.__wrapped__  # type: ignore[attr-defined]
    assert SECRET in collected(raised_by(lambda: plain(dpf.BudgetLedger, URL)))


def test_a_place_shows_no_password() -> None:
    pytest.importorskip("psycopg")
    place = Database(URL).place
    assert place.secrets
    assert SECRET not in repr(place)
    assert SECRET not in repr([place])


# ---- the command line --------------------------------------------------------------------------------------

BACKENDS = """
from tests.support.scripts import Sentence
from dpfewshot.backends.protocol import ReplayedBlock

class OwnBlock(ReplayedBlock):
    def next_token_logprobs(self, support=None):
        return self._backend.next_token_logprobs(self._prompts, support)

class Failing(Sentence):
    def open_block(self, prefix, suffixes, tokens, *, public=False):
        return OwnBlock(self, prefix, suffixes, public=public)

    def next_token_logprobs(self, prompts, support=None):
        if support is not None:
            raise RuntimeError(f"swordfish {[*map(list, prompts)]}")
        return super().next_token_logprobs(prompts, support)
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_line_says_nothing(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_backends.py").write_text(BACKENDS)
    lines = (json.dumps({"text": record.text, "label": record.label}) + "\n" for record in RECORDS)
    (tmp_path / "records.jsonl").write_text("".join(lines))
    task = {"name": "tickets", "instruction": "Write.", "label_field": "Kind", "text_field": "Ticket"}
    toml = "".join(f"{key} = {json.dumps(value)}\n" for key, value in task.items())
    (tmp_path / "task.toml").write_text(toml + 'labels = ["refund", "delivery"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_backends", raising=False)
    arguments = "generate --backend own_backends:Failing --task task.toml --records records.jsonl"
    options = "--label refund --epsilon 4 --delta 1e-5 --prompts-per-token 30 --max-tokens 4 --top-k 8"
    status = run([*arguments.split(), *options.split(), *(["--json"] if as_json else [])])
    told = "".join(capsys.readouterr())
    assert status == 2
    assert "RuntimeError" in told
    assert not [canary for canary in CANARIES if canary in told]


def test_a_fault_of_the_command_line_is_one_line_without_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: object) -> None:
        raise LookupError(SECRET)

    (tmp_path / "records.jsonl").write_text('{"text": "a", "label": "Location"}\n' * 100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpfewshot.cli.plan.open_session", faulty)
    arguments = (
        "plan --task trec --records records.jsonl --label Location --epsilon 4 --delta 1e-5 --max-tokens 4"
    )
    assert run(arguments.split()) == 2
    told = "".join(capsys.readouterr())
    assert told.startswith("dpfewshot: failed with LookupError in dpfewshot.cli.plan, line ")
    assert SECRET not in told
