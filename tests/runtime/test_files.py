"""Files that are written whole: the new content or the old file."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.runtime.files import write_errors, write_whole


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_created_and_replaced(tmp_path):
    path = tmp_path / "file"
    for text in ("first\r\nline", "ε", ""):
        write_whole(path, text)
        assert path.read_bytes() == text.encode()
    write_whole(str(path), "by name")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "by name")]


@pytest.mark.usefixtures("umask")
def test_permissions_are_those_of_the_old_file_or_of_the_umask(tmp_path):
    write_whole(tmp_path / "new", "text")
    assert mode_of(tmp_path / "new") == 0o640
    write_whole(tmp_path / "own", "text", mode=0o600)
    assert mode_of(tmp_path / "own") == 0o600
    for mode in (0o600, 0o664):
        (tmp_path / "new").chmod(mode)
        write_whole(tmp_path / "new", "more")
        assert mode_of(tmp_path / "new") == mode


def failing(number):
    def fail(*_args, **_named):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("step", "there"),
    [
        *((step, True) for step in ("open", "fchmod", "fsync", "replace")),
        *((step, False) for step in ("open", "fsync", "replace")),
    ],
)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step, there):
    path = tmp_path / "file"
    if there:
        path.write_text("old")
    with monkeypatch.context() as patched:
        owner, name = (Path, "replace") if step == "replace" else (os, step)
        patched.setattr(owner, name, failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left on device") as caught:
            write_whole(path, "new")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
        expected = rf"^cannot write {path}: No space left on device$"
        with pytest.raises(dpf.DPFewShotError, match=expected), write_errors(path):
            write_whole(path, "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"] * there


def test_an_interrupt_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted(_file):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_the_content_is_on_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    path, steps = tmp_path / "file", []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda file: (steps.append(("fsync", os.fstat(file).st_size)), fsync(file))
    )
    monkeypatch.setattr(Path, "replace", lambda old, new: (steps.append(("replace", new)), replace(old, new)))
    write_whole(path, "four")
    assert steps == [("fsync", 4), ("replace", path)]


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    link.unlink()
    link.symlink_to(tmp_path / "folder" / "to come")
    write_whole(link, "new")
    assert (tmp_path / "folder" / "to come").read_text() == "new"


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join(10)
    assert found == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_cannot_be_written_is_named(tmp_path):
    for path in (tmp_path / "no folder" / "file", tmp_path):
        with pytest.raises(OSError, match=str(path)) as caught:
            write_whole(path, "text")
        assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_no_unicode_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "\ud800")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
