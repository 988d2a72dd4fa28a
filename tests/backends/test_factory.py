"""Backends by entry point and by `package.module:factory`: errors say in one sentence what is wrong."""

import sys
from pathlib import Path

import pytest

from dpfewshot.backends import Scripted, backend_from
from dpfewshot.backends.factory import registered_names
from dpfewshot.errors import BackendError, MissingExtra

SECRET = "swordfish"

MODULE = f"""
from dpfewshot.backends import Scripted
from dpfewshot.errors import MissingExtra

def make():
    return Scripted(["a", "b"], lambda _: [0.5, 0.5])

class Own(Scripted):
    def __init__(self):
        super().__init__(["a", "b"], lambda _: [0.5, 0.5])

def fail():
    raise RuntimeError("{SECRET}")

def lack():
    raise MissingExtra("this", "that")

class Half:
    vocabulary_size = 2
    def tokenize(self, text):
        return []

NUMBER = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in the working folder, which is on no path."""
    (tmp_path / "factories.py").write_text(MODULE)
    (tmp_path / "needy.py").write_text("import no_such_dependency\n")
    (tmp_path / "broken.py").write_text(f"raise ValueError('{SECRET}')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in ("factories", "needy", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def install(folder: Path, distribution: str, entries: str) -> None:
    """Put a distribution's metadata into a folder of `sys.path`, as pip does."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dpfewshot.backends]\n{entries}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed distributions; the module lies beside their metadata."""
    folder = tmp_path / "site"
    install(
        folder, "their-backends", "theirs = factories:make\nfailing = factories:fail\nlost = nowhere:make"
    )
    sys.path += [str(folder), str(tmp_path)]
    return folder


@pytest.mark.usefixtures("site")
def test_a_function_or_a_class_of_the_working_folder_and_an_installed_backend() -> None:
    for target in ("factories:make", "factories:Own", "theirs"):
        assert isinstance(backend_from(target), Scripted)
    assert registered_names() == ["failing", "lost", "theirs"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            "factories",
            "unknown backend 'factories'; choose an installed one (failing, lost, theirs), or write p",
        ),
        ("failing", "failing raised RuntimeError"),
        ("lost", "no module 'nowhere'"),
        (":make", "write a factory as package.module:factory, not ':make'"),
        ("factories:", "write a factory as package.module:factory, not 'factories:'"),
        ("nowhere:make", "no module 'nowhere'"),
        ("factories.inner:make", "no module 'factories.inner'"),
        ("needy:make", "'needy' needs 'no_such_dependency'"),
        ("broken:make", "importing module 'broken' raised ValueError"),
        ("factories:nothing", "has no 'nothing'"),
        ("factories:NUMBER", "'NUMBER' of module 'factories' is not callable"),
        ("factories:fail", "factories:fail raised RuntimeError"),
        ("factories:Half", "Half, which is not a LogprobBackend: pass one, such as dpfewshot.backends.Llama"),
    ],
)
def test_the_error_says_what_is_wrong(target: str, says: str) -> None:
    with pytest.raises(BackendError) as raised:
        backend_from(target)
    assert says in str(raised.value)
    assert SECRET not in str(raised.value)


def test_an_error_that_speaks_for_itself_is_left_alone() -> None:
    with pytest.raises(MissingExtra, match="this needs"):
        backend_from("factories:lack")


def test_a_name_that_two_packages_register_is_refused(site: Path) -> None:
    """Private records must not go to whichever package is found first."""
    install(site, "other-backends", "theirs = elsewhere:make")
    with pytest.raises(
        BackendError, match="register a backend 'theirs'; choose elsewhere:make or factories:make"
    ):
        backend_from("theirs")
    install(site, "copied-backends", "failing = factories:fail")  # the same factory is no contradiction
    with pytest.raises(BackendError, match="failing raised RuntimeError"):
        backend_from("failing")
