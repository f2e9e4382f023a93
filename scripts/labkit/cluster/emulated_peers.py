# SPDX-License-Identifier: BSD-2-Clause
"""Runs one real mrcd with real NICs whose peers are emulated by one program (bpf/lab/echo.bpf.c).

    h0: mrcd, mrc0, p0 … p3 ══ veth ══ q0 … q3: t0-0-0, where the program answers probes for all peers

The host's packets are real, and so are the answers. Peers send nothing by themselves, and paths lose nothing.
It uses the directory and namespaces of a lab of its name, and `Lab.down` removes it.
"""

import os
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit.cluster import bringup, fabric, netns, processes
from labkit.cluster.api import Lab
from labkit.cluster.processes import Process
from labkit.faults import tc_hook
from mrcd.errors import MachineError
from mrcd.kernel import libbpf
from mrcd.kernel.dataplane import pin_directory
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

HOST, SWITCH = "h0", "t0-0-0"
PLANES = 4
EVS, MANY, FEW_EVS = 256, 4096, 64  # EVs of a peer; with more peers than MANY: the third
HOSTS_PER_T0 = 40  # as bpf/lab/echo.bpf.c
_PATIENCE_S = 60.0
_POLL_S = 0.02


def evs(peers: int) -> int:
    """Returns the EVs of each of so many peers."""
    return EVS if peers <= MANY else FEW_EVS


def cluster_file(peers: int, settings: str = "", of_peer: int | None = None) -> str:
    """Returns TOML: h0 alone under T0 0, the others under T0s of 40 (so each peer has all EVs), and `settings`."""
    of_peer = of_peer or evs(peers)
    t0s = 1 + -(-peers // HOSTS_PER_T0)
    places = [(0, 0), *((1 + n // HOSTS_PER_T0, n % HOSTS_PER_T0) for n in range(peers))]
    hosts = (fabric.host_table(n, t0, port, [f"{address(n)}/32"]) for n, (t0, port) in enumerate(places))
    sizes = f"t0s = {t0s}\nt1s = {of_peer // PLANES}\nevs_per_peer = {of_peer}"
    head = f'[cluster]\nname = "peers"\nplanes = {PLANES}\n{sizes}\nmtu = 9100\n'
    return "\n".join([head, settings, *hosts])


def address(host_id: int) -> str:
    """Returns the overlay address of a host."""
    return f"10.64.{host_id >> 8}.{host_id & 255}"


class Seen(NamedTuple):
    """Counters of the far end of h0's NICs (struct seen of bpf/lab/echo.bpf.c)."""

    data_bursts: int
    data_packets: int  # a burst counts its segments
    data_bytes: int  # with Ethernet headers; a burst counts its headers once
    requests: int
    request_bytes: int


class EmulatedPeers:
    """Host h0 and `peers` emulated peers. Call `up` first. Methods raise MachineError."""

    def __init__(self, lab: Lab, peers: int) -> None:
        self._state, self.peers = lab.state, peers
        self._host, self._switch = (fabric.namespace(lab.state.name, node) for node in (HOST, SWITCH))

    def up(self) -> None:
        """Makes namespaces, links and the program, and removes any earlier ones; starts no daemon."""
        bringup.down(self._state, lambda _: None)
        with self._state.locked():
            self._state.run_dir(HOST).mkdir()
            self.write(self.peers)
            netns.mount_bpffs(self._state.pins)
            netns.mount_bpffs(self._state.bpffs(HOST))
            netns.batch(("ip",), (f"netns add {n}" for n in (self._host, self._switch)))
            pair = "link add p{p} netns {here} mtu 9216 type veth peer name q{p} mtu 9216 netns {there}"
            netns.batch(("ip",), (pair.format(p=p, here=self._host, there=self._switch) for p in range(PLANES)))
            netns.batch_in(self._host, ("ip",), ("link set lo up", *(f"link set p{p} up" for p in range(PLANES))))
            netns.batch_in(self._switch, ("ip",), (f"link set q{p} up" for p in range(PLANES)))
            gateways = (f"addr add fe80::1/64 dev q{p} nodad" for p in range(PLANES))
            netns.batch_in(self._switch, ("ip", "-6"), gateways)
            self._attach()

    def _attach(self) -> None:
        with tc_hook.loaded("echo") as obj, netns.inside(self._switch):
            for name in ("dead", "seen"):
                libbpf.pin(tc_hook.map_fd(obj, name), self._state.pins / name)
            for p in range(PLANES):
                program = libbpf.program_fd(obj, "echo")
                link = libbpf.create_link(program, socket.if_nametoindex(f"q{p}"), libbpf.TCX_INGRESS)
                libbpf.pin(link, self._state.pins / f"q{p}")
                os.close(link)

    def write(self, peers: int, settings: str = "") -> None:
        """Writes the cluster file: its first peers are those of `up`, each with as many EVs."""
        self._state.cluster_file.write_text(cluster_file(peers, settings, evs(self.peers)), encoding="utf-8")

    def start(self) -> float:
        """Starts mrcd. Returns the seconds until it answers."""
        begun = time.monotonic()
        child = bringup.start_daemon(self._state, HOST, self._host)
        while not bringup.answers(self._state.socket(HOST)):
            if child.poll() is not None or time.monotonic() - begun > _PATIENCE_S:
                said = self._state.log(HOST).read_text(encoding="utf-8", errors="replace")[-1000:]
                raise MachineError(f"mrcd does not answer after {time.monotonic() - begun:.0f} s:\n{said}")
            time.sleep(_POLL_S)
        return time.monotonic() - begun

    def all_good(self) -> None:
        """Marks all EVs GOOD in the tables while no daemon runs: a million EVs would take minutes by themselves.

        The next start computes the usable EVs.
        """
        tables = Tables(self.pins, writable=True)
        tables.evs["state"][tables.evs["configured"] != 0] = EvState.GOOD
        tables.close()

    def kill(self, ev: int | None) -> None:
        """Drops all packets on EVs of this number, to every peer, as a dead T1 does; None drops nothing any more."""
        with libbpf.opened(self._state.pins / "dead") as fd:
            libbpf.update_elem(fd, struct.pack("I", 0), struct.pack("I", 0 if ev is None else ev + 1))

    def seen(self) -> Seen:
        """Returns the counters of packets from h0, summed over all CPUs."""
        with libbpf.opened(self._state.pins / "seen") as fd:
            raw = libbpf.lookup_all(fd, 1, 8 * len(Seen._fields) * libbpf.possible_cpus())
        return Seen(*np.frombuffer(raw, np.uint64).reshape(-1, len(Seen._fields)).sum(axis=0).tolist())

    def stop(self) -> float:
        """Stops mrcd and keeps what it installed. Returns the seconds that this took."""
        begun = time.monotonic()
        if processes.end([self.daemon], _PATIENCE_S):
            raise MachineError(f"mrcd did not stop within {_PATIENCE_S:.0f} s")
        return time.monotonic() - begun

    @property
    def daemon(self) -> Process:
        """Returns the running daemon."""
        process = self._state.daemon(HOST)
        if process is None or not processes.alive(process):
            raise MachineError("mrcd does not run", hint=f"see {self._state.log(HOST)}")
        return process

    @property
    def pins(self) -> Path:
        """Returns the directory of the pinned tables."""
        return pin_directory(self._state.bpffs(HOST))

    @property
    def run_dir(self) -> Path:
        """Returns the directory of the daemon's socket."""
        return self._state.run_dir(HOST)

    def popen(self, argv: list[str]) -> "subprocess.Popen[bytes]":
        """Starts a command in h0; the caller ends it."""
        with netns.inside(self._host):
            return subprocess.Popen(
                argv, env=bringup.environment(self._state, HOST), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
