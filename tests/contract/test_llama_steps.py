"""Batched steps are tried on the loaded model; if they change bits, prompts go one by one, with a warning."""

import hashlib
import json
import warnings

import numpy as np
import pytest

from tests.support import inside

pytest.importorskip("llama_cpp", exc_type=ImportError)

from dpfewshot.backends import LlamaCpp, conformance, packaged_model_path
from dpfewshot.backends.llama_cpp.streams import KVStreams
from dpfewshot.backends.machine import digest_of, keep_verdict, kept_verdict, steering_variables
from dpfewshot.cli.application import run

SETTINGS = {"context_tokens": 128, "kept_prompts": 7, "decode_batch": 8, "threads": 1, "weights": "file"}
STEP = KVStreams.step


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dpfewshot" / "verdicts"


@pytest.fixture
def trials(monkeypatch):
    """How often steps were tried."""
    seen = []
    check = conformance.check_block_invariance
    monkeypatch.setattr(
        conformance,
        "check_block_invariance",
        lambda *given, **named: seen.append(1) or check(*given, **named),
    )
    return seen


def by_company(_first, positions, active):
    return [sum(positions) % 2 == 1] * active


def by_seat(_first, _positions, active):
    return [seat % 2 == 1 for seat in range(active)]


def by_group(first, _positions, active):
    return [(first // 8) % 2 == 1] * active


def by_size(_first, _positions, active):
    return [active > 6] * active


def off_by_one_unit(moved):
    """A step whose logits are one unit in the last place higher where `moved` says so."""

    def step(self, first, tokens, positions, active):
        logits = [row.copy() for row in STEP(self, first, tokens, positions, active)]
        for row, is_moved in zip(logits, moved(first, positions, active), strict=True):
            row[:] = np.nextafter(row, np.float32(np.inf)) if is_moved and len(tokens) > 1 else row
        return logits

    return step


pytestmark = pytest.mark.model


@pytest.mark.parametrize("moved", [by_company, by_seat, by_group, by_size])
def test_a_kernel_that_heeds_its_neighbours_is_found_and_done_without(cache, monkeypatch, moved):
    monkeypatch.setattr(KVStreams, "step", off_by_one_unit(moved))
    with pytest.warns(RuntimeWarning, match="one by one"):
        loaded = LlamaCpp(packaged_model_path(), **SETTINGS)
    with loaded:
        assert loaded.batch_invariant
        assert inside.decode_batch(loaded) == 1
        assert "one by one" in loaded.describe()
        assert (loaded.tokens_evaluated, loaded.dummy_tokens_evaluated) == (0, 0)
        prefix, suffixes, released = conformance.sample_prompts(loaded)
        found = conformance.check_block_invariance(loaded, prefix, suffixes[:3], released[:1])
        assert found.passed, found.detail
    [kept] = cache.iterdir()
    assert json.loads(kept.read_text())["verdict"] is False
    with pytest.warns(RuntimeWarning, match="one by one"):
        LlamaCpp(packaged_model_path(), **SETTINGS).close()


def test_what_was_found_is_kept_for_this_file_build_and_settings(cache, trials, tmp_path, monkeypatch):
    with LlamaCpp(packaged_model_path(), **SETTINGS) as loaded:
        assert inside.decode_batch(loaded) == 8
        assert inside.open_pools(loaded) == 0, "the memory is given back"
    assert len(trials) == 1
    LlamaCpp(packaged_model_path(), **SETTINGS).close()
    assert len(trials) == 1
    copy = tmp_path / "model.gguf"
    copy.symlink_to(packaged_model_path())
    LlamaCpp(copy, **SETTINGS).close()
    assert len(trials) == 1, "it is the content that counts"
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    LlamaCpp(packaged_model_path(), **SETTINGS).close()
    assert len(trials) == 2
    assert len(list(cache.iterdir())) == 2
    assert {path.stat().st_mode & 0o077 for path in (cache, *cache.iterdir())} == {0}


def test_one_by_one_needs_no_trial(cache, trials):
    with LlamaCpp(packaged_model_path(), **(SETTINGS | {"decode_batch": 1})) as loaded:
        assert loaded.batch_invariant
    assert not trials
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, trials, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        LlamaCpp(packaged_model_path(), **SETTINGS).close()
    assert len(trials) == 2


FACTS = {"model": "00", "threads": 2, "weights": None}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"verdict": true}', '{"facts": {}, "verdict": true}', b"\xff"]
)
def test_a_damaged_verdict_is_ignored(cache, content):
    assert kept_verdict(FACTS, bool) is None
    keep_verdict(FACTS, True)
    assert kept_verdict(FACTS, bool) is True
    [kept] = cache.iterdir()
    kept.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert kept_verdict(FACTS, bool) is None
    kept.write_text(json.dumps({"facts": FACTS, "verdict": "yes"}))
    assert kept_verdict(FACTS, bool) is None


def test_any_other_fact_is_another_verdict(cache):
    keep_verdict(FACTS, True)
    for name, value in (("model", "01"), ("threads", 3), ("weights", "bf16"), ("new", 1)):
        assert kept_verdict(FACTS | {name: value}, bool) is None
    assert len(list(cache.iterdir())) == 1


def test_without_a_home_nothing_is_kept(monkeypatch):
    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr("dpfewshot.backends.machine.Path.home", homeless)
    keep_verdict(FACTS, True)
    assert kept_verdict(FACTS, bool) is None


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


@pytest.mark.usefixtures("cache")
def test_the_doctor_reports_that_prompts_go_one_by_one(monkeypatch, capsys):
    monkeypatch.setattr(KVStreams, "step", off_by_one_unit(by_seat))
    monkeypatch.setattr(conformance, "examine", lambda _: [])
    options = "--context-tokens 128 --kept-prompts 7 --decode-batch 8 --threads 1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(["doctor", *options.split()]) == 0
    assert "one by one" in capsys.readouterr().out
