# SPDX-License-Identifier: BSD-2-Clause
"""Requests documents from the daemon's HTTP API over its unix socket."""

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mrcd import lock_file
from mrcd.clock import SYSTEM, Clock
from mrcd.errors import DaemonError, UsageError

# A JSON document. The module that renders it knows its keys.
Json = Any

_START = "start it with `systemctl start mrcd`, or `mrcd --config FILE`"
ANSWER_S = 5.0
LOAD_S = 30.0  # the kernel verifies all programs anew, on a busy CPU
_RESTORED_S = 1.5  # a lost socket is there again after this time
_POLL_S = 0.05
_OTHER_VERSION = "mrcctl and mrcd may have different versions: see `mrcctl version`"


class DaemonDown(DaemonError):
    """Nothing answers on mrcd's socket, or the connection broke.

    `pid` is None if mrcd is not running. A pid holds the lock of the run directory: that mrcd starts, stops, or has
    lost its socket. It is 0 if it is unknown.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, pid: int | None = None, brief: str = "mrcd is not running"
    ) -> None:
        super().__init__(message, hint=hint)
        self.pid = pid
        self.brief = brief
        """The message without the socket."""

    def because(self, more: str) -> "DaemonDown":
        """Return the same error with more words: why nothing else answers either."""
        return DaemonDown(f"{self.brief}, {more}", hint=self.hint, pid=self.pid, brief=self.brief)


class Client:
    """Sends requests to the mrcd whose socket is in `run_dir`; one connection per request.

    `timeout` is in seconds; without it a request waits as long as it usually needs.
    """

    def __init__(self, run_dir: Path, timeout: float | None = None, clock: Clock = SYSTEM) -> None:
        self._run_dir = run_dir
        self.socket_path = run_dir / "mrcd.sock"
        self._timeout = timeout
        self.clock = clock

    def get(self, path: str, *, wait: float | None = None, **query: object) -> Json:
        """Return the document of a GET. Queries that are None are left out.

        `wait` is the number of seconds that the daemon may wait for an event before it answers.

        Raises DaemonDown, DaemonError, or UsageError if the daemon says so.
        """
        given = {k: v for k, v in {**query, "wait": wait}.items() if v is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        return self._request("GET", target, "", (self._timeout or ANSWER_S) + (wait or 0))

    def post(self, path: str, body: Json, usual_s: float = ANSWER_S) -> Json:
        """Return the answer to a POST of a JSON document. Raises as `get` does."""
        return self._request("POST", path, json.dumps(body), self._timeout or usual_s)

    def _request(self, method: str, target: str, body: str, timeout: float) -> Json:
        """Return the document of an answer. HTTP by hand, because the import of http.client takes a third of a start.

        After a request of HTTP/1.0 the daemon closes the connection, and sends no chunks.
        """
        content = body.encode()
        head = f"{method} {target} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout)
                self._connect(connection, timeout)
                connection.sendall(head.encode() + content)
                with connection.makefile("rb") as file:
                    answer = file.read()
        except TimeoutError:
            raise DaemonError(
                f"mrcd did not answer within {timeout:g} s",
                hint="wait longer with --timeout SECONDS, or look at `journalctl -u mrcd`",
            ) from None
        except PermissionError:
            raise DaemonError(
                f"{self.socket_path}: permission denied", hint="run mrcctl as root or as a member of the group mrcd"
            ) from None
        except ConnectionError as e:  # refused: a socket file without a daemon; reset: the daemon has just died
            raise self._down(f"{self.socket_path}: {e.strerror or e}") from None
        except FileNotFoundError:
            raise self._down(f"no socket {self.socket_path}") from None
        except OSError as e:
            raise self._not_mrcd(e.strerror or str(e)) from None
        return self._decode(answer)

    def _decode(self, answer: bytes) -> Json:
        """Return the document of an answer, or raise the error that it reports."""
        head, _, content = answer.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.\d (\d{3}) ?([^\r]*)", head)
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        if not answer or (length and len(content) < int(length[1])):
            raise self._down(f"{self.socket_path}: the answer ends early")
        if status is None:
            raise self._not_mrcd("not an HTTP answer")
        code = int(status[1])
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if code < 400 and document is not None:
            return document
        if code >= 400 and isinstance(document, dict) and "error" in document:
            kind = UsageError if document.get("exit_code") == 1 else DaemonError
            raise kind(str(document["error"]), hint=document.get("hint"))
        raise DaemonError(f"mrcd answered {code} {status[2].decode()} without a JSON document", hint=_OTHER_VERSION)

    def _not_mrcd(self, why: str) -> DaemonError:
        return DaemonError(f"{self.socket_path}: {why}", hint="is this mrcd's socket? see --run-dir")

    def _connect(self, connection: socket.socket, timeout: float) -> None:
        """Connect. Wait for the socket of a running mrcd, which restores a lost one within a second."""
        until = self.clock.monotonic_ns() + min(timeout, _RESTORED_S) * 1e9
        while True:
            try:
                return connection.connect(str(self.socket_path))
            except (FileNotFoundError, ConnectionRefusedError):
                if self.clock.monotonic_ns() >= until or lock_file.holder(self._run_dir) is None:
                    raise
            self.clock.sleep(_POLL_S)

    def _down(self, why: str) -> DaemonDown:
        pid = lock_file.holder(self._run_dir)
        if pid is not None:
            who = f"mrcd (pid {pid or 'unknown'})"
            hint = "it starts or stops, or hangs: `journalctl -u mrcd`"
            return DaemonDown(
                f"{who} runs, but does not answer ({why})", hint=hint, pid=pid, brief=f"{who} does not answer"
            )
        if not self._run_dir.is_dir():
            what = f"mrcd is not running, or {self._run_dir} was removed"
            hint = f"{_START}; `systemctl restart mrcd` makes the directory again"
            return DaemonDown(what, hint=hint, brief=what)
        return DaemonDown(f"mrcd is not running ({why})", hint=_START)


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Turn errors about missing or wrong keys into DaemonError: the daemon may have another version."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as e:
        message = f"this mrcctl does not understand mrcd's status: {type(e).__name__}: {e}"
        raise DaemonError(message, hint=_OTHER_VERSION) from None


_HOLD_S = 10.0  # the daemon may wait so long for an event before it answers
_RETRY_S = 0.5  # between two tries to reach a daemon that is down


def batches_of_events(client: Client, say: Callable[[str], None]) -> Iterator[list[Json]]:
    """Yield the events that the daemon remembers, then new events in batches, without an end.

    A restarted daemon may number its events from the start again. Events seen before are then recognised by their
    time, CLOCK_MONOTONIC of this machine. Raises DaemonDown if the daemon is down at the first request.
    """
    after, newest_ns, seen_ns = 0, -1, -1
    started = down = False
    while True:
        try:
            batch = client.get("/v1/events", after=after, wait=_HOLD_S)
        except DaemonDown as e:
            if not started:
                raise
            if not down:
                say(f"{e.args[0]}; waiting for it")
            down, after, seen_ns = True, 0, newest_ns
            client.clock.sleep(_RETRY_S)
            continue
        started, down = True, False
        if batch["last_id"] < after:  # restarted between two requests
            after, seen_ns = 0, newest_ns
            continue
        after = max((e["id"] for e in batch["events"]), default=after)
        fresh = [e for e in batch["events"] if e["monotonic_ns"] > seen_ns]
        if fresh:
            newest_ns = max(e["monotonic_ns"] for e in fresh)
            yield fresh
