# SPDX-License-Identifier: BSD-2-Clause
"""Controls a headless chromium by the DevTools protocol, over a pair of pipes (--remote-debugging-pipe)."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from mrcd.errors import MachineError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--no-default-browser-check", "--remote-debugging-pipe"),
)
_ANSWER_S = 30.0
_POLL_S = 0.05

Start = Callable[..., "subprocess.Popen[Any]"]


def find_browser() -> str | None:
    """Returns the command of an installed browser; None without any."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One tab of a browser. `start` is called like subprocess.Popen, such as a lab's, for another network namespace.

    `faults` are errors that the page has logged, its unhandled exceptions, and requests that its policy has refused.
    """

    def __init__(self, start: Start = subprocess.Popen) -> None:
        self._start = start
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self.faults: list[str] = []

    def __enter__(self) -> "Browser":
        program = find_browser()
        if program is None:
            raise MachineError("no chromium is installed", hint="apt-get install chromium")
        self._cleanup = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            commands, self._out = os.pipe()
            self._in, answers = os.pipe()
            for fd in (commands, answers, self._out, self._in):
                stack.callback(os.close, fd)
            # chromium reads commands from descriptor 3 and answers on 4: the copies must have other numbers.
            child_in, child_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (commands, answers))
            script = f'exec "$@" 3<&{child_in} 4>&{child_out} {child_in}<&- {child_out}>&-'
            argv = ["bash", "-c", script, "bash", program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
            try:
                self._process = self._start(
                    argv, pass_fds=(child_in, child_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(child_in)
                os.close(child_out)
            stack.callback(self._end)
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._cleanup.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    # ---- the protocol ----

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol, and returns its result. Raises MachineError."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_S
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") != number:
                self._note(answer)
            elif "error" in answer:
                raise MachineError(f"the browser refuses {method}: {answer['error'].get('message')}")
            else:
                found: dict[str, Any] = answer["result"]
                return found

    def _read(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise MachineError(f"the browser does not answer {what}")
            self._unread += chunk
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.faults.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.faults.append(" ".join(str(a.get("value", a.get("description"))) for a in about["args"]))

    # ---- the tab ----

    def resize(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Sets the size of the window in CSS pixels, and the colours that the reader prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str, headers: dict[str, str] | None = None) -> None:
        """Opens a page, and waits until it is loaded; `headers` are added to all its requests."""
        self.call("Network.setExtraHTTPHeaders", headers=headers or {})
        self.call("Page.navigate", url=url)
        self.wait_until("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression. Raises MachineError if it throws."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise MachineError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_until(self, expression: str, timeout_s: float = 20.0) -> Any:
        """Polls until a JavaScript expression is true, and returns it. Raises MachineError."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise MachineError(
                    f"not within {timeout_s:g} s in the browser: {expression}", hint="; ".join(self.faults)
                )
            select.select([], [], [], _POLL_S)
        return found

    def screenshot(self) -> bytes:
        """Returns a PNG of the whole page, also of what is below the window."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(found["data"])


def texts(selector: str) -> str:
    """Returns an expression: the texts of all elements that a selector matches."""
    return f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)"
