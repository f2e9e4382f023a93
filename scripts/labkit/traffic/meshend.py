# SPDX-License-Identifier: BSD-2-Clause
"""Sends small UDP packets to several hosts in turn, at a fixed rate to each, and discards what arrives.

A program of its own, run inside a host (mesh.py starts it):

    meshend.py ADDRESS PORT RATE PEER…       until its stdin closes; prints a JSON object: `ready`

Standard library only, so that it starts quickly.
"""

import select
import socket
import sys
import time

TICK_S = 0.01
PAYLOAD = bytes(64)


def main() -> None:
    """Sends and discards until stdin closes."""
    address, port, rate, peers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.bind((address, port))
        s.setblocking(False)
        print('{"ready": true}', flush=True)
        began, sent = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - began) * rate)
            for _ in range(min(due - sent, rate)):
                for peer in peers:
                    try:
                        s.sendto(PAYLOAD, (peer, port))
                    except OSError:  # no route for a moment, or a full queue
                        continue
            sent = due
            try:
                while s.recv(2048):
                    pass
            except OSError:  # nothing left to read, or an ICMP error
                pass
            if select.select([sys.stdin], [], [], TICK_S)[0] and not sys.stdin.read(1):
                return


if __name__ == "__main__":
    main()
