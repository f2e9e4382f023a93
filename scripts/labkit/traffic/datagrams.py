# SPDX-License-Identifier: BSD-2-Clause
"""Sends UDP packets between two hosts of the lab at full speed: a Flow without congestion control.

with Datagrams(lab, ends, 1400) as stream:
    stream.poll(1.0)
    stream.finish()
stream.bins, stream.sent_packets
"""

from labkit.cluster.api import Lab
from labkit.measure.goodput import BIN_NS
from labkit.places import end_program
from labkit.traffic.flow import Ends, Flow

_UDP, _IPV4, _IPV6 = 8, 20, 40


def payload_bytes(packet_bytes: int, version: int) -> int:
    """Returns the bytes behind the IP and UDP headers in a packet of that size. Raises ValueError if there are none."""
    payload = packet_bytes - _UDP - (_IPV6 if version == 6 else _IPV4)
    if payload < 1:
        raise ValueError(f"a packet of {packet_bytes} bytes has no room for UDP over IPv{version}")
    return payload


class Datagrams(Flow):
    """One stream of packets of `packet_bytes` each, IP header included. `bins` count payload."""

    def __init__(self, lab: Lab, ends: Ends, packet_bytes: int, bin_ns: int = BIN_NS) -> None:
        super().__init__(lab, ends)
        self.payload_bytes = payload_bytes(packet_bytes, 6 if ":" in ends.target_address else 4)
        self._program = [*self._program[:2], str(end_program("udpend")), "flood"]
        self._receiver, self._sender = (self.payload_bytes, bin_ns), (self.payload_bytes,)

    @property
    def sent_packets(self) -> int:
        """Returns the packets sent from beginning to end; known after `finish`."""
        return int(self._facts["sent_packets"])

    @property
    def received_packets(self) -> int:
        """Returns the packets received so far."""
        return sum(self.bins.values()) // self.payload_bytes

    def _stop(self) -> None:
        for child in reversed(self._children):  # the receiver cannot see the sender's end
            child.hush()
