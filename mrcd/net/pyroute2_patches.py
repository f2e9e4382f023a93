# SPDX-License-Identifier: BSD-2-Clause
"""Works around defects of pyroute2 (0.9). Each function names the behaviour of pyroute2 that it replaces.

Importing this module adds the seg6 mode encap.red to pyroute2.
"""

from collections.abc import Iterable
from typing import Any

from pyroute2.netlink.rtnl.rtmsg import rtmsg_base

ENCAP_SEG6 = 5  # LWTUNNEL_ENCAP_SEG6
ENCAP_RED = 3  # SEG6_IPTUN_MODE_ENCAP_RED


def _add_encap_red() -> None:
    """Adds the seg6 mode encap.red: pyroute2 writes and reads a mode that it does not know as "encap", silently."""
    srh = rtmsg_base.seg6_encap_info.ipv6_sr_hdr
    srh.encapmodes["encap.red"] = ENCAP_RED
    srh.r_encapmodes[ENCAP_RED] = "encap.red"


_add_encap_red()


def event_of(msg: Any) -> str:
    """Returns the type of a message, as "RTM_NEWLINK".

    pyroute2's get("event") returns the number in the attribute IFLA_EVENT if a link has one.
    """
    return str(dict.get(msg, "event", ""))


def seg6_hop_attributes(segments: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the netlink attributes of a seg6 next hop; `segments` are in travel order.

    pyroute2 drops the seg6 encapsulation of the hops that it builds itself. It writes the segments in the order of the
    list; the kernel's array has the last segment first (RFC 8754 §2).
    """
    srh = {"mode": "encap.red", "segs": list(reversed(list(segments)))}
    return [("RTA_ENCAP_TYPE", ENCAP_SEG6), ("RTA_ENCAP", {"attrs": [("SEG6_IPTUNNEL_SRH", srh)]})]


def seg6_segments(srh: Any) -> tuple[str, ...]:
    """Returns the segments of a seg6 encap.red SRH in travel order; none for other modes.

    pyroute2 reads the segments in the order of the kernel's array, the last one first.
    """
    return tuple(reversed(srh["segs"])) if srh["encapmode"] == ENCAP_RED else ()
