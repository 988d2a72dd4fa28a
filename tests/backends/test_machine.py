"""Threads within a container's share, and verdicts that hold until anything changes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfewshot.backends import machine
from dpfewshot.backends.machine import digest_of, steering_variables, verdict_on


@pytest.mark.parametrize(
    ("content", "usable"),
    [
        *(("200000 100000\n", 2), ("250000 100000\n", 3), ("50000 100000\n", 1), ("6400000 100000\n", 8)),
        *(("max 100000\n", 8), ("strange\n", 8), (None, 8)),
    ],
)
def test_the_smaller_of_both_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, usable: int
) -> None:
    quota = tmp_path / "cpu.max"
    if content is not None:
        quota.write_text(content)
    monkeypatch.setattr(machine, "QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.usable_processors() == usable


@pytest.mark.parametrize("own", [None, "7"])
def test_threads_of_llama_cpp_sleep_early_unless_the_user_says_otherwise(own: str | None) -> None:
    """libgomp itself says what it has read; the variable is gone afterwards."""
    program = (
        "from dpfewshot.backends.llama_cpp.library import load_library; load_library(); import os; "
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    environment = {name: value for name, value in os.environ.items() if name[:5] not in ("GOMP_", "OMP_W")}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | ({"GOMP_SPINCOUNT": own} if own else {})
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    if "GOMP_SPINCOUNT" not in ran.stderr:
        pytest.skip("this build has no libgomp")
    assert f"GOMP_SPINCOUNT = '{own or machine.SPINS}'" in ran.stderr
    assert ran.stdout.strip() == str(own)


FACTS = {"model": "00", "threads": 2, "weights": None}


def is_found_out(facts):
    """Whether no verdict on these facts is cached; if so, one is from now on."""
    asked = []
    assert verdict_on(facts, bool, lambda: not asked.append(facts)) is True
    return bool(asked)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"verdict": true}', '{"facts": {}, "verdict": true}', b"\xff"]
)
def test_a_damaged_verdict_is_ignored(cache, content):
    assert is_found_out(FACTS)
    assert not is_found_out(FACTS)
    [kept] = cache.iterdir()
    kept.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert is_found_out(FACTS)
    kept.write_text(json.dumps({"facts": FACTS, "verdict": "yes"}))
    assert is_found_out(FACTS)


def test_any_other_fact_is_another_verdict(cache):
    assert is_found_out(FACTS)
    for name, value in (("model", "01"), ("threads", 3), ("weights", "bf16"), ("new", 1)):
        assert is_found_out(FACTS | {name: value})
    assert len(list(cache.iterdir())) == 5
    assert not is_found_out(FACTS)


@pytest.mark.parametrize("cache_home", ["relative", "{}/file"], ids=["no home", "no folder"])
def test_where_no_cache_can_be_written_nothing_is_kept(tmp_path, monkeypatch, cache_home):
    def homeless():
        raise RuntimeError("no home")

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", cache_home.format(tmp_path))
    monkeypatch.setattr("dpfewshot.backends.machine.Path.home", homeless)
    assert is_found_out(FACTS)
    assert is_found_out(FACTS)


def test_a_digest_tells_files_apart(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"ab")
    two.write_bytes(b"c")
    assert digest_of(one, two) != digest_of(two, one)
    one.write_bytes(b"a")
    two.write_bytes(b"bc")
    assert len({digest_of(one, two), digest_of(one), digest_of()}) == 3
    assert digest_of(one) == hashlib.sha256(b"a").hexdigest()  # as sha256sum prints it
    monkeypatch.setenv("GGML_SOMETHING", "7")
    assert "GGML_SOMETHING=7" in steering_variables()


@pytest.mark.usefixtures("cache")
def test_the_digest_of_a_large_file_is_computed_once_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfewshot.backends.machine._LARGE", 1)
    file, read = tmp_path / "one", []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: read.append(given) or digest(*given))
    for content in (b"ab", b"ba"):  # of one size
        file.write_bytes(content)
        assert [digest_of(file), digest_of(file)] == [hashlib.sha256(content).hexdigest()] * 2
    assert len(read) == 2
