# SPDX-License-Identifier: BSD-2-Clause
"""Sends or receives one stream of UDP packets. A program of its own, run inside a host (datagrams.py starts it).

    floodend.py PAYLOAD receive ADDRESS BIN_NS     counts packets in bins; ends when its stdin closes
    floodend.py PAYLOAD send ADDRESS PORT SOURCE   sends as fast as the kernel accepts, until its stdin closes

PAYLOAD is the bytes of a packet behind the UDP header. Prints lines as tcpend.py does. Each system call takes many
packets, so that Python takes little of the measured time. Standard library only, so that it starts quickly.
"""

import ctypes as ct
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

BATCH = 64  # packets per call
_BUFFER_BYTES = 4 << 20  # the receiver's socket buffer
_PATIENCE_S = 0.05  # the last packets arrive within this time of the sender's end
_SO_RCVBUFFORCE = 33
_MSG_WAITFORONE = 0x10000

_libc = ct.CDLL(None, use_errno=True)


class Iovec(ct.Structure):
    """struct iovec"""

    _fields_ = [("base", ct.c_void_p), ("length", ct.c_size_t)]


class Msghdr(ct.Structure):
    """struct msghdr"""

    _fields_ = [
        ("name", ct.c_void_p),
        ("name_length", ct.c_uint32),
        ("iov", ct.POINTER(Iovec)),
        ("iov_length", ct.c_size_t),
        ("control", ct.c_void_p),
        ("control_length", ct.c_size_t),
        ("flags", ct.c_int),
    ]


class Mmsghdr(ct.Structure):
    """struct mmsghdr"""

    _fields_ = [("header", Msghdr), ("length", ct.c_uint)]


def say(**facts: int | str) -> None:
    """Prints one line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def batch(payload: int, room: "ct.Array[ct.c_char]") -> "ct.Array[Mmsghdr]":
    """Returns BATCH packets to send or receive, all in the same `room`: their contents are not read."""
    vector = Iovec(ct.addressof(room), payload)
    messages = (Mmsghdr * BATCH)()
    for m in messages:
        m.header.iov, m.header.iov_length = ct.pointer(vector), 1
    return messages


def family(address: str) -> socket.AddressFamily:
    """Returns the address family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _until_stdin_closes() -> threading.Event:
    done = threading.Event()

    def watch() -> None:
        select.select([sys.stdin], [], [])
        done.set()

    threading.Thread(target=watch, daemon=True).start()
    return done


def receive(payload: int, address: str, bin_ns: int) -> None:
    """Prints `port`; then `bin_ns` (its start) and `bytes` per bin that is not empty; then `end`."""
    room, done = ct.create_string_buffer(payload), _until_stdin_closes()
    messages = batch(payload, room)
    with socket.socket(family(address), socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(_PATIENCE_S * 1e6)))
        s.bind((address, 0))
        say(port=s.getsockname()[1])
        current = filled = 0
        clock = time.monotonic_ns
        while True:
            count = _libc.recvmmsg(s.fileno(), messages, BATCH, _MSG_WAITFORONE, None)
            if count < 0:
                if ct.get_errno() not in (errno.EAGAIN, errno.EINTR):
                    raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
                if done.is_set():
                    break
                continue
            now = clock()
            if now - current >= bin_ns:
                if filled:
                    say(bin_ns=current, bytes=filled)
                current, filled = now - now % bin_ns, 0
            filled += count * payload
    if filled:
        say(bin_ns=current, bytes=filled)
    say(end="closed")


def send(payload: int, address: str, port: int, source: str) -> None:
    """Prints `congestion_control` and `mss_bytes` as tcpend.py does; at the end `sent_packets` and `end`."""
    room, done = ct.create_string_buffer(payload), _until_stdin_closes()
    messages = batch(payload, room)
    with socket.socket(family(address), socket.SOCK_DGRAM) as s:
        s.bind((source, 0))
        s.connect((address, port))
        say(congestion_control="none", mss_bytes=payload)
        sent = 0
        while not done.is_set():
            count = _libc.sendmmsg(s.fileno(), messages, BATCH, 0)
            if count > 0:
                sent += count
            elif ct.get_errno() not in (errno.ENOBUFS, errno.EINTR):
                say(end=os.strerror(ct.get_errno()))
                return
    say(sent_packets=sent)
    say(end="stopped")


def main() -> None:
    """Ignores Ctrl-C: the parent ends this program by closing its stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    payload, role, address, *rest = sys.argv[1:]
    if role == "receive":
        receive(int(payload), address, int(rest[0]))
    else:
        send(int(payload), address, int(rest[0]), rest[1])


if __name__ == "__main__":
    main()
