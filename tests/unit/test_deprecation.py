"""Renamed names: they work, and say what they are called now, at the caller's line."""

import runpy
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import dpfewshot
from dpfewshot.runtime.deprecation import deprecated_names, warn_renamed
from dpfewshot.runtime.lazy import lazy_names
from dpfewshot.runtime.redaction import redacts_errors


@pytest.fixture
def renaming(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package in which `Spend` became `PrivacySpend`."""
    package = ModuleType("renaming")
    monkeypatch.setitem(sys.modules, "renaming", package)
    old = deprecated_names("renaming", {"Spend": "dpfewshot.values:PrivacySpend"})
    package.__getattr__ = lazy_names("renaming", {"Record": "dpfewshot.values"}, old)  # type: ignore[method-assign]
    return package


def test_an_old_name_gives_the_new_object_and_names_it(renaming: ModuleType) -> None:
    with pytest.warns(DeprecationWarning, match="Spend is deprecated") as caught:
        assert renaming.Spend is dpfewshot.PrivacySpend
    assert [str(one.message) for one in caught] == [
        "renaming.Spend is deprecated; use dpfewshot.values.PrivacySpend"
    ]
    assert caught[0].filename == __file__


def test_a_current_name_warns_of_nothing_and_a_strange_one_is_none(renaming: ModuleType) -> None:
    assert renaming.Record is dpfewshot.Record
    with pytest.raises(AttributeError, match="module 'renaming' has no attribute 'Nothing'"):
        _ = renaming.Nothing


def test_an_import_from_a_module_warns_at_the_importing_line(tmp_path: Path, renaming: ModuleType) -> None:
    script = tmp_path / "script.py"
    script.write_text("\nfrom renaming import Spend\n")
    renaming.__path__ = []  # a package: the import system then asks for the name once more
    with pytest.warns(DeprecationWarning, match="Spend is deprecated") as caught:
        runpy.run_path(str(script))
    assert {(one.filename, one.lineno) for one in caught} == {(str(script), 2)}


def test_the_warning_passes_over_the_frames_of_this_package() -> None:
    with pytest.warns(DeprecationWarning, match=r"^old is deprecated; use new$") as caught:
        redacts_errors(None)(warn_renamed)("old", "new")
    assert caught[0].filename == __file__


def test_one_line_warns_once(renaming: ModuleType) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            _ = renaming.Spend
        _ = renaming.Spend
    assert len(caught) == 2
