# SPDX-License-Identifier: BSD-2-Clause
"""Probes as the model answers and believes them."""

import struct

from siphash24 import siphash24

from mrcd.kernel.abi import BALLAST, REPORT_EVS
from mrcd.kernel.enums import EvState, Reason
from tests.packet.model_host import (
    COUNT,
    DETACHED,
    DIAGNOSTIC,
    ETHERNET,
    HEADER,
    IPV6,
    MRC,
    MS,
    NOW,
    PLAIN,
    PROBE,
    PROBE_FORMAT,
    REPLY,
    U32,
    U64,
    UDP,
    Arriving,
    DroppedError,
    Outer,
    pair_offset,
    signed,
    version,
)
from tests.packet.model_inner import ECT_0

JUDGED = {
    *((table, "") for table in ("evs", "path_stats", "reports", "watches")),
    *(("peers", name) for name in ("usable", "usable_changes", "usable_planes", "queued", "plane_skew_ns")),
}
"""Fields that a believed reply or an ICMPv6 error may change."""


class Probe:
    """A probe whose MRC header is verified."""

    def __init__(self, at: Arriving, o: Outer) -> None:
        self.at, self.o, self.host, self.peer = at, o, at.host, o.sender
        self.header, self.body = at.frame[o.end - MRC : o.end - 8], at.frame[o.end : o.end + PROBE]
        self.seq, self.plane_mask, self.status, self.generation, *rest = PROBE_FORMAT.unpack(self.body)
        _, self.first, self.counts, self.key_ids, self.fingerprint, self.tx_ns = rest
        usable: list[int] = at.get("peers", self.peer, "usable")
        self.usable = [n for n in range(self.host.evs) if usable[n // 64] >> n % 64 & 1]

    # ---- a request ----

    def answer(self, plane: int) -> None:
        """Counts a request, learns from it, and replies with the counts that it requests. Raises DroppedError."""
        at, o = self.at, self.o
        if self._check_request():
            self._learn_status()
        ev = self._reply_ev(plane)
        headers = self.host.headers.get((self.peer, ev))
        if headers is None:
            raise DroppedError("reply_failed")
        is_counted = not o.flags & DIAGNOSTIC
        if is_counted:
            at.add("rxs", (self.peer, o.ev), "probes", 1)
        if not at.get("node", (), "generation"):  # the host answers no probes yet
            at.out.verdict = "drop"
            return
        room = len(at.frame) - len(headers) - UDP - MRC
        if self.counts and (self.first + self.counts > self.host.evs or room < PROBE + BALLAST + COUNT * self.counts):
            raise DroppedError("bad_probe")
        if room < PROBE:
            raise DroppedError("reply_failed")
        counts = b"".join(
            struct.pack(
                "!IHH",
                at.get("rxs", (self.peer, n), "packets") % U32,
                (at.get("rxs", (self.peer, n), "probes") + (n == o.ev and is_counted)) & 0xFFFF,
                at.get("rxs", (self.peer, n), "ce") & 0xFFFF,
            )
            for n in range(self.first, self.first + self.counts)
        )
        at.out.verdict, at.out.reply = "redirect", lambda tx_ns: self._reply(headers, ev, counts, tx_ns)

    def _check_request(self) -> bool:
        """Returns whether what the request says of its sender is believed. Raises DroppedError."""
        at, o = self.at, self.o
        is_tagged = at.is_tagged(o, self.header + self.body)
        at.count_untagged(o)
        if not is_tagged:
            return not o.flags & DIAGNOSTIC
        if not at.is_new(o):
            at.request_clock(self.peer)
            if at.get("auths", self.peer, "clock_ns"):
                raise DroppedError("stale")
            return False
        if o.flags & DIAGNOSTIC:
            return False
        if self.generation != at.get("peers", self.peer, "generation") and self._is_overtaken():
            raise DroppedError("stale")
        epoch = at.epoch("replays", self.peer, self.generation)
        at.set(*at.noted("replays", self.peer, "requests", o.seq, epoch))
        return True

    def _reply_ev(self, plane: int) -> int:
        """Returns the next usable EV of the plane, else of any, another one for each probe; else the request's."""
        cursor, slots, planes = (self.seq + self.o.ev) % U32, self.host.slots, len(self.host.planes)
        first = cursor % self.host.most_evs(self.peer)
        ring = [plane * slots + (first + i) % slots for i in range(slots)]
        if not self.o.flags & DIAGNOSTIC:
            others = [(cursor + i) % planes for i in range(planes)]
            ring += [other * slots + (cursor // planes + i) % slots for other in others for i in range(slots)]
        return next((n for n in ring if n in self.usable), self.o.ev)

    def _reply(self, headers: bytes, ev: int, counts: bytes, tx_ns: int) -> bytes:
        at, o, get = self.at, self.o, self.at.get
        after = UDP + MRC + len(at.frame) - len(headers) - UDP - MRC  # bytes behind the IPv6 header and the SRH
        ip = bytearray(headers)
        struct.pack_into("!I", ip, ETHERNET, 6 << 28 | (o.traffic_class & ~3 | ECT_0) << 20 | ev)
        struct.pack_into("!H", ip, ETHERNET + 4, len(headers) - ETHERNET - IPV6 + after)
        udp = struct.pack("!HHHH", 0xC000 + ev, self.host.udp_port, after, 0)
        key_id = get("auths", self.peer, "tx_id")[get("auths", self.peer, "tx_slot")]
        fields = (version(REPLY), REPLY, o.flags, key_id, self.host.id, o.ev, o.seq, o.segments, self.peer, tx_ns, b"")
        header = HEADER.pack(*fields)[:-8]
        plane_mask, generation = get("node", (), "plane_mask"), get("node", (), "generation")
        status = get("node", (), "status") | get("auths", self.peer, "status")
        accepted = bytes(get("auths", self.peer, "rx_id")[:2])
        told = struct.pack("!HHI", plane_mask, status, generation)
        file = struct.pack("!H", self.host.fingerprint)
        body = self.body[:4] + told + self.body[12:20] + accepted + file + self.body[24:]
        tag = bytes(8)
        if key_id:
            tag = siphash24(header + body + counts, key=self.host.keys[key_id](self.host.id, self.peer)).digest()
        out = bytes(ip) + udp + header + tag + body
        rest = bytearray(at.frame[len(out) :])  # of the request: ballast, room for counts and an SRH, filler
        if counts:
            rest[BALLAST : BALLAST + len(counts)] = counts
        return out + bytes(rest)

    # ---- a reply ----

    def apply_reply(self) -> None:
        """Believes a reply to a request of this host. Raises DroppedError."""
        at, o, now = self.at, self.o, self.at.now
        begin = o.end + PROBE + BALLAST
        end = begin + COUNT * self.counts if self.counts else begin
        if self.counts > REPORT_EVS or (self.counts and len(at.frame) < end):
            raise DroppedError("bad_probe")
        if at.is_tagged(o, self.header + self.body + at.frame[begin:end], self._check_age):
            at.set(*at.noted("replays", self.peer, "replies", o.seq, 0))
            self._learn_clock()
        at.count_untagged(o)
        if (self.peer, o.ev) not in self.host.headers:
            raise DroppedError("bad_ev")
        ahead = (at.get("evs", (self.peer, o.ev), "probe_seq") - self.seq) % U32
        if ahead >= 65536 or (now - self.tx_ns) % U64 > 5000 * MS:
            raise DroppedError("unsolicited_reply")
        at.out.open |= JUDGED
        self._learn_status()

    def _check_age(self) -> None:
        """Raises DroppedError unless the reply answers a request of the last half second for the first time."""
        if (self.at.now - self.tx_ns) % U64 > 500 * MS:
            raise DroppedError("stale")
        if (self.at.get("auths", self.peer, "sent") - self.o.seq) % U32 >= 65536:
            raise DroppedError("unsolicited_reply")
        self.at.noted("replays", self.peer, "replies", self.o.seq, 0)

    def _learn_clock(self) -> None:
        if (self.at.now - self.tx_ns) % U64 > 100 * MS:
            return
        clock_ns, before = (self.o.tx_ns - self.tx_ns) % U64, self.at.get("auths", self.peer, "clock_ns")
        if not before or not -10 * MS <= signed(clock_ns - before) <= 10 * MS:
            self.at.set("auths", self.peer, "clock_ns", clock_ns or 1)

    # ---- both ----

    def _is_overtaken(self) -> bool:
        newest: int = self.at.get("peers", self.peer, "plane_mask_ns")
        return self.o.tx_ns < newest < self.o.tx_ns + 1000 * MS

    def _learn_status(self) -> None:
        at, peer = self.at, self.peer
        if at.is_unheard(peer) or self.status & (DETACHED | PLAIN):
            at.set("peers", peer, "plain_ns", NOW)
        at.set("peers", peer, "heard_ns", NOW)
        if self._is_overtaken():
            return
        if at.get("peers", peer, "plane_mask") != self.plane_mask:
            self._choose_usable()
        for name, value in (
            ("plane_mask_ns", self.o.tx_ns),
            ("generation", self.generation),
            ("key_ids", [*self.key_ids, 0, 0]),
            ("fingerprint", self.fingerprint),
            ("status", self.status),
            ("plane_mask", self.plane_mask),
        ):
            at.set("peers", peer, name, value)

    def _choose_usable(self) -> None:
        """Usable are the good EVs on links of both ends, and while these are too few, the best of the others."""
        at, plane_mask = self.at, self.plane_mask & self.at.get("node", (), "plane_mask")
        numbers = [n for peer, n in self.host.headers if peer == self.peer and plane_mask >> n // self.host.slots & 1]
        ranked = sorted((self._rank(n), self._place(n), n) for n in numbers)
        most = at.get("peers", self.peer, "floor") or 1
        self.usable = [n for rank, _, n in ranked if rank == 1]
        self.usable += [n for rank, _, n in ranked if 1 < rank < 5][: max(0, most - len(self.usable))]
        if not self.usable:
            self.usable = [n for rank, _, n in ranked if rank == 5][:most]
        words = [sum(1 << n % 64 for n in self.usable if n // 64 == w) for w in range(4)]
        at.set("peers", self.peer, "usable", words)
        at.set("peers", self.peer, "usable_planes", sum(1 << p for p in {n // self.host.slots for n in self.usable}))
        at.add("peers", self.peer, "usable_changes", 1)
        at.set("watches", self.peer, "due_ns", 0)

    def _place(self, n: int) -> int:
        """Returns an EV's place in the order over all planes, which begins elsewhere for each pair of hosts."""
        planes = len(self.host.planes)
        first = pair_offset(self.host.id, self.peer, planes * self.host.most_evs(self.peer))
        return (n % self.host.slots * planes + n // self.host.slots - first) % self.host.evs

    def _rank(self, n: int) -> int:
        def get(table: str, name: str) -> int:
            value: int = self.at.get(table, (self.peer, n), name)
            return value

        state = get("evs", "state")
        if state == EvState.GOOD or (state == EvState.SKIP and not get("path_stats", "lag_ns")):
            return 1
        if state != EvState.ASSUMED_BAD:
            return {EvState.UNKNOWN: 2, EvState.SKIP: 3}.get(EvState(state), 6)
        if get("evs", "reason") in (Reason.LOSS, Reason.GREY_LOSS):
            return 5 if get("path_stats", "lost_bursts") else 4
        return 4 if get("path_stats", "good") else 5
