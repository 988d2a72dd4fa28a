"""A server in the form of OpenAI's old completions, for the LlamaIndex pack, in front of a llama-server.

llama-server answers `/v1/completions` with log-probabilities in the form of chats, in which the pack finds none.
"""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Legacy(ThreadingHTTPServer):
    """Serves on a free port of this machine until it is closed.

    Args:
        address: host and port of the llama-server.

    Attributes:
        evaluated: tokens that the model evaluated.
    """

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = address
        self.evaluated = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """For clients."""
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        """Stops serving."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Legacy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        connection = HTTPConnection(self.server.behind, timeout=300)
        body = {"prompt": asked["prompt"], "n_predict": 1, "n_probs": asked.get("logprobs") or 1}
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        self.server.evaluated += answer["timings"]["prompt_n"]
        self._reply(completion(answer, asked["model"]))

    def _reply(self, what: dict[str, Any]) -> None:
        content = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing: a request holds a prompt."""


def completion(answer: dict[str, Any], model: str) -> dict[str, Any]:
    """llama-server's answer as OpenAI's text completion."""
    positions = answer.get("completion_probabilities", [])  # none if the token ends the text
    return {
        "id": "completion",
        "object": "text_completion",
        "created": 0,
        "model": model,
        "choices": [
            {
                "index": 0,
                "text": answer["content"],
                "finish_reason": "length",
                "logprobs": {
                    "tokens": [one["token"] for one in positions],
                    "token_logprobs": [one["logprob"] for one in positions],
                    "top_logprobs": [
                        {top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in positions
                    ],
                    "text_offset": [],
                },
            }
        ],
        "usage": {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1},
    }
