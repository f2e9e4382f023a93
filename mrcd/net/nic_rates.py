# SPDX-License-Identifier: BSD-2-Clause
"""Finds what makes one of this host's NICs slower than the others: its link's speed, or a qdisc that shapes."""

import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pyroute2.iproute import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

_SYS_NET = Path("/sys/class/net")
_SHAPERS = ("tbf", "htb", "hfsc", "cake", "netem")  # qdiscs that hold packets back for a rate or a time
_MUCH = 2  # times slower than another NIC


class NicRate(NamedTuple):
    """The bounds of a NIC's rate, in bits per second; None: not known, or not bounded."""

    link: int | None = None
    shaper: str = ""  # the kind of a qdisc that shapes
    shaped: int | None = None


def rate_words(bits_per_s: float) -> str:
    """Returns a rate with its unit."""
    return f"{bits_per_s / 1e9:.3g} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:.3g} Mbit/s"


def why_slower(rates: Sequence[NicRate], plane: int) -> str:
    """Returns the words for what makes the NIC of a plane slower than the others'; "" if nothing is known. Pure."""
    own, others = rates[plane], [r for i, r in enumerate(rates) if i != plane]
    if own.shaper and any(r.shaper != own.shaper or (r.shaped or 0) >= _MUCH * (own.shaped or 1) for r in others):
        rate = f" of {rate_words(own.shaped)}" if own.shaped else ""
        return f"has the qdisc {own.shaper}{rate}"
    if own.link and any((r.link or 0) >= _MUCH * own.link for r in others):
        most = max(r.link or 0 for r in others)
        return f"has a link of {rate_words(own.link)}, another one of {rate_words(most)}"
    return ""


def read_rates(interfaces: Sequence[str], sys_net: Path = _SYS_NET) -> list[NicRate]:
    """Reads the rates of interfaces of this network namespace. For those that do not exist nothing is known."""
    with ThreadPoolExecutor(1) as pool:  # IPRoute has an event loop of its own, and the daemon's may run in this thread
        return pool.submit(lambda: [_rate(name, sys_net) for name in interfaces]).result()


def _rate(name: str, sys_net: Path) -> NicRate:
    try:
        index = socket.if_nametoindex(name)
        with IPRoute() as ipr:
            shaper, shaped = _shaper(ipr.get_qdiscs(index))
    except (OSError, NetlinkError):  # the interface was deleted meanwhile
        return NicRate()
    try:
        mbits = int((sys_net / name / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):  # virtual links tell none
        mbits = 0
    return NicRate(mbits * 1_000_000 if mbits > 0 else None, shaper, shaped)


def _shaper(qdiscs: Iterable[Any]) -> tuple[str, int | None]:
    """Returns the kind of the first qdisc that shapes, and the rate of a tbf."""
    for qdisc in qdiscs:
        kind = qdisc.get_attr("TCA_KIND")
        if kind in _SHAPERS:
            options = qdisc.get_attr("TCA_OPTIONS")
            parameters = options.get_attr("TCA_TBF_PARMS") if kind == "tbf" else None
            return kind, 8 * parameters["rate"] if parameters else None
    return "", None
