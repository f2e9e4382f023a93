"""One end of a TCP flow, run as a program of its own inside a host of the lab (flow.py starts it).

    tcpend.py PROTOCOL receive ADDRESS BIN_NS       discards what comes, and says how much in which bin
    tcpend.py PROTOCOL send ADDRESS PORT SOURCE     sends as fast as TCP takes it, until its stdin closes

PROTOCOL is tcp or mptcp. Both print one JSON object per line, times being CLOCK_MONOTONIC, which all hosts
of the lab share.
Standard library only, so that it starts quickly.
"""

import json
import select
import signal
import socket
import struct
import sys
import threading
import time

# As large as a read may get; the kernel hands over what there is. Written in pieces of iperf3's size.
READ = 1 << 20
WRITE = 1 << 17
SAMPLE_S = 0.1
# struct tcp_info (linux/tcp.h): tcpi_snd_mss, tcpi_total_retrans; offsets in bytes.
_MSS, _RETRANS, _INFO_SIZE = 16, 100, 104


def say(**facts: int | str) -> None:
    """One line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def stream(address: str, protocol: str) -> socket.socket:
    """A socket of the address's family. OSError if the kernel has no such protocol."""
    number = socket.IPPROTO_MPTCP if protocol == "mptcp" else socket.IPPROTO_TCP
    return socket.socket(family(address), socket.SOCK_STREAM, number)


def family(address: str) -> socket.AddressFamily:
    """The address family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def receive(protocol: str, address: str, bin_ns: int) -> None:
    """Take one connection. Prints `port`; then `bin_ns` (its start) and `bytes` per bin that is not empty; then `end`.

    The data is copied to this program, as to any application, and then forgotten.
    """
    with stream(address, protocol) as listener:
        # Subflows of MPTCP come to the host's other addresses, at the same port.
        listener.bind(("" if protocol == "mptcp" else address, 0))
        listener.listen(1)
        say(port=listener.getsockname()[1])
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            return  # the parent is gone, or gave up
        connection, _ = listener.accept()
    buffer = bytearray(READ)
    current = filled = 0
    clock = time.monotonic_ns
    with connection:
        while count := connection.recv_into(buffer):
            now = clock()
            if now - current >= bin_ns:
                if filled:
                    say(bin_ns=current, bytes=filled)
                current, filled = now - now % bin_ns, 0
            filled += count
    if filled:
        say(bin_ns=current, bytes=filled)
    say(end="closed")


def send(protocol: str, address: str, port: int, source: str) -> None:
    """Connect and send. Prints `congestion_control` and `mss_bytes`; samples; at the end a last sample and `end`."""
    with stream(address, protocol) as s:
        s.bind((source, 0))
        s.connect((address, port))
        algorithm = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        say(congestion_control=algorithm, mss_bytes=_tcp_info(s, _MSS))
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(s, done))
        watcher.start()
        block = bytes(WRITE)
        try:
            while not done.is_set():
                s.send(block)
        except OSError as e:
            if not done.is_set():
                say(end=e.strerror or str(e))
        watcher.join()


def _watch(s: socket.socket, done: threading.Event) -> None:
    """Sample until stdin closes; then wake the sender up, which may be waiting for room in a flow that stands still."""
    while not select.select([sys.stdin], [], [], SAMPLE_S)[0]:
        _sample(s)
    done.set()
    _sample(s)
    say(end="stopped")
    s.shutdown(socket.SHUT_WR)


def _sample(s: socket.socket) -> None:
    say(sample_ns=time.monotonic_ns(), retransmitted_segments=_tcp_info(s, _RETRANS))


def _tcp_info(s: socket.socket, offset: int) -> int:
    value: int = struct.unpack_from("I", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE), offset)[0]
    return value


def main() -> None:
    """Ctrl-C is the parent's business: it stops us by closing our stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    protocol, role, address, *rest = sys.argv[1:]
    if role == "receive":
        receive(protocol, address, int(rest[0]))
    else:
        send(protocol, address, int(rest[0]), rest[1])


if __name__ == "__main__":
    main()
