"""The report's page as text: what is in it, what is not, and that nothing in it can become markup."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpfewshot.account.amounts import Amount, pure_cost
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.certificates import Certificate
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.report import Sources, select
from dpfewshot.report.page import visible
from dpfewshot.values import PrivacyBudget, PrivacySpend, epsilon_text
from tests.support.accounts import DRAWS
from tests.support.factory import demonstration
from tests.support.report_samples import SECRET, account, demonstrations, rendered, sources

POISON = (
    "</style></title></textarea><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{ 7*7 }}&lt;"
    "\u202e\u2066\u0007" + "w" * 500
)
UNWRITABLE = "\ud800\x00"


class Structure(HTMLParser):
    """Elements with the names of their attributes, in order; and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.links: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.links |= {value or "" for name, value in attrs if name in {"href", "src", "action", "data"}}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return sources(tmp_path_factory.mktemp("samples"))


def poisoned(value: object) -> object:
    if isinstance(value, str):
        return value + POISON + UNWRITABLE
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    if isinstance(value, dict):
        return {key: poisoned(each) for key, each in value.items()}
    return value


@pytest.fixture(scope="module")
def hostile(given: Sources, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The samples, with something nasty in every text."""
    clean, folder = given, tmp_path_factory.mktemp("hostile")
    texts = ("text", "label", "relation", "mechanism")
    ones = [
        dataclasses.replace(d, **{n: poisoned(getattr(d, n)) for n in texts}) for d in clean.demonstrations
    ]
    findings = [
        dataclasses.replace(
            finding,
            title=poisoned(finding.title),
            statement=poisoned(finding.statement),
            figures=tuple(dataclasses.replace(f, name=poisoned(f.name)) for f in finding.figures),
            details=poisoned(finding.details),
        )
        for finding in clean.findings
    ]
    return Sources(
        demonstrations=Demonstrations(ones),
        snapshot=account(folder, suffix=POISON.replace(":", "")).snapshot(),
        findings=findings,
        choice=dataclasses.replace(clean.choice, relation=poisoned(clean.choice.relation)),
    )


@pytest.mark.parametrize("confidential", [False, True])
def test_no_text_changes_the_structure(given: Sources, hostile: Sources, confidential: bool) -> None:
    # a poisoned relation is another than the account's, and the page says so: of the harmless one too
    other = Demonstrations(dataclasses.replace(one, relation="another") for one in given.demonstrations)
    clean = Structure(rendered(dataclasses.replace(given, demonstrations=other), confidential=confidential))
    text = rendered(hostile, confidential=confidential, title=f"Tickets{POISON}{UNWRITABLE}")
    found = Structure(text)
    assert found.elements == clean.elements
    assert found.links == clean.links
    assert Structure(text.replace("<h1>", "<h1 onclick=x>", 1)).elements != clean.elements  # a control
    assert POISON[:80] in found.text  # it is there, as text
    assert "⟨U+202E⟩⟨U+2066⟩⟨U+0007⟩" in found.text
    assert not set(text) & set("\u202e\u2066\u0007\ud800\x00")
    text.encode()


def test_nothing_is_loaded_and_nothing_runs(given: Sources) -> None:
    text = rendered(given, confidential=True)
    found = Structure(text)
    loading = {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not {tag for tag, _ in found.elements} & loading
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"(?:https?:)?//\w|url\(|@import|javascript:|\sstyle=", text)
    assert not [names for _, names in found.elements if any(name.startswith("on") for name in names)]


def test_the_policy_allows_this_style_sheet_alone(given: Sources) -> None:
    text = rendered(given)
    [sheet] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_by_default_nothing_confidential_is_in_it(given: Sources) -> None:
    text = rendered(given)
    times = {row["at"][:16].replace("T", " ") for row in given.snapshot.history}
    actors = {row["actor"] for row in given.snapshot.history}
    banner = ("CONFIDENTIAL:", "Confidential:")
    confidential = (SECRET, *banner, "cancelled", given.snapshot.chain_tip)
    for secret in (*confidential, *times, *actors):
        assert secret not in text
    assert "1 demonstration without a guarantee, 1 finding" in text
    assert "2026-01-31" in text  # the day when it was made
    assert "An audit failed:" not in text


def test_what_is_confidential_is_shown_when_asked_for_and_says_so(given: Sources) -> None:
    text = rendered(given, confidential=True)
    for there in (SECRET, "cancelled", given.snapshot.chain_tip):
        assert there in text
    assert "<title>CONFIDENTIAL: " in text
    assert "Confidential: for the trusted side only." in text
    assert text.count("no guarantee: confidential") == 1
    assert "Left out because" not in text
    assert text.index("An audit failed:") < text.index("What was promised")


def test_a_finding_is_public_only_where_it_says_so(given: Sources) -> None:
    findings = [dataclasses.replace(finding, confidential=None) for finding in given.findings]  # neither
    contents = select(dataclasses.replace(given, findings=findings), confidential=False)
    assert len(contents.findings) == 0


def test_headings(given: Sources) -> None:
    text = rendered(given)
    found = Structure(text)
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert len(re.findall(r'id="', text)) == len(set(re.findall(r'id="([^"]*)"', text)))


@pytest.mark.parametrize("rule", ["renyi", "sum"])
def test_an_account_that_counts_divergences_says_so_and_shows_them(tmp_path: Path, rule: str) -> None:
    """Its plans' ε add up to more than it has spent."""
    cost = PrivacySpend(0.1, 0.0)
    with BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db") as ledger:
        made = ledger.create("tickets", PrivacyBudget(8.0, 1e-5), rule=rule)
        for _ in range(60):
            made.reserve(None, pure_cost(Amount.of_cost(cost)), {"mechanism": "gaussian"}, DRAWS)
        made.reserve(None, cost, {"mechanism": "by hand"}, DRAWS)
        given, spent = Sources(snapshot=made.snapshot()), made.spent
    text, spending = rendered(given), select(given, confidential=False).spending
    assert spending is not None
    if rule == "sum":  # a control
        assert (spending.order, spent.epsilon) == (None, pytest.approx(6.1))
        assert "divergence" not in text
        return
    assert spending.spent == spent
    assert spent.epsilon < 5
    assert f"counts Rényi divergences of order {spending.order}" in text
    assert "may add up to more than what is spent" in text
    *divergences, last = [plan.divergence for plan in spending.plans]
    assert last is None
    assert sum(divergences) + 0.1 < spent.epsilon < 6.1
    assert f'<td class="number">{epsilon_text(divergences[0])}</td></tr>' in text
    assert text.count('<td class="number">–</td></tr>') == 1


def test_whom_it_protects(tmp_path: Path) -> None:
    customers = "<dd>all records of one customer (the same &#39;customer_id&#39;)"
    with BudgetLedger.open(f"sqlite:///{tmp_path}/units.db") as ledger:
        for name, unit, words in (("one", None, "<dd>one record</dd>"), ("two", "customer_id", customers)):
            snapshot = ledger.create(name, PrivacyBudget(1.0, 1e-5), unit=unit).snapshot()
            assert words in rendered(Sources(snapshot=snapshot))
    of_unit = Certificate("ab" * 32, "customer_id", "0.1.0")
    for whose, words in ((of_unit, f"{customers}</dd>"), (None, "one unit if the records had")):
        made = Demonstrations([demonstration("text", "label", certificate=whose)])
        assert words in rendered(Sources(demonstrations=made))


def test_the_page_says_whether_epsilon_protects_whom(tmp_path: Path) -> None:
    with BudgetLedger.open(f"sqlite:///{tmp_path}/u.db") as ledger:
        account = ledger.create("tickets", PrivacyBudget(20, 1e-5), unit="patient_no")
        account.reserve(None, PrivacySpend(1.0, 0.0), {}, DRAWS)
        told = rendered(Sources(snapshot=account.snapshot()))
        account.reserve(None, PrivacySpend(9.0, 0.0), {}, DRAWS)
        above = rendered(Sources(snapshot=account.snapshot()))
    assert "Verdict: it protects.</strong> Who is 1 % sure that a given patient was used" in told
    assert "Verdict" not in above


@pytest.mark.parametrize(("delta", "one_in"), [(1e-5, "100,000"), (3e-5, "33,333"), (0.3, "3")])
def test_delta_is_said_as_one_in_so_many(delta: float, one_in: str) -> None:
    [one, *_] = demonstrations()
    ones = Demonstrations([dataclasses.replace(one, spent=PrivacySpend(1.0, delta))])
    assert f"(at most 1 in {one_in})" in rendered(Sources(demonstrations=ones))
    text = rendered(Sources())
    assert "There is no (ε, δ) for what this report shows" in text


def test_long_lists_are_cut_and_counted(given: Sources) -> None:
    [finding, *_] = given.findings
    many = dataclasses.replace(finding, figures=finding.figures * 40)
    ones = Demonstrations(list(given.demonstrations[:1]) * 1234)
    text = rendered(dataclasses.replace(given, demonstrations=ones, findings=[many]))
    assert text.count('class="card"') == 200
    assert "1,234 demonstrations with a guarantee" in text
    assert "The first 200 are shown" in text
    assert "The first 50 of 80 figures" in text


def test_figures_are_printed_rounded_up(tmp_path: Path) -> None:
    text = rendered(Sources(snapshot=account(tmp_path, 7).snapshot()))
    assert "<dd>2.5715</dd>" in text  # three plans of 6/7
    assert "<dd>4.29e-07</dd>" in text


def test_visible_text() -> None:
    ordinary = "ordinary, “quoted” text\nand 日本語 नि 👩‍👧 می‌خواهم"
    assert visible(ordinary) == ordinary
    assert visible("a\u200bb\u2028\U000e0041") == "a⟨U+200B⟩b⟨U+2028⟩⟨U+E0041⟩"
