"""`pytest --dpfewshot-backend NAME`: the conformance suite, one test per check.

pytest loads this module in every run of an environment that has dpfewshot, so it imports nothing of dpfewshot
until the option is given. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dpfewshot.backends.conformance import Finding, Samples
    from dpfewshot.backends.protocol import LogprobBackend

OPTION = "--dpfewshot-backend"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the backend to check."""
    parser.getgroup("dpfewshot").addoption(
        OPTION,
        metavar="NAME",
        help="Check an installed backend, or the one that package.module:factory makes: one test per "
        "check of the conformance suite, named conformance[...].",
    )


@pytest.hookimpl(tryfirst=True)  # before -k and --deselect select
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of the backend that the option names."""
    target = config.getoption(OPTION)
    if target is None:
        return
    from dpfewshot.backends.conformance import CHECKS

    backend = _Backend(target)
    config.add_cleanup(backend.close)
    items += [
        ConformanceItem.from_parent(session, name=f"conformance[{check}]", check=check, backend=backend)
        for check in CHECKS
    ]


class ConformanceItem(pytest.Item):
    """One check of the suite."""

    def __init__(self, *, check: str, backend: _Backend, **further: Any) -> None:
        super().__init__(**further)
        self._check = check
        self._backend = backend

    def runtest(self) -> None:
        """Run the check, and fail the test if the finding failed."""
        finding = self._backend.run(self._check)
        if not finding.passed:
            pytest.fail(f"{self._check}: {finding.detail}", pytrace=False)

    def reportinfo(self) -> tuple[str, None, str]:
        """Return the test's location: no file."""
        return "dpfewshot", None, self.name


class _Backend:
    """The backend, made for the first test, and again after the test that closes it."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._made: tuple[LogprobBackend, Samples] | None = None

    def run(self, check: str) -> Finding:
        from dpfewshot.backends import backend_from
        from dpfewshot.backends.conformance import CLOSING, Samples, run_check

        if self._made is None:
            backend = backend_from(self._target)
            self._made = backend, Samples.of(backend)
        finding = run_check(check, *self._made)
        if check == CLOSING:
            self._made = None
        return finding

    def close(self) -> None:
        if self._made is not None:
            self._made[0].close()
