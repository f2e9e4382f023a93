# SPDX-License-Identifier: BSD-2-Clause
"""Explains the states and reasons that mrcctl shows, for `mrcctl help words` and the man page."""

import textwrap

from mrcd.ctl.terminal.render import fold

STATES = {
    "GOOD": "carries data",
    "SKIP": "passed over: once after a congestion mark, for a while if it is slow, or until it is decided whether a "
    "lagging EV has failed",
    "ASSUMED_BAD": "has failed: carries no data, and is probed until it heals",
    "DENIED": "taken out of use by an administrator; probed meanwhile",
    "UNKNOWN": "not probed yet",
}
REASONS = {
    "new": "the EV has just been configured",
    "probed": "the first probe of a new EV was answered",
    "congested": "a switch has marked packets (ECN CE)",
    "lagging": "something sent on the EV is missing, while later packets on other EVs have arrived",
    "slow": "packets take much longer on the EV than on the peer's others: it carries none for a while",
    "overdue": "a lagging EV has failed: probes were lost too, and nothing has arrived. No event of SKIP comes before "
    "it: GOOD to SKIP and back is not logged",
    "loss": "more packets were lost than loss_ratio allows",
    "grey_loss": "a small, lasting loss that the peer's other EVs do not have",
    "icmp_error": "a switch has answered with an ICMPv6 error",
    "link_down": "this host's NIC in the plane has no carrier, or its first hop does not answer",
    "peer_link_down": "the peer has said that its NIC in the plane has no link",
    "healed": "probes have been answered without a loss for the hold-down",
    "admin": "an administrator has denied or allowed it",
    "wire_version": "the peer takes another version of packets than before; `changing` while its programs are replaced",
    "port_status": "the peer has said which of its planes have a link, or that it detached or attached",
}
DROPS = {
    "not_ip": "push: neither IPv4 nor IPv6",
    "no_peer": "push: the destination is in no peer's prefixes",
    "no_usable_ev": "push: each EV is denied (mrcctl deny --force), or its plane is down here or at the peer",
    "too_big": "push: longer than the inner MTU",
    "push_failed": "push: the kernel refused to make room",
    "probe_failed": "probe: a probe could not be made of a packet's clone",
    "truncated": "pop: its outer headers are not whole, or their lengths differ; or a probe is shorter than they say",
    "bad_version": "pop: another wire version",
    "bad_type": "pop: unknown type",
    "bad_srh": "pop: segments left, or a malformed SRH",
    "unknown_sender": "pop: no peer has this host id",
    "bad_ev": "pop: EV out of range",
    "wrong_plane": "pop: data or a request that came in by another plane than its EV's",
    "wrong_source": "pop: not the sender's address on this plane",
    "bad_inner": "pop: the inner packet is neither IPv4 nor IPv6",
    "ce_not_ect": "pop: CE outside, Not-ECT inside (RFC 6040 §4.2)",
    "merged": "pop: packets of the fabric merged by receive offload",
    "pop_failed": "pop: the kernel refused to remove the headers",
    "unsolicited_reply": "pop: answers no outstanding probe",
    "reply_failed": "pop: a probe could not be answered",
    "bad_probe": "pop: a report of EVs that do not exist",
    "wrong_receiver": "pop: meant for another host",
    "untagged": "pop: without a tag, and one is required: a forged packet, or a host whose [auth] mode is off",
    "unknown_key": "pop: tagged with a secret that this host does not have: mrcctl keys status on both",
    "bad_tag": "pop: the tag does not match: a forged packet, or the two hosts have different secrets under one id",
    "stale": "pop: sent more than 500 ms ago, before the sender made new tables, or while its clock is unknown: a "
    "recorded packet, or one in the first milliseconds after a host was restarted or stood still",
    "replayed": "pop: a probe that has arrived before",
    "wrong_inner_source": "pop: the inner source is not in the sender's prefixes: forged, or the sender routes for "
    "others, or its prefixes lack the network",
    "wrong_inner_destination": "pop: the inner destination is not in this host's prefixes: the hosts' files differ, "
    "or the sender wants this host to route",
    "foreign_source": "push: the source is not in this host's prefixes: add it to the host's prefixes",
    "stray_srv6": "pop: an SRv6 packet for the kernel's SIDs, although neither this host nor its sender is detached "
    "or new, and its sender's probes do not say that it sends plain SRv6, or changes its wire version; or from no "
    "peer's address: forged, or a NIC from whose several addresses the kernel chose another",
    "firewall": "host: a firewall of this host drops what mrc0 has received: nft list ruleset",
    "reverse_path": "host: rp_filter of mrc0 is 1, and the route to the packet's source is not over mrc0",
    "other_program": "host: another tc program, or a filter, drops it at mrc0: mrcctl status, tc filter show dev mrc0",
    "trimmed": "pop: a switch has cut the packet's end off, as congested ones do rather than drop it: it counts as "
    "arrived, with a CE mark",
}
"""Reason of a drop → program, and meaning; as in docs/troubleshooting.md."""


def lines(width: int | None = None) -> list[str]:
    """Return the words with their meanings, folded at the terminal's width."""
    first = max(map(len, (*STATES, *REASONS, *DROPS))) + 4
    out: list[str] = []
    for title, words in (
        ("EV states", STATES),
        ("Reasons of events and of paths", REASONS),
        ("Drops, by reason, with the program that drops", DROPS),
    ):
        out += fold(f"{title}:", width)
        for word, meaning in words.items():
            head = f"  {word:<{first - 2}}"
            text = head + meaning
            out += textwrap.wrap(text, width, subsequent_indent=" " * min(first, width // 3)) if width else [text]
        out.append("")
    return out[:-1]
