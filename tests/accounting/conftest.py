"""Fixtures of the accountant's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpfewshot.accounting import bounds


def forget() -> None:
    """Forget the bounds that the accountant has computed."""
    bounds._epsilon.cache_clear()  # noqa: SLF001 - there is no reason to do so but a changed accountant
    bounds._epsilon_upper.cache_clear()  # noqa: SLF001


@pytest.fixture(autouse=True)
def forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no test that changes the accountant get, or leave, a bound that is remembered."""
    changes = "monkeypatch" in request.fixturenames
    if changes:
        forget()
    yield
    if changes:
        forget()
