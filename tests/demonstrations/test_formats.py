"""Demonstrations in the formats of other tools, read by those tools."""

import dataclasses
import json
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.certificates import Certificate
from dpfewshot.demonstrations import Demonstrations
from tests.support.factory import demonstration
from tests.support.scripts import TASK

NASTY = "{{ env.HOME }} {% if %} {# a #} {text} | 'x' \\n \"q\""
PAID = Certificate("ab" * 32, "customer", "0.1.0", "tickets", "cd" * 16, "claimed:model", None, "sha256:12")
ONE = demonstration(label="delivery", certificate=PAID)
OTHER = demonstration(NASTY, "refund", certificate=dataclasses.replace(PAID, reservation="ef" * 16))
BOTH = Demonstrations([ONE, OTHER])
BRACES = dataclasses.replace(TASK, name="braces", text_field="Ticket {a}", label_field="Kind {b}")


def test_anthropic_takes_the_system_message_apart() -> None:
    with pytest.raises(dpf.InvalidTask, match="another label than the task's: a, b"):
        BOTH.to_messages(dataclasses.replace(TASK, labels=("a", "b")))
    system, *messages = BOTH.to_messages(TASK, instruction="Sort.")
    assert BOTH.to_anthropic(TASK, instruction="Sort.") == {"system": "Sort.", "messages": messages}
    assert system["content"] == "Sort."
    assert BOTH.to_anthropic(TASK)["system"] == BOTH.to_messages(TASK)[0]["content"]


@pytest.mark.parametrize("task", [TASK, dpf.tasks.AGNEWS, BRACES], ids=lambda task: task.name)
def test_langchain_formats_our_prompt(task: dpf.Task) -> None:
    prompts = pytest.importorskip("langchain_core.prompts", reason="langchain-core is not installed")
    label = (task.labels or ("?",))[0]
    shown = Demonstrations([dataclasses.replace(one, label=label) for one in BOTH])
    template = prompts.FewShotPromptTemplate(**shown.to_langchain(task))
    assert template.format(text="where {is} it?") == shown.to_prompt(task, "where {is} it?")
    told = shown.to_langchain(task, instruction="{Sort}.")
    assert prompts.FewShotPromptTemplate(**json.loads(json.dumps(told))).format(text="x") == shown.to_prompt(
        task, "x", instruction="{Sort}."
    )


def test_langchain_takes_the_messages() -> None:
    messages = pytest.importorskip("langchain_core.messages", reason="langchain-core is not installed")
    read = messages.convert_to_messages(BOTH.to_messages(TASK))
    assert [one.type for one in read] == ["system", "human", "ai", "human", "ai"]
    assert read[3].content == NASTY


@pytest.mark.soak
def test_dspy_shows_the_demos_of_a_saved_program(tmp_path: Path) -> None:
    dspy = pytest.importorskip("dspy", reason="dspy is not installed: pip install dspy")
    path = tmp_path / "program.json"
    program = dspy.Predict("ticket -> kind")
    program.demos = [dspy.Example(**one) for one in BOTH.to_dspy(text="ticket", label="kind")]
    program.save(path)
    saved = json.loads(path.read_text())
    assert saved["demos"] == BOTH.to_dspy(text="ticket", label="kind")
    saved["demos"] = BOTH[1:].to_dspy(text="ticket", label="kind")  # the file's demos may be replaced
    path.write_text(json.dumps(saved))
    loaded = dspy.Predict("ticket -> kind")
    loaded.load(path)
    messages = dspy.ChatAdapter().format(loaded.signature, loaded.demos, {"ticket": "where is it?"})
    asked = [one["content"] for one in messages if one["role"] != "system"]
    assert NASTY in asked[0]
    assert "refund" in asked[1]


def test_promptfoo_reads_no_template_and_no_file() -> None:
    secret = demonstration("file:///etc/passwd", "refund")
    cases = Demonstrations([ONE, OTHER, secret]).to_promptfoo()
    assert cases[0] == {
        "vars": {"text": ONE.text},
        "assert": [{"type": "equals", "value": "delivery"}],
        "options": {"transform": "output.trim()"},
        "metadata": {"label": "delivery", "certified": True, "mechanism": "gaussian"},
    }
    assert cases[1]["vars"] == {"text": NASTY.replace("{{", "{ {").replace("{%", "{ %").replace("{#", "{ #")}
    assert cases[2]["vars"] == {"text": " file:///etc/passwd"}
    assert json.loads(json.dumps(cases)) == cases


def test_a_card_states_the_guarantee_and_the_plans(tmp_path: Path) -> None:
    BOTH.to_folder(tmp_path / "new", title='Tickets: "made up" | x')
    card = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    assert list(Demonstrations.from_jsonl(tmp_path / "new" / "demonstrations.jsonl")) == list(BOTH)
    assert "50 % sure that a given customer was used for these texts becomes at most 99.9665 % sure" in card
    assert "ε ≤ 8.0000 and δ = 2e-05" in card
    row = "| 2 | 8.0000 | 2e-05 | zero-out | customer | gaussian | 0.1.0 | claimed:model | tickets |"
    assert row in card.splitlines()


def test_a_card_has_one_row_for_what_a_run_wrote_from_several_prompts(tmp_path: Path) -> None:
    """As where some were replaced: they are paid for once."""
    made = [dataclasses.replace(PAID, plan=f"{n:064}", prompt=f"sha256:{n}", run="aa") for n in range(9)]
    other = dataclasses.replace(PAID, model="writer:large", run="bb")
    ones = [dataclasses.replace(ONE, certificate=one) for one in (*made, other)]
    Demonstrations(ones).to_folder(tmp_path)
    rows = [line for line in (tmp_path / "README.md").read_text("utf-8").splitlines() if "zero-out |" in line]
    assert rows == [
        "| 9 | 4.0000 | 1e-05 | zero-out | customer | gaussian | 0.1.0 | claimed:model | tickets |",
        "| 1 | 4.0000 | 1e-05 | zero-out | customer | gaussian | 0.1.0 | writer:large | tickets |",
    ]


def test_a_card_claims_nothing_without_a_guarantee(tmp_path: Path) -> None:
    Demonstrations([ONE, demonstration(spent=None)]).to_folder(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "No guarantee holds for all of them together" in card
    assert "differentially private with" not in card
    assert "| 1 | no guarantee | no guarantee |" in card


@pytest.mark.parametrize(
    ("number", "size"), [(999, "n<1K"), (1000, "1K<n<10K"), (9999, "1K<n<10K"), (10_000, "10K<n<100K")]
)
def test_a_card_states_the_hubs_class_of_size(tmp_path: Path, number: int, size: str) -> None:
    Demonstrations([ONE] * number).to_folder(tmp_path)
    assert f"size_categories: ['{size}']" in (tmp_path / "README.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_datasets_reads_the_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    hub = pytest.importorskip("huggingface_hub", reason="huggingface-hub is not installed")
    BOTH.to_folder(tmp_path / "folder", title='Tickets: "made up"')
    read = datasets.load_dataset(str(tmp_path / "folder"), split="train", cache_dir=str(tmp_path / "cache"))
    assert read["text"][:] == [ONE.text, NASTY]
    assert read[1]["certificate"] == OTHER.as_line()["certificate"]
    header = hub.DatasetCard.load(str(tmp_path / "folder" / "README.md")).data
    assert header.pretty_name == 'Tickets: "made up"'
    assert "differential-privacy" in header.tags
