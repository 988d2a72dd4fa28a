"""A llama-server in a process of its own, for bench/backends.py: `python -m bench.backends_server MODEL SLOTS THREADS`.

Prints its address, and serves until its standard input is closed.
"""

from __future__ import annotations

import sys


def main(model: str, slots: int, threads: int) -> None:
    """Serves, with 512 tokens of context a slot and llama-server's defaults otherwise."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = 512 * slots
    parameters.n_parallel = slots
    parameters.kv_unified = slots > 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.n_gpu_layers = 0
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)
    print(f"address {server.listening_address}", flush=True)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
