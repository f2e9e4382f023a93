# SPDX-License-Identifier: BSD-2-Clause
"""Sends requests over TCP, and reads their answers. A program of its own, run inside a host of the lab (requests.py
starts it).

    askend.py PROTOCOL receive ADDRESS                               answers
    askend.py PROTOCOL send ADDRESS PORT SOURCE open CONNECTIONS GAP_S
                                              asks on so many connections, GAP_S after the last answer on each
    askend.py PROTOCOL send ADDRESS PORT SOURCE new RATE             asks on RATE new connections per second

PROTOCOL is tcp or mptcp. Both end when stdin closes, and print one JSON object per line. Times are CLOCK_MONOTONIC,
which all hosts of the lab share. Standard library only, so that it starts quickly.
"""

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

_MESSAGE = 200  # bytes of a request, and of its answer
_GOES_ON, _LAST = bytes(_MESSAGE), bytes([1]) * _MESSAGE  # requests; after the last one the other end closes
_SAID_AT_ONCE = 500  # answers in one line
_TICK_S = 0.002
_AFTER_S = 5.0  # how long answers are waited for at the end: TCP sends a lost SYN again after 1 and 3 s
_BACKLOG = 4096


def say(**facts: object) -> None:
    """Prints one line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def stream(address: str, protocol: str) -> socket.socket:
    """Returns a socket of the address's family. Raises OSError if the kernel lacks the protocol."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_MPTCP if protocol == "mptcp" else socket.IPPROTO_TCP)
    s = socket.socket(family, socket.SOCK_STREAM, 0, s.detach())  # without the number, which asyncio does not know
    s.setblocking(False)
    return s


async def message(s: socket.socket) -> bytes:
    """Returns the next message, or less at the end of the connection."""
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < _MESSAGE and (more := await loop.sock_recv(s, _MESSAGE - len(found))):
        found += more
    return found


def until_stdin_closes() -> asyncio.Event:
    """Returns an event that is set when the parent closes stdin."""
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(sys.stdin)
        done.set()

    loop.add_reader(sys.stdin, end)
    return done


class Tasks:
    """Tasks that run beside each other."""

    def __init__(self) -> None:
        self._running = set[asyncio.Task[None]]()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def end(self, within_s: float) -> None:
        """Waits for all tasks, and cancels those that have not ended within that time."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=within_s)
            for task in late:
                task.cancel()


# ---- the end that answers ----


async def receive(protocol: str, address: str) -> None:
    """Prints `port`, then `end`."""
    loop, done, tasks = asyncio.get_running_loop(), until_stdin_closes(), Tasks()

    async def answer(s: socket.socket) -> None:
        with s:
            try:
                while len(request := await message(s)) == _MESSAGE:
                    await loop.sock_sendall(s, request)
                    if request == _LAST:
                        return
            except OSError:
                return

    async def accept(listener: socket.socket) -> None:
        while True:
            s, _ = await loop.sock_accept(listener)
            tasks.begin(answer(s))

    with stream(address, protocol) as listener:
        # MPTCP subflows connect to the host's other addresses, at the same port.
        listener.bind(("" if protocol == "mptcp" else address, 0))
        listener.listen(_BACKLOG)
        say(port=listener.getsockname()[1])
        accepting = asyncio.create_task(accept(listener))
        accepting.add_done_callback(lambda _: done.set())  # an error ends this program before its parent does
        await done.wait()
        accepting.cancel()
    await tasks.end(0.0)
    say(end="closed")


# ---- the end that asks ----


class Asker:
    """Asks, and says how long the answers took."""

    def __init__(self, protocol: str, address: str, port: int, source: str) -> None:
        self._protocol, self._target, self._source = protocol, (address, port), source
        self._took: list[tuple[int, int]] = []
        self.asked = self.answered = self.broken = 0

    async def ask(self, s: socket.socket, request: bytes, asked_ns: int) -> None:
        """Asks on an open connection. Raises OSError if it breaks before the answer."""
        await asyncio.get_running_loop().sock_sendall(s, request)
        if await message(s) != request:
            raise ConnectionResetError
        self.answered += 1
        self._took.append((asked_ns, time.monotonic_ns() - asked_ns))

    def tell(self) -> None:
        """Prints `took`: for each answer the time of its request, and how long it took, both in ns."""
        for at in range(0, len(self._took), _SAID_AT_ONCE):
            say(took=self._took[at : at + _SAID_AT_ONCE])

    async def opened(self) -> socket.socket:
        """Returns a new connection. Raises OSError."""
        s = stream(self._target[0], self._protocol)
        try:
            s.bind((self._source, 0))
            await asyncio.get_running_loop().sock_connect(s, self._target)
        except BaseException:
            s.close()
            raise
        return s

    async def ask_once(self) -> None:
        """Asks on a new connection. The other end closes it first, so that its port is free again here."""
        asked_ns = time.monotonic_ns()
        self.asked += 1
        try:
            s = await self.opened()
        except OSError:
            self.broken += 1
            return
        with s:
            try:
                await self.ask(s, _LAST, asked_ns)
            except OSError:
                self.broken += 1
                return
            with contextlib.suppress(OSError):
                await message(s)

    async def ask_again(self, s: socket.socket, gap_s: float, done: asyncio.Event) -> None:
        """Asks on one connection until `done`."""
        with s:
            try:
                while not done.is_set():
                    self.asked += 1
                    await self.ask(s, _GOES_ON, time.monotonic_ns())
                    await asyncio.sleep(gap_s)
            except OSError:
                self.broken += 1


async def send(protocol: str, address: str, port: int, source: str, how: str, *numbers: float) -> None:
    """Prints `mss_bytes`; at the end `took`, `broken` connections, `unanswered` requests and `end`.

    Not before the end: who reads that may be busy, and a full pipe would stop this program.
    """
    done, tasks, asker = until_stdin_closes(), Tasks(), Asker(protocol, address, port, source)
    (await asker.opened()).close()  # the other end answers
    say(mss_bytes=_MESSAGE)
    if how == "open":
        connections, gap_s = int(numbers[0]), numbers[1]
        for s in [await asker.opened() for _ in range(connections)]:
            tasks.begin(asker.ask_again(s, gap_s, done))
        await done.wait()
    else:
        began, asked = time.monotonic(), 0
        while not done.is_set():
            due = int((time.monotonic() - began) * numbers[0])
            for _ in range(due - asked):
                tasks.begin(asker.ask_once())
            asked = due
            await asyncio.sleep(_TICK_S)
    await tasks.end(_AFTER_S)
    asker.tell()
    say(broken=asker.broken, unanswered=asker.asked - asker.answered - asker.broken, end="sent")


def main() -> None:
    """Runs one end."""
    protocol, role, address, *rest = sys.argv[1:]
    if role == "receive":
        asyncio.run(receive(protocol, address))
    else:
        port, source, how, *numbers = rest
        asyncio.run(send(protocol, address, int(port), source, how, *map(float, numbers)))


if __name__ == "__main__":
    main()
