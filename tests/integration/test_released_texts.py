"""What the ledger knows of each released text, and what a published line tells of the ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Amount
from dpfewshot.account.draws import DrawCounts
from dpfewshot.audit.certified import check_certificates
from dpfewshot.certificates import line_hash
from dpfewshot.report import Sources, select
from tests.support import factory
from tests.support.accounts import DRAWS, resume
from tests.support.resuming import acts, fails_at, fails_once, make
from tests.support.scripts import Hooked

FIXTURES = (make,)

Make = Callable[..., dpf.Synthesizer]
TEXT = "my parcel is late"
NIGHTS = 3


def checked(folder: Path, demonstrations: list[dpf.Demonstration]) -> tuple[bool, str]:
    """Whether the ledger agrees with them, and what it says of their lines."""
    with dpf.BudgetLedger.open(f"sqlite:///{folder}/budget.db") as opened:
        assert opened.account("tickets").verify().problems == ()
        found = check_certificates(demonstrations, opened)
    return found.verified, "; ".join(problem for entry in found.entries for problem in entry.problems)


def nights(folder: Path, cancelled: int) -> str:
    """The published lines, card and report of some nights, with plans that are cancelled before each."""
    folder.mkdir()
    url = f"sqlite:///{folder}/budget.db"
    with dpf.BudgetLedger.open(url) as opened:
        account = opened.create("tickets", dpf.PrivacyBudget(40, 1e-3))
        made = []
        for _ in range(NIGHTS):
            for _ in range(cancelled):
                account.cancel(
                    account.reserve(None, Amount(10**11, 0), {"mechanism": "gaussian"}, DRAWS).entry
                )
            options = {"prompts_per_draw": 100, "labels": ["refund"], "ledger": url}
            with factory.synthesizer(Hooked(), **options) as one:
                made += one.generate_all()
        published = dpf.Demonstrations(made)
        published.to_jsonl(folder / "demos.jsonl")
        published.to_folder(folder / "shared")
        contents = select(Sources(published, account.snapshot()), confidential=False)
    lines = (folder / "demos.jsonl").read_text()
    spending = contents.spending
    assert spending is not None
    assert contents.unpaid == 0
    shown = [(plan.number, plan.scope, plan.spend, plan.details) for plan in spending.plans]
    return "\n".join([lines, (folder / "shared" / "README.md").read_text(), str(shown)])


def test_published_lines_tell_nothing_of_cancelled_plans_or_times(tmp_path: Path) -> None:
    without, with_some = nights(tmp_path / "without", 0), nights(tmp_path / "with", 2)
    identifier = re.compile(r"\b[0-9a-f]{32}\b")
    assert identifier.sub("random", without) == identifier.sub("random", with_some)
    for published in (without, with_some):
        drawn = {json.loads(line)["certificate"]["reservation"] for line in published.splitlines()[:NIGHTS]}
        assert len(drawn) == NIGHTS
        assert all(identifier.fullmatch(one) for one in drawn)
    assert not {*identifier.findall(without)} & {*identifier.findall(with_some)}


def test_a_text_that_was_replaced_relabelled_invented_or_repeated_is_named(
    make: Make, tmp_path: Path
) -> None:
    with make(shots_per_label=2, labels=None) as one:
        made = list(one.generate_all())
    assert checked(tmp_path, made) == (True, "")
    [first, *others] = made
    changes = [
        replace(first, text="Mrs Hollis, 12 Elm St"),
        replace(first, label=next(one.label for one in made if one.label != first.label)),
        replace(first, token_count=first.token_count - 1),
    ]
    for change in changes:
        verified, problems = checked(tmp_path, [*others, change])
        assert not verified
        assert f"line {len(made)} is not what the entry released" in problems
    verified, problems = checked(tmp_path, [*made, changes[0]])
    assert not verified
    assert f"line {len(made) + 1} is not" in problems
    alike = [one for one in made if line_hash(one.as_line()) == line_hash(first.as_line())]
    assert len(alike) == 2  # the scripted model says the same twice, which is no repetition
    verified, problems = checked(tmp_path, [*made, first])
    assert not verified
    assert f"line {len(made) + 1} repeats a demonstration" in problems


@pytest.mark.parametrize("max_tokens", [8, 4])  # with 4 no draw is left, and the entry is settled
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("way", ["generate", "generate_all", "threads"])
def test_a_ledger_that_fails_at_the_record_loses_no_text_and_hands_out_none(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, max_tokens: int, *, committed: bool
) -> None:
    fails_once(monkeypatch, "record_release", after=committed, times=2)
    backend = Hooked()
    ways: dict[str, Callable[[dpf.Synthesizer], list[dpf.Demonstration]]] = {
        "generate": lambda one: [one.generate("refund")],
        "generate_all": lambda one: list(one.generate_all(resume=True)),
        "threads": lambda one: list(one.generate_all(executor=threads, resume=True)),
    }
    with ThreadPoolExecutor(1) as threads, make(backend, max_tokens=max_tokens) as one:
        for _ in range(2):
            with pytest.raises(dpf.LedgerError, match="kept until the ledger has its hash"):
                ways[way](one)
        drawn = backend.asked
        made = ways[way](one)
        assert backend.asked == drawn
    assert [each.text for each in made] == [TEXT]
    assert checked(tmp_path, made) == (True, "")
    assert acts(tmp_path).count("release") == 1


@pytest.mark.parametrize("recorded", [False, True])
def test_a_process_that_dies_at_the_record_is_resumed_without_a_draw(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, recorded: bool
) -> None:
    record = Account.record_release

    def dying(*arguments: Any) -> None:
        if recorded:
            record(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Account, "record_release", dying)
        with pytest.raises(KeyboardInterrupt):
            make().generate_all()
    later = Hooked()
    with make(later) as one:
        made = list(one.generate_all(resume=True))
    assert [each.text for each in made] == [TEXT]
    assert later.asked == (0 if recorded else 1)  # its tokens were of the commit that did not come
    assert checked(tmp_path, made) == (True, "")
    assert acts(tmp_path).count("release") == 1


def test_what_a_resumed_run_repeats_word_for_word_is_recorded_again(make: Make, tmp_path: Path) -> None:
    with make(fails_at(12), shots_per_label=3) as one, pytest.raises(dpf.BackendError):
        one.generate_all()
    with make(shots_per_label=3) as one:
        made = list(one.generate_all(resume=True))
    assert [each.text for each in made] == [TEXT] * 3
    assert checked(tmp_path, made) == (True, "")
    assert acts(tmp_path).count("release") == 3


def test_only_the_holder_of_the_lease_records(account: dpf.Account) -> None:
    entry = account.reserve(None, Amount(10**11, 0), {"steps": 2}, DrawCounts(2, "first")).entry
    lines = [{"text": "one"}, {"text": "one"}, {"text": "two"}]
    hashes = [line_hash(line) for line in lines]
    one, two, three = (json.dumps({"released": lines[:count]}) for count in (1, 2, 3))
    with pytest.raises(dpf.LedgerError, match="never charged"):
        account.record_release(entry, "first", hashes[0], one)
    account.draw(entry, "first")
    account.record_release(entry, "first", hashes[0], one)
    account.record_release(entry, "first", hashes[0], one)  # the same call again
    account.record_release(entry, "first", hashes[1], two)
    resume(account, entry, None, Amount(10**11, 0), {"steps": 2}, lease="second")
    with pytest.raises(dpf.LedgerError, match="resumed by another run"):
        account.record_release(entry, "first", hashes[2], three)
    account.settle(entry, "second")
    account.record_release(entry, "second", hashes[2], three)  # drawn before, and paid for
    released = [row["details"]["line_sha256"] for row in account.history() if row["act"] == "release"]  # type: ignore[index]
    assert released == hashes
    assert account.verify().problems == ()
