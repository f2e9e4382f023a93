"""Names of the interfaces that mrcd makes beside overlay.interface.

None begins with that name: NCCL_SOCKET_IFNAME=mrc0 matches by prefix, and would use them too.
"""


def peer_of(interface: str) -> str:
    """The other end of the overlay's veth."""
    return "p" + interface


def timer_of(interface: str) -> str:
    """The end of the timer packet's veth (bpf/timer_packet.h) that receives it."""
    return "t" + interface


def timer_peer_of(interface: str) -> str:
    """The end that paces the timer packet."""
    return "tp" + interface
