"""Real llama.cpp servers on free ports, and a proxy that injects faults in front of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LLAMA_SERVER = """
import sys, threading, xllamacpp
parameters = xllamacpp.CommonParams()
model = parameters.model
model.path = sys.argv[1]
parameters.model = model
parameters.hostnames, parameters.port = ["127.0.0.1"], int(sys.argv[2])
parameters.n_parallel, parameters.n_ctx, parameters.n_gpu_layers = int(sys.argv[3]), 256 * int(sys.argv[3]), 0
parameters.cache_prompt, parameters.cache_ram_mib = True, 0
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
parameters.verbosity = -1
server = xllamacpp.Server(parameters)
threading.Event().wait()
"""
"""What `llama-server --model FILE --parallel N` does, from the prebuilt wheel.

Its prompt cache is on, as it is unless it is told otherwise: each request must keep its prompt out of it."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(arguments, port, page):
    """A server as a process, ready when it answers a page."""
    # Threads that spin at barriers take the cores from the tests.
    environment = {**os.environ, "GOMP_SPINCOUNT": "2000"}
    process = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            assert process.poll() is None, "the server ended"
            if status_of(port, page) == 200:
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def llama_server(model, slots=1):
    port = free_port()
    return running([sys.executable, "-c", LLAMA_SERVER, str(model), str(port), str(slots)], port, "/health")


def status_of(port, page):
    try:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", page)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


class Answers(BaseHTTPRequestHandler):
    """Answers with what `server.answer(path, body)` returns.

    That is a status, headers, and JSON or bytes; or None to hang up.
    """

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and content in one packet: the client would wait for the second

    def do_GET(self):
        self.write_answer(None)

    do_HEAD = do_GET  # noqa: N815 - as the library calls it

    def do_POST(self):
        self.write_answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def write_answer(self, body):
        self.server.keys.append(self.headers["authorization"])
        self.server.headers.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        found = self.server.answer(self.path, body)
        if found is None:
            self.close_connection = True
            return
        status, headers, content = found
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        usual = {"content-type": "application/json", "content-length": len(data)}
        for name, value in {**usual, **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data)
        if int(headers.get("content-length", len(data))) != len(data):
            self.close_connection = True

    def log_message(self, *_):
        pass


class Quiet(ThreadingHTTPServer):
    """Says nothing of clients that hang up."""

    def handle_error(self, *_):
        pass


@contextmanager
def scripted(answer):
    """A server whose answers a function gives; its attribute `answer` may be exchanged while it runs."""
    server = Quiet(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.answer, server.keys, server.headers = answer, [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def forward(base_url):
    """The answer function of a proxy in front of a server."""
    host = base_url.removeprefix("http://").removesuffix("/v1")

    def answer(path, body):
        connection = HTTPConnection(host, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(
                "GET" if body is None else "POST", path, data, {"content-type": "application/json"}
            )
            found = connection.getresponse()
            return found.status, {}, found.read()
        finally:
            connection.close()

    return answer
