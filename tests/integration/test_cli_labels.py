"""`dpfewshot labels`: what it prints, what it pays, and one line where the input is bad."""

import json
from pathlib import Path

import pytest

from tests.support.commands import Run

SECRET = "swordfish"
VOTES = {"drama": 300, "comedy": 200, "western": 100, SECRET: 1}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "movies.jsonl"
    rows = [
        {"text": f"{SECRET} {i}", "label": label, "viewer": f"{label} {i // 2}"}
        for label, count in VOTES.items()
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def ledger(command: Run, tmp_path: Path) -> str:
    """A ledger with an account for single records and one for units."""
    url = f"sqlite:///{tmp_path}/budget.db"
    for dataset, further in (("movies", []), ("viewers", ["--unit", "viewer", "--relation", "add-remove"])):
        account = ["--ledger", url, "--dataset", dataset, "--epsilon", 2, "--delta", 1e-5]
        assert command("ledger", "create", *account, *further)[0] == 0
    return url


def labels(records: Path, *further: object) -> list[object]:
    return ["labels", "--records", records, "--count", 2, "--epsilon", 1, *further]


def test_a_label_a_line(command: Run, records: Path) -> None:
    status, out, err = command(*labels(records, "--delta", 1e-6))
    assert (status, out) == (0, "drama\ncomedy\n")
    assert err == "2 labels for epsilon 1.0000, delta 1e-06, neighbours add-remove\n"


def test_json(command: Run, records: Path) -> None:
    status, out, err = command(*labels(records, "--delta", 1e-6, "--json"))
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "labels": ["drama", "comedy"],
        "epsilon": 1.0,
        "delta": 1e-6,
        "relation": "add-remove",
        "certified": True,
    }


def test_candidates_are_lines_of_a_file_and_cost_no_delta(
    command: Run, records: Path, tmp_path: Path
) -> None:
    candidates = tmp_path / "genres.txt"
    candidates.write_bytes(b"\xef\xbb\xbfmusical\r\n\nwestern\ndrama")
    status, out, _ = command(*labels(records, "--candidates", candidates, "--json"))
    assert status == 0
    assert json.loads(out)["labels"] == ["drama", "western"]
    assert json.loads(out)["delta"] == 0.0


def test_a_label_of_two_lines_is_one_line(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "split.jsonl"
    path.write_text((json.dumps({"text": "a", "label": "film\nnoir"}) + "\n") * 100)
    status, out, _ = command(*labels(path, "--delta", 1e-6))
    assert (status, out) == (0, "film noir\n")


def test_the_ledger_pays_and_says_when_it_cannot(command: Run, records: Path, ledger: str) -> None:
    account = ["--ledger", ledger, "--dataset", "movies"]
    for _ in range(2):
        status, out, _ = command(*labels(records, "--delta", 1e-6, *account, "--json"))
        assert status == 0
        assert json.loads(out)["relation"] == "zero-out"
    spent = json.loads(command("ledger", "show", *account, "--json")[1])
    assert spent["spent"] == {"epsilon": 2.0, "delta": 2e-6}
    assert spent["entries"] == 2
    status, out, err = command(*labels(records, "--delta", 1e-6, *account))
    assert (status, out) == (3, "")
    assert err.count("\n") == 1
    assert json.loads(command("ledger", "show", *account, "--json")[1]) == spent


def test_units_go_with_an_account_for_units(command: Run, records: Path, ledger: str) -> None:
    read = labels(records, "--delta", 1e-6, "--ledger", ledger, "--json")
    status, out, _ = command(*read, "--dataset", "viewers", "--unit", "viewer")
    assert status == 0
    assert json.loads(out)["relation"] == "add-remove"
    for further in (["--dataset", "viewers"], ["--dataset", "movies", "--unit", "viewer"]):
        assert "account" in one_line(*command(*read, *further))
    for dataset, spent in (("viewers", 1.0), ("movies", 0.0)):
        shown = command("ledger", "show", "--ledger", ledger, "--dataset", dataset, "--json")[1]
        assert json.loads(shown)["spent"]["epsilon"] == spent


def one_line(status: int, out: str, err: str) -> str:
    assert (status, out) == (2, "")
    assert SECRET not in err
    assert err.startswith("dpfewshot: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("further", "says"),
    [
        ([], "delta"),
        (["--delta", "1"], "delta"),
        (["--delta", "little"], "--delta"),
        (["--epsilon", "0", "--delta", "1e-6"], "epsilon"),
        (["--epsilon", "nan", "--delta", "1e-6"], "epsilon"),
        (["--count", "0", "--delta", "1e-6"], "count"),
        (["--candidates", "nowhere.txt"], "nowhere.txt"),
        (["--delta", "1e-6", "--dataset", "movies"], "--ledger"),
        (["--delta", "1e-6", "--ledger", "sqlite:///budget.db"], "--dataset"),
        (["--delta", "1e-6", "--label-column", "genre"], "genre"),
        (["--delta", "1e-6", "--records", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_input(command: Run, records: Path, further: list[str], says: str) -> None:
    assert says in one_line(*command(*labels(records, *further)))


def test_bad_candidates(command: Run, records: Path, tmp_path: Path) -> None:
    path = tmp_path / "genres.txt"
    for content, says in (
        (b"drama\n", "1 candidates"),
        (b"a\nb\na\n", "distinct"),
        (b"caf\xe9\nb\n", "UTF-8"),
    ):
        path.write_bytes(content)
        assert says in one_line(*command(*labels(records, "--candidates", path)))


def test_an_account_that_is_not_there_is_not_made(command: Run, records: Path, ledger: str) -> None:
    account = ["--ledger", ledger, "--dataset", "nobody"]
    assert "no account" in one_line(*command(*labels(records, "--delta", 1e-6, *account)))
    assert "no account" in one_line(*command("ledger", "show", *account))


def test_help_has_an_example(command: Run) -> None:
    status, out, _ = command("labels", "--help")
    assert status == 0
    assert "dpfewshot labels --records movies.jsonl" in out
    assert "  labels " in command("--help")[1]
