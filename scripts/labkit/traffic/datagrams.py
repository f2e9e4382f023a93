"""A stream of UDP packets between two hosts of the lab: a Flow without congestion control, which loses the excess.

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
    """What is behind IP and UDP headers in a packet of that size. ValueError if nothing is."""
    payload = packet_bytes - _UDP - (_IPV6 if version == 6 else _IPV4)
    if payload < 1:
        raise ValueError(f"a packet of {packet_bytes} bytes has no room for UDP over IPv{version}")
    return payload


class Datagrams(Flow):
    """One stream of packets of `packet_bytes` each, IP header included. `bins` count payload."""

    program = end_program("floodend")

    def __init__(self, lab: Lab, ends: Ends, packet_bytes: int, bin_ns: int = BIN_NS) -> None:
        super().__init__(lab, ends, bin_ns)
        self.payload_bytes = payload_bytes(packet_bytes, 6 if ":" in ends.target_address else 4)
        self._prefix = str(self.payload_bytes)

    @property
    def sent_packets(self) -> int:
        """By the sender, from beginning to end; known after `finish`."""
        return int(self._facts["sent_packets"])

    @property
    def received_packets(self) -> int:
        """By the receiver, so far."""
        return sum(self.bins.values()) // self.payload_bytes

    def _stop(self) -> None:
        for child in reversed(self._children):  # nothing tells the receiver of an end
            child.hush()
