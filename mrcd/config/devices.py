# SPDX-License-Identifier: BSD-2-Clause
"""Derives the names of mrcd's other interfaces from overlay.interface.

None of them begins with that name: NCCL_SOCKET_IFNAME=mrc0 matches by prefix, and NCCL would use them too.
"""


def peer_of(interface: str) -> str:
    """Returns the name of the other end of the overlay's veth."""
    return "p" + interface


def timer_of(interface: str) -> str:
    """Returns the name of the end of the timer packet's veth (bpf/timer_packet.h) that receives the packet."""
    return "t" + interface


def timer_peer_of(interface: str) -> str:
    """Returns the name of the end that paces the timer packet."""
    return "tp" + interface


def former_names(interface: str) -> tuple[tuple[tuple[str, str], tuple[str, str]], ...]:
    """Returns the veth pairs that an earlier mrcd may have left: their names then, and their names now."""
    return (
        ((interface, interface + "p"), (interface, peer_of(interface))),
        ((interface + "b", interface + "bp"), (timer_of(interface), timer_peer_of(interface))),
    )
