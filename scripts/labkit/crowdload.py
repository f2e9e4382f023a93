"""Sends UDP packets to many addresses in turn until stdin is closed. A program of its own, run inside the host.

Arguments: packets per second to each, then the addresses. Prints how many went out, as JSON.
"""

import json
import select
import socket
import sys
import time

PORT = 9  # discard
_PAYLOAD = bytes(1000)
_TICK_S = 0.01


def main() -> None:
    """Every tick what is due by then, spread over the addresses."""
    rate, addresses = float(sys.argv[1]), [(a, PORT) for a in sys.argv[2:]]
    sent, begun = 0, time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        while not select.select([sys.stdin], [], [], _TICK_S)[0]:
            due = int((time.monotonic() - begun) * rate * len(addresses))
            while sent < due:
                s.sendto(_PAYLOAD, addresses[sent % len(addresses)])
                sent += 1
    print(json.dumps({"packets": sent, "seconds": time.monotonic() - begun}))


main()
