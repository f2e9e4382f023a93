# SPDX-License-Identifier: BSD-2-Clause
"""Forwards traffic between two hosts through a third one, which pops every packet and pushes it again."""

import contextlib
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.patience import wait_for
from labkit.traffic.flow import Ends
from mrcd.config import cluster_file


@contextlib.contextmanager
def through(lab: Lab, source: str, relay: str, target: str) -> Iterator[list[Ends]]:
    """A block in which packets from `source` to addresses of `target`'s containers go through `relay`.

    Yields the ends of such flows, IPv4 first. Packets of the target go back directly.
    To the source these addresses belong to the relay: only its daemon gets a cluster file in which the containers'
    prefixes of both are exchanged. Meanwhile all three have `source_check = "off"`: the relay sends
    packets of the source, and receives packets for the target.
    """
    own, middle, far = (_containers(lab.fabric.config, h) for h in (source, relay, target))
    file = lab.state.cluster_file
    text = file.read_text(encoding="utf-8")
    routed = other = _unchecked(text)
    for a, b in zip(middle, far, strict=True):
        other = other.replace(f'"{a}"', "?").replace(f'"{b}"', f'"{a}"').replace("?", f'"{b}"')
    addresses = {h: [str(p.network_address + 1) for p in prefixes] for h, prefixes in ((source, own), (target, far))}
    with contextlib.ExitStack() as undo:
        for host in (source, relay, target):
            undo.callback(observe.reload, lab, host)
        undo.callback(file.write_text, text, encoding="utf-8")
        file.write_text(other, encoding="utf-8")
        observe.reload(lab, source)
        file.write_text(routed, encoding="utf-8")  # restarted daemons of the others read this file
        observe.reload(lab, relay)
        observe.reload(lab, target)
        for host, found in addresses.items():
            for address in found:
                lab.exec(host, ["ip", "address", "add", address, "dev", "lo", "nodad"], check=True)
                undo.callback(lab.exec, host, ["ip", "address", "del", address, "dev", "lo"])
        for name in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            before = lab.exec(relay, ["sysctl", "-n", name], check=True).stdout.strip()
            lab.exec(relay, ["sysctl", "-qw", f"{name}=1"], check=True)
            undo.callback(lab.exec, relay, ["sysctl", "-qw", f"{name}={before}"])
        flows = [Ends(source, a, target, b) for a, b in zip(*addresses.values(), strict=True)]
        for ends in flows:
            _wait_for(lab, ends)
        yield flows


def _wait_for(lab: Lab, ends: Ends) -> None:
    """Waits until the target answers: routes follow a cluster file a little later. Raises MachineError."""
    ping = ["ping", "-c1", "-W1", "-I", ends.source_address, ends.target_address]
    wait_for(f"{ends.target_address} answers", lambda: lab.exec(ends.source, ping).returncode == 0, 5.0)


def _unchecked(text: str) -> str:
    """Returns a cluster file in which hosts may route for others."""
    setting = 'source_check = "off"'
    lines = [line for line in text.splitlines() if not line.startswith("source_check = ")]
    if "[overlay]" in lines:
        lines.insert(lines.index("[overlay]") + 1, setting)
    else:
        lines += ["", "[overlay]", setting]
    return "\n".join(lines) + "\n"


def _containers(cluster: cluster_file.Config, host: str) -> list[IPv4Network | IPv6Network]:
    return [p for p in cluster.host(host).prefixes if p.prefixlen < p.max_prefixlen]
