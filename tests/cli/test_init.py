"""`dpfewshot init` writes a project file that holds nothing private; on it, commands run without options."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.cli import audit, init
from dpfewshot.cli.models import Model
from dpfewshot.cli.project_file import FILE_NAME, parsed
from dpfewshot.planning.plan import noisy_strata
from dpfewshot.records.units import units_by_label
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.values import Records
from tests.support.commands import Run, Terminal
from tests.support.processes import environment
from tests.support.scripts import Desk
from tests.support.small_models import small, small_packaged

FIXTURES = (small, small_packaged)

PHRASE = "a message that a customer sends to support"
EXAMPLE = "Hi, my parcel came with a broken lamp. Can you send another one?"
DESCRIBED = ("--texts-are", PHRASE, "--example", EXAMPLE)
LABELS = tuple(sorted(SUPPORT_TICKETS.labels or ()))
TASK_KEYS = ("name", "instruction", "label_field", "text_field")
NO_PRIVACY = """
[records]
records = "tickets.csv"
text = "body"
label_column = "topic"
[budget]
epsilon = inf
"""


def customer(number: int) -> str:
    """Two tickets of one label belong to one customer."""
    return f"customer-{number // 10}-{number % 5}"


def write_csv(
    path: str = "tickets.csv", separator: str = ",", columns: str = "body topic customer_id"
) -> None:
    names = columns.split()
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(names)
        for number, one in enumerate(support_tickets()):
            writer.writerow([one.text, one.label, customer(number)][: len(names)])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with tickets of customers in tickets.csv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFEWSHOT_LEDGER", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where no model was fetched
    write_csv()
    return tmp_path


def edit(**lines: str) -> None:
    """Replace the lines of keys in the project file; a key that is not there follows [settings]."""
    text = Path(FILE_NAME).read_text()
    for key, line in lines.items():
        old = next((one for one in text.splitlines() if one.removeprefix("# ").startswith(f"{key} =")), None)
        text = text.replace(old, line) if old else text.replace("[settings]", f"[settings]\n{line}", 1)
    Path(FILE_NAME).write_text(text)


@pytest.fixture
def made(command: Run) -> Run:
    """The command line, in a folder with a project file for a scripted model."""
    assert command("init", "tickets.csv", "--yes", *DESCRIBED)[0] == 0
    edit(
        model='backend = "tests.support.scripts:Desk"',
        max_tokens="max_tokens = 4",
        top_k="top_k = 8",
        mechanism="# mechanism = the planner's",
    )
    return command


# ---- what it writes ----------------------------------------------------------------------------------------


def test_with_yes_columns_are_found_by_their_names(command: Run) -> None:
    write_csv("requests.csv", columns="utterance domain speaker_id")
    _, out, _ = command("init", "requests.csv", "--yes", "--force", *DESCRIBED)
    assert "text: utterance, label: domain, all records of one speaker_id are protected together" in out
    Path(FILE_NAME).unlink()
    status, out, err = command("init", "tickets.csv", "--yes", *DESCRIBED)
    assert (status, err) == (0, "")
    assert "text: body, label: topic, all records of one customer_id are protected together" in out
    assert "public and in every prompt: Account, Billing, Delivery, Refund, Technical" in out
    assert out.endswith("next: dpfewshot model get qwen-1.5b, then dpfewshot plan\n")
    assert "Each customer counts for one of its labels alone" in out
    assert not re.search(r"zero-out|delta|account|key|token|instruction|holdout|\bunit", out), out
    project = dpf.load()
    assert project.task == dpf.Task(
        name="tickets",
        instruction=f"Write {PHRASE}, of the given topic.",
        label_field="Topic",
        text_field="Message",
        labels=LABELS,
        example=EXAMPLE,
    )
    assert project.budget == dpf.PrivacyBudget(2.0, 1e-5)
    comments = [line for line in Path(FILE_NAME).read_text().splitlines() if line and "#" not in line]
    assert comments == []  # every line has one


@pytest.mark.parametrize(
    ("phrase", "noun"),
    [
        ("A note written by a nurse", "Note"),
        ("a customer message asking for help", "Message"),
        ("a message a customer sends", "Message"),
        ("an SMS, in German", "SMS"),
        ("a doctor's note on a patient", "Note"),
        ("a meeting summary", "Summary"),
        ("an e-mail that a customer sends", "Message"),  # behind "E-mail:" models write an address
        ("questions that viewers ask", "Body"),  # the column's name
        ("a 5", "Body"),
    ],
)
def test_what_a_text_is_stands_before_it_in_a_prompt(command: Run, phrase: str, noun: str) -> None:
    assert command("init", "tickets.csv", "--yes", "--texts-are", phrase)[0] == 0
    assert dpf.load().task.text_field == noun


@pytest.mark.parametrize("words", [("--yes",), ("--yes", "--json")])
def test_nothing_of_a_record_is_written_or_printed(command: Run, words: tuple[str, ...]) -> None:
    _, out, err = command("init", "tickets.csv", *words)
    told = out + err + Path(FILE_NAME).read_text()
    private = {word for one in support_tickets() for word in one.text.split() if len(word) > 9}
    private |= {customer(number) for number in range(1500)}
    assert [word for word in private.difference(LABELS) if word in told] == []
    assert not any(str(count) in told for count in (300, 750, 1500, 1501))


def test_without_a_word_on_the_texts_their_column_stands_for_it(command: Run) -> None:
    _, out, err = command("init", "tickets.csv", "--yes")
    assert "the model is told: Write the body, of the given topic.\n" in out
    assert err.startswith("warning: without --texts-are the model guesses")
    assert err.endswith('say "a chat message that a customer sends to support"\n')


@pytest.mark.parametrize(
    "copy",
    [
        lambda text: f" {text.upper()}",
        lambda text: text.replace(" ", "  ") + "!",
        lambda text: " ".join(text.split()[:9]),
        lambda text: "Hello, " + " ".join(text.split()[:12]),
        lambda text: text.replace(" ", "\u00a0").replace("i", "\uff49"),
    ],
    ids=["capitals", "spaces", "beginning", "within", "other characters"],
)
def test_an_example_with_the_words_of_a_record_is_refused(command: Run, copy: Callable[[str], str]) -> None:
    copied = copy(support_tickets()[3].text)
    status, out, err = command("init", "tickets.csv", "--yes", "--texts-are", PHRASE, "--example", copied)
    assert (status, out, Path(FILE_NAME).exists()) == (2, "", False)
    assert "the example has the words of a record" in err
    assert copied.strip() not in err


def test_what_is_said_of_the_texts_takes_no_column_of_that_name(command: Run) -> None:
    write_csv(columns="message topic customer_id")
    assert command("init", "tickets.csv", "--yes", "--texts-are", "message", "--example", "topic")[0] == 0
    assert dpf.load().project.data.text == "message"


def test_semicolons_and_each_record_a_unit(command: Run) -> None:
    write_csv("anfragen.csv", ";", "body topic")
    assert "each record is protected alone" in command("init", "anfragen.csv", "--unit", "none", "--yes")[1]
    assert dpf.load().project.account.account == "anfragen"
    assert {record.unit for record in dpf.load().records()} == {None}


def test_json_lines_and_columns_by_options(command: Run) -> None:
    rows = [{"ask": {"words": one.text}, "team": one.label, "n": 7} for one in support_tickets()]
    Path("asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("mine.gguf").touch()
    words = ("--text", "ask.words", "--label-column", "team", "--unit", "none", "--epsilon", "3", "--yes")
    status, out, _ = command("init", "asked.jsonl", *words, "--model", "mine.gguf", "--json")
    assert (status, json.loads(out)["unit"]) == (0, None)
    project = dpf.load().project
    assert (project.data.text, project.data.label_column) == ("ask.words", "team")
    assert (project.budget.epsilon, project.model.model) == (3.0, "mine.gguf")
    assert dpf.load().task.text_field == "Words"


def test_a_file_that_is_there_is_replaced_by_force_alone(command: Run) -> None:
    Path(FILE_NAME).write_text("mine")
    status, out, err = command("init", "tickets.csv", "--yes")
    assert (status, out, Path(FILE_NAME).read_text()) == (2, "", "mine")
    assert "--force replaces it" in err
    assert command("init", "tickets.csv", "--yes", "--force")[0] == 0
    assert dpf.load().task.name == "tickets"


@pytest.mark.parametrize(
    ("columns", "words", "says"),
    [
        (
            "body heading",
            "--yes",
            "no column's name says that it is the label or unit: give --label-column, --unit",
        ),
        (
            "body topic",
            "--yes",
            "is the unit: give --unit; --unit none: each record is protected alone",
        ),
        ("swordfish topic", "--yes", "is the text or unit: give --text, --unit"),
        ("body topic", "--yes --unit none --label-column body --text topic", "may tell of records"),
        ("body topic", "--yes --unit none --label-column body --text body", "have one column"),
        ("body topic customer_id", "--yes --unit none --label-column customer_id", "may tell of records"),
        (
            "body topic customer_id",
            "--yes --unit custmer_id",
            "no column 'custmer_id': did you mean 'customer_id'?",
        ),
        ("body topic", "--yes --unit whose", "no column 'whose': --unit names one"),
        ("body topic", "--yes --unit none --text swordfish", "no column 'swordfish'"),
        ("body topic", "", "give --yes"),
        ("body topic", "--yes --unit none --epsilon 0", "epsilon is a number above 0"),
        ("body topic", "--yes --unit none --epsilon nan", "epsilon is a number above 0"),
        ("body topic", "--yes --unit none --epsilon inf", "a ledger counts nothing at epsilon = inf"),
        (
            "body topic",
            "--yes --model gemma",
            "no model 'gemma': name a GGUF file, gemma-3-270m, qwen-0.5b, qwen-1.5b or packaged",
        ),
    ],
)
def test_what_cannot_be_known_is_refused(command: Run, columns: str, words: str, says: str) -> None:
    write_csv(columns=columns)
    status, out, err = command("init", "tickets.csv", *words.split())
    assert (status, out, err.count("\n"), Path(FILE_NAME).exists()) == (2, "", 1, False)
    assert says in err
    assert "swordfish" not in err or "swordfish" in words
    assert not any(one.text[:20] in err for one in support_tickets())


@pytest.mark.parametrize(
    "column", ["customer_account", "Client-Ref", "patient no", "user_id", "account", "policy_number"]
)
def test_a_column_that_is_called_like_whom_a_record_is_about_is_the_unit(command: Run, column: str) -> None:
    """Enter at the question takes the same: each record alone would protect a customer less."""
    rows = "".join(f"My parcel {n} is late.,{('Delivery', 'Refund')[n % 2]},{n // 4}\n" for n in range(60))
    Path("c.csv").write_text(f"body,topic,{column}\n{rows}")
    out = command("init", "c.csv", "--yes")[1]
    assert f"all records of one {column} are protected together" in out


@pytest.mark.parametrize("words", [("--yes",), ()])
def test_a_label_that_cannot_be_printed_is_refused_before_questions(
    command: Run, answers: Callable[[str], None], words: tuple[str, ...]
) -> None:
    rows = [f'my parcel {n},"{("Refund", chr(27) + "[2J A")[n % 2]}"\n' for n in range(60)]
    Path("odd.csv").write_text("body,topic\n" + "".join(rows))
    answers("\n\n\n")
    status, out, err = command("init", "odd.csv", "--unit", "none", *words)
    assert (status, out, "\x1b" in err) == (2, "", False)
    assert "odd.csv: line 3 has a label with characters that are not printable: rename it" in err


@pytest.mark.parametrize("label", ["Roaming ", " Roaming", "Roaming  abroad"])
@pytest.mark.parametrize("words", [("--yes",), ()])
def test_spaces_that_nobody_sees_in_a_label_are_named_by_their_line(
    command: Run, answers: Callable[[str], None], label: str, words: tuple[str, ...]
) -> None:
    rows = "".join(f"text {n},{('Refund', 'Roaming')[n % 2]}\n" for n in range(60))
    Path("odd.csv").write_text(f'body,topic\n"two\nlines",Refund\n{rows}late,{label}\n')
    answers("\n\n\n")
    status, out, err = command("init", "odd.csv", "--unit", "none", *words)
    assert (status, out, "Roaming" in err) == (2, "", False)
    assert err.endswith(
        "odd.csv: line 64 has a label that begins or ends with a space, or has two in a row: correct it in "
        "every line\n"
    )


def test_a_text_in_the_wrong_column_does_not_become_a_label(command: Run) -> None:
    rows = "".join(f"text {n},{('Refund', 'Delivery')[n % 2]}\n" for n in range(60))
    Path("slip.csv").write_text(f"body,topic\n{rows}x,SECRET John Doe\n")
    status, out, err = command("init", "slip.csv", "--unit", "none", "--yes")
    assert (status, out, Path(FILE_NAME).exists()) == (2, "", False)
    says = (
        "slip.csv: line 62 has a label of fewer than 5 records, which may be misspelt, or a text in the wrong"
    )
    assert says in err
    assert "SECRET" not in err


@pytest.mark.parametrize(("units", "warned"), [(1500, True), (1350, True), (1349, False)])
def test_a_unit_that_hardly_repeats_is_warned_of(
    command: Run, monkeypatch: pytest.MonkeyPatch, units: int, warned: bool
) -> None:
    with Path("odd.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "topic", "number"])
        writer.writerows((one.text, one.label, f"c-{n % units}") for n, one in enumerate(support_tickets()))
    given = ("init", "odd.csv", "--yes", "--force", *DESCRIBED, "--unit", "number")
    assert command(*given)[2] == ""  # the number of records is private
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True, raising=False)
    status, _, err = command(*given)
    assert (status, err.count("\n")) == (0, warned)
    assert err.startswith("warning: hardly any two records have the same number" * warned)


@pytest.mark.parametrize(
    ("unit", "people", "says"),
    [
        ("customer_id", 5, "warning: customer_id has few different values: if it does not say whose"),
        ("customer_id", 49, "warning: customer_id has few different values: if it does not say whose"),
        ("customer_id", 50, ""),
        ("none", 50, ""),
    ],
)
def test_a_column_that_is_hardly_whom_a_record_is_about_is_warned_of(
    command: Run, unit: str, people: int, says: str
) -> None:
    """Ten for each of five labels are few. Numbers of units are public, so a log may have it."""
    rows = [[one.text, one.label, f"c{n % people}"] for n, one in enumerate(support_tickets())]
    with Path("few.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["body", "topic", "customer_id"], *rows])
    err = command("init", "few.csv", "--yes", *DESCRIBED, "--unit", unit)[2]
    assert (err.count("warning: "), err.startswith(says)) == (bool(says), True)


def test_a_column_that_says_whose_a_record_is_is_named_on_a_terminal_alone(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a JSONL file one record may have it."""
    rows = [{"body": one.text, "topic": one.label} for one in support_tickets()]
    rows[7]["customer_id"] = "c7"
    Path("whose.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = ("init", "whose.jsonl", "--yes", "--force", *DESCRIBED, "--unit", "none")
    assert command(*given)[2] == ""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True, raising=False)
    assert "warning: if customer_id says whose record it is" in command(*given)[2]


def test_the_order_of_a_records_members_chooses_no_column(command: Run) -> None:
    written = []
    for first in ("client_id", "customer_id"):
        rows = [
            {"body": one.text, "topic": one.label, **dict.fromkeys((first, "client_id", "customer_id"), n)}
            for n, one in enumerate(support_tickets())
        ]
        Path("order.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        assert command("init", "order.jsonl", "--yes", "--force", *DESCRIBED)[0] == 0
        written.append(Path(FILE_NAME).read_text())
    assert written[0] == written[1]


@pytest.mark.usefixtures("small_packaged")
def test_the_packaged_model_may_be_named_in_the_file_and_by_an_option(command: Run) -> None:
    assert command("init", "tickets.csv", "--yes", *DESCRIBED)[0] == 0
    edit(model='model = "packaged"')
    assert dpf.load().project.model.model is None
    assert command("plan", "--model", "packaged", "--set", "probe_seconds=0.01")[0] == 0


@pytest.mark.usefixtures("small_packaged")
@pytest.mark.parametrize(("epsilon", "kept"), [("1.5", 0.2), ("1", 0.2), ("0.9", 0.2), ("0.8", 0)])
def test_records_are_kept_to_test_on_where_enough_are_left_to_write_from(
    command: Run, answers: Callable[[str], None], epsilon: str, kept: float
) -> None:
    answers(f"\n\n\ny\n{PHRASE}\n\n\n\n\n\n\n{epsilon}\npackaged\n\n")
    status, out, err = command("init", "tickets.csv")
    assert (status, dpf.load().project.holdout) == (0, kept)
    [size] = {one.population for one in dpf.load().synthesizer().plan.strata}
    each = ", ".join(f"{label} {size}" for label in LABELS)
    assert f", with their customers, each customer counted for one label alone: {each}\n" in err
    assert (
        "\n  epsilon 2: at most 88.1 % sure; texts reflect labels of 57 customers or more: 5 of 5 labels\n"
        in err
    )
    told = "20 % of the customers are kept" if kept else "no customer is kept"
    assert told in out


@pytest.mark.parametrize(("customers", "kept"), [(71, 0), (72, 0.2)])
def test_small_labels_write_from_all_records(command: Run, customers: int, kept: float) -> None:
    """At epsilon = 2, 57 are enough: four fifths of 72."""
    few = "".join(f"text {n},{('Refund', 'Delivery')[n % 2]},c{n}\n" for n in range(2 * customers))
    Path("few.csv").write_text(f"body,topic,customer_id\n{few}")
    assert command("init", "few.csv", "--yes", *DESCRIBED)[0] == 0
    assert dpf.load().project.holdout == kept


def test_a_rare_label_is_shown_with_its_number_before_names_are_confirmed(
    command: Run, answers: Callable[[str], None]
) -> None:
    rows = "".join(f"text {n},{('Refund', 'Delivery')[n % 2]}\n" for n in range(60))
    Path("rare.csv").write_text(f"body,topic\n{rows}late,Delivry\nlate again,Delivry\n")
    answers("n\n")
    status, _, err = command("init", "rare.csv", "--text=body", "--label-column=topic", "--unit=none")
    told = "their records: Delivery 30, Delivry 2 (misspelt?), Refund 30\nMay everybody know these names?"
    assert (status, told in err, Path(FILE_NAME).exists()) == (2, True, False)


# ---- what it writes is the same for all files with as many units of each label -----------------------------


def rows_of_customers(more: str = "") -> None:
    """601 customers of three labels; c600 is of Card by the rule of units_by_label, whatever `more` adds."""
    rows = [f"words of the text {n},{('Card', 'Cash', 'Loan')[n % 3]},c{n}\n" for n in range(600)]
    Path("bank.csv").write_text(f"body,topic,customer_id\n{''.join(rows)}my card,Card,c600\n{more}")


HIDDEN = "".join(f"my illness {n},HIV,c600\n" for n in range(6))
OTHERS = (
    HIDDEN,
    "".join(f"an offence {n},Fraud {n},c600\n" for n in range(200)),  # more labels than a column of them has
    "".join("my card,Card,c600\n" for n in range(700)),  # a longer file, in which that text repeats
)


def hash_label(label: str) -> str:
    """Which of a label and Card c600 counts for."""
    [found] = units_by_label([dpf.Record("a", label, "c600"), dpf.Record("b", "Card", "c600")])
    return found


@pytest.mark.parametrize("more", OTHERS, ids=["HIV", "many", "long"])
@pytest.mark.parametrize("asks", [False, True])
def test_what_one_customers_records_say_is_not_in_the_file(
    command: Run, answers: Callable[[str], None], more: str, asks: bool
) -> None:
    if "Fraud" in more:
        more = "".join(line for line in more.splitlines(True) if hash_label(line.split(",")[1]) == "Card")
    files, outs, sizes = set(), set(), []
    for added in ("", more):
        rows_of_customers(added)
        answers("y\n\n\n\n\n1.5\npackaged\n\n")
        named = ("--text", "body", "--label-column", "topic", "--unit", "customer_id")
        words = ("--force", *DESCRIBED, *(named if asks else ["--yes"]))
        status, out, err = command("init", "bank.csv", *words)
        assert status == 0, err
        assert "HIV" not in out + err
        files.add(Path(FILE_NAME).read_bytes())
        outs.add(out)
        found = units_by_label(dpf.read_records("bank.csv", text="body", label="topic", unit="customer_id"))
        sizes.append({label: len(units) for label, units in found.items()})
    assert sizes[0] == sizes[1] == {"Card": 201, "Cash": 200, "Loan": 200}
    assert (len(files), len(outs)) == (1, 1)
    assert b"# holdout" in files.pop()


def test_a_label_that_nobody_counts_under_is_left_out_with_its_records(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of_customers(HIDDEN)
    given = ("init", "bank.csv", "--yes", "--force", *DESCRIBED, "--model", "packaged")
    assert command(*given)[2] == ""
    edit(model='backend = "tests.support.scripts:Desk"', max_tokens="max_tokens = 4")
    status, _, err = command("plan")
    assert (status, "HIV" in err) == (2, False)
    assert "bank.csv: line 603 has a label that task 'bank' does not have" in err
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True, raising=False)
    err = " ".join(command(*given)[2].split())
    assert "warning: a label has records, but no customer counts for it, so it is no label of the" in err
    assert "HIV" not in err
    rows_of_customers()
    edit(model='backend = "tests.support.scripts:Desk"', max_tokens="max_tokens = 4")
    assert command("plan")[0] == 0


def test_a_rare_label_of_units_is_refused_however_many_records_it_has(command: Run) -> None:
    rows_of_customers("".join(f"my illness {n},HIV,c{601 + n % 4}\n" for n in range(40)))
    status, out, err = command("init", "bank.csv", "--yes")
    assert (status, out, "HIV" in err) == (2, "", False)
    assert "bank.csv: line 603 has a label of fewer than 5 customers, which may be misspelt, or a text" in err


def test_a_column_of_the_text_that_is_a_labels_is_refused(command: Run) -> None:
    rows = [f"words of {n},{'ab'[n % 2]},{'xyz'[n % 3]},c{n}\n" for n in range(120)]
    Path("mixed.csv").write_text("message,reason,channel,customer_id\n" + "".join(rows))
    status, _, err = command("init", "mixed.csv", "--yes", "--text", "channel")
    assert status == 2
    assert "the column of the text repeats few values: is it the label's? Name that of the texts" in err
    err = command("init", "mixed.csv", "--yes", "--text", "reason", "--label-column", "message")[2]
    assert "has more than 50 values" in err
    assert err.endswith("; text and label may be swapped\n")
    assert command("init", "mixed.csv", "--yes")[0] == 0
    assert dpf.load().project.data.label_column == "reason"


@pytest.mark.parametrize(("epsilon", "units"), init.ENOUGH.items())
def test_so_many_units_as_it_says_are_enough_for_plan_and_no_fewer(epsilon: int, units: int) -> None:
    for number, warned in ((units, False), (units - 1, True)):
        plan = dpf.Synthesizer(
            replace(SUPPORT_TICKETS, labels=("Refund",)),
            [one for one in support_tickets() if one.label == "Refund"][:number],
            Desk(),
            budget=dpf.PrivacyBudget(epsilon=epsilon, delta=1e-5),
        ).plan
        assert plan.mechanism == "word-histogram"
        assert bool(noisy_strata(plan)) is warned


def test_a_unit_with_several_labels_counts_for_one(command: Run) -> None:
    """Nothing counts them: one patient may decide it."""
    rows = [f"My knee hurts on day {n}.,surgery,p{n % 30}\n" for n in range(60)]
    rows += [f"My skin itches on day {n}.,skin,p{n}\n" for n in range(31)]
    Path("mixed.csv").write_text("body,topic,patient_no\n" + "".join(rows))
    words = ("init", "mixed.csv", "--yes", "--force", "--texts-are", "a message")
    status, out, err = command(*words)
    assert status == 0
    assert "Each patient counts for one of its labels alone" in out
    assert not re.search("30|31", out + err)


def test_a_label_columns_fault_is_said_alone(command: Run) -> None:
    words = ("init", "tickets.csv", "--yes", "--unit", "none", "--label-column", "body")
    said = command(*words, "--text", "topic")[2]
    assert "the column of the label has more than 50 values. They may" in said
    Path("few.csv").write_text("body,topic\na b,x\nc d,y\n")
    words = ("init", "few.csv", "--unit", "none", "--label-column", "topic", "--yes")
    assert "values that hardly repeat. They" in command(*words)[2]


def test_a_file_without_records_is_refused_as_such(command: Run) -> None:
    Path("tickets.csv").write_text("body,topic\n")
    status, out, err = command("init", "tickets.csv", "--yes")
    assert (status, out, err) == (2, "", "dpfewshot: tickets.csv: there are no records\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [("tickets.csv --set shots=2", "this command has no --set"), ("nowhere.csv", "nowhere.csv")],
)
def test_what_is_wrong_is_said_before_flags_are_asked_for(command: Run, words: str, says: str) -> None:
    status, _, err = command("init", *words.split())
    assert (status, says in err, "--yes" in err) == (2, True, False)


@pytest.mark.parametrize("words", [["\udcff.csv"], ["tickets.csv", "--model", "\udcff.gguf"]])
def test_a_files_name_that_no_project_file_holds_is_refused(command: Run, words: list[str]) -> None:
    write_csv("\udcff.csv")
    status, _, err = command("init", *words)
    assert (status, err) == (2, "dpfewshot: a file's name is not UTF-8, as dpfewshot.toml is: rename it\n")


def test_a_named_model_that_is_not_here_is_fetched_next(command: Run) -> None:
    told = command("init", "tickets.csv", "--yes", "--model", "gemma-3-270m")[1]
    assert told.endswith("next: dpfewshot model get gemma-3-270m, then dpfewshot plan\n")


def test_one_label_is_taken_with_a_warning(command: Run) -> None:
    Path("one.csv").write_text("body,topic\n" + "".join(f"text {n},Refund\n" for n in range(9)))
    status, out, err = command("init", "one.csv", "--unit", "none", "--yes", *DESCRIBED)
    assert (status, err) == (0, "warning: there is one label alone: nothing can be classified\n")
    assert "in every prompt: Refund\n" in out


# ---- on a terminal -----------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda lines: monkeypatch.setattr("sys.stdin", Terminal(lines))


def test_it_asks_and_a_column_is_proposed_by_its_values(command: Run, answers: Callable[[str], None]) -> None:
    write_csv(columns="words desk whose")
    lengths, epsilons = "0\nabout 30\n1001\n30", "0\nmuch\nnan\ninf\n1.5"
    Path("model.gguf").touch()
    models = "gemma\nnone.gguf\nmodel.gguf"
    answers(f"WORDS\n\nnowhere\nwhose\ny\n{PHRASE}\n{lengths}\n\n\n\n\n\n{epsilons}\n{models}\n\n")
    status, out, err = command("init", "tickets.csv")
    assert status == 0
    assert err.count("Epsilon limits what all texts tell of one whose. ") == 1
    assert err.count("epsilon is a number above 0") == 4
    assert "no model 'gemma': name a GGUF file" in err
    assert "no model 'none.gguf': name a GGUF file" in err
    assert "columns: words, desk, whose" in err
    assert "Column of the label [desk]" in err
    assert "'nowhere' is not one of" in err
    assert "all records of one whose are protected together" in out
    project = dpf.load().project
    assert (project.budget.epsilon, project.model.model, project.data.unit) == (1.5, "model.gguf", "whose")
    assert "2 texts of at most about 30 words for each label" in out
    for length in ("0", "about 30", "1001"):
        assert f"a whole number from 1 to 1000, such as 20, not '{length}'" in err


@pytest.mark.parametrize(
    ("described", "shots"), [("", 2), ("to pay less", 2), ("paying less; paying late; paying twice", 3)]
)
def test_what_labels_are_about_is_asked_for(
    command: Run, answers: Callable[[str], None], described: str, shots: int
) -> None:
    answers(f"\n\n\ny\n{PHRASE}\n\n\n{described}\n\n\n\n1.5\npackaged\n\n")
    status, _, err = command("init", "tickets.csv")
    assert (status, re.findall(r"  (\w+): ", err)) == (0, list(LABELS))
    assert err.count("what you take from single records is not protected") == 1
    project = dpf.load()
    assert project.task.label_descriptions == ({"Billing": described} if described else None)
    assert project.project.settings.shots == shots


def test_a_larger_model_is_asked_for_and_its_key_is_not(command: Run, answers: Callable[[str], None]) -> None:
    asked = f"\n\n\ny\n{PHRASE}\n\n\n\n\n\n\n\npackaged\nlocalhost\n"
    asked += "http://me:swordfish@host/v1\nhttp://host/v1?key=swordfish\nhttp://host/v 1\nhttps://host/v1\n"
    answers(f"{asked}\n\nsk-proj-swordfish123456789\nlarge\nsk-swordfish\nswordfish\nAKIASWORDFISH\nMY_KEY\n")
    status, out, err = command("init", "tickets.csv")
    told = dpf.load().project
    named = (told.text_writer, told.text_writer_url, told.text_writer_key_env)
    assert (status, named) == (0, ("large", "https://host/v1", "MY_KEY"))
    assert "MY_KEY is unset" in err
    counts = [err.count(each) for each in ("that is no variable's name", "looks like a key", "base_url")]
    assert counts == [3, 1, 4]
    assert "swordfish" not in (out + err + Path(FILE_NAME).read_text()).lower()
    answers(f"{asked}large\n\n")
    assert command("init", "tickets.csv", "--force")[0] == 0
    assert dpf.load().project.text_writer_key_env is None


def test_of_many_labels_those_that_say_nothing_are_asked_about(
    command: Run, answers: Callable[[str], None]
) -> None:
    labels = ["RFND", "2", *(f"topic {n}" for n in range(11))]
    rows = [f"text {n},{labels[n % len(labels)]}\n" for n in range(130)]
    Path("many.csv").write_text(f"body,topic\n{''.join(rows)}")
    answers(f'\n\nnone\ny\n{PHRASE}\n\na parcel that is "late"\n\n1.5\npackaged\n\n')
    status, _, err = command("init", "many.csv")
    assert (status, re.findall(r"  (\w+): ", err)) == (0, ["2", "RFND"])
    assert dpf.load().task.label_descriptions == {"2": 'a parcel that is "late"'}


def test_characters_that_no_file_holds_are_asked_for_again(
    command: Run, answers: Callable[[str], None]
) -> None:
    answers(f"\n\n\ny\na\x7fb\ncaf\udce9\n{PHRASE}\n\n\n\n\n\n\n1.5\npackaged\n\n")
    status, _, err = command("init", "tickets.csv")
    assert (status, err.count("there are characters that are not printable")) == (0, 2)
    words = ("--unit", "none", "--texts-are", "a\x7fb", "--model", "packaged", "--yes", "--force")
    assert command("init", "tickets.csv", *words)[0] == 0
    assert "Write a\x7fb, of" in dpf.load().task.instruction


def test_enter_alone_does_not_give_up_the_customer(command: Run, answers: Callable[[str], None]) -> None:
    """A column whose name says nothing may be a customer's: no column is the weaker guarantee."""
    write_csv(columns="words desk whose")
    answers(f"words\n\n\n\nwhose\ny\n{PHRASE}\n\n\n\n\n\n\n1.5\npackaged\n\n")
    status, _, err = command("init", "tickets.csv")
    assert (status, err.count("Column that says whose record it is")) == (0, 3)
    assert err.count("Error: an answer is needed here\n") == 2
    assert dpf.load().project.data.unit == "whose"


@pytest.mark.parametrize("words", [(), ("--yes",), ("--text", "x", "--label-column", "y")])
def test_a_record_in_place_of_names_is_not_shown(
    command: Run, answers: Callable[[str], None], words: tuple[str, ...]
) -> None:
    Path("bare.csv").write_text("My secret is swordfish and more,Refund\nAnother one,Refund\n")
    answers("\n")
    status, out, err = command("init", "bare.csv", *words)
    assert (status, out, err.count("\n"), "swordfish" in err) == (2, "", 1, False)
    assert "the first line may be a record" in err


@pytest.mark.parametrize(
    ("lines", "expected", "says"),
    [("\n\n\nn\n", 2, "rename what is private among the labels"), ("\n\n", 130, "")],
)
def test_without_consent_nothing_is_written(
    command: Run, answers: Callable[[str], None], lines: str, expected: int, says: str
) -> None:
    answers(lines)
    status, out, err = command("init", "tickets.csv")
    assert (status, out, Path(FILE_NAME).exists()) == (expected, "", False)
    assert says in err


def test_a_pseudo_terminal(folder: Path) -> None:
    outside, inside = pty.openpty()
    os.write(outside, b"\n\n\n\ny\n\na message\n\n\n\n\n\n\n\n\n\nn\n")
    done = subprocess.run(
        [sys.executable, "-m", "dpfewshot", "init", "tickets.csv"],
        stdin=inside, capture_output=True, text=True, check=False, cwd=folder, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("May everybody know these names?") == 2  # Enter alone is no answer
    assert dpf.load().project.data.unit == "customer_id"


def test_a_column_of_labels_that_will_not_do_ends_the_questions(
    command: Run, answers: Callable[[str], None]
) -> None:
    answers("\ncustomer_id\nnone\n")
    status, _, err = command("init", "tickets.csv")
    assert (status, "They may tell of records: name a column of few labels" in err) == (2, True), err


def test_a_fault_that_no_other_label_mends_ends_the_questions(
    command: Run, answers: Callable[[str], None]
) -> None:
    with Path("tickets.csv").open("a") as file:
        file.write("  ,Refund,customer-1\n")
    answers("\n\n\n\ny\n")
    status, out, err = command("init", "tickets.csv")
    assert (status, out, err.count("tickets.csv: "), "or name another column" in err) == (2, "", 1, False)


# ---- the commands ------------------------------------------------------------------------------------------


def test_every_command_runs_without_options(made: Run) -> None:
    commands = "plan, generate, prompt late, choose, audit leak, report, verify, ledger show, ledger verify"
    told = {}
    for name in commands.split(", "):
        status, told[name], err = made(*name.split())
        assert status == 0, err
    assert "generate spends the whole budget: nothing is left for further texts" in told["plan"]
    assert told["prompt late"].endswith("\n\nMessage: late\nTopic:\n")
    assert made("prompt", "late", "--demonstrations", "none.jsonl")[0] == 2
    document = json.loads(made("prompt", "late", "--json")[1])
    assert document["prompt"] + "\n" == told["prompt late"]
    words, _, free = told["plan"].partition("without your data, at no cost, the model writes")
    assert not re.search(r"zero-out|delta|account|token|holdout|--set", words)
    assert re.findall(r"^ {8}([^:]+): .", free, re.MULTILINE) == sorted(LABELS)
    assert told["plan"].endswith("which is free; else dpfewshot generate\n")
    assert "the account counts the largest of them, not the sum" in told["ledger show"]
    assert told["verify"].startswith("demos.jsonl: verified, 10 demonstrations\n")
    assert "(labels have different records, so the largest cost counts, not the sum)" in told["verify"]
    assert told["ledger show"].startswith(
        "tickets: budget epsilon=2 delta=1e-05, spent epsilon=2 delta=1e-05, 6 entries"
    )
    assert all(Path(name).exists() for name in ("budget.db", "chosen.jsonl", "report.html"))
    for unprotected in ("--epsilon=inf", "--set=epsilon=inf"):
        status, _, err = made("generate", unprotected)
        assert (status, "this run has no guarantee: name another file" in err) == (2, True)
    status, _, err = made("generate")  # a second plan does not fit the account
    assert (status, "does not fit the budget of the account 'tickets'" in err) == (3, True)


def test_the_text_of_a_prompt_is_no_line_of_the_project_file(made: Run) -> None:
    edit(demonstrations='demonstrations = "free.jsonl"')
    assert made("plan", "--output", "free.jsonl")[0] == 0
    for words, says in (((), "Missing argument 'TEXT'"), (("",), "TEXT is empty"), ((" ",), "TEXT is empty")):
        status, out, err = made("prompt", *words)
        assert (status, out, says in err) == (2, "", True), err
    assert "`prompt` does not use it" in made("prompt", "late", "--set", "text=early")[2]
    assert made("prompt", "late")[1].endswith("\n\nMessage: late\nTopic:\n")


def test_a_plan_shows_a_text_of_each_subject_without_records(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Where is my parcel?"
    monkeypatch.setattr(
        "dpfewshot.generation.set_up.SetUp.without_records",
        lambda _self, _label, earlier, _most: dpf.Record(f"{text} {len(earlier)}".removesuffix(" 0"), "a"),
    )
    told = Path(FILE_NAME).read_text()
    described = f"[task.label_descriptions]\n{LABELS[0]} = 'one; another; a third'\n\n[records]"
    Path(FILE_NAME).write_text(told.replace("[records]", described))
    told = made("plan", "--set", "probe_seconds=0.01")[1]
    assert "the packaged model" not in told
    assert f"{text} 1" not in told  # a mechanism that draws tokens writes of all subjects
    assert "more subjects than texts" not in told
    edit(top_k="# top_k = 100")
    out = made("plan", "--mechanism", "word-histogram", "--set", "probe_seconds=0.01")[1]
    assert f"{LABELS[0]} (one): {text}\n        {LABELS[0]} (another): {text} 1\n" in out
    assert f"        {LABELS[1]}: {text}\n" in out
    assert f"{text} 2" not in out  # two of its three subjects are written about
    assert f"\n      {LABELS[0]}: more subjects than texts, so the last get none" in out


def test_what_choosing_adds_is_said_before_it(made: Run) -> None:
    assert made("generate")[0] == 0
    spent = "at most epsilon 2.0000, delta 1e-05"
    told = f"the account 'tickets' has spent {spent} in all, and then {spent}, if nothing else spends; "
    assert told in made("choose")[2]
    assert made("verify")[1] == made("verify", "demos.jsonl")[1]


def test_without_a_guarantee_the_account_and_its_texts_stay_as_they_are(made: Run) -> None:
    status, out, err = made("generate", "--epsilon", "inf")
    assert (status, out) == (2, "")
    assert "name another file with --output" in err
    assert made("generate", "--epsilon", "inf", "--output", "bare.jsonl")[0] == 0
    assert {one.certified for one in dpf.Demonstrations.from_jsonl("bare.jsonl")} == {False}
    assert not Path("budget.db").exists()
    again = ("generate", "--epsilon", "inf", "--output", "more.jsonl", "--ledger", "sqlite:///budget.db")
    assert "refused a ledger" in made(*again)[2]


NAMED = "the files that are named"


@pytest.mark.parametrize(
    ("release", "where"), [("generate", "demos.jsonl"), ("choose", NAMED), ("search", NAMED)]
)
def test_texts_without_their_ledger_get_no_second_budget(made: Run, release: str, where: str) -> None:
    """As in a copy of the folder, or in one that was restored without the ledger."""
    assert made("generate")[0] == 0
    there = Path("demos.jsonl").read_bytes()
    Path("budget.db").unlink()
    status, out, err = made(release)
    assert (status, out) == (2, "")
    assert f"texts in {where}, and the ledger has no account 'tickets' that counts them" in err
    assert Path("demos.jsonl").read_bytes() == there
    assert not Path("budget.db").exists()
    assert release != "generate" or made("generate", "--output", "others.jsonl")[0] == 0


def test_a_file_of_blank_lines_has_no_texts(made: Run) -> None:
    """As an editor leaves it once all its lines are deleted."""
    Path("demos.jsonl").write_text("\n \n")
    status, _, err = made("generate")
    assert (status, "has 2 lines already" in err) == (0, False)


def test_what_a_paper_claims_makes_no_account_and_no_file_to_publish(made: Run) -> None:
    paper = [f"--set={one}" for one in ("accounting=published", "sampling=fixed-size", "tokens_per_draw=1")]
    assert "name another file with --output" in made("generate", *paper)[2]
    assert "refused a ledger" in made("generate", *paper, "--output", "bare.jsonl")[2]
    assert not Path("budget.db").exists()


def test_a_plan_says_that_its_account_holds_for_another_relation(made: Run) -> None:
    assert made("generate")[0] == 0
    _, out, err = made("plan", *(f"--set=population.{label}=300" for label in LABELS))
    assert "account: the account 'tickets' holds for" in out, err
    assert "is left" not in out


def test_one_set_is_one_line(made: Run) -> None:
    assert "is no key of TOML" in made("plan", "--set", "max_tokens=5\nepsilon=1")[2]


def test_a_terminal_shows_the_texts(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    shown = made("generate")[1].splitlines()
    assert shown == [f"[{one.label}] {one.text}" for one in dpf.Demonstrations.from_jsonl("demos.jsonl")]


def test_generate_says_what_plan_says_and_on_a_terminal_alone_how_long_it_takes(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(FILE_NAME).write_text(Path(FILE_NAME).read_text() + "\n[plan]\nprobe_seconds = 0.01\n")
    words = made("plan")[1].partition("      without your data, at no cost, the model writes")[0]
    planned = [line for line in words.splitlines() if line.startswith("      ")]
    piped = made("generate")[2].splitlines()
    [time] = [line for line in planned if line not in piped]
    assert time.startswith("      time: at most about ")
    assert piped[-2].startswith('a prompt with them for any model: dpfewshot prompt "a new text"; ')
    assert piped[-1].startswith("next: dpfewshot choose tests whether they help, on about 150 customers ")
    assert piped[-1].endswith(", and so few tell only what differs much: better judge by reading")
    Path("budget.db").unlink()
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True, raising=False)
    shown = made("generate", "--output", "shown.jsonl")[2]
    assert "measuring the model's speed\n" in shown
    assert "      time: at most about " in shown


def test_a_first_line_that_is_a_record_is_not_told(command: Run) -> None:
    Path("tickets.csv").write_text("Ann is ill,Refund,customer-1\nBob is well,Refund,customer-2\n")
    options = ("--yes", "--text", "body", "--label-column", "topic", "--unit", "customer")
    status, out, err = command("init", "tickets.csv", *options)
    assert (status, out) == (2, "")
    assert "there is no column 'body'" in err
    assert "Ann" not in err
    words = ("--yes", "--text", "Ann is ill", "--label-column", "Refund", "--unit", "customer")
    assert "there is no column 'customer': --unit names one" in command("init", "tickets.csv", *words)[2]


def test_a_plan_says_how_many_records_or_which_epsilon_would_do(made: Run) -> None:
    helps = (
        r"enough:\n +more data: records of (\d+) customers of each label\n +--max-tokens (\d+)\n"
        r" +--epsilon ([\d.]+): 50 % sure becomes 5\d.\d %$"
    )
    words = ("plan", "--set", "probe_seconds=0.01", "--epsilon")
    _, out, err = made(*words, "0.1")
    found = re.search(helps, out, re.MULTILINE)
    assert found is not None, out
    assert "warning: expected quality: whole sentences, but the texts will say hardly anything of " in out
    assert "warning" not in err
    assert int(found[1]) > 150
    well = (
        "expected quality: whole sentences, with some words that records often have; the rest is the model's"
    )
    assert well in made(*words, found[3])[1]
    assert well in made(*words, "0.1", "--max-tokens", found[2])[1]
    assert well not in made(*words, "0.1", "--max-tokens", str(int(found[2]) + 1))[1]


def test_a_plan_names_the_labels_whose_texts_read_badly(made: Run) -> None:
    """Labels are disjoint: one with few records is no reason against the others."""
    small, *others = LABELS
    few = ("--set", "probe_seconds=0.01", "--set", f"population.{small}=8")
    _, out, err = made("plan", *few, *(f"--set=population.{label}=3000" for label in others))
    assert f"; but the texts of {small} will say hardly anything of the records\n" in out
    assert "warning" not in err
    assert "      against the warning, one of these is enough:\n        more data: records of " in out
    assert out.endswith(
        f"next: dpfewshot plan --output FILE, which is free: paid texts of {small} say little more than "
        "those above; else dpfewshot generate, with the same options\n"
    )
    enough = re.search(r"(\d+) customers of each label", out)
    assert enough is not None
    for count, good in ((int(enough[1]), True), (int(0.8 * int(enough[1])), False)):
        populations = [f"--set=population.{label}={count if label == small else 3000}" for label in LABELS]
        assert ("warning" not in made("plan", *few[:2], *populations)[1]) is good
    _, out, err = made("plan", "--label", others[0])
    assert "warning" not in out + err
    assert out.endswith(
        "next: dpfewshot plan --output FILE if texts like these will do, which is free; else dpfewshot plan "
        "for all labels, or dpfewshot generate with --label for these alone\n"
    )
    out = made("plan", "--output", "free.jsonl")[1]
    assert out.endswith("\nnext, if they will not do: dpfewshot generate\n")
    assert "\n      without your data, at no cost, the model writes:\n        Account: " in out


def test_a_command_takes_the_files_alone_that_it_names(made: Run) -> None:
    """Without --demonstrations, `membership` attacks the records themselves."""
    assert made("--version")[0] == 0
    leaks, attacks = (
        command.make_context("", ["--held-out", "tickets.csv"]).params["demonstrations"]
        for command in (audit.leak, audit.membership)
    )
    assert (leaks, attacks) == ("demos.jsonl", None)


def test_from_another_folder(made: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert made("generate", "--config", "../dpfewshot.toml", "--quiet")[0] == 0
    made_there = {one.name for one in folder.iterdir() if one.suffix in {".db", ".jsonl"}}
    assert made_there == {"budget.db", "demos.jsonl"}
    assert list(Path().iterdir()) == []
    status, out, err = made("plan", "--config", "nowhere.toml")
    assert (status, out) == (2, "")
    assert err == "dpfewshot: nowhere.toml: cannot be read: No such file or directory\n"
    assert "Missing option '--task'" in made("plan")[2]


@pytest.mark.parametrize(("user", "placed"), [("qwen-0.5b", "qwen-0.5b"), ("own.gguf", "elsewhere/own.gguf")])
@pytest.mark.usefixtures("made")
def test_a_models_name_is_no_path(user: str, placed: str) -> None:
    content = Path("dpfewshot.toml").read_text() + f'\n[evaluate]\nuser_model = "{user}"\n'
    assert parsed(Path("elsewhere/dpfewshot.toml"), content).project.user_model == placed


def test_a_given_option_and_the_environment_win(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--set", "probe_seconds=0.01", "--json", "--quiet")
    given = ((), ("--epsilon", "1", "--max-tokens", "3"))
    plans = [json.loads(made("plan", *words, *more)[1]) for more in given]
    assert [round(plan["epsilon"], 2) for plan in plans] == [2.0, 1.0]
    assert "ledger 'other.db' does not exist" in made("ledger", "show", "--ledger", "sqlite:///other.db")[2]
    monkeypatch.setenv("DPFEWSHOT_LEDGER", "sqlite:///third.db")
    assert "ledger 'third.db' does not exist" in made("ledger", "show")[2]


def test_a_ledger_of_the_environment_needs_no_account(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("generate")[0] == 0
    Path(FILE_NAME).write_text("[output]\ndemonstrations = 'demos.jsonl'\n")
    monkeypatch.setenv("DPFEWSHOT_LEDGER", "sqlite:///budget.db")
    assert made("verify")[0] == 0
    assert "Missing argument 'FILE'" in made("verify", "--config", "/dev/null")[2]


def test_no_command_that_states_a_budget_reads_it_from_the_file(made: Run) -> None:
    for name in ("ledger create", "ledger change-budget", "labels --records tickets.csv --count 1"):
        status, _, err = made(*name.split())
        assert (status, "Missing option" in err) == (2, True)


# ---- in Python ---------------------------------------------------------------------------------------------


def test_python_has_the_same(made: Run) -> None:
    assert made("--version")[0] == 0
    project = dpf.load("dpfewshot.toml")
    assert len(project.records()) == 1500
    assert isinstance(project.backend(), Desk)
    with project.synthesizer() as synthesizer:
        assert synthesizer.plan.epsilon == pytest.approx(2.0, abs=1e-3)
        assert len(synthesizer.generate_all()) == 10
    account = project.account()
    assert account is not None
    assert account.spent.epsilon == pytest.approx(2.0, abs=1e-3)
    assert (account.unit, account.budget) == ("customer_id", project.budget)


def test_python_resumes_a_plan_that_used_the_account_up(made: Run) -> None:
    assert made("--version")[0] == 0
    with dpf.load().synthesizer() as synthesizer:
        before = synthesizer.generate_all(resume=True)
    with pytest.raises(dpf.BudgetExceeded):
        dpf.load().synthesizer()
    with dpf.load().synthesizer(resuming=True) as synthesizer:
        assert [one.text for one in synthesizer.generate_all(resume=True)] == [one.text for one in before]


def test_no_error_holds_the_records(made: Run) -> None:
    assert made("--version")[0] == 0
    edit(shots="shots = 1\nprompts_per_draw = 2000")
    with pytest.raises(dpf.InvalidPlan, match="2000 is above the population") as caught:
        dpf.load().synthesizer()
    held = [one for frame in caught.traceback for one in frame.frame.f_locals.values()]
    assert held
    assert not any(isinstance(one, Records) for one in held)


@pytest.mark.parametrize("section", ["task", "records", "budget"])
def test_python_asks_for_what_a_synthesizer_needs(made: Run, section: str) -> None:
    assert made("--version")[0] == 0
    text = Path(FILE_NAME).read_text()
    before, _, rest = text.partition(f"[{section}]")
    Path(FILE_NAME).write_text(before + rest[rest.index("\n\n[") :])
    with pytest.raises(dpf.InvalidPlan, match=rf"dpfewshot.toml: \[{section}\]"):
        dpf.load()


def test_the_repr_is_a_line_without_a_password(made: Run) -> None:
    assert made("--version")[0] == 0
    edit(ledger='ledger = "postgresql+psycopg://me:swordfish@host/db"')
    shown = "ProjectFile(records='tickets.csv', epsilon=2.0, account='tickets', model="
    assert re.fullmatch(rf"{re.escape(shown)}'[\w:.]+'\)", str(dpf.load()))
    assert "swordfish" not in repr(Model(backend="openai", proxy="http://me:swordfish@host"))


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "line", "says"),
    [
        ("shots", "shotz = 1", "'shotz': unknown key; [settings] has 'labels', 'shots'"),
        ("shots", "epsilon = 1", "'epsilon': unknown key; [settings]"),
        ("name", 'title = "x"', "'title': unknown key; [task] has 'name'"),
        ("shots", 'shots = "1"', "'shots': must be a whole number"),
        ("shots", "shots = 1.5", "'shots': must be a whole number"),
        ("shots", "shots = true", "'shots': must be a whole number"),
        ("records", 'records = "a\\u0000b.csv"', "'records': must be without the character NUL"),
        ("shots", "labels = 5", "'labels': must be a list of strings"),
        ("create", "create = 1", "'create': must be true or false"),
        ("account", "account = 5", "'account': must be a string"),
        ("chosen", "chosen = 4", "'chosen': must be a string"),
        ("epsilon", 'epsilon = "much"', "'epsilon': must be a number"),
        ("epsilon", "epsilon = 0", "'epsilon': epsilon must be a positive number"),
        ("delta", "delta = 1", "'delta': delta must lie between 0 and 1"),
        ("ledger", "", "'account': --account needs --ledger"),
        ("epsilon", "epsilon = inf", "'ledger': a ledger counts nothing at epsilon = inf"),
        (
            "shots",
            'labels = ["Refunds"]',
            "'labels': 'Refunds' (did you mean 'Refund'?): task 'tickets' has no such",
        ),
        ("mechanism", 'mechanism = "oracle"', "'mechanism': 'oracle' is not one of"),
        ("mechanism", 'mechanism = "invisible-ink"\nclip = 3', "'clip': invisible-ink has no clip"),
        ("delta", "population = { Refund = 3 }", "'population': population"),
        ("delta", "population = {}", "'population': population (--set population.LABEL=N) has no number"),
        ("delta", 'population = { Refund = "3" }', "'population': must be a table"),
        ("model", 'base_url = ["http://host/v1"]', "'base_url': --backend llama-cpp has no base_url"),
        (
            "text_field",
            'text_fields = ["Subject", "Body"]',
            "'text': must be a table with a column for each of",
        ),
        (
            "text_field",
            'text_field = "Body:"',
            "'text_field': the task's text_field must not end with a colon",
        ),
        ("max_tokens", "max_tokens = 0", "'max_tokens': max_tokens must be a whole number of at least 1"),
        ("shots", "shots = 1\ntokens_per_draw = 99", "'tokens_per_draw': tokens_per_draw=99 is more than"),
        ("labels", 'labels = ["Refund", "Refund"]', "'labels': the task's label 'Refund' is repeated"),
        (
            "labels",
            "label_descriptions = { Bill = 'x' }",
            "'label_descriptions': the task has no label 'Bill'",
        ),
    ],
)
def test_an_error_names_line_and_key(command: Run, key: str, line: str, says: str) -> None:
    assert command("init", "tickets.csv", "--yes")[0] == 0
    edit(**{key: line})
    named, lines = says.split("'")[1], Path(FILE_NAME).read_text().splitlines()
    wanted = next((one for one in line.splitlines() if one.startswith(f"{named} =")), f"{named} =")
    place = next(number for number, one in enumerate(lines, start=1) if one.startswith(wanted))
    for words in (("ledger", "show"), ("generate", "--epsilon", "1")):
        status, out, err = command(*words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"dpfewshot: dpfewshot.toml, line {place}: {says}")
    with pytest.raises(dpf.DPFewShotError, match=f"line {place}: '{named}': "):
        dpf.load()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[budget]\n[recods]\nrecords = 'x'\n",
            "line 2: 'recods': unknown section; there are [task], [records]",
        ),
        ("\nepsilon = 2\n", "line 2: 'epsilon': unknown section"),
        ("[task]\nname = 'x'\n", "line 1: [task] needs 'instruction'"),
        ("[task.schema]\n'type' = 'object'\n[task.title]\n", "line 3: 'title': unknown key"),
        ("[budget]\nepsilon = swordfish\n", "is not TOML (at line 2, column 11)"),
        (f"[settings]\nshots = {'1' * 5000}\n", "is not TOML"),
    ],
)
def test_so_it_does_where_a_section_is_wrong(command: Run, text: str, says: str) -> None:
    Path(FILE_NAME).write_text(text)
    status, out, err = command("verify")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert "swordfish" not in err


def test_a_file_may_ask_for_no_privacy_without_a_ledger() -> None:
    Path(FILE_NAME).write_text("[task]\n" + "".join(f"{key} = 'a'\n" for key in TASK_KEYS) + NO_PRIVACY)
    assert dpf.load().budget is dpf.NO_PRIVACY


def test_several_text_fields_and_numbers_of_every_kind(made: Run) -> None:
    edit(
        text_field='text_fields = ["Subject", "Body"]',
        example="# example = ''",
        text='text = { Subject = "topic", Body = "body" }',
        delta=f"delta = 1e-6\npopulation = {{ {', '.join(f'{label} = 300' for label in LABELS)} }}",
        epsilon="epsilon = 3",
        shots='labels = ["Refund"]\ntop_p = 1',
        top_k='top_k = "all"',
    )
    assert made("--version")[0] == 0
    project = dpf.load().project
    assert project.data.text == {"Subject": "topic", "Body": "body"}
    assert project.budget.population == dict.fromkeys(LABELS, 300)
    assert (project.settings.labels, project.settings.top_k) == (("Refund",), "all")
    assert (project.budget.epsilon, project.budget.delta, project.settings.top_p) == (3.0, 1e-6, 1.0)
