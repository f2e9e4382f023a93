# SPDX-License-Identifier: BSD-2-Clause
"""Compares mrc_pop and mrc_pop_xdp with the model of model.py, on random packets."""

import dataclasses
import functools
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scapy.packet import Raw

from mrcd.auth.keyring import Keyring, pair_key
from mrcd.auth.secrets_file import Secret
from mrcd.config.cluster_file import fingerprint
from mrcd.fabric import links
from mrcd.kernel import libbpf
from mrcd.kernel.enums import AuthMode, Drop
from tests.packet import model
from tests.packet.clock import now
from tests.packet.model_host import ETHERNET, IPV6, MS, NOW, Host, Outcome, Plane
from tests.packet.model_packets import GENERATION, Packet, Situation, encoded, packet, situation
from tests.packet.packets import EVS, H0, H1, H2, H5, PLANES
from tests.packet.rig import Bench, Hook, Setup

pytestmark = [pytest.mark.root, pytest.mark.long]


OLD, NEW = Secret(7, bytes(range(32))), Secret(8, bytes(range(32, 64)))
TABLES = ("evs", "path_stats", "rxs", "peers", "auths", "replays", "copies", "reports", "watches", "planes", "node")
S = 1000 * MS
CLOCKS_NS = {H1: 0, H2: 3600 * S, H5: 2**64 - 5 * S}  # of the peers; 0: unknown
"""Runs of programs that the model has predicted, by hook and outcome; printed at the end of the tests."""
VERDICTS: dict[Hook, dict[int, str]] = {
    "tc": {0xFFFFFFFF: "pass", 2: "drop", 7: "redirect"},
    "xdp": {1: "drop", 2: "pass"},
}


def modelled(bench: Bench, mode: AuthMode) -> Host:
    plan, hosts = bench.plan, bench.config.hosts
    plans = {h.id: bench.setup.plan(h.name) for h in hosts}
    ids = [h.id for h in hosts if h.id != plan.host.id]
    secrets = {} if mode is AuthMode.OFF else {s.key_id: s.secret for s in (OLD, NEW)}
    return Host(
        tables={},
        id=plan.host.id,
        planes=tuple(
            Plane(bench.ifindex[f"n{p}"], plan.sids[p].packed, plan.addresses[p].packed) for p in range(len(plan.sids))
        ),
        links=frozenset(link.number for link in links.links(plan)),
        evs=EVS,
        inner_mtu=plan.inner_mtu,
        udp_port=plan.config.cluster.udp_port,
        fingerprint=fingerprint(plan.config.cluster),
        is_strict=plan.config.overlay.source_check == "strict",
        mode=mode,
        peers={i: tuple(a.packed for a in plans[i].addresses) for i in ids},
        owners={n.network_address.packed: h.id for h in hosts for n in h.prefixes},
        keys={i: functools.cache(functools.partial(pair_key, secret)) for i, secret in secrets.items()},
        headers={(p.host.id, e.ev): _headers(bench, p.host.id, e.ev) for p in plan.peers for e in p.evs},
    )


def _headers(bench: Bench, peer: int, ev: int) -> bytes:
    frame = bytes(bench.sent(peer, ev, Raw(b"")))
    return frame[: -8 - 32]


@dataclass
class Seen:
    verdict: str
    data: bytes
    drops: Counter[str]
    tables: dict[str, NDArray[np.void]]


class Comparison:
    """Compares the programs with the model, packet by packet, and counts the outcomes in `compared`."""

    def __init__(self, bench: Bench, host: Host, situation: Situation, compared: Counter[str]) -> None:
        self._bench, self._host, self._compared = bench, host, compared
        self._drops_fd, self._cpus = bench.map_fd("mrc_drops"), libbpf.possible_cpus()
        self._programs: dict[Hook, int] = {
            "tc": bench.dataplane.program("mrc_pop"),
            "xdp": bench.dataplane.program("mrc_pop_xdp"),
        }
        self._vlans = situation.vlans
        self._set_up(situation)
        self._host.tables.update(self._read())
        self._drops = self._dropped()

    def _set_up(self, situation: Situation) -> None:
        tables, mode = self._bench.tables, self._host.mode
        keyring = Keyring(H0)
        keyring.use(mode, (OLD, NEW))
        rows = np.array([p.host.id for p in self._bench.plan.peers])
        keyring.update(tables.auths, tables.peers, rows, anew=True)
        for row, clock_ns in CLOCKS_NS.items():
            tables.auths["clock_ns"][row] = clock_ns
            tables.peers["generation"][row] = GENERATION
        tables.auths["sent"], tables.evs["probe_seq"] = 10, 10
        tables.peers["heard_ns"][[H1, H2, H5]] = [0, now(), now() + 3600 * S]
        tables.peers["plane_skew_ns"] = situation.skew_ns
        tables.watches["due_ns"] = now()
        tables.planes["vlan"][: len(situation.vlans)] = situation.vlans
        tables.node["generation"], tables.node["status"] = situation.generation, int(situation.is_detached)
        tables.node["overlay_ifindex"] = self._bench.ifindex["m0b"] if situation.delivers else 0
        tables.node["overlay_eth"] = range(12)

    def compare(self, packet: Packet, hook: Hook) -> None:
        plane = packet.ev // self._host.slots
        ifindex = self._host.planes[plane].ifindex
        vlan = self._vlans[plane]
        frame = encoded(packet, self._host, now(), vlan, (OLD.key_id, NEW.key_id))
        if hook == "xdp":
            outcome = self._check("xdp", frame, ifindex, 0)
            if outcome.verdict == "drop" or outcome.data != frame:
                return
        if len(frame) < ETHERNET + IPV6:
            return  # BPF_PROG_TEST_RUN refuses it
        self._check("tc", frame, ifindex, packet.gso_size if hook == "tc" else 0)

    def _check(self, hook: Hook, frame: bytes, ifindex: int, gso_size: int) -> Outcome:
        """Runs one program, and returns what the model says."""
        ctx = struct.pack("40xI132xI", ifindex, gso_size)  # struct __sk_buff up to gso_size
        if hook == "xdp":
            ctx = struct.pack("IIIIII", 0, len(frame), 0, ifindex, 0, 0)  # struct xdp_md
        result, data = libbpf.run_program(self._programs[hook], frame, ctx=ctx, room=1 << 13)
        seen = Seen(VERDICTS[hook].get(result, str(result)), data, self._dropped(), self._read())
        outcome = _predicted(hook, self._host, frame, ifindex, gso_size, now())
        faults = self._faults(outcome, seen)
        assert not faults, "\n".join([f"{hook}, {frame.hex()}: not {_named(outcome)}, but", *faults])
        self._host.tables.update(seen.tables)
        self._drops = seen.drops
        self._compared[f"{hook} {_named(outcome)}"] += 1
        return outcome

    def _faults(self, outcome: Outcome, seen: "Seen") -> list[str]:
        faults = []
        if seen.verdict != outcome.verdict:
            faults.append(f"verdict {seen.verdict}")
        expected = Counter(self._drops)
        expected[outcome.drop] += 1
        del expected[""]
        if seen.drops != expected:
            faults.append(f"drops {dict(seen.drops)}, not {dict(expected)}")
        if not faults and outcome.verdict != "drop":
            wanted = outcome.data
            if outcome.reply is not None:
                at = _time_at(seen.data)
                sent_ns = int.from_bytes(seen.data[at : at + 8], "big")
                if sent_ns != now():
                    faults.append(f"the reply is of {sent_ns}, not of {now()}")
                wanted = outcome.reply(sent_ns)
            if seen.data != wanted:
                faults.append(f"bytes {seen.data.hex()}, not {wanted.hex()}")
        return faults + self._changed(outcome, seen)

    def _changed(self, outcome: Outcome, seen: "Seen") -> list[str]:
        """Returns which fields of the tables differ from the prediction."""
        expected, faults = dict(self._host.tables), []
        for name, index, field, value in outcome.changes:
            if expected[name] is self._host.tables[name]:
                expected[name] = expected[name].copy()
            if value == NOW:
                value = now()
            expected[name][field][index] = value
        for name, table in seen.tables.items():
            if table.tobytes() == expected[name].tobytes():
                continue
            opened = {field for other, field in outcome.open if other == name}
            for field in table.dtype.names or ():
                if opened & {"", field} or (table[field] == expected[name][field]).all():
                    continue
                at = tuple(np.argwhere(table[field] != expected[name][field])[0])
                faults.append(f"{name}{at}.{field} is {table[field][at]}, not {expected[name][field][at]}")
        return faults

    def _read(self) -> dict[str, NDArray[np.void]]:
        return {name: getattr(self._bench.tables, name).copy() for name in TABLES}

    def _dropped(self) -> Counter[str]:
        raw = libbpf.lookup_all(self._drops_fd, len(Drop), 8 * self._cpus)
        counts = np.frombuffer(raw, np.uint64).reshape(len(Drop), -1).sum(axis=1).tolist()
        named = zip(list(Drop)[1:], counts[1:], strict=True)  # the first is a mark: mark_own_drop() in maps.h
        return Counter({drop.text: n for drop, n in named if n})


def _predicted(hook: Hook, host: Host, frame: bytes, ifindex: int, gso_size: int, at_ns: int) -> Outcome:
    if hook == "xdp":
        return model.by_xdp(host, frame, ifindex, at_ns)
    return model.by_tc(host, frame, ifindex, at_ns, gso_size)


def _time_at(reply: bytes) -> int:
    srh = 8 + 8 * reply[ETHERNET + IPV6 + 1] if reply[20] == 43 else 0
    return ETHERNET + IPV6 + srh + 8 + 16


def _named(outcome: Outcome) -> str:
    if outcome.verdict == "drop":
        return f"drop: {outcome.drop or 'served its purpose'}"
    return "reply" if outcome.reply else f"{outcome.verdict}{' popped' if outcome.is_popped else ''}"


FEW = 9_000  # packets
BATCH = 50  # packets that share the tables
SETUPS = {
    "usid": Setup(),
    "srh": Setup("srh"),
    "ecmp, unchecked": Setup("ecmp", more='[overlay]\nsource_check = "off"'),
}
HOOKS: tuple[Hook, ...] = ("tc", "xdp")
CASES = [(name, mode, hook) for name in SETUPS for mode in AuthMode for hook in HOOKS]


@pytest.fixture
def compared(record_property: Callable[[str, object], None]) -> Iterator[Counter[str]]:
    """Counts the runs of programs that the model has predicted, by outcome, for pytest's summary."""
    counts = Counter[str]()
    yield counts
    record_property("compared", dict(counts))


@pytest.mark.parametrize(("name", "mode", "hook"), CASES)
def test_the_programs_do_what_the_model_says(
    benches: Callable[[Setup], Bench],
    pytestconfig: pytest.Config,
    compared: Counter[str],
    name: str,
    mode: AuthMode,
    hook: Hook,
) -> None:
    bench, many = benches(SETUPS[name]), pytestconfig.getoption("model_packets")
    host = modelled(bench, mode)
    seed = random.randrange(2**32) if many else f"{name}, {mode}, {hook}"
    chance = random.Random(seed)
    for _ in range(-(-(many or FEW) // (BATCH * len(CASES)))):
        its_situation = situation(chance)
        if hook == "tc":  # the kernel keeps a tag beside the packet, which BPF_PROG_TEST_RUN cannot
            its_situation = dataclasses.replace(its_situation, vlans=(0,) * PLANES)
        with bench.fresh():
            comparison = Comparison(bench, host, its_situation, compared)
            for n in range(BATCH):
                sent = packet(chance)
                try:
                    comparison.compare(sent, hook)
                except AssertionError as e:
                    e.add_note(f"seed {seed!r}, after {n} packets: {sent}")
                    raise
