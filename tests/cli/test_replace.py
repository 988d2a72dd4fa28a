"""`dpfewshot replace` writes new texts in place of lines that are named or deleted, and costs nothing."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.cli import replace
from dpfewshot.cli.lines import Lines
from dpfewshot.errors import BackendError
from dpfewshot.generation.histogram_loop import HistogramLoop
from dpfewshot.generation.runner import OnDemonstration
from dpfewshot.generation.token_loop import TextRequest
from dpfewshot.sample_data import SUPPORT_TICKETS
from tests.cli.test_generate import on_terminals
from tests.cli.test_init import edit, folder, made
from tests.generation.test_text_writer import answer
from tests.support.commands import Run, Terminal
from tests.support.servers import scripted

__all__ = ["folder", "made"]

SHOTS = 2
AFTERWARDS = ("verify", "replace", "generate --resume", "verify")
LABELS = SUPPORT_TICKETS.labels or ()


def lines() -> list[str]:
    return Path("demos.jsonl").read_text().splitlines()


def labels_of(some: list[str]) -> Counter[str]:
    return Counter(json.loads(line)["label"] for line in some)


@pytest.fixture
def generated(made: Run) -> Run:
    """The command line, in a folder whose `generate` has counted words and written all texts."""
    edit(top_k="# top_k", shots=f"shots = {SHOTS}")
    status, _, err = made("generate")
    assert status == 0
    assert "texts that you would not use: dpfewshot replace writes others in their place, at no cost" in err
    assert f"  {', '.join(sorted(LABELS))}: none that stands out of the noise\n" in err
    assert labels_of(lines()) == dict.fromkeys(LABELS, SHOTS)
    return made


def test_generate_says_first_that_what_its_run_lacks_is_free(generated: Run) -> None:
    assert generated("ledger", "change-budget", "--epsilon", "9", "--delta", "1e-4")[0] == 0
    free = "warning: --resume adds what this plan's run in the account lacks, such as more shots, at no cost"
    status, _, err = generated("generate")
    assert (status, err.count(free)) == (0, 1)
    status, _, err = generated("generate", "--resume")
    assert (status, free in err) == (0, False)


def spent() -> dpf.PrivacySpend:
    return dpf.open_account("sqlite:///budget.db", "tickets").spent


def test_a_run_is_whole_though_its_words_cannot_be_shown(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> None:
        raise dpf.BackendError("the server is away")

    edit(top_k="# top_k")
    monkeypatch.setattr(dpf.Synthesizer, "counted_words", away)
    status, _, err = made("generate")
    assert (status, "you may publish these texts" in err) == (0, True)
    assert "warning: the words that were counted cannot be shown: the server is away\n" in err


def test_named_lines_and_deleted_ones_are_replaced_at_no_cost(generated: Run) -> None:
    before, cost = lines(), spent()
    status, out, err = generated("replace", "2", "4-5")
    kept = [line for number, line in enumerate(before, start=1) if number not in {2, 4, 5}]
    assert (status, out, Counter(kept) - Counter(lines()), len(lines())) == (0, "", Counter(), 10), err
    assert "writing 3 texts, at no cost" in err
    assert err.count("written: ") == 3
    assert "done: 3 new texts in demos.jsonl, at no further cost" in err
    assert labels_of(lines()) == labels_of(before)

    kept = kept[2:]
    Path("demos.jsonl").write_text("\r\n".join(kept))  # by an editor that ends no last line
    told = json.loads(generated("replace", "--json")[1])
    assert (told["replaced"], told["demonstrations"]) == (5, [json.loads(line) for line in lines()])
    assert lines()[:5] == kept
    assert "nothing to replace: demos.jsonl has all texts of the plan" in generated("replace")[2]

    assert generated("generate", "--resume")[0] == 0  # what was replaced stays so
    assert labels_of(lines()) == labels_of(before)

    Path("demos.jsonl").unlink()
    edit(shots="shots = 3", max_tokens="max_tokens = 5")  # no other plan, and no other budget
    assert generated("replace")[0] == 0
    assert labels_of(lines()) == dict.fromkeys(LABELS, 3)
    assert generated("verify")[0] == 0
    assert spent() == cost
    status, _, err = generated("generate")
    assert (status, err.count("\n")) == (3, 1)
    assert err.startswith(
        "dpfewshot: demos.jsonl has 15 texts: if this plan wrote them, dpfewshot replace writes others in "
    )
    assert (
        err.index("raised, at no cost") < err.index("A further run is refused") < err.index("change-budget")
    )
    planned = generated("plan")[1].splitlines()
    assert "      account: tickets, of epsilon 2, delta 1e-05: nothing is left" in planned
    assert planned[-1].startswith("next: the budget pays for no other plan; generate --resume ")
    assert planned[-1].endswith(
        ", replace writes other texts of a finished one, or more once shots are raised, at no cost; plan "
        "--output FILE keeps texts like those above, which is free"
    )


def test_a_line_that_was_replaced_may_be_put_back(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfewshot.backends.chat_writer._SECONDS", 0.1)
    number = count(1)

    def page(_path: str, _body: dict[str, object]) -> object:
        return answer(" ".join("my" if next(number) >> bit & 1 else "parcel" for bit in range(6)))

    def settled(*some: str) -> bool:
        """Whether these lines stay, and agree with the ledger."""
        return all(made(*words.split())[0] == 0 and lines() == list(some) for words in AFTERWARDS)

    with scripted(page) as server:
        edit(top_k="# top_k", max_tokens="max_tokens = 8", shots=f"shots = {SHOTS}")
        edit(text_writer="text_writer = 'large'", text_writer_url=f"text_writer_url = '{server.base_url}'")
        assert made("generate")[0] == 0
        first = lines()
        assert "the old lines are in demos.jsonl.replaced\n" in made("replace", "2", "4")[2]
        new, old = lines(), Path("demos.jsonl.replaced").read_text().splitlines()
        assert (old, len({*first, *new})) == ([first[1], first[3]], 12)
        Path("demos.jsonl").write_text("\n".join([new[0], old[0], *new[2:]]))  # in place of the new one
        assert settled(new[0], old[0], *new[2:])
        Path("demos.jsonl").write_text("\n".join([*new, *old]))  # beside it: more than planned
        assert settled(*new, *old)
        Path("demos.jsonl").write_text("\n".join([*new, *old]), encoding="utf-8-sig")  # as some editors do
        assert (made("generate", "--resume")[0], len(lines())) == (0, 12)
        Path("demos.jsonl.replaced").write_text("\r\n".join([*old, new[0]]))  # in a failed round, say
        assert made("replace", "1")[0] == 0
        assert Path("demos.jsonl.replaced").read_text().splitlines() == [*old, new[0]]
        assert (len(lines()), made("verify")[0]) == (12, 0)
        Path("demos.jsonl.replaced").unlink()
        Path("demos.jsonl.replaced").mkdir()
        status, _, err = made("replace", "1")
        assert (status, len(lines()), made("verify")[0]) == (0, 12, 0)
        assert "warning: the old lines are not kept: cannot write demos.jsonl.replaced: Is a directory" in err


def test_on_a_terminal_texts_are_listed_and_asked_for_until_none_is_named(
    generated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lines()
    somebody_answers(monkeypatch, "1, 3\ntwo\n10 11\n10\n\n")
    status, out, err = generated("replace")
    after = lines()  # each new one where the old one was
    assert (status, after[1], after[3:9], len(after)) == (0, before[1], before[3:9], 10), err
    assert sorted(listed(out)) == sorted(3 * [*range(1, 11)])
    assert listed(out)[:4] == [1, 6, 2, 7], "label by label"
    assert err.count("judge each text by itself: ") == 3
    assert err.count("change its description in `label_descriptions`") == 1
    assert err.index("change its description") < err.index("done: 2 new texts")
    assert re.findall("done: .* new texts?", err) == ["done: 2 new texts", "done: 1 new text"]
    assert "line 11 has no text of this run" in err


def test_of_texts_that_are_listed_again_the_new_ones_have_a_mark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (dpf.Demonstration(text, "Refund", 1, True, None, "zero-out", "x") for text in "ab")
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    assert replace._asked({2: old, 10: new}, {old}) == frozenset()  # noqa: SLF001 - scripted texts are all alike
    told = capsys.readouterr()
    assert told.out == "   2   [Refund] a\n  10 * [Refund] b\n"
    assert "2 5-7 (*: new; Enter: none)" in told.err


def test_generate_asks_for_them_at_its_end(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(top_k="# top_k", shots=f"shots = {SHOTS}")
    somebody_answers(monkeypatch, "y\n2\n\n")
    status, out, err = made("generate")
    assert (status, sorted(listed(out)), len(lines())) == (0, sorted(2 * [*range(1, 11)]), 10), err
    assert err.index("replace which lines") < err.index("1 new text") < err.index("next: dpfewshot choose")
    assert "change its description" not in err, "a first round is no reason"
    cost = spent()
    assert made("verify")[0] == 0
    first = lines()
    somebody_answers(monkeypatch, "y\n1\n11\n\n")
    assert made("ledger", "change-budget", "--epsilon", "9", "--delta", "1e-4")[0] == 0
    status, out, err = made("generate")  # further lines, of another run
    assert (status, {*listed(out)}, lines()[:10]) == (0, {*range(11, 21)}, first), err
    assert "line 1 has no text of this run" in err
    assert spent() != cost
    for further in ("--quiet", "--json", "--resume night"):
        somebody_answers(monkeypatch, "y\n")
        made("ledger", "change-budget", "--epsilon", "99", "--delta", "1e-3")
        assert "replace which lines" not in made("generate", *further.split())[2]


def test_a_new_run_that_nothing_is_left_for_is_refused_before_a_question(
    generated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody_answers(monkeypatch, "y\n")
    status, _, err = generated("generate", "--resume", "--epsilon", "0.5")
    assert (status, "a spent budget does not come back" in err, "xhausted" in err) == (3, False, False)
    assert "does not fit the budget of the account 'tickets': epsilon is short" in err
    assert ", and nothing is left, for 'generates: Account'; " in err


def while_asked(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change something while the first question stands."""
    asked, changes = replace._asked, [change]  # noqa: SLF001 - between a list and an answer is nothing public

    def changed(*shown: Any) -> frozenset[int]:
        chosen = asked(*shown)
        if changes:
            changes.pop()()
        return chosen

    monkeypatch.setattr(replace, "_asked", changed)


def test_lines_are_replaced_as_they_were_shown_or_not_at_all(
    generated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lines()
    while_asked(monkeypatch, lambda: Path("demos.jsonl").write_text("\n".join(before[1:])))
    somebody_answers(monkeypatch, "2\n\n")
    status, out, err = generated("replace")
    assert (status, lines(), len(listed(out))) == (0, before[1:], 10 + 9), err
    assert "demos.jsonl was changed meanwhile, so nothing is replaced" in err
    while_asked(monkeypatch, Path("demos.jsonl").unlink)
    somebody_answers(monkeypatch, "\n")
    status, _, err = generated("replace")
    assert (status, Path("demos.jsonl").exists(), "done: 1 new text " in err) == (0, False, True), err
    assert generated("generate", "--resume")[0] == 0
    assert len(lines()) == 10


def test_a_file_that_is_deleted_while_texts_are_written_is_there_again(
    generated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, put = lines(), replace._put_in_place  # noqa: SLF001 - the moment before it is rewritten

    def deleted(*arguments: Any) -> None:
        Path("demos.jsonl").unlink()
        put(*arguments)

    monkeypatch.setattr(replace, "_put_in_place", deleted)
    assert generated("replace", "3")[0] == 0
    assert (Counter(before[:2] + before[3:]) - Counter(lines()), len(lines())) == (Counter(), 10)
    assert generated("verify")[0] == 0

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replace, "_put_in_place", put)
    monkeypatch.setattr(replace, "write_whole", full)
    status, _, err = generated("replace", "3")
    told = (
        "cannot write demos.jsonl: No space left on device. New texts are in the ledger: dpfewshot generate"
    )
    assert (status, told in err) == (2, True), err
    assert generated("generate", "--resume")[0] == generated("verify")[0] == 0


def test_a_file_that_is_deleted_before_an_interruption_is_there_again(
    generated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, tokens = lines(), HistogramLoop.tokens

    def interrupted(loop: HistogramLoop, request: TextRequest) -> Iterator[int]:
        if not Path("demos.jsonl").exists():
            raise KeyboardInterrupt
        Path("demos.jsonl").unlink()
        return tokens(loop, request)

    monkeypatch.setattr(HistogramLoop, "tokens", interrupted)
    status, _, err = generated("replace", "1", "3")
    assert (status, len(lines()), Counter(before) - Counter(lines())) == (130, 11, Counter()), err


def test_what_fails_after_a_run_is_no_failure_of_the_run(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(top_k="# top_k", shots=f"shots = {SHOTS}")
    file = Path("demos.jsonl")
    while_asked(monkeypatch, lambda: file.write_text(f"{file.read_text()}my own note\n"))
    somebody_answers(monkeypatch, "y\n2\n")
    status, _, err = made("generate")
    assert (status, len(lines())) == (0, 11), err
    assert "warning: demos.jsonl: line 11: is not a demonstration. The texts of this run are paid for" in err
    assert "next: dpfewshot choose" in err


@pytest.mark.parametrize("answers", ["y\n", "y\n\x04"])
def test_a_device_is_not_asked_about_and_no_answer_is_none(
    made: Run, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    edit(top_k="# top_k", shots=f"shots = {SHOTS}")
    somebody_answers(monkeypatch, answers)
    output = ("--output", "/dev/null") if answers == "y\n" else ()
    status, _, err = made("generate", *output)  # which ends its input
    assert (status, "replace which lines" in err) == (0, not output), err


def somebody_answers(monkeypatch: pytest.MonkeyPatch, answers: str) -> None:
    on_terminals(monkeypatch, "stdin stderr", answers)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)


def listed(out: str) -> list[int]:
    return [int(line.split()[0]) for line in out.splitlines() if re.match(r" +\d+ [ *] \[", line)]


REFUSED = {
    "0": "'0' is no line of the output: give numbers such as 2, or 5-7",
    "3-2": "'3-2' is no line of the output",
    "two": "'two' is no line of the output",
    "2-11": "demos.jsonl has 10 texts, and no line 11",
    "1 --epsilon 1": "the account has no run of this plan, so no counts are paid for",
    "99999": "demos.jsonl has 10 texts, and no line 99999",
    "9999999": "'9999999' is no line of the output",
    "1 --output /dev/null": "/dev/null is no file",
    "1 --set top_k=8": "this one draws for each text",
}


def test_what_cannot_be_replaced_is_refused_and_stays_as_do_texts_of_other_runs(generated: Run) -> None:
    first, cost = lines(), spent()
    for words, message in REFUSED.items():
        status, _, err = generated("replace", *words.split())
        assert (status, message in err) == (2, True), err
        assert ("loading the model" in err) is ("this plan" in message or "run" in message)
    assert (lines(), spent()) == (first, cost)
    err = generated("replace", "1", "--shots", "1")[2]
    assert "nothing in place of 1 line: the labels have as many texts as planned without" in err
    assert lines() == first[1:]
    assert generated("replace")[0] == 0
    first = lines()
    assert generated("ledger", "change-budget", "--epsilon", "9", "--delta", "1e-4")[0] == 0
    assert generated("generate")[0] == 0
    with Lines("demos.jsonl"):
        assert "another process writes demos.jsonl" in generated("replace", "11")[2]
    status, _, err = generated("replace", "1")
    assert (status, "line 1 has no text of this plan's newest run" in err) == (2, True)
    Path("demos.jsonl").write_text("\n".join(first))
    assert "line 1 has no text" in generated("replace")[2]
    Path("demos.jsonl").unlink()
    assert generated("replace")[0] == 0
    Path("demos.jsonl").write_text("\n".join(first + lines()))
    assert generated("replace", "11")[0] == 0
    assert lines()[:10] == first
    assert generated("verify")[0] == 0


def test_it_neither_begins_a_run_nor_ends_one_nor_keeps_what_was_changed(made: Run) -> None:
    edit(top_k="# top_k", shots=f"shots = {SHOTS}")
    assert "the account has no texts to replace yet" in made("replace")[2]
    assert not dpf.BudgetLedger.open("sqlite:///budget.db").datasets()

    def stopped(self: dpf.Synthesizer, *, on_demonstration: OnDemonstration, **_: object) -> None:
        on_demonstration(self.generate("Refund"))
        raise BackendError("the model is away", retryable=True)

    def away(*_: object) -> None:
        raise BackendError("the model is away", retryable=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpf.Synthesizer, "generate_all", stopped)
        assert made("generate")[0] == 2
    entries = dpf.open_account("sqlite:///budget.db", "tickets").entries
    status, _, err = made("replace", "1")
    assert (status, "which dpfewshot generate --resume does" in err, len(lines())) == (2, True, 1)
    assert dpf.open_account("sqlite:///budget.db", "tickets").entries == entries == 1
    assert made("generate", "--resume")[0] == 0

    whole = Path("demos.jsonl").read_text()
    for changed, told in (
        (whole.replace('"tokens": 4', '"tokens": 3', 1), "line 1 is not what the entry released"),
        (whole + lines()[0], "line 11 repeats a demonstration"),
    ):
        Path("demos.jsonl").write_text(changed)
        status, _, err = made("replace", "2")
        assert (status, told in err, Path("demos.jsonl").read_text()) == (2, True, changed), err
    Path("demos.jsonl").write_text(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HistogramLoop, "tokens", away)
        assert made("replace", "1")[0] == 2
    assert Path("demos.jsonl").read_text() == whole  # the same command works again

    def stopped_later(loop: HistogramLoop, request: TextRequest) -> Iterator[int]:
        if stops.pop():
            raise KeyboardInterrupt
        return tokens(loop, request)

    tokens, stops = HistogramLoop.tokens, [True, False]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HistogramLoop, "tokens", stopped_later)
        status, _, err = made("replace", "1", "3")
    assert (status, len(lines()), lines()[:10]) == (130, 11, whole.splitlines())
    assert "1 new text in demos.jsonl, and no line is taken out yet; dpfewshot replace goes on, with" in err
    assert made("replace", "1", "3")[0] == 0
    assert (len(lines()), made("verify")[0]) == (10, 0)

    def edited(loop: HistogramLoop, request: TextRequest) -> Iterator[int]:
        """Somebody saves the file in another form, under its name, while a text is written."""
        with Path("demos.jsonl").open(encoding="utf-8-sig") as file:
            shown = [json.dumps(json.loads(line), indent=None, separators=(", ", " : ")) for line in file]
        Path("saved").write_text("\r\n".join(shown), encoding="utf-8-sig")
        Path("saved").rename("demos.jsonl")
        return tokens(loop, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HistogramLoop, "tokens", edited)
        assert made("replace", "1", "3")[0] == 0
    assert (len(lines()), made("verify")[0]) == (10, 0)
    Path("budget.db").unlink()
    assert "put the ledger back" in made("replace", "1")[2]
