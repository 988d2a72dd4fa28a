"""The collection of released demonstrations, and its formats."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.certificates import Certificate
from dpfewshot.demonstrations import COLUMNS, Demonstrations
from tests.support.factory import demonstration, synthesizer
from tests.support.scripts import TASK

ONE = demonstration(label="delivery", spent=dpf.PrivacySpend(1.5, 1e-6), token_count=5)
OTHER = dataclasses.replace(
    ONE, text='money "back" –\u2028now', label="refund", spent=dpf.PrivacySpend(2.0, 1e-6)
)
PAID = Certificate(
    *("ab" * 32, None, "0.1.0", "tickets", "cd" * 16, "claimed:model", None, "sha256:" + "ef" * 8),
    run="23" * 16,
)
CERTIFIED = dataclasses.replace(ONE, certificate=PAID)
BASELINE = dataclasses.replace(ONE, certified=False, spent=None)


def test_it_is_a_sequence_that_cannot_be_changed() -> None:
    both = Demonstrations([ONE, OTHER])
    assert list(both) == [ONE, OTHER]
    assert both == Demonstrations([ONE, OTHER])
    assert both[-1] is OTHER
    assert OTHER in both
    assert len(both[:1]) == 1
    assert both[:1].spent == ONE.spent
    with pytest.raises(TypeError):
        both[0] = OTHER  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        both.items = ()  # type: ignore[misc]


def test_what_it_states_is_the_plan_or_else_the_sum() -> None:
    assert Demonstrations([ONE, OTHER]).spent == dpf.PrivacySpend(pytest.approx(3.5), pytest.approx(2e-6))
    assert Demonstrations([ONE] * 3).spent.epsilon >= 4.5  # type: ignore[union-attr]
    exact = dataclasses.replace(ONE, spent=dpf.PrivacySpend(2.0, 1e-6))
    assert Demonstrations([exact] * 3).spent == dpf.PrivacySpend(6.0, 3e-6)
    assert Demonstrations([ONE, OTHER]).statement == (
        "2 demonstrations, together at most epsilon=3.5000 at delta=2e-06, neighbours zero-out"
    )
    assert Demonstrations().spent == dpf.PrivacySpend(0.0, 0.0)
    for items in ([ONE, BASELINE], [ONE, dataclasses.replace(ONE, relation="add-remove")]):
        mixed = Demonstrations(items)
        assert mixed.spent is None
        assert "no guarantee" in mixed.statement


def test_an_epsilon_of_customers_and_one_of_records_have_no_sum(tmp_path: Path) -> None:
    of_customers = dataclasses.replace(ONE, certificate=dataclasses.replace(PAID, unit="customer"))
    free = dataclasses.replace(CERTIFIED, spent=dpf.PrivacySpend(0.0, 0.0))
    for other in (CERTIFIED, ONE):  # each record is a unit, or nothing says whom a record belongs to
        mixed = Demonstrations([of_customers, other])
        assert (mixed.spent, mixed.units) == (None, {"customer", None})
        assert "no guarantee" in mixed.statement
        mixed.to_folder(tmp_path)
        assert "**No guarantee holds for all of them together.**" in (tmp_path / "README.md").read_text()
    assert Demonstrations([of_customers, of_customers, free]).spent == ONE.spent


def test_a_reader_sees_labels_texts_and_what_they_cost() -> None:
    made = synthesizer().generate_all()
    assert str(made[0]) == "refund: my parcel is late"
    assert str(made).splitlines() == [*map(str, made), made.statement]


def test_jsonl_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text("what was there before\n")
    items = [ONE, OTHER, BASELINE, CERTIFIED]
    Demonstrations(items).to_jsonl(path)
    assert list(Demonstrations.from_jsonl(path)) == items
    assert list(Demonstrations.from_lines(Demonstrations(items).to_lines())) == items
    assert list(Demonstrations.from_lines(filter(None, path.read_text().split("\n")))) == items
    assert [json.loads(line) for line in path.read_text().split("\n") if line] == [
        one.as_line() for one in items
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["demos.jsonl"]


def test_no_prompt_is_made_of_a_file_without_demonstrations(tmp_path: Path) -> None:
    """As an editor or a full disk leaves one behind, when a service reads it again."""
    path = tmp_path / "demos.jsonl"
    Demonstrations([]).to_jsonl(path)
    assert list(Demonstrations.from_lines(Demonstrations([]).to_lines())) == []
    with pytest.raises(dpf.InvalidRecords, match="has no demonstrations"):
        Demonstrations.from_jsonl(path)


def changed(**values: object) -> str:
    return json.dumps(ONE.as_line() | values)


def certified(name: str, value: object) -> str:
    line = CERTIFIED.as_line()
    return json.dumps(line | {"certificate": {**line["certificate"], name: value}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", "3", "{}", changed(more=1), json.dumps(COLUMNS)),
        *(changed(text=3), changed(epsilon="4"), changed(epsilon=-1), changed(delta=None)),
        *(changed(epsilon=1e300), changed(delta=1e9)),  # more than an account can hold
        *(changed(tokens=1.5), changed(certified=False)),
        *(certified(name, None) for name in ("dataset", "plan", "reservation")),
        *(certified("unit", 3), certified("reservation", 5), certified("version", 1), certified("run", 2)),
        *(certified("model", 1), certified("tokenizer", True), certified("prompt", ["sha256:ab"])),
        certified("newer", "what no hash covers"),
    ],
)
def test_a_line_that_is_no_demonstration_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text(json.dumps(ONE.as_line()) + "\n\n" + line + "\n")
    with pytest.raises(dpf.InvalidRecords, match=r"demos\.jsonl: line 3"):
        Demonstrations.from_jsonl(path)
    with pytest.raises(dpf.InvalidRecords, match="`dpfewshot generate` writes"):
        Demonstrations.from_jsonl(tmp_path / "nowhere.jsonl")
    for path in (tmp_path, "x" * 300):
        with pytest.raises(dpf.InvalidRecords, match=r"cannot be read: [\w ]+$"):
            Demonstrations.from_jsonl(path)


@pytest.mark.parametrize("line", ["text", None, {}, ONE.as_line() | {"text": "\ud800"}, {1: set()}])
def test_what_a_service_answers_that_is_no_demonstration_is_named(line: object) -> None:
    with pytest.raises(dpf.InvalidRecords, match=r"^line 2 is not a demonstration"):
        Demonstrations.from_lines([ONE.as_line(), line])


def test_a_line_without_a_member_says_which_and_what_to_do() -> None:
    line = ONE.as_line()
    del line["tokens"]
    with pytest.raises(dpf.InvalidRecords, match=r"it has no tokens\. Remove the line, or restore it$"):
        Demonstrations.from_lines([line])


def test_lines_of_one_run_cost_what_the_run_reserved() -> None:
    dear = dataclasses.replace(PAID, reservation="01" * 16)  # of another label, and so of other records
    again = dataclasses.replace(CERTIFIED, certificate=dear, spent=dpf.PrivacySpend(1.0, 1e-6))
    other = dataclasses.replace(CERTIFIED, certificate=dataclasses.replace(PAID, run="ef" * 16))
    unpaid = dataclasses.replace(CERTIFIED, certificate=Certificate("ab" * 32, None, "0.1.0"))
    assert Demonstrations([CERTIFIED, again]).spent == CERTIFIED.spent
    assert Demonstrations([CERTIFIED, again, other]).spent == dpf.PrivacySpend(3.0, 2e-6)
    # nothing says that these two share a plan
    assert Demonstrations([unpaid, unpaid]).spent == dpf.PrivacySpend(3.0, 2e-6)


def test_prompt_and_messages() -> None:
    both = Demonstrations([ONE, OTHER])
    assert both[:1].to_prompt(TASK, "where is it?") == (
        "Give the Kind of the Ticket. Answer with one of: refund, delivery.\n\n"
        "Ticket: my parcel is late\nKind: delivery\n\n"
        "Ticket: where is it?\nKind:"
    )
    assert (
        both[:1].to_prompt(TASK, instruction="Sort.") == "Sort.\n\nTicket: my parcel is late\nKind: delivery"
    )
    assert both.to_messages(TASK) == [
        {"role": "system", "content": "Give the Kind of the Ticket. Answer with one of: refund, delivery."},
        {"role": "user", "content": ONE.text},
        {"role": "assistant", "content": "delivery"},
        {"role": "user", "content": OTHER.text},
        {"role": "assistant", "content": "refund"},
    ]
    assert (
        both.to_messages(dataclasses.replace(TASK, labels=None))[0]["content"]
        == "Give the Kind of the Ticket."
    )


@pytest.mark.slow
def test_frames_and_data_sets() -> None:
    both = Demonstrations([ONE, BASELINE])
    frame = both.to_pandas()
    assert tuple(frame.columns) == COLUMNS
    assert frame["label"].to_list() == ["delivery", "delivery"]
    assert list(Demonstrations().to_pandas().columns) == list(COLUMNS)
    pytest.importorskip("datasets", reason="datasets is not installed: pip install '.[datasets]'")
    assert both.to_dataset().to_list() == both.to_lines()


@pytest.mark.parametrize(("module", "method"), [("pandas", "to_pandas"), ("datasets", "to_dataset")])
def test_a_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, method: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(dpf.MissingExtra, match=rf"pip install '\.\[{module}\]'"):
        getattr(Demonstrations([ONE]), method)()
