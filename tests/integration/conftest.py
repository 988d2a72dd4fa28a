"""Fixtures of this folder: a ledger and an account of it, and a spy."""

from __future__ import annotations

from typing import Any

import pytest

from dpfewshot.generation.token_loop import TextRequest, TokenLoop
from tests.support import inside
from tests.support.ledgers import account, ledger, path, url

FIXTURES = (account, ledger, path, url)


@pytest.fixture
def drawn_from(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """For each demonstration that a test makes, the units that it draws from."""
    found: list[Any] = []
    tokens = TokenLoop.tokens

    def spy(loop: TokenLoop, request: TextRequest) -> Any:
        found.append(list(inside.units_of(request.units)))
        return tokens(loop, request)

    monkeypatch.setattr(TokenLoop, "tokens", spy)
    return found
