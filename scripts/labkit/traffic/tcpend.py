"""One end of a TCP flow, run as a program of its own inside a host of the lab (flow.py starts it).

    tcpend.py PROTOCOL receive ADDRESS BIN_NS       discards what comes, and says how much in which bin
    tcpend.py PROTOCOL send ADDRESS PORT SOURCE [RATE]
                                                    sends as fast as TCP takes it, or at so many bytes per second,
                                                    until its stdin closes

PROTOCOL is tcp or mptcp. Both print one JSON object per line, times being CLOCK_MONOTONIC, which all hosts
of the lab share.
Standard library only, so that it starts quickly.

MPTCP (Linux 6.18) stands still for 200 ms at a time, or for seconds, without a fault, where the receiver's CPU is the
limit. What one can do about it from outside is done here:
- subflows join by the listener, which stays open as long as the connection;
- where the sender's buffer holds more than the receiver's window, the receiver drops what comes beyond it
  (MPTcpExtNoDSSInWindow) after TCP has acknowledged it, and gets it again bit by bit, at every timeout: so the sender's
  buffer is small, and the receiver's has its full size from the beginning;
- no ACK tells of data that waited for the reader (DATA_ACK), and the sender, its buffer full, waits for a timer: so the
  receiver answers with a byte every 10 ms, and its ACKs with it.
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

# As large as a read may get; the kernel hands over what there is. Written in pieces of iperf3's size.
READ = 1 << 20
WRITE = 1 << 17
SAMPLE_S = 0.1
# struct tcp_info (linux/tcp.h): tcpi_snd_mss, tcpi_total_retrans; offsets in bytes.
_MSS, _RETRANS, _INFO_SIZE = 16, 100, 104
# linux/mptcp.h: getsockopt(SOL_MPTCP, MPTCP_INFO), and the offset of mptcpi_subflows_total (Linux 6.5).
_SOL_MPTCP, _MPTCP_INFO, _SUBFLOWS = 284, 1, 80
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h: also beyond net.core.wmem_max, rmem_max
_SO_MAX_PACING_RATE = 47
# Bytes, of which the kernel makes twice as many; all subflows share the sender's.
MPTCP_SEND, MPTCP_RECEIVE = 1 << 20, 16 << 20
MPTCP_ANSWER_S = 0.01


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
        if protocol == "mptcp":
            listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, MPTCP_RECEIVE)
        # Subflows of MPTCP come to the host's other addresses, at the same port.
        listener.bind(("" if protocol == "mptcp" else address, 0))
        listener.listen(1)
        say(port=listener.getsockname()[1])
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            return  # the parent is gone, or gave up
        connection, _ = listener.accept()
        with connection:
            if protocol == "mptcp":
                threading.Thread(target=_answer, args=(connection,), daemon=True).start()
            _read(connection, bin_ns)
    say(end="closed")


def _read(connection: socket.socket, bin_ns: int) -> None:
    """Until the sender has closed."""
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
    """A byte now and then, until the connection is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection.send(b"\0")
            time.sleep(MPTCP_ANSWER_S)


def send(protocol: str, address: str, port: int, source: str, rate: int) -> None:
    """Connect and send. Prints `congestion_control` and `mss_bytes`; samples; at the end a last sample and `end`."""
    with stream(address, protocol) as s:
        if protocol == "mptcp":
            s.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, MPTCP_SEND)
        if rate:
            s.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
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
    """Sample until stdin closes; then wake the sender up, which may be waiting for room in a flow that stands still."""
    sample = _sample_mptcp if protocol == "mptcp" else _sample
    while not select.select([sys.stdin], [], [], SAMPLE_S)[0]:
        sample(s)
    done.set()
    sample(s)
    say(end="stopped")
    s.shutdown(socket.SHUT_WR)
    while protocol == "mptcp" and s.recv(READ):  # what is closed with answers unread is reset
        pass


def _sample(s: socket.socket) -> None:
    say(sample_ns=time.monotonic_ns(), retransmitted_segments=_tcp_info(s, _RETRANS))


def _sample_mptcp(s: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        s.recv(READ, socket.MSG_DONTWAIT)  # answers
    subflows = s.getsockopt(_SOL_MPTCP, _MPTCP_INFO, _SUBFLOWS + 1)[_SUBFLOWS]
    say(sample_ns=time.monotonic_ns(), retransmitted_segments=_tcp_info(s, _RETRANS), subflows=subflows)


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
        send(protocol, address, int(rest[0]), rest[1], int(rest[2]) if rest[2:] else 0)


if __name__ == "__main__":
    main()
