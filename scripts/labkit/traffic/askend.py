# SPDX-License-Identifier: BSD-2-Clause
"""Sends requests over many TCP connections, one after the other on each, and reads their answers. A program of its own,
run inside a host of the lab (labkit/bench/versions.py starts it).

    askend.py ask receive ADDRESS                               answers
    askend.py ask send ADDRESS PORT SOURCE CONNECTIONS GAP_S    asks, each connection GAP_S after the last answer, until
                                                                its stdin closes

Both print one JSON object per line. Standard library only, so that it starts quickly.
"""

import asyncio
import json
import socket
import sys

_MESSAGE = 100  # bytes of a request, and of its answer


def say(**facts: int | str) -> None:
    """Prints one line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def receive(address: str) -> None:
    """Answers until all connections of the first sender are closed. Prints `port`, then `end`."""
    served, ended = 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        try:
            while True:
                await reader.readexactly(_MESSAGE)
                writer.write(bytes(_MESSAGE))
        except (asyncio.IncompleteReadError, ConnectionError):
            served -= 1
            writer.close()
            if not served:
                ended.set()

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    async with await asyncio.start_server(answer, address, 0, family=family, backlog=4096) as server:
        say(port=server.sockets[0].getsockname()[1])
        await ended.wait()
    say(end="closed")


async def send(address: str, port: int, source: str, connections: int, gap_s: float) -> None:
    """Asks on all connections. Prints `mss_bytes`; at the end `answers`, `broken` connections and `end`."""
    opened = [await asyncio.open_connection(address, port, local_addr=(source, 0)) for _ in range(connections)]
    said: socket.socket = opened[0][1].get_extra_info("socket")
    say(mss_bytes=said.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
    done, answers, broken = asyncio.Event(), 0, 0

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers, broken
        try:
            while not done.is_set():
                writer.write(bytes(_MESSAGE))
                await reader.readexactly(_MESSAGE)
                answers += 1
                await asyncio.sleep(gap_s)
        except (asyncio.IncompleteReadError, OSError):
            broken += 1
        writer.close()

    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, done.set)
    await asyncio.gather(*(ask(*ends) for ends in opened))
    say(answers=answers, broken=broken, end="sent")


def main() -> None:
    """Runs one end."""
    _, role, address, *rest = sys.argv[1:]
    if role == "receive":
        asyncio.run(receive(address))
    else:
        port, source, connections, gap_s = rest
        asyncio.run(send(address, int(port), source, int(connections), float(gap_s)))


if __name__ == "__main__":
    main()
