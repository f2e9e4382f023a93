# SPDX-License-Identifier: BSD-2-Clause
"""Models a host that receives packets, independently of the programs."""

from collections.abc import Callable

from mrcd.kernel.abi import MAX_PLANES
from tests.packet.model_host import (
    CHANGING,
    CRITICAL,
    DATA,
    DETACHED,
    DIAGNOSTIC,
    ETH_IPV6,
    IPV6,
    MRC,
    MS,
    PLAIN,
    PROBE,
    PROTO_ICMPV6,
    REPLY,
    REQUEST,
    UDP,
    Arriving,
    DroppedError,
    EliminatedError,
    ForgottenError,
    Host,
    NotOursError,
    Outcome,
    Outer,
    parse,
    signed,
    version,
)
from tests.packet.model_inner import addresses, eth_type_of, is_cut, is_udp, merged, with_own_lengths
from tests.packet.model_probe import JUDGED, Probe

SINGLE, OF_BURST = b"dpop", b"epop"
"""The marks that mrc_pop_xdp leaves in front of a popped packet (bpf/deliver.h)."""
_UDT4, _UDT6 = b"\xe0\x04", b"\xe0\x06"  # functions of the kernel's SIDs


def by_tc(host: Host, frame: bytes, ifindex: int, now: int, gso_size: int = 0) -> Outcome:
    return _outcome(_pop_by_tc, Arriving(host, frame, ifindex, now, gso_size, Outcome("pass", frame)))


def by_xdp(host: Host, frame: bytes, ifindex: int, now: int) -> Outcome:
    """Returns what mrc_pop_xdp does with a frame. What passes unchanged is left to mrc_pop, which does all the work."""
    return _outcome(_pop_by_xdp, Arriving(host, frame, ifindex, now, 0, Outcome("pass", frame)))


def _outcome(act: Callable[[Arriving], None], at: Arriving) -> Outcome:
    try:
        act(at)
    except NotOursError:
        pass
    except EliminatedError:
        at.out.verdict = "drop"  # not counted as a drop
    except DroppedError as reason:
        at.out.verdict, at.out.drop = "drop", str(reason)
    return at.out


def _pop_by_tc(at: Arriving) -> None:
    if at.frame[12:14] != ETH_IPV6:  # the kernel keeps a VLAN tag beside the packet
        raise NotOursError
    try:
        o = parse(at.frame, at.host.udp_port)
        plane = _plane(at, o)
    except NotOursError:
        if at.frame[20] == PROTO_ICMPV6:
            at.out.open |= JUDGED
        _guard_kernel_sids(at)
        raise
    if o.fault:
        raise DroppedError(o.fault)
    if _is_diagnostic_reply(o):
        at.out.verdict = "drop"  # the tool has read it: not counted
        return
    if _is_link_probe(at, o):
        _pop_link_probe(at, o, plane)
    _verify(at, o, plane)
    is_burst = at.gso_size > 0
    if not is_burst and not (_lengths_agree(o) and (o.type == DATA or _is_whole(at, o))):
        raise DroppedError("truncated")
    if o.type != DATA:
        _pop_probe(at, o, plane)
        return
    if at.gso_size and o.segments < 2:
        raise DroppedError("merged")
    inner = _pop_data(at, o, o.segments if is_burst else 1, is_burst=is_burst)
    if is_burst:  # BPF_PROG_TEST_RUN makes no complete burst: the kernel refuses to shorten it
        raise DroppedError("pop_failed")
    ethernet = at.frame[:12]
    if at.get("node", (), "overlay_ifindex"):
        at.out.verdict, ethernet = "redirect", bytes(at.get("node", (), "overlay_eth"))
        inner = with_own_lengths(inner) if o.segments > 1 else inner
    at.out.data = ethernet + eth_type_of(inner) + inner


def _pop_by_xdp(at: Arriving) -> None:
    o = parse(at.frame, at.host.udp_port)
    if o.fault:
        raise NotOursError  # mrc_pop counts it
    plane = _plane(at, o)
    if _is_diagnostic_reply(o) or _is_link_probe(at, o):
        return
    _verify(at, o, plane)
    inner = at.frame[o.end :]
    is_ack = len(inner) <= 512 and at.get("peers", o.sender, "plane_skew_ns") > 500_000  # SACK blocks may be hidden
    is_of_burst = o.segments != 1 and len(inner) <= at.host.inner_mtu and is_udp(inner)
    if o.type != DATA or is_ack or is_of_burst:
        return
    packets = o.segments if len(inner) > at.host.inner_mtu else 1  # longer than a packet: a whole burst
    if packets <= 1 and not _lengths_agree(o):
        raise DroppedError("truncated")
    mark = OF_BURST if o.segments > 1 and is_udp(inner) else SINGLE
    inner = _pop_data(at, o, packets, is_burst=packets > 1)
    at.out.data = mark + at.frame[:12] + eth_type_of(inner) + inner


def _plane(at: Arriving, o: Outer) -> int:
    """Returns the plane whose NIC, VLAN and address a packet has. Raises NotOursError."""
    for number, plane in enumerate(at.host.planes):
        if (plane.ifindex, at.get("planes", number, "vlan")) == (at.ifindex, o.vlan):
            if o.destination in (plane.sid, plane.address):
                return number
            break
    raise NotOursError


def _is_diagnostic_reply(o: Outer) -> bool:
    return (o.version, o.type) == (version(REPLY), REPLY) and bool(o.flags & DIAGNOSTIC)


def _is_link_probe(at: Arriving, o: Outer) -> bool:
    return (o.version, o.type, o.sender, o.receiver) == (version(REQUEST), REQUEST, at.host.id, at.host.id)


def _pop_link_probe(at: Arriving, o: Outer, plane: int) -> None:
    """Drops a packet that says that it is a link probe of this host: no other host knows the key."""
    if len(at.frame) < o.end + PROBE:
        raise DroppedError("truncated")
    if o.ev not in at.host.links:
        raise DroppedError("bad_ev")
    raise DroppedError("bad_tag" if o.ev % MAX_PLANES == plane else "wrong_plane")


def _verify(at: Arriving, o: Outer, plane: int) -> None:
    """Checks that a peer has sent the packet on this path; of data also tag and age. Raises DroppedError."""
    for reason, is_wrong in (
        ("bad_version", o.version != version(o.type)),
        ("bad_type", o.type not in (DATA, REQUEST, REPLY)),
        ("wrong_receiver", o.receiver != at.host.id),
        ("unknown_sender", o.sender not in at.host.peers),
        ("bad_ev", o.ev >= at.host.evs),
        ("wrong_plane", o.type != REPLY and o.ev // at.host.slots != plane),
    ):
        if is_wrong:
            raise DroppedError(reason)
    if o.source != at.host.peers[o.sender][plane]:
        raise DroppedError("wrong_source")
    if o.type == DATA and at.is_tagged(o, at.frame[o.end - MRC : o.end - 8]) and not at.is_new(o):
        at.request_clock(o.sender)
        raise DroppedError("stale")


def _lengths_agree(o: Outer) -> bool:
    srh = o.end - o.l3 - IPV6 - UDP - MRC
    return UDP + MRC <= o.udp_length == o.ip_length - srh


def _is_whole(at: Arriving, o: Outer) -> bool:
    return o.l3 + IPV6 + o.ip_length <= len(at.frame)


def _pop_data(at: Arriving, o: Outer, packets: int, *, is_burst: bool) -> bytes:
    """Counts data that has arrived on its path, and returns the inner packet. Raises DroppedError."""
    inner, index = at.frame[o.end :], (o.sender, o.ev)
    at.count_untagged(o)
    at.add("rxs", index, "packets", packets)
    at.add("rxs", index, "bytes", len(inner))
    has_own_length = o.segments == 1 or not is_udp(inner)  # a segment of a UDP burst may have its burst's
    if not is_burst and (not _is_whole(at, o) or (has_own_length and is_cut(inner))):
        at.add("rxs", index, "ce", packets)
        raise DroppedError("trimmed")
    try:
        inner, is_marked = merged(inner, o.traffic_class & 3)
    except DroppedError as reason:
        if str(reason) == "ce_not_ect":  # the fabric has marked it all the same
            at.add("rxs", index, "ce", packets)
        raise
    at.add("rxs", index, "ce", packets * is_marked)
    at.out.is_popped = True
    if at.host.is_strict:
        source, destination = addresses(inner)
        for fault, address, owner in (
            ("wrong_inner_source", source, o.sender),
            ("wrong_inner_destination", destination, at.host.id),
        ):
            if at.host.owners.get(address) != owner:
                at.add("peers", o.sender, "refused", packets)
                raise DroppedError(fault)
    if o.flags & CRITICAL:
        _eliminate(at, o)
    return inner


def _eliminate(at: Arriving, o: Outer) -> None:
    """Notes a critical packet. Raises EliminatedError if its other copy has come first."""
    epoch = at.epoch("copies", o.sender, at.get("peers", o.sender, "generation"))
    try:
        at.set(*at.noted("copies", o.sender, "seen", o.seq, epoch))
    except ForgottenError:
        at.add("copies", o.sender, "unchecked", 1)
    except DroppedError:
        at.add("copies", o.sender, "eliminated", 1)
        raise EliminatedError from None
    at.add("copies", o.sender, "delivered", 1)


def _pop_probe(at: Arriving, o: Outer, plane: int) -> None:
    if o.udp_length < UDP + MRC + PROBE or len(at.frame) < o.end + PROBE:
        raise DroppedError("truncated")
    if o.type == REQUEST:
        Probe(at, o).answer(plane)
        return
    Probe(at, o).apply_reply()
    at.out.verdict = "drop"  # it has served: not counted


def _guard_kernel_sids(at: Arriving) -> None:
    """Lets only peers reach the kernel's SIDs, while they or this host use them. Raises DroppedError."""
    source, destination = at.frame[22:38], at.frame[38:54]
    sids = [p.sid[:6] for p in at.host.planes if not any(p.sid[6:])]
    if destination[:6] not in sids or destination[6:8] not in (_UDT4, _UDT6):
        return
    peer = int.from_bytes(source[12:], "big") - 1
    if source not in at.host.peers.get(peer, ()) or not _may_use_kernel_sids(at, peer):
        raise DroppedError("stray_srv6")


def _may_use_kernel_sids(at: Arriving, peer: int) -> bool:
    status = at.get("peers", peer, "status")
    if at.get("node", (), "status") & DETACHED or status & (DETACHED | PLAIN) or status >> 8 & 0xFF == CHANGING:
        return True
    return signed(at.now - at.get("peers", peer, "plain_ns")) < 3000 * MS or at.is_unheard(peer)
