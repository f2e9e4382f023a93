# SPDX-License-Identifier: BSD-2-Clause
"""Stands in for Prometheus: an HTTP server whose answers a test makes."""

import http.server
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """Answers a request's form by `answer`: (status, body), and other headers. Keeps what was asked."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], tuple[int, str, dict[str, Any]]]) -> None:
        self.answer = answer
        self.requests: list[tuple[str, str, str | None]] = []  # path, form, Authorization
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        """Returns its URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        """Ends it."""
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.path, form, self.headers["Authorization"]))
        status, body, headers = self.server.answer(form)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def vector(samples: Iterable[tuple[dict[str, str], float]]) -> str:
    """Returns the answer to a query with these samples."""
    result = [{"metric": labels, "value": [1, str(value)]} for labels, value in samples]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
