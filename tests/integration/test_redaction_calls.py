"""No error of loading, labels, use, evaluation, audits, ledgers and commands carries anything private."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot import audit, evaluation
from dpfewshot.account.database import Database
from dpfewshot.audit.influence import influences
from dpfewshot.audit.membership import membership_inference, trials_of_records
from dpfewshot.cli.project_file import ProjectFile
from dpfewshot.evaluation import Experiment, NonPrivateSample, Results, Trial
from tests.support.commands import Run
from tests.support.crash_reporter import collected
from tests.support.redaction import (
    CANARIES,
    DEMONSTRATION,
    RECORDS,
    SECRET,
    Failing,
    assert_says_nothing,
    raised_by,
    synthesizer,
)
from tests.support.scripts import TASK, TASK_FILE, WORDS, Sentence, written

BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)
WORDED = dpf.icl.PromptFormat("", "Ticket", "Kind", ("refund", "delivery"), ("my", "money"))
"""Labels that the model has words for: else a label fails, before any private text is read."""


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


def experiment(backend: Sentence) -> Experiment:
    return Experiment(
        task=TASK, records=RECORDS, test=RECORDS[:5], writer=backend, writer_name="m", delta=1e-5
    )


class Locked(dpf.Account):
    """An account that fails while it handles another error."""

    def reserve(self, *arguments: Any) -> Any:
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


def unreadable() -> Any:
    """A table with a text that is not UTF-8, which Arrow's errors quote."""
    arrow = pytest.importorskip("pyarrow")
    text = f"my secret is {SECRET} ".encode() + b"\xff"
    ends = arrow.array([0, len(text)], arrow.int32()).buffers()[1]
    return arrow.table(
        {
            "text": arrow.Array.from_buffers(arrow.string(), 1, [None, ends, arrow.py_buffer(text)]),
            "label": ["refund"],
        }
    )


def unreadable_frame() -> Any:
    table, pandas = unreadable(), pytest.importorskip("pandas")
    return pandas.DataFrame(
        {name: pandas.arrays.ArrowExtensionArray(table[name]) for name in table.column_names}
    )


def project() -> ProjectFile:
    """A project file on private records, in the working folder, with more prompts than there are records."""
    written(Path(), RECORDS)
    sections = {
        "records": 'records = "records.jsonl"',
        "budget": "epsilon = 4.0",
        "model": 'backend = "tests.support.scripts:Sentence"',
        "settings": "prompts_per_draw = 1000",
    }
    further = "".join(f"[{section}]\n{line}\n" for section, line in sections.items())
    Path("dpfewshot.toml").write_text(f"[task]{TASK_FILE}{further}")
    return dpf.load()


PRIVATE_CALLS: dict[str, Callable[[], object]] = {
    "as_records": lambda: dpf.as_records(rows()),
    "as_records, a built-in that quotes": lambda: dpf.as_records(map(int, [SECRET])),
    "as_records, a frame": lambda: dpf.as_records(unreadable_frame()),
    "as_records, a data set": lambda: dpf.as_records(pytest.importorskip("datasets").Dataset(unreadable())),
    "Synthesizer, a frame": lambda: dpf.Synthesizer(TASK, unreadable_frame(), Sentence(), budget=BUDGET),
    "mask_identifiers": lambda: dpf.mask_identifiers(rows()),
    "Synthesizer": lambda: dpf.Synthesizer(TASK, rows(), Sentence(), budget=BUDGET),
    "Synthesizer, a wrong setting": lambda: dpf.Synthesizer(
        TASK, rows()[:-1], Sentence(), budget=BUDGET, max_tokens="8"
    ),
    "non_private_sample": lambda: dpf.non_private_sample(TASK, rows()),
    "load": lambda: project().synthesizer(),
    "choose": lambda: dpf.choose(TASK, rows(), Sentence(), [[]], budget=BUDGET),
    "search": lambda: dpf.search(TASK, rows(), Sentence(), proposer=lambda _: [[]], budget=BUDGET),
    "release_labels": lambda: dpf.release_labels(rows(), count=1, epsilon=1.0, delta=1e-6),
    "release_labels, no ledger": lambda: dpf.release_labels(
        rows()[:-1], count=1, epsilon=1.0, delta=1e-6, account=Locked.in_memory(BUDGET)
    ),
    "leak_check": lambda: audit.leak_check([DEMONSTRATION], rows()),
    "canary_game": lambda: audit.canary_game(synthesizer(Choking()), plays=100),
    "influences": lambda: influences(WORDED, Untokenisable(), [DEMONSTRATION], [f"my secret is {SECRET}"]),
    "membership_inference": lambda: membership_inference(
        TASK, Untokenisable(), trials_of_records(RECORDS[:2], RECORDS[2:], each=2), loss="record"
    ),
    "evaluate": lambda: evaluation.evaluate(
        experiment(Untokenisable()), [Trial(NonPrivateSample(), None, shots=2)], Results("none.jsonl")
    ),
    "Classifier": lambda: dpf.icl.Classifier(WORDED, Untokenisable(), [DEMONSTRATION]).predict([SECRET, "b"]),
    "Classifier, a built-in that quotes": lambda: dpf.icl.Classifier(WORDED, Sentence(), []).predict(
        map(int, [SECRET])
    ),
    "Classifier, streamed": lambda: list(
        dpf.icl.Classifier(WORDED, Choking(), [DEMONSTRATION]).stream(["my secret is", "b"])
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
    assert not isinstance(error, dpf.InvalidTask), "the call failed before it read private text"
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


@pytest.mark.parametrize(
    "url",
    [
        URL,
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/budget",
        f"postgresql://me:{SECRET}@127.0.0.1:1/budget?connect_timeout=5",
        f"postgresql://127.0.0.1:1/budget?password={SECRET}&{SECRET}=1",
        f"postgresql://me:{SECRET}@127.0.0.1:port/budget",
        f"postgresql://me:a@{SECRET}@127.0.0.1:1/budget",
        f"postgresql://127.0.0.1:1/budget password={SECRET}",
        f"mysql://me:{SECRET}@127.0.0.1/budget",
        f"//me:{SECRET}@127.0.0.1/budget",
        f"me:{SECRET}@host",
    ],
)
def test_a_ledgers_password_is_in_no_error(url: str) -> None:
    pytest.importorskip("psycopg")
    for call in (lambda: dpf.BudgetLedger.open(url), lambda: synthesizer(Sentence(), ledger=url)):
        error = raised_by(call)
        assert type(error) is dpf.LedgerError
        assert "\n" not in str(error)
        assert_says_nothing(error, (SECRET,))


def test_control_without_the_border_the_password_is_there() -> None:
    pytest.importorskip("psycopg")
    plain = dpf.BudgetLedger.open.__func__.__wrapped__  # type: ignore[attr-defined]
    assert SECRET in collected(raised_by(lambda: plain(dpf.BudgetLedger, URL)))


def test_a_database_shows_no_password() -> None:
    pytest.importorskip("psycopg")
    database = Database(URL)
    assert SECRET in database.address
    assert SECRET not in repr([database])


# ---- the command line --------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_line_says_nothing(as_json: bool, tmp_path: Path, command: Run) -> None:
    options = "--label refund --epsilon 4 --delta 1e-5 --prompts-per-draw 30 --max-tokens 4 --set top_k=8"
    given = (*written(tmp_path, RECORDS), "--backend", "tests.support.redaction:Quoting", *options.split())
    status, *both = command("generate", *given, *(["--json"] if as_json else []))
    told = "".join(both)
    assert status == 2
    assert "RuntimeError" in told
    assert not [canary for canary in CANARIES if canary in told]


def test_a_fault_of_the_command_line_is_one_line_without_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Run
) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise LookupError(SECRET)

    monkeypatch.setattr("dpfewshot.cli.project.Project.synthesizer", faulty)
    options = "--label refund --epsilon 4 --delta 1e-5 --max-tokens 4"
    status, *both = command("plan", *written(tmp_path), *options.split())
    told = "".join(both)
    assert status == 2
    assert told.startswith("dpfewshot: failed with LookupError in dpfewshot.cli.plan, line ")
    assert SECRET not in told
