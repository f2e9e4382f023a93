# SPDX-License-Identifier: BSD-2-Clause
"""Explains the states and reasons that mrcctl shows, for `mrcctl help words` and the man page."""

STATES = {
    "GOOD": "carries data",
    "SKIP": "passed over: once after a congestion mark, or until it is decided whether a lagging EV has failed",
    "ASSUMED_BAD": "has failed: carries no data, and is probed until it heals",
    "DENIED": "taken out of use by an administrator; probed meanwhile",
    "UNKNOWN": "not probed yet",
}
REASONS = {
    "new": "the EV has just been configured",
    "probed": "the first probe of a new EV was answered",
    "congested": "a switch has marked packets (ECN CE)",
    "lagging": "something sent on the EV is missing, while later packets on other EVs have arrived",
    "overdue": "it was lagging, then lost probes too, and nothing has arrived since. Packets may follow each other so "
    "closely that no step with SKIP is logged before",
    "loss": "more packets were lost than loss_ratio allows",
    "grey_loss": "a small, lasting loss that the peer's other EVs do not have",
    "icmp_error": "a switch has answered with an ICMPv6 error",
    "link_down": "this host's NIC in the plane has no carrier, or its first hop does not answer",
    "peer_link_down": "the peer has said that its NIC in the plane has no link",
    "healed": "probes have been answered without a loss for the hold-down",
    "admin": "an administrator has denied or allowed it",
    "port_status": "the peer has said which of its planes have a link, or that it detached or attached",
}


def lines() -> list[str]:
    """Return the words with their meanings, by states and reasons."""
    width = max(map(len, (*STATES, *REASONS)))
    out = ["EV states:"]
    out += [f"  {word:<{width}}  {meaning}" for word, meaning in STATES.items()]
    out += ["", "Reasons of events and of paths:"]
    return out + [f"  {word:<{width}}  {meaning}" for word, meaning in REASONS.items()]
