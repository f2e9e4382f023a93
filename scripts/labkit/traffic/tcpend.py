# SPDX-License-Identifier: BSD-2-Clause
"""Sends or receives one TCP flow. A program of its own, run inside a host of the lab (flow.py starts it).

    tcpend.py PROTOCOL receive ADDRESS BIN_NS       discards the data, and prints the bytes per bin
    tcpend.py PROTOCOL send ADDRESS PORT SOURCE RATE [ALGORITHM]
                                                    sends RATE bytes per second, or as fast as TCP accepts (0), until
                                                    its stdin closes; ALGORITHM is its congestion control

PROTOCOL is tcp or mptcp. Both print one JSON object per line, times being CLOCK_MONOTONIC, which all hosts
of the lab share.
Standard library only, so that it starts quickly.

MPTCP (Linux 6.18) pauses for 200 ms at a time, or for seconds, without a fault, where the receiver's CPU is the
limit. This program does what helps from outside:
- Subflows join by the listener, which stays open as long as the connection.
- If the sender's buffer holds more than the receiver's window, the receiver drops the excess
  (MPTcpExtNoDSSInWindow) after TCP has acknowledged it, and gets it again slowly, at every timeout. So the sender's
  buffer is small, and the receiver's has its full size from the beginning.
- No ACK reports data that waited for the reader (DATA_ACK), and a sender with a full buffer waits for a timer. So
  the receiver answers with a byte every 10 ms, whose packet has that ACK.
"""

import contextlib
import json
import select
import signal
import socket
import struct
import sys
import threading
import time

# The largest useful read; the kernel returns what there is. Writes have the size of iperf3's.
READ = 1 << 20
WRITE = 1 << 17
SAMPLE_S = 0.1
# struct tcp_info (linux/tcp.h): tcpi_snd_mss, tcpi_total_retrans; offsets in bytes.
_MSS, _RETRANS, _INFO_SIZE = 16, 100, 104
# linux/mptcp.h: getsockopt(SOL_MPTCP, MPTCP_INFO), and the offset of mptcpi_subflows_total (Linux 6.5).
_SOL_MPTCP, _MPTCP_INFO, _SUBFLOWS = 284, 1, 80
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h: also beyond net.core.wmem_max, rmem_max
_SO_MAX_PACING_RATE = 47
# Bytes; the kernel doubles them. All subflows share the sender's buffer.
MPTCP_SEND, MPTCP_RECEIVE = 1 << 20, 16 << 20
MPTCP_ANSWER_S = 0.01


def say(**facts: int | str) -> None:
    """Prints one line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def stream(address: str, protocol: str) -> socket.socket:
    """Returns a socket of the address's family. Raises OSError if the kernel lacks the protocol."""
    number = socket.IPPROTO_MPTCP if protocol == "mptcp" else socket.IPPROTO_TCP
    return socket.socket(family(address), socket.SOCK_STREAM, number)


def family(address: str) -> socket.AddressFamily:
    """Returns the address family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def receive(protocol: str, address: str, bin_ns: int) -> None:
    """Accepts one connection. Prints `port`; then `bin_ns` (its start) and `bytes` per non-empty bin; then `end`.

    The data is copied to this program, as to any application, and then discarded.
    """
    with stream(address, protocol) as listener:
        if protocol == "mptcp":
            listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, MPTCP_RECEIVE)
        # MPTCP subflows connect to the host's other addresses, at the same port.
        listener.bind(("" if protocol == "mptcp" else address, 0))
        listener.listen(1)
        say(port=listener.getsockname()[1])
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            return  # the parent has ended
        connection, _ = listener.accept()
        with connection:
            if protocol == "mptcp":
                threading.Thread(target=_answer, args=(connection,), daemon=True).start()
            _read(connection, bin_ns)
    say(end="closed")


def _read(connection: socket.socket, bin_ns: int) -> None:
    """Reads until the sender has closed."""
    buffer = bytearray(READ)
    current = filled = 0
    clock = time.monotonic_ns
    while count := connection.recv_into(buffer):
        now = clock()
        if now - current >= bin_ns:
            if filled:
                say(bin_ns=current, bytes=filled)
            current, filled = now - now % bin_ns, 0
        filled += count
    if filled:
        say(bin_ns=current, bytes=filled)


def _answer(connection: socket.socket) -> None:
    """Sends a byte every 10 ms until the connection closes."""
    with contextlib.suppress(OSError):
        while True:
            connection.send(b"\0")
            time.sleep(MPTCP_ANSWER_S)


def send(protocol: str, address: str, port: int, source: str, rate: int, algorithm: str) -> None:
    """Connects and sends. Prints `congestion_control` and `mss_bytes`; samples; at the end a last sample and `end`."""
    with stream(address, protocol) as s:
        if protocol == "mptcp":
            s.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, MPTCP_SEND)
        if rate:
            s.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
        if algorithm:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
        s.bind((source, 0))
        s.connect((address, port))
        algorithm = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        say(congestion_control=algorithm, mss_bytes=_tcp_info(s, _MSS))
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(protocol, s, done))
        watcher.start()
        block = bytes(WRITE)
        try:
            while not done.is_set():
                s.send(block)
        except OSError as e:
            if not done.is_set():
                say(end=e.strerror or str(e))
        watcher.join()


def _watch(protocol: str, s: socket.socket, done: threading.Event) -> None:
    """Samples until stdin closes; then wakes the sender, which may wait for room in a stopped flow."""
    sample = _sample_mptcp if protocol == "mptcp" else _sample
    while not select.select([sys.stdin], [], [], SAMPLE_S)[0]:
        sample(s)
    done.set()
    sample(s)
    say(end="stopped")
    s.shutdown(socket.SHUT_WR)
    while protocol == "mptcp" and s.recv(READ):  # a close with unread answers would reset the connection
        pass


def _sample(s: socket.socket) -> None:
    say(sample_ns=time.monotonic_ns(), retransmitted_segments=_tcp_info(s, _RETRANS))


def _sample_mptcp(s: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        s.recv(READ, socket.MSG_DONTWAIT)  # reads the receiver's answers
    subflows = s.getsockopt(_SOL_MPTCP, _MPTCP_INFO, _SUBFLOWS + 1)[_SUBFLOWS]
    say(sample_ns=time.monotonic_ns(), retransmitted_segments=_tcp_info(s, _RETRANS), subflows=subflows)


def _tcp_info(s: socket.socket, offset: int) -> int:
    value: int = struct.unpack_from("I", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE), offset)[0]
    return value


def main() -> None:
    """Ignores Ctrl-C: the parent ends this program by closing its stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    protocol, role, address, *rest = sys.argv[1:]
    if role == "receive":
        receive(protocol, address, int(rest[0]))
    else:
        port, source, rate, *algorithm = rest
        send(protocol, address, int(port), source, int(rate), "".join(algorithm))


if __name__ == "__main__":
    main()
