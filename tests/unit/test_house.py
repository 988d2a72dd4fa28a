"""House rules that import-linter cannot see: the compiled core, permits, randomness and names."""

import ast
import configparser
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import dpfewshot

PACKAGE = Path(dpfewshot.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

MAY_SEE_THE_CORE = {
    "cli/doctor.py",
    "mechanisms/adadpsyn.py",
    "mechanisms/choice.py",
    "mechanisms/decoding.py",
    "mechanisms/gaussian.py",
    "mechanisms/invisible_ink.py",
    "mechanisms/private_prediction.py",
    "mechanisms/public_centred.py",
    "mechanisms/report_noisy_max.py",
    "mechanisms/sparse_vector.py",
    "mechanisms/word_histogram.py",
    "releases/calibration.py",
    "releases/choosing.py",
    "releases/labels.py",
    "releases/selection.py",
    "sampling.py",
}
"""Who draws records, who releases tokens, and who looks whether the core is well."""


@cache
def nodes_of(source: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))


def imports_of(source: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_only_sampling_and_mechanisms_reach_the_compiled_core() -> None:
    seen = {str(s.relative_to(PACKAGE)) for s in SOURCES if any("._core" in name for name in imports_of(s))}
    assert seen == MAY_SEE_THE_CORE


def callers_of(call: re.Pattern[str], folder: str) -> set[str]:
    return {
        str(source.relative_to(ROOT))
        for source in sorted((ROOT / folder).rglob("*.py"))
        for node in nodes_of(source)
        if isinstance(node, ast.Call) and call.fullmatch(ast.unparse(node.func))
    }


def test_only_a_reservation_makes_permits() -> None:
    """`pass_on` is in permit.py itself, which cannot make more than it is given."""
    makes = re.compile(r"(.+\.)?Permit")
    assert callers_of(makes, "dpfewshot") == {
        "dpfewshot/account/reservation.py",
        "dpfewshot/account/permit.py",  # a token that was used up, passed on
    }
    assert callers_of(makes, "bench") | callers_of(makes, "examples") == set()
    assert callers_of(re.compile(r".+\.pass_on"), "dpfewshot") == {"dpfewshot/mechanisms/sparse_vector.py"}
    # nobody calls it by another name
    aliases = re.compile(r"(\bas|=)\s*(permit\.)?Permit\b")
    assert not [source.name for source in SOURCES if aliases.search(source.read_text(encoding="utf-8"))]


MAY_HAVE_A_SEED = {
    "evaluation/summaries.py",  # bootstrap samples of scores
    "sample_data.py",  # made-up tickets
}
"""No privacy rests on these: they neither read records nor release anything under a guarantee."""


def test_no_pseudo_random_generator_in_the_package() -> None:
    forbidden = re.compile(r"\b(np|numpy)\.random\b|default_rng|RandomState|\brandom\.seed|\bimport random\b")
    guilty = {str(s.relative_to(PACKAGE)) for s in SOURCES if forbidden.search(s.read_text(encoding="utf-8"))}
    assert guilty == MAY_HAVE_A_SEED
    cores = sorted((PACKAGE.parent / "csrc").glob("*.p[yx]*"))
    assert cores
    assert not [
        c.name for c in cores if re.search(r"\brand\(|drand|srand|mt19937", c.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("package", [dpfewshot, dpfewshot.backends], ids=lambda package: package.__name__)
def test_type_checkers_and_the_table_of_lazy_names_see_the_same_names(package: ModuleType) -> None:
    tree = ast.parse(Path(package.__file__ or "").read_text(encoding="utf-8"))
    block = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)  # else not re-exported
    assert {alias.name: node.module for node in imports for alias in node.names} == vars(package)["_HOMES"]
    assert package.__all__ == list(vars(package)["_HOMES"])
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


def test_importing_the_package_loads_neither_numpy_nor_scipy() -> None:
    code = "import sys, dpfewshot; sys.exit('numpy' in sys.modules or 'scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_error_is_in_the_tree_that_its_docstring_draws() -> None:
    from dpfewshot import errors

    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    there = {
        n for n, o in vars(errors).items() if isinstance(o, type) and issubclass(o, errors.DPFewShotError)
    }
    assert drawn | {"DPFewShotError"} == there


def test_no_path_of_a_machine() -> None:
    for source in SOURCES:
        assert not re.search(r"/(home|root|tmp|work)/", source.read_text(encoding="utf-8")), source


def layers() -> list[list[str]]:
    """The rooms of each layer that setup.cfg declares, from the top."""
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = declared["importlinter:contract:layers"]["layers"].split("\n")
    return [re.findall(r"dpfewshot\.(\w+)", line) for line in lines if line]


def test_every_room_is_in_one_layer() -> None:
    rooms = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert sorted(room for layer in layers() for room in layer) == sorted(rooms - {"__init__", "__main__"})
