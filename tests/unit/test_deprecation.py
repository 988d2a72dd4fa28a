"""Renamed names: they work, and say what they are called now, at the caller's line."""

import importlib
import runpy
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dpfewshot
from dpfewshot.audit.influence import influence_finding
from dpfewshot.evaluation import Cell, Experiment, Trial, ZeroShot, summarise
from dpfewshot.report import Sources, select
from dpfewshot.runtime.deprecation import deprecated_names, renamed_fields, warn_renamed
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


def test_a_current_name_warns_of_nothing_and_an_unknown_one_fails(renaming: ModuleType) -> None:
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


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("evaluation", "RandomPrivate", "NonPrivateSample"),
        ("evaluation", "Setting", "Condition"),
        ("evaluation", "ZeroPrivate", "InstructionOnly"),
        ("report", "read_book", "read_snapshot"),
    ],
)
def test_old_names_of_modules(module: str, old: str, new: str) -> None:
    room = importlib.import_module(f"dpfewshot.{module}")
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is deprecated; use .*\.{new}$"):
        assert getattr(room, old) is getattr(room, new)


@renamed_fields(old="new")
@dataclass(frozen=True, slots=True)
class Sample:
    new: int
    other: int = 0


def test_a_dataclass_is_made_and_read_by_an_old_name() -> None:
    assert Sample(1, other=2) == Sample(new=1, other=2)
    with pytest.warns(DeprecationWarning, match=r"^Sample\(old=\) is deprecated; use new=$") as caught:
        one = Sample(old=1, other=2)  # type: ignore[call-arg]
    assert [each.filename for each in caught] == [__file__]
    with pytest.warns(DeprecationWarning, match=r"^Sample\.old is deprecated; use Sample\.new$"):
        assert one.old == one.new == 1  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="old="):
        assert replace(one, old=3) == Sample(3, 2)  # type: ignore[call-arg]


def test_old_names_of_arguments_and_fields() -> None:
    measured = [np.array([[1.0], [2.0]])]
    finding = influence_finding(measured, confidential=False)
    contents = select(Sources(findings=[finding]), confidential=True)
    with pytest.warns(DeprecationWarning, match=r"influence_finding\(private=\)"):
        assert influence_finding(measured, private=False) == finding  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"select\(private=\)"):
        assert select(Sources(findings=[finding]), private=True) == contents  # type: ignore[call-arg]
    cell = Cell("t", "m", "w", "c", 1.0, 1.0, 0.1, "zero-out", 1, 0, 1, "1", None, {}, description="d")
    [summary] = summarise([cell])
    task = dpfewshot.tasks.TREC
    backend = dpfewshot.backends.Scripted(["a"], lambda _prompt: [1.0])
    experiment = Experiment(task, [], [dpfewshot.Record("a", "Number")], backend, "w", 0.1)
    for owner, old, new in (
        (finding, "private", "confidential"),
        (contents, "private", "confidential"),
        (Sources(), "book", "snapshot"),
        (contents, "private_cells", "confidential_cells"),
        (cell, "private", "confidential"),
        (cell, "setting", "condition"),
        (cell, "settings", "description"),
        (summary, "private", "confidential"),
        (summary, "setting", "condition"),
        (Trial(ZeroShot(), 0.0), "setting", "condition"),
        (experiment, "private", "confidential"),
    ):
        with pytest.warns(DeprecationWarning, match=rf"\.{old} is deprecated; use .*\.{new}$"):
            assert getattr(owner, old) == getattr(owner, new)
