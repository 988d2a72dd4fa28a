"""A real vLLM in an environment of its own, which DPFEWSHOT_TEST_VLLM names: `make vllm`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers import free_port, status_of

PYTHON = os.environ.get("DPFEWSHOT_TEST_VLLM")
MISSING = "DPFEWSHOT_TEST_VLLM names no environment with vLLM: run `make vllm`"
NAME = "smollm2"
CONTEXT = 512
ONE_BY_ONE = ("--max-num-seqs", "1", "--no-enable-prefix-caching")
WHOLE = ("--max-logprobs", "-1")
START_SECONDS = 600


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory):
    """The packaged model as a folder in bfloat16; skips, aloud, without vLLM."""
    if PYTHON is None:
        pytest.skip(MISSING)
    from bench.models import unpack
    from dpfewshot.backends import packaged_model_path

    folder = tmp_path_factory.mktemp("vllm") / NAME
    unpack(Path(packaged_model_path()), folder)
    return folder


@contextmanager
def vllm_server(model, *options, **settings):
    """A vLLM that serves a folder; its URL once it answers. `settings` are environment variables."""
    port = free_port()
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(CONTEXT), "--enforce-eager", *options]
    environment = {
        **os.environ,
        # the compiler of its kernels is beside its Python
        "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **settings,
    }
    environment.pop("PYTHONPATH", None)
    log = Path(model).parent / f"{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_for(process, port, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its engine and worker are processes of their own
        process.wait()


def _wait_for(process, port, log):
    end = time.monotonic() + START_SECONDS
    while status_of(port, "/health") != 200:
        ended = process.poll() is not None
        assert not ended, f"vLLM ended: {log.read_text(errors='replace')[-2000:]}"
        assert time.monotonic() < end, f"vLLM did not start in {START_SECONDS} seconds"
        time.sleep(0.5)
