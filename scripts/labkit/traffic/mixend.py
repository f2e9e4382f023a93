# SPDX-License-Identifier: BSD-2-Clause
"""Sends bulk data over one TCP connection, and requests with answers over others meanwhile. A program of its own, run
inside a host of the lab (labkit/kernels/shaped.py starts it).

    mixend.py ALGORITHM receive ADDRESS     discards the bulk data, answers the requests
    mixend.py ALGORITHM send ADDRESS PORT SOURCE BYTES RATE PRIORITY

ALGORITHM is the congestion control of the bulk data, RATE its SO_MAX_PACING_RATE in bytes per second (0 = none), and
PRIORITY the SO_PRIORITY of the requests. Both print one JSON object per line. Standard library only, so that it starts
quickly.
"""

import contextlib
import json
import socket
import struct
import sys
import threading

ASKERS = 2  # connections with requests
_MESSAGE = 100  # bytes of a request, and of its answer
_WRITE, _READ = 1 << 17, 1 << 20
_SO_MAX_PACING_RATE = 47  # asm-generic/socket.h
# struct tcp_info (linux/tcp.h): tcpi_snd_mss, tcpi_total_retrans; offsets in bytes.
_MSS, _RETRANS, _INFO_SIZE = 16, 100, 104


def say(**facts: int | str) -> None:
    """Prints one line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _connection(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)


def receive(address: str) -> None:
    """Serves one sender. Prints `port`, and `end` when it has closed its connections."""
    with _connection(address) as listener:
        listener.bind((address, 0))
        listener.listen(1 + ASKERS)
        say(port=listener.getsockname()[1])
        bulk = listener.accept()[0]  # the sender connects it first
        askers = [listener.accept()[0] for _ in range(ASKERS)]
    threads = [threading.Thread(target=_answer, args=(s,)) for s in askers]
    for t in threads:
        t.start()
    with bulk:
        buffer = bytearray(_READ)
        while bulk.recv_into(buffer):
            pass
    for t in threads:
        t.join()
    say(end="closed")


def _answer(s: socket.socket) -> None:
    with s, contextlib.suppress(ConnectionResetError):
        while s.recv(_MESSAGE, socket.MSG_WAITALL):
            s.sendall(bytes(_MESSAGE))


def send(algorithm: str, address: str, port: int, source: str, length: int, rate: int, priority: int) -> None:
    """Sends `length` bytes. Prints `mss_bytes`; at the end `retransmitted_segments`, `answers` and `end`."""
    bulk, *askers = (_connection(address) for _ in range(1 + ASKERS))
    bulk.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
    if rate:
        bulk.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
    for s in askers:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
    for s in (bulk, *askers):
        s.bind((source, 0))
        s.connect((address, port))
    say(mss_bytes=_tcp_info(bulk, _MSS))
    done, answers = threading.Event(), [0] * ASKERS

    def ask(n: int) -> None:
        while not done.is_set():
            askers[n].sendall(bytes(_MESSAGE))
            answers[n] += bool(askers[n].recv(_MESSAGE, socket.MSG_WAITALL))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(ASKERS)]
    for t in threads:
        t.start()
    block = bytes(_WRITE)
    for _ in range(length // _WRITE):
        bulk.sendall(block)
    bulk.shutdown(socket.SHUT_WR)
    bulk.recv(1)  # the receiver closes after it has read all
    done.set()
    for t in threads:
        t.join()
    say(retransmitted_segments=_tcp_info(bulk, _RETRANS), answers=sum(answers), end="sent")


def _tcp_info(s: socket.socket, offset: int) -> int:
    value: int = struct.unpack_from("I", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE), offset)[0]
    return value


def main() -> None:
    """Runs one end."""
    algorithm, role, address, *rest = sys.argv[1:]
    if role == "receive":
        receive(address)
    else:
        port, source, length, rate, priority = rest
        send(algorithm, address, int(port), source, int(length), int(rate), int(priority))


if __name__ == "__main__":
    main()
