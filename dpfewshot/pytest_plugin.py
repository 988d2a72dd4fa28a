"""`pytest --dpfewshot-backend NAME`: the conformance suite, one test a check.

pytest loads this module in every run of an environment that has dpfewshot, so it imports nothing of
dpfewshot until the option is given. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dpfewshot.backends.conformance import Finding, Samples
    from dpfewshot.backends.protocol import LogprobBackend

OPTION = "--dpfewshot-backend"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name a backend to check, on the command line or in `addopts`."""
    parser.getgroup("dpfewshot").addoption(
        OPTION,
        metavar="NAME",
        help="Check an installed backend, or the one that package.module:factory makes: one test for each "
        "check of the conformance suite, all named conformance[...].",
    )


@pytest.hookimpl(tryfirst=True)  # before -k and --deselect choose
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
        """Run the check; a finding that did not pass is the test's failure."""
        finding = self._backend.run(self._check)
        if not finding.passed:
            raise _NotConforming(finding.detail)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The finding in one line; anything else, as when the backend cannot be made, with its traceback."""
        if isinstance(excinfo.value, _NotConforming):
            return f"{self._check}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where the test stands: in no file."""
        return "dpfewshot", None, self.name


class _NotConforming(Exception):
    """A finding that did not pass."""


class _Backend:
    """The backend, made when the first test asks for it, and again after the test that closes it."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._made: tuple[LogprobBackend, Samples] | None = None

    def run(self, check: str) -> Finding:
        """Run a check on it."""
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
        """Give back what it holds."""
        close = getattr(self._made[0] if self._made else None, "close", None)
        if close is not None:
            close()
        self._made = None
