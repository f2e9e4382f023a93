# SPDX-License-Identifier: BSD-2-Clause
"""Checks a network card: mrcd on two machines with it, in a fabric of two planes."""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from labkit.entry import progress
from labkit.kernels import pair
from labkit.kernels.labs import LEAST, iperf3_result
from labkit.kernels.matrix import NOT_HAD, Row
from labkit.kernels.paced import PacedFlow
from labkit.kernels.packages import Kernel
from labkit.kernels.pair import ADDRESSES, NAMES, PLANES, Pair
from mrcd.errors import MachineError

MODELS = {"virtio": "virtio-net-pci", "vmxnet3": "vmxnet3", "e1000e": "e1000e"}
HOOKS = {"virtio": "xdp + tcx", "vmxnet3": "tcx", "e1000e": "tcx"}  # chosen by mrcd, see mrcd/net/drivers.py
CONFIGURED = {
    "vmxnet3": "xdp + tcx"
}  # with hook = "xdp": the driver has native XDP, which mrcd does not choose by itself
PULLS = 5
SMALL, LARGE = 1500, 9000  # MTUs
HOLE_MS = 100
_WINDOW_S, _JUDGED_S = 2.0, 1.5  # after a pull; the receiver may not have reported the last part yet
_ONE_QUEUE = 0.7  # of the packets at a card: probes take any queue
_QUEUES = """\
import json, sys
from mrcd.ctl.examine.machine import Machine
print(json.dumps([(nic, *queue) for nic in sys.argv[1:] for queue in Machine().receive_queues(nic).items()]))"""
_TOLD_S = 15.0  # limit for a card to report a pulled cable to the kernel
_OFFLOADS = (
    "tx-checksumming", "rx-checksumming", "scatter-gather", "tcp-segmentation-offload", "generic-segmentation-offload",
    "generic-receive-offload", "rx-vlan-offload", "tx-vlan-offload",
)  # fmt: skip
_NEEDED = ("tx-checksumming", "tcp-segmentation-offload", "generic-receive-offload")
_PCI = "$(readlink -f /sys/class/net/{nic}/device)"


@dataclass
class Checks:
    """The checks of one card, in order. Each reports its results; a check that raises ends only itself."""

    nic: str
    pair: Pair
    found: list[dict[str, Any]] = field(default_factory=list)
    _mtu: int | None = None

    def say(self, part: str, check: str, ok: bool, words: str, cell: str = "ok") -> None:
        """Records a result."""
        self.found.append({"part": part, "check": check, "ok": ok, "words": words, "cell": cell})
        progress(f"{'ok  ' if ok else 'FAIL'} {self.nic}: {part}: {check}: {words}")

    # ---- shared ----

    def status(self, name: str) -> dict[str, Any]:
        """Returns `mrcctl status --json` of a host; empty if its mrcd does not answer."""
        return self.pair.get(name, "/v1/status") or {}

    def wait_until_good(self, **planes: Any) -> None:
        """Waits until all planes are up on both hosts with these values, and all EVs are GOOD. Raises MachineError."""

        def good(name: str) -> bool:
            s = self.status(name)
            evs = s.get("evs", {})
            up = s and all(p["up"] and all(p[k] == v[i] for k, v in planes.items()) for i, p in enumerate(s["planes"]))
            return bool(up) and sum(evs.values()) == evs["GOOD"] > 0

        for name in NAMES:
            try:
                self.pair.wait(functools.partial(good, name), f"all planes are up and all EVs GOOD on {name}")
            except MachineError as e:
                raise MachineError(f"{e}: {self._not_good(name)}") from None

    def _not_good(self, name: str) -> str:
        """Returns a description of a host's planes and EVs."""
        planes = [f"plane {p['plane']} up {p['up']} {p['interface']} {p['hook']}" for p in self.status(name)["planes"]]
        paths = (self.pair.get(name, "/v1/paths") or {}).get("paths", [])
        return ", ".join(planes + [f"EV {p['ev']} {p['state']} {p['reason']}" for p in paths])

    @contextlib.contextmanager
    def flows(self) -> Iterator[tuple[PacedFlow, PacedFlow]]:
        """A block with a TCP flow each way."""
        with PacedFlow(self.pair, "h0", "h1") as there, PacedFlow(self.pair, "h1", "h0") as back:
            yield there, back

    def under_traffic(self, part: str, check: str, disturb: Callable[[], object]) -> None:
        """Disturbs a plane under TCP both ways: it must recover by itself, and the flows must continue."""
        with self.flows() as flows:
            begin = [f.newest for f in flows]
            disturb()
            began = time.monotonic()
            self.wait_until_good()
            after_s = time.monotonic() - began
            marks = [f.newest for f in flows]
            self.pair.wait(
                lambda: all(f.newest > m for f, m in zip(flows, marks, strict=True)), "the flows continue", 20
            )
            holes = {str(f): f.hole_ms(b, f.newest) for f, b in zip(flows, begin, strict=True)}
        words = ", ".join(f"{ms} ms {f}" for f, ms in holes.items())
        self.say(part, check, True, f"all EVs GOOD {after_s:.0f} s later; longest hole {words}")

    # ---- the checks ----

    def hook(self) -> None:
        """Checks native XDP where mrcd gains by it, otherwise tc, with the reason."""
        planes: list[dict[str, Any]] = self.status("h0")["planes"]
        for plane in planes:
            words = f"{plane['hook']}: {plane['hook_reason']}"
            ok = plane["hook"] == HOOKS[self.nic] and bool(plane["hook_reason"])
            self.say("MTU 1500", "hook", ok, f"plane {plane['plane']}: {words}", plane["hook"])

    def configured(self) -> None:
        """Checks native XDP where only the configuration asks for it and the driver has it."""
        if self.nic not in CONFIGURED:
            return
        self.pair.reload(hook="xdp")
        self.wait_until_good(hook=[CONFIGURED[self.nic]] * PLANES)
        self.hook_at('hook = "xdp"')
        self.reach('hook = "xdp"')
        self.pair.reload()
        self.wait_until_good(hook=[HOOKS[self.nic]] * PLANES)

    def offloads(self) -> None:
        """Checks that checksums, segmentation and merging are left to the card, or are reported otherwise."""
        text = self.pair.hosts["h0"].do(f"ethtool -k {self.pair.interfaces[0]}")
        values = dict(line.strip().split(": ", 1) for line in text.splitlines() if ": " in line)
        self.say(
            "MTU 1500",
            "checksums, TSO and GRO are on",
            all(values[k].startswith("on") for k in _NEEDED),
            ", ".join(f"{k} {values[k]}" for k in _OFFLOADS),
        )

    def reach(self, part: str) -> None:
        """Checks ping, TCP and UDP, both IP versions, both ways: nothing is dropped, and the full MTU passes."""
        h0 = self.pair.hosts["h0"]
        before = {name: self.status(name)["drops"] for name in NAMES}
        mtu = int(self.status("h0")["inner_mtu"])
        for version, headers in ((4, 28), (6, 48)):
            there = ADDRESSES[version]["h1"]
            exact, more = (
                h0.run(["ping", "-c3", "-W5", "-M", "do", "-s", str(mtu - headers + n), there]) for n in (0, 1)
            )
            words = f"{mtu} bytes {'pass' if not exact.returncode else 'do not pass'}, one more "
            refused = "too long" in more.stdout + more.stderr
            words += "is refused" if refused else f"is not refused: {more.stdout.strip()}"
            ok = exact.returncode == 0 and refused
            self.say(part, "ping of the inner MTU, and of one byte more", ok, f"IPv{version}: {words}")
            for kind, options in (("TCP", []), ("UDP", ["-u", "-b", "5M", "-l", "1000"])):
                for way, reverse in (("h0 → h1", []), ("h1 → h0", ["-R"])):
                    self._iperf3(part, kind, f"IPv{version} {way}", [there, *options, *reverse])
        after = {name: self.status(name)["drops"] for name in NAMES}
        drops = {n: {k: v - before[n].get(k, 0) for k, v in after[n].items() if v > before[n].get(k, 0)} for n in NAMES}
        self.say(part, "no drops", not any(drops.values()), f"drops {drops if any(drops.values()) else 'none'}")

    def _iperf3(self, part: str, kind: str, which: str, arguments: list[str]) -> None:
        check = f"{kind} both ways, IPv4 and IPv6"
        done = self.pair.hosts["h0"].run(["iperf3", "-J", "-t", "3", "-c", *arguments])
        received, words = iperf3_result(done)
        self.say(part, check, received > (0 if "-u" in arguments else LEAST), f"{which}: {words}")

    def cable(self) -> None:
        """Pulls a plane's cable repeatedly under TCP both ways: no pause of 100 ms, and it recovers."""
        h0 = self.pair.hosts["h0"]
        pulled: dict[str, list[int]] = {}
        quiet: dict[str, list[int]] = {}
        seen = []
        with self.flows() as flows:
            for n in range(PULLS):
                tap = h0.nics[n % PLANES].tap
                self._window(flows, quiet, lambda: None)
                try:
                    self._window(flows, pulled, functools.partial(h0.pull, tap))
                    seen.append(self._seen_down(n % PLANES))
                finally:
                    h0.plug(tap)
                self.wait_until_good()
        for flow, holes in pulled.items():
            # A real CPU is judged by each pull; an emulated CPU also pauses without a pull.
            added = max(holes) if self.pair.kvm else median(holes) - median(quiet[flow])
            words = f"longest holes {_ms(holes)} after {PULLS} pulls, {_ms(quiet[flow])} without"
            check = f"TCP {flow}: a pull adds no hole of {HOLE_MS} ms"
            self.say("cable pulled", check, added < HOLE_MS, words, f"{max(holes)} ms")
        self.say("cable pulled", "recovers by itself", True, f"all EVs GOOD after each of {PULLS}")
        told = [words for words in seen if words]
        words = told[0] if told else f"each of {PULLS} times"
        self.say("cable pulled", "seen as link down", True, words, NOT_HAD if told else "ok")

    def _seen_down(self, plane: int) -> str:
        """Waits until mrcd reports a plane down. Returns the reason if the card does not tell the kernel."""
        carrier = f"/sys/class/net/{self.pair.interfaces[plane]}/carrier"
        until = time.monotonic() + _TOLD_S
        while time.monotonic() < until:
            if self._is_down(plane):
                return ""
            time.sleep(1.0)
        if self.pair.hosts["h0"].do(f"cat {carrier}").strip() == "1":
            return f"{carrier} is still 1"
        self.pair.wait(functools.partial(self._is_down, plane), f"plane {plane} is seen as down")
        return ""

    def _is_down(self, plane: int) -> bool:
        planes = self.status("h0").get("planes")
        return planes is not None and not planes[plane]["up"]

    def _has_mtu(self, name: str, mtu: int) -> bool:
        return self.status(name).get("mtu") == mtu

    def _set_mtu(self, mtu: int) -> None:
        self.pair.each(f"for n in {' '.join(self.pair.interfaces)}; do ip link set $n mtu {mtu}; done")

    def _set_queues(self, count: int) -> None:
        for nic in self.pair.interfaces:
            self.pair.hosts["h0"].do(f"ethtool -L {nic} combined {count}")

    def _window(self, flows: tuple[PacedFlow, ...], holes: dict[str, list[int]], disturb: Callable[[], object]) -> None:
        begin = [f.newest for f in flows]
        disturb()
        time.sleep(_WINDOW_S)
        for flow, b in zip(flows, begin, strict=True):
            holes.setdefault(str(flow), []).append(flow.hole_ms(b, b + int(_JUDGED_S * 1e9)))

    def link(self) -> None:
        """Checks ip link set down and up."""
        nic, h0 = self.pair.interfaces[0], self.pair.hosts["h0"]
        self.under_traffic(
            "reset", "ip link set down, up", lambda: h0.do(f"ip link set {nic} down; sleep 2; ip link set {nic} up")
        )

    def rebind(self) -> None:
        """Unbinds and binds the driver: the card gets another ifindex."""
        nic, h0 = self.pair.interfaces[0], self.pair.hosts["h0"]
        device = f"d={_PCI.format(nic=nic)}; driver=$(readlink -f $d/driver); d=$(basename $d)"
        script = (
            f"{device}; mtu=$(cat /sys/class/net/{nic}/mtu); echo $d >$driver/unbind; sleep 2; echo $d >$driver/bind"
        )
        script += f"; ip link set {nic} mtu $mtu up"
        before = self._ifindex(0)
        self.under_traffic("reset", "driver unbound, bound", lambda: h0.do(script))
        after = self._ifindex(0)
        self.say("reset", "driver unbound, bound", before != after, f"ifindex {before}, then {after}")

    def _ifindex(self, plane: int) -> int:
        return int(self.status("h0")["planes"][plane]["ifindex"])

    def queues(self) -> None:
        """Checks ethtool -L, where the driver has it; virtio_net only without XDP."""
        nic, h0 = self.pair.interfaces[0], self.pair.hosts["h0"]
        refused = h0.run(["ethtool", "-L", nic, "combined", "1"])
        if refused.returncode and "not supported" in refused.stderr:
            self.say("queues", "ethtool -L", True, f"the driver has none: {refused.stderr.strip()}", "none")
            return
        if refused.returncode:
            words = f"the driver refuses it while XDP is attached: {refused.stderr.strip()}"
            self.say("queues", "ethtool -L with native XDP", "xdp" in HOOKS[self.nic], words, "refused")
            self.pair.reload(hook="tc")
            self.wait_until_good(hook=["tcx"] * PLANES)
        for count in (1, 2):
            self.under_traffic(
                "queues",
                f"ethtool -L combined {count} with tc",
                functools.partial(self._set_queues, count),
            )
        if refused.returncode:
            self.pair.reload()
            self.wait_until_good(hook=[HOOKS[self.nic]] * PLANES)
            self.say("queues", 'native XDP again after hook = "auto"', True, HOOKS[self.nic])

    def ports(self) -> None:
        """Checks in which receive queues a TCP flow arrives: in one of each card if its source port is the flow's."""
        if not any(key.startswith(self.pair.interfaces[0]) for key in self._counts("h1")):
            self.say("ports", "queues", True, "the driver counts no packets by queue", "none")
            return
        for source_port in ("ev", "flow"):  # EVs may have one queue by chance
            before = {name: self._programs(name) for name in NAMES}
            self.pair.reload(source_port=source_port)
            for name in NAMES:
                self.pair.wait(functools.partial(self._has_others, name, before[name]), f"{name} has other programs")
            self.wait_until_good()
            shares, words = self._queue_shares()
            ok = source_port == "ev" or all(share >= _ONE_QUEUE for share in shares)
            cell = ", ".join(f"{share:.0%}" for share in shares)
            self.say("ports", f'source_port = "{source_port}": a flow by queue', ok, words, cell)

    def _programs(self, name: str) -> list[int]:
        return sorted(link["program_id"] for link in self.status(name).get("links", ()))

    def _has_others(self, name: str, before: list[int]) -> bool:
        return self._programs(name) not in ([], before)

    def _queue_shares(self) -> tuple[list[float], str]:
        """Sends TCP from h0 to h1. Returns the busiest queue's share of the packets that arrive, by card, and words."""
        before = {name: self._counts(name) for name in NAMES}
        done = self.pair.hosts["h0"].run(["iperf3", "-J", "-n", "20000000", "-c", ADDRESSES[4]["h1"]])
        goodput, words = iperf3_result(done)
        if not goodput:
            raise MachineError(f"iperf3 failed: {words}")
        sent, more = ({k: n - before[name].get(k, 0) for k, n in self._counts(name).items()} for name in NAMES)
        cards = [[n for k, n in more.items() if k.startswith(f"{nic} ")] for nic in self.pair.interfaces]
        shares = [max(queues) / max(1, sum(queues)) for queues in cards]
        merged = sent["Tcp OutSegs"] / more["Ip InReceives"]
        told = ", ".join(f"{100 * s:.0f} %" for s in shares)
        return shares, (
            f"busiest queue of each card {told}; {merged:.1f} segments per packet given to TCP, "
            f"{more['TcpExt TCPOFOQueue']} out of order; {words}"
        )

    def _counts(self, name: str) -> dict[str, int]:
        """Returns a host's counts: of packets by receive queue (`NIC N`), and the kernel's of IP and TCP."""
        done = self.pair.hosts[name].run(["python3", "-c", _QUEUES, *self.pair.interfaces])
        found: dict[str, int] = {f"{nic} {n}": count for nic, n, count in json.loads(done.stdout)}
        lines = self.pair.hosts[name].do("cat /proc/net/snmp /proc/net/netstat").splitlines()
        for keys, values in zip(lines[::2], lines[1::2], strict=True):
            group = keys.partition(":")[0]
            found |= {f"{group} {k}": int(v) for k, v in zip(keys.split()[1:], values.split()[1:], strict=True)}
        return found

    def mtu(self) -> None:
        """Checks 9000 bytes: first the NICs, then the cluster file."""
        if self._largest() != LARGE:
            return
        self._set_mtu(LARGE)
        self.pair.reload(mtu=LARGE)
        for name in NAMES:
            self.pair.wait(functools.partial(self._has_mtu, name, LARGE), f"{name} has gone over to MTU {LARGE}")
        self.wait_until_good()
        self.hook_at(f"MTU {LARGE}")
        self.reach(f"MTU {LARGE}")

    def _largest(self) -> int:
        """Returns the MTU at which the card itself, in qemu, exchanges full packets with its switch."""
        if self._mtu is None:
            self._set_mtu(LARGE)
            gateway = self.pair.lab.fabric.config.interfaces.gateway
            sizes = {}
            for size in (SMALL, LARGE):
                argv = ["ping", "-c3", "-W5", "-M", "do", "-s", str(size - 48), f"{gateway}%{self.pair.interfaces[0]}"]
                done = self.pair.hosts["h0"].run(argv)
                sizes[size] = " 0% packet loss" in done.stdout
            self._mtu = LARGE if sizes[LARGE] else SMALL
            words = ", ".join(f"{size} bytes {'pass' if ok else 'do not pass'}" for size, ok in sizes.items())
            cell = "ok" if sizes[LARGE] else NOT_HAD
            self.say(f"MTU {LARGE}", "the card by itself, without mrcd", sizes[SMALL], words, cell)
        return self._mtu

    def vlan(self) -> None:
        """Checks VLAN interfaces on both planes, at the largest MTU."""
        mtu = self._largest()
        self._set_mtu(mtu)
        names = [f"{nic}.{pair.VLAN}" for nic in self.pair.interfaces]
        for nic, name in zip(self.pair.interfaces, names, strict=True):
            self.pair.each(f"ip link add link {nic} name {name} type vlan id {pair.VLAN}; ip link set {name} up")
        with pair.tagged(self.pair.lab):
            self.pair.reload(mtu=mtu, interfaces=names)
            self.wait_until_good(interface=names)
            part = f"VLAN, MTU {mtu}"
            self.hook_at(part)
            self.reach(part)
            self.rebind_vlan(part, names)

    def rebind_vlan(self, part: str, names: list[str]) -> None:
        """Sets only the VLAN interface down and up."""
        h0 = self.pair.hosts["h0"]
        script = f"ip link set {names[0]} down; sleep 2; ip link set {names[0]} up"
        self.under_traffic(part, "ip link set down, up", lambda: h0.do(script))

    def hook_at(self, part: str) -> None:
        """Checks the hook at which mrcd receives now."""
        planes = self.status("h0")["planes"]
        words = "; ".join(f"{p['interface']} {p['hook']}: {p['hook_reason']}" for p in planes)
        self.say(part, "hook", len({p["hook"] for p in planes}) == 1, words, planes[0]["hook"])


def _ms(holes: list[int]) -> str:
    return f"{', '.join(map(str, holes))} ms"


def run(kernel: Kernel, nic: str, results: Path, only: tuple[str, ...] = ()) -> Row:
    """Runs all checks of a card, or those of `only`."""
    progress(f"nics: {nic} on {kernel.release} begins")
    found: list[dict[str, Any]] = []
    try:
        with pair.booted(kernel, MODELS[nic], results / nic) as it:
            checks = Checks(nic, it, found)
            it.write_config()
            it.each(f"modprobe 8021q; for n in {' '.join(it.interfaces)}; do ip link set $n mtu 1500 up; done")
            it.start_daemons()
            checks.wait_until_good()
            it.hosts["h1"].start(["iperf3", "-s"], "iperf3")
            for name, check in CHECKS.items():
                if only and name not in only:
                    continue
                try:
                    check(checks)
                except Exception as e:
                    checks.say(name, "ran to its end", False, f"{type(e).__name__}: {e}")
    except MachineError as e:
        return Row(nic, tuple(found), str(e))
    return Row(nic, tuple(found))


CHECKS: dict[str, Callable[[Checks], None]] = {
    "hook": Checks.hook,
    "offloads": Checks.offloads,
    "reach": lambda checks: checks.reach("MTU 1500"),
    "configured": Checks.configured,
    "cable": Checks.cable,
    "link": Checks.link,
    "rebind": Checks.rebind,
    "queues": Checks.queues,
    "ports": Checks.ports,
    "mtu": Checks.mtu,
    "vlan": Checks.vlan,
}
