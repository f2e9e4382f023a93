# SPDX-License-Identifier: BSD-2-Clause
"""Runs two virtual machines as the two hosts of a lab, whose switches are namespaces of this machine.

machine h0 ── tap0 ┐ namespace h0        ┌ T0 ┐
                   └ br0 ── p0 ──────────┤    ├─ T1s ─ T0 ── … ── machine h1        per plane
                                         └    ┘
"""

import contextlib
import functools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.cluster import netns
from labkit.cluster.api import Lab
from labkit.entry import own_lab
from labkit.faults.tc_hook import Attached
from labkit.kernels import host, machine
from labkit.kernels.host import Host, Nic
from labkit.kernels.packages import Kernel
from labkit.places import lab_object
from mrcd.errors import MachineError
from mrcd.kernel import libbpf

NAMES = ("h0", "h1")
ADDRESSES = {4: {"h0": "10.99.0.1", "h1": "10.99.0.2"}, 6: {"h0": "fd00:99::1", "h1": "fd00:99::2"}}
VLAN = 100  # of bpf/lab/vlan.bpf.c
PLANES = 2
MTU = 9000  # of the fabric
QUEUES = (
    2  # virtio-net queue pairs, one per CPU. With more, Linux 6.12 cannot unbind a card with XDP (docs/hardware.md)
)
_SHAPE = {"hosts": 2, "hosts_per_t0": 1, "planes": PLANES, "t1": 4, "mtu": MTU, "daemon": False}
_START_S = 600.0  # an emulated CPU that other processes delay
_ASK_EACH_S = 1.0  # a request keeps an emulated CPU busy for some tenths of a second
# An emulated CPU pauses at times, and a late probe restarts the hold-down. The default doubles it up to 60 s.
_HEALTH = "\n[health]\nhold_down_ms = 1000\nhold_down_max_ms = 1000\n"
# Python's start is most of the cost of a request there.
_ASK = (
    "import socket,sys;s=socket.socket(socket.AF_UNIX);s.settimeout(30);s.connect('/run/mrcd/mrcd.sock');"
    "s.sendall(b'GET %s HTTP/1.0\\r\\nHost: mrcd\\r\\n\\r\\n'%sys.argv[1].encode());"
    "print(b''.join(iter(lambda:s.recv(1<<16),b'')).partition(b'\\r\\n\\r\\n')[2].decode())"
)


@dataclass
class Pair:
    """The two hosts, booted, and the interfaces of their planes."""

    lab: Lab
    hosts: dict[str, Host]
    kvm: bool  # the machines' CPUs are not emulated
    interfaces: list[str] = field(default_factory=list)  # names of the cards, by plane; the same on both hosts
    pids: dict[str, int] = field(default_factory=dict)  # mrcd's pid, by host

    def each(self, script: str) -> None:
        """Runs a shell script on both hosts at once. Raises MachineError."""
        running = {h: h.start(["sh", "-ec", script]) for h in self.hosts.values()}
        for h, pid in running.items():
            done = h.result(pid)
            if done.returncode:
                raise MachineError(f"{h.name}: {script}: {done.stderr.strip() or done.stdout.strip()}")

    def write_config(
        self,
        mtu: int = 1500,
        interfaces: list[str] | None = None,
        hook: str = "auto",
        granularity: str = "burst",
        source_port: str = "flow",
    ) -> None:
        """Writes the cluster file, which both hosts read."""
        text = self.lab.fabric.toml.replace(f"mtu = {MTU}", f"mtu = {mtu}")
        names = f"[interfaces]\nnames = {json.dumps(interfaces or self.interfaces)}\n"
        text = text.replace("[interfaces]\n", names).replace('hook = "auto"', f'hook = "{hook}"') + _HEALTH
        text = text.replace('granularity = "burst"', f'granularity = "{granularity}"')
        text += f'\n[overlay]\nsource_port = "{source_port}"\n'
        for h in self.hosts.values():
            (h.directory / "mrcd.toml").write_text(text, encoding="utf-8")

    def reload(self, **config: Any) -> None:
        """Writes another cluster file, and makes both mrcd reload it."""
        self.write_config(**config)
        for h in self.hosts.values():
            h.do(f"kill -HUP {self.pids[h.name]}")

    def start_daemons(self) -> None:
        """Starts both mrcd, and waits until they answer."""
        for h in self.hosts.values():
            shutil.copy(self.lab.state.secrets, h.directory)
            argv = ["env", f"CREDENTIALS_DIRECTORY={h.directory}", "mrcd", "--config", str(h.directory / "mrcd.toml")]
            self.pids[h.name] = h.start(argv, "mrcd.log")
        for name in self.hosts:
            self.wait(functools.partial(self.get, name, "/v1/status"), f"mrcd of {name} answers", _START_S)

    def get(self, name: str, path: str) -> Any:
        """Returns a document of a host's mrcd; None if it does not answer."""
        done = self.hosts[name].run(["python3", "-ISc", _ASK, path])
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def wait(self, so: Callable[[], Any], words: str, patience_s: float = 120.0) -> Any:
        """Waits until `so` returns a true value, and returns it. Raises MachineError with `words`."""
        until = time.monotonic() + patience_s
        while not (found := so()):
            if time.monotonic() > until:
                raise MachineError(f"after {patience_s:.0f} s still not: {words}")
            time.sleep(_ASK_EACH_S)
        return found


@contextlib.contextmanager
def tagged(lab: Lab) -> Iterator[None]:
    """A block in which all the hosts' ports of the switches belong to a VLAN, with its tag."""
    obj = libbpf.open_object(lab_object("vlan"))
    attached = Attached("vlan")
    try:
        libbpf.load_object(obj)
        for name in NAMES:
            for port in lab.fabric.nodes[name].ports:
                attached.attach(libbpf.program_fd(obj, "lab_tag"), lab.ns(name), port.name, "ingress")
                attached.attach(libbpf.program_fd(obj, "lab_untag"), lab.ns(name), port.name, "egress")
        yield
    finally:
        attached.remove()
        libbpf.close_object(obj)


@contextlib.contextmanager
def booted(kernel: Kernel, model: str, results: Path, name: str = "nics") -> Iterator[Pair]:
    """A block with a lab of two machines that have cards of this model, without mrcd."""
    queues = QUEUES if model.startswith("virtio") else 1
    kvm = machine.accelerated(kernel)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(own_lab(name))
        lab.up(**_SHAPE)
        children = {}
        cards = {}
        for host_name in NAMES:
            directory = results / host_name
            directory.mkdir(parents=True)
            cards[host_name] = _wire(lab, host_name, model, queues)
            with lab.inside(host_name):
                booting = host.booting(kernel, directory, host_name, cards[host_name], kvm=kvm)
                children[host_name] = stack.enter_context(booting)
        hosts = {}
        for host_name, child in children.items():
            hosts[host_name] = Host.reach(host_name, results / host_name, cards[host_name], child)
            stack.callback(hosts[host_name].close)
        pair = Pair(lab, hosts, kvm)
        pair.interfaces = _interfaces(hosts["h0"])
        yield pair


def _wire(lab: Lab, host_name: str, model: str, queues: int) -> list[Nic]:
    """Bridges a tap per plane to the host's interface; the card takes over its MAC address."""
    cards, lines = [], []
    ports = lab.fabric.nodes[host_name].ports
    with lab.inside(host_name):
        netns.write_sysctls((f"ipv6/conf/{where}/disable_ipv6", "1") for where in ("default", *(p.name for p in ports)))
        for plane, port in enumerate(ports):
            tap, bridge = f"tap{plane}", f"br{plane}"
            cards.append(Nic(model, tap, port.mac, queues))
            lines += [
                f"link set dev {port.name} address 02:4d:ff:00:00:{plane:02x}",
                f"link add name {bridge} mtu {MTU} type bridge mcast_snooping 0",
                f"tuntap add dev {tap} mode tap vnet_hdr{' multi_queue' if queues > 1 else ''}",
                f"link set dev {tap} mtu {MTU} master {bridge} up",
                f"link set dev {port.name} master {bridge}",
                f"link set dev {bridge} up",
            ]
        netns.batch(("ip",), lines)
    return cards


def _interfaces(h: Host) -> list[str]:
    """Returns the names of the cards, by plane."""
    links = {link["address"]: link["ifname"] for link in json.loads(h.do("ip -j link"))}
    return [links[nic.mac] for nic in h.nics]
