"""The rights in PostgreSQL that docs/platform.md gives to what generates: it spends, and raises no budget."""

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

import dpfewshot as dpf
from tests.support.factory import synthesizer

ROOT = Path(__file__).parents[2]
LARGE = dpf.PrivacyBudget(9.0, 1e-3)


def test_what_generates_spends_and_raises_no_budget(postgresql_url: str) -> None:
    page = (ROOT / "docs/platform.md").read_text(encoding="utf-8")
    rights = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)[0]
    dpf.BudgetLedger.open(postgresql_url).create("tickets", dpf.PrivacyBudget(5.0, 1e-3))
    url = sa.make_url(postgresql_url)
    owner = sa.create_engine(url.set(drivername="postgresql+psycopg"))
    with owner.begin() as connection:
        connection.execute(sa.text("CREATE ROLE generates LOGIN PASSWORD 'secret'"))
        connection.execute(sa.text(rights))
    owner.dispose()
    with dpf.BudgetLedger.open(
        url.set(username="generates", password="secret").render_as_string(hide_password=False)  # noqa: S106
    ) as ledger:
        account = ledger.account("tickets")
        synthesizer(account=account).generate_all()
        assert account.spent.epsilon > 3
        for raised in (lambda: ledger.create("more", LARGE), lambda: account.change_budget(LARGE)):
            with pytest.raises(dpf.LedgerError, match="lacks the privileges"):
                raised()
        assert account.verify().ok
        assert account.budget.epsilon == 5
