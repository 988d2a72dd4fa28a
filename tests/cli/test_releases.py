"""`dpfewshot choose`, `search` and `labels`: what they print, write and pay, and how they end."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.backends import packaged_model_path
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.values import PrivacySpend
from tests.cli.conftest import write_rows
from tests.releases.test_scoring import SECRET, Shop
from tests.support.commands import Run
from tests.support.factory import demonstration
from tests.support.scripts import TASK_FILE

FREE_OF_COST = PrivacySpend(0.0, 0.0)
ACCOUNT = ("--ledger", "sqlite:///budget.db", "--dataset", "tickets")


def assert_bad_input(told: tuple[int, str, str], says: str, status: int = 2) -> None:
    assert (told[0], told[1], told[2].count("\n")) == (status, "", 1)
    assert says in told[2]
    assert SECRET not in told[2].lower()


# ---- choose ----------------------------------------------------------------------------------------------


class Helped(Shop):
    """Knows money from a parcel once a demonstration has shown it; until then it cannot tell."""

    knows_if_shown = True

    def answer(self, prompt: list[int]) -> list[float]:
        last = max(index for index, token in enumerate(prompt) if token in (6, 8))
        if prompt[-1] < 2 or (2 in prompt[:last]) is self.knows_if_shown:
            return list(super().answer(prompt))
        return [0.4, 0.4, *[0.2 / 8] * 8]


class Hurt(Helped):
    """Knows money from a parcel until a demonstration confuses it."""

    knows_if_shown = False


class Interrupted(Helped):
    """Ctrl-C is pressed at the first prompt about a record."""

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if any("parcel" in self.detokenize(prompt) for prompt in prompts):
            raise KeyboardInterrupt
        return super().next_token_logprobs(prompts, support)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task, its records, and three files of demonstrations."""
    monkeypatch.chdir(tmp_path)
    Path("tickets.toml").write_text(TASK_FILE)
    refunds = [{"text": f"money {SECRET.upper()} {i}", "label": "refund"} for i in range(500)]
    write_rows(
        "tickets.jsonl", [*refunds, *({"text": f"parcel {i}", "label": "delivery"} for i in range(500))]
    )
    costless: dict[str, Any] = {"spent": FREE_OF_COST, "relation": "add-remove"}
    for name, made in (
        ("good", demonstration("money", "refund", **costless)),
        ("poor", demonstration("nothing", "refund", **costless)),
        ("strange", demonstration("money", "complaint", **costless)),
    ):
        dpf.Demonstrations([made]).to_jsonl(f"{name}.jsonl")
    return tmp_path


DATA = shlex.split(f"--task tickets.toml --records tickets.jsonl --backend {__name__}:Helped")
CHOOSE = ["choose", *DATA, "--epsilon", "2"]
GOOD, POOR = ("--candidates", "good.jsonl"), ("--candidates", "poor.jsonl")


def test_a_search_goes_on_from_what_helps(command: Run, here: Path) -> None:
    words = ("search", *CHOOSE[1:], *POOR, *GOOD)
    status, out, err = command(*words, "--set", "rounds=3", "--output", "chosen.jsonl")
    assert status == 0, err
    assert "scoring in 3 rounds" in err
    assert out.endswith("(ε = 2 for the choice, δ = 0, neighbours zero-out)\n")
    shown = [json.loads(line)["text"] for line in (here / "chosen.jsonl").read_text().splitlines()]
    helpful = [json.loads(line)["text"] for line in (here / "good.jsonl").read_text().splitlines()]
    assert set(shown) & set(helpful)
    assert command(*words, "--set", "rounds=0")[0] == 2


def test_one_line_says_which_and_how_good(command: Run, here: Path) -> None:
    status, out, err = command(*CHOOSE, *POOR, *GOOD, "--output", "chosen.jsonl", "--quiet")
    assert (status, err, out.count("\n")) == (0, "", 2)  # no progress bar in a pipe
    assert out.startswith("good.jsonl is chosen: with it, ")
    assert "of the records that were kept for this rightly, without " in out
    assert "\nto publish: with these demonstrations " in out
    assert out.endswith("(ε = 2 for the choice, δ = 0, neighbours zero-out)\n")
    assert (here / "chosen.jsonl").read_text() == (here / "good.jsonl").read_text()


def test_where_none_are_best_it_says_what_to_do(command: Run, here: Path) -> None:
    words = ("--backend", f"{__name__}:Hurt", *GOOD, "--output", "chosen.jsonl")
    status, out, err = command(*CHOOSE, *words)
    assert (status, out.startswith("no demonstrations are best for ")) == (0, True), err
    assert out.splitlines()[-1].startswith("next: ship no examples. Or make better ones, at a further cost: ")
    assert (here / "chosen.jsonl").read_text() == ""


@pytest.mark.usefixtures("here")
def test_json_is_the_choice_and_a_pipe_reads_the_price_and_the_progress(command: Run) -> None:
    status, out, err = command(
        *CHOOSE, *GOOD, "--json", "--set", "proxy_choice=true", "--set", "balanced=true"
    )
    assert status == 0
    price, loading, scoring, *steps = err.splitlines()
    assert price.startswith(
        "this may spend epsilon 2.0000, delta 0 without a ledger that counts it; interrupted"
    )
    assert (loading, scoring) == (
        "loading the model",
        "scoring 2 prompts: up to an hour with a model of a gigabyte",
    )
    assert steps == [f"scoring: {percent} % done" for percent in range(10, 101, 10)]
    document = json.loads(out)
    choice = dpf.Choice.from_dict(document)
    assert choice.as_dict() == document
    assert (choice.index, choice.proxy, choice.balanced, choice.certified) == (1, True, True, True)
    assert choice.accuracy.low > choice.baseline.high
    assert document["statement"] == choice.statement
    assert SECRET.upper() not in out


@pytest.mark.usefixtures("here")
def test_no_demonstrations_are_a_candidate_unless_told_otherwise(command: Run) -> None:
    assert json.loads(command(*CHOOSE, *GOOD, "--set", "no_demonstrations=false", "--json")[1])["index"] == 0
    assert command(*CHOOSE, *POOR, "--set", "no_demonstrations=false", "--output", "one.jsonl")[1].startswith(
        "poor.jsonl is chosen: with it, "
    )
    assert len(dpf.Demonstrations.from_jsonl("one.jsonl")) == 1


@pytest.mark.usefixtures("here")
def test_what_the_model_writes_without_records_may_be_a_candidate(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[dpf.Candidate] = []
    real = dpf.choose

    def choosing(*arguments: Any, **options: Any) -> dpf.Choice:
        tried.extend(arguments[3])
        return real(*arguments, **options)

    monkeypatch.setattr("dpfewshot.releases.choosing.choose", choosing)
    assert command(*CHOOSE, *POOR, "--set", "instruction_only=true")[0] == 0
    assert [one.name for one in tried] == ["no demonstrations", "poor.jsonl", "instruction-only"]
    assert [one.label for one in tried[2].demonstrations] == ["refund", "delivery"]
    assert {one.spent for one in tried[2].demonstrations} == {FREE_OF_COST}


@pytest.mark.usefixtures("here")
def test_ctrl_c_while_scoring_says_that_nothing_is_spent(command: Run) -> None:
    choose = (*CHOOSE, *GOOD, *ACCOUNT, "--set", "create=true", "--delta", "1e-6")
    status, out, err = command(*choose, "--backend", f"{__name__}:Interrupted")
    assert (status, out) == (130, "")
    assert err.endswith("dpfewshot: interrupted: nothing is released, and nothing is spent\n")
    assert json.loads(command("ledger", "show", *ACCOUNT, "--json")[1])["spent"]["epsilon"] == 0


@pytest.mark.usefixtures("here")
def test_generating_and_choosing_on_one_ledger_cost_the_greater(command: Run) -> None:
    made = (
        "--delta 1e-6 --max-tokens 2 --set tokens_per_draw=2 --prompts-per-draw 20 --set top_k=8 --epsilon 2"
    )
    generate = ("generate", *DATA, *made.split(), *ACCOUNT, "--set", "create=true")
    assert command(*generate, "--output", "demos.jsonl")[0] == 0
    choose = (*CHOOSE, "--candidates", "demos.jsonl", *GOOD, *ACCOUNT)
    status, out, _ = command(*choose, "--json")
    assert status == 0
    Path("choice.json").write_text(out)
    assert json.loads(out)["total"] == {"epsilon": 2.0, "delta": 1e-6}
    summary = json.loads(command("ledger", "show", *ACCOUNT, "--json")[1])
    assert (summary["spent"], summary["entries"]) == ({"epsilon": 2.0, "delta": 1e-6}, 3)
    assert "events agree" in command("ledger", "verify", *ACCOUNT)[1]
    told = command(*choose, "--output", "again.jsonl")
    assert_bad_input(told, "epsilon is short. It needs epsilon=2, delta=0, and epsilon=0", status=3)
    assert "generates" not in told[2]
    assert not Path("again.jsonl").exists()
    status, out, _ = command("report", "--choice", "choice.json", *ACCOUNT)
    assert (status, "ε = 2 in all on this account, δ = 1e-06, neighbours zero-out)" in out) == (0, True)
    head = Path("report.html").read_text().partition("</header>")[0]
    assert "with these demonstrations" in head
    assert "ε = 2 in all on this account" in head


@pytest.mark.usefixtures("here")
def test_without_a_holdout_both_add(command: Run) -> None:
    assert command("ledger", "create", *ACCOUNT, "--epsilon", 4, "--delta", 1e-5)[0] == 0
    made = "--delta 1e-6 --max-tokens 1 --prompts-per-draw 20 --set top_k=8 --epsilon 2 --set holdout=0"
    assert command("generate", *DATA, *made.split(), *ACCOUNT)[0] == 0
    status, out, _ = command(*CHOOSE, *GOOD, *ACCOUNT, "--json")
    assert (status, json.loads(out)["total"]["epsilon"] > 3.9) == (0, True)
    told = command(*CHOOSE, *GOOD, *ACCOUNT)
    kept = "it adds to what the texts cost, since no records are kept for choosing: holdout is 0, or not"
    assert_bad_input(told, kept, status=3)
    assert "If theirs is 0, judge the texts by reading them, or raise the budget" in told[2]


@pytest.mark.parametrize(
    ("further", "says"),
    [
        ("", "--candidates"),
        ("--candidates nowhere.jsonl", "nowhere.jsonl"),
        ("--candidates tickets.jsonl", "tickets.jsonl"),
        ("--candidates strange.jsonl", "label"),
        ("--candidates good.jsonl --output good.jsonl", "good.jsonl exists"),
        ("--candidates good.jsonl --output nowhere/new.jsonl", "cannot write nowhere/new.jsonl"),
        ("--candidates good.jsonl --dataset tickets", "--ledger"),
        ("--candidates good.jsonl --ledger sqlite:///budget.db", "--account"),
        ("--candidates good.jsonl --epsilon inf", "finite"),
        ("--candidates good.jsonl --epsilon 0", "epsilon"),
        ("--candidates good.jsonl --set score=luck", "luck"),
        ("--candidates good.jsonl --set label_column=kind", "kind"),
        ("--candidates good.jsonl --records nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_bad_input_of_a_choice_is_one_line(command: Run, here: Path, further: str, says: str) -> None:
    before = sorted(here.iterdir())
    assert_bad_input(command(*CHOOSE, "--quiet", *further.split()), says)
    assert sorted(here.iterdir()) == before


@pytest.mark.model
def test_a_real_model_chooses() -> None:
    """The packaged model, on about four units of two short records each."""
    task = dpf.Task("tickets", SUPPORT_TICKETS.instruction, "Category", "Ticket", ("Refund", "Delivery"))
    records = [
        dpf.Record(one.text, one.label, f"customer {number // 2}")
        for number, one in enumerate(one for one in support_tickets() if one.label in task.labels)
    ]
    backend = dpf.backends.LlamaCpp(packaged_model_path(), context_tokens=128, decode_batch=1, threads=1)
    candidates = [[], [demonstration("I want my money back.", "Refund")]]
    sizes = {"unit": "customer", "scored_units": 4, "record_token_cap": 30}
    choice = dpf.choose(task, records, backend, candidates, budget=dpf.PrivacyBudget(2.0, 1e-6), **sizes)
    assert choice.index in (0, 1)
    assert choice.spent == PrivacySpend(2.0, 0.0)
    assert 0 <= choice.accuracy.low <= choice.accuracy.value <= choice.accuracy.high <= 1


# ---- a file that cannot be written -----------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_a_full_disk_under_the_output_loses_no_file(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails too
        monkeypatch.setattr("sys.stdout", full)
        assert command(*CHOOSE, *GOOD, "--set", "no_demonstrations=false", "--output", "chosen.jsonl")[0] != 0
    assert Path("chosen.jsonl").stat().st_size > 0


# ---- labels ----------------------------------------------------------------------------------------------

VOTES = {"drama": 300, "comedy": 200, "western": 100, SECRET: 1}
LABELS = shlex.split("labels --records movies.jsonl --count 2 --epsilon 1")
HISTOGRAM = [*LABELS, "--delta", "1e-6"]


@pytest.fixture
def movies(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Movies, and a ledger with an account for single records and one for units."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": f"{SECRET} {i}", "label": label, "viewer": f"{label} {i // 2}"}
        for label, count in VOTES.items()
        for i in range(count)
    ]
    write_rows("movies.jsonl", rows)
    for dataset, further in (("movies", ""), ("viewers", "--unit viewer --relation add-remove")):
        create = f"ledger create --ledger sqlite:///budget.db --dataset {dataset} --epsilon 2 --delta 1e-5"
        assert command(*create.split(), *further.split())[0] == 0


@pytest.mark.usefixtures("movies")
def test_labels_are_lines_or_json(command: Run) -> None:
    status, out, err = command(*HISTOGRAM)
    assert (status, out) == (0, "drama\ncomedy\n")
    assert err == "2 labels for epsilon 1.0000, delta 1e-06, neighbours add-remove, each record is one unit\n"
    status, out, err = command(*HISTOGRAM, "--json")
    assert (status, err) == (0, "")
    cost = {"epsilon": 1.0, "delta": 1e-6, "relation": "add-remove", "unit": None, "certified": True}
    assert json.loads(out) == {"labels": ["drama", "comedy"], **cost}


@pytest.mark.usefixtures("movies")
def test_candidates_are_lines_of_a_file_and_cost_no_delta(command: Run) -> None:
    Path("genres.txt").write_bytes(b"\xef\xbb\xbfmusical\r\n\nwestern\ndrama")
    status, out, _ = command(*LABELS, "--candidates", "genres.txt", "--json")
    assert status == 0
    assert json.loads(out)["labels"] == ["drama", "western"]
    assert json.loads(out)["delta"] == 0.0
    write_rows("split.jsonl", [{"text": "a", "label": "film\nnoir"}] * 100)
    assert command(*HISTOGRAM, "--records", "split.jsonl")[:2] == (0, "film noir\n")


@pytest.mark.usefixtures("movies")
def test_the_ledger_pays_for_labels_and_says_when_it_cannot(command: Run) -> None:
    account = ("--ledger", "sqlite:///budget.db", "--dataset", "movies")
    for _ in range(2):
        status, out, _ = command(*HISTOGRAM, *account, "--json")
        assert (status, json.loads(out)["relation"]) == (0, "zero-out")
    spent = json.loads(command("ledger", "show", *account, "--json")[1])
    assert (spent["spent"], spent["entries"]) == ({"epsilon": 2.0, "delta": 2e-6}, 2)
    assert_bad_input(command(*HISTOGRAM, *account), "epsilon is short", status=3)
    assert json.loads(command("ledger", "show", *account, "--json")[1]) == spent


@pytest.mark.usefixtures("movies")
def test_units_go_with_an_account_for_units(command: Run) -> None:
    read = (*HISTOGRAM, "--ledger", "sqlite:///budget.db", "--json", "--dataset")
    status, out, _ = command(*read, "viewers", "--unit", "viewer")
    assert (status, json.loads(out)["relation"], json.loads(out)["unit"]) == (0, "add-remove", "viewer")
    for further in (("viewers",), ("movies", "--unit", "viewer")):
        assert_bad_input(command(*read, *further), "account")
    for dataset, spent in (("viewers", 1.0), ("movies", 0.0)):
        told = command("ledger", "show", "--ledger", "sqlite:///budget.db", "--dataset", dataset, "--json")[1]
        assert json.loads(told)["spent"]["epsilon"] == spent


@pytest.mark.usefixtures("movies")
@pytest.mark.parametrize(
    ("further", "says"),
    [
        ("", "delta"),
        ("--delta little", "--delta"),
        ("--epsilon 0 --delta 1e-6", "epsilon"),
        ("--candidates nowhere.txt", "nowhere.txt"),
        ("--delta 1e-6 --dataset movies", "--ledger"),
        ("--delta 1e-6 --ledger sqlite:///budget.db", "--account"),
        ("--delta 1e-6 --ledger sqlite:///budget.db --dataset nobody", "no account"),
        ("--delta 1e-6 --set label_column=genre", "genre"),
        ("--delta 1e-6 --records nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_bad_input_of_labels_is_one_line(command: Run, further: str, says: str) -> None:
    assert_bad_input(command(*LABELS, *further.split()), says)


@pytest.mark.usefixtures("movies")
def test_candidates_of_labels_are_text(command: Run) -> None:
    Path("genres.txt").write_bytes(b"caf\xe9\nb\n")
    assert_bad_input(command(*LABELS, "--candidates", "genres.txt"), "UTF-8")
