# SPDX-License-Identifier: BSD-2-Clause
"""Runs an etcd cluster in a lab: a member in each of some hosts, reached by their overlay addresses.

So etcd's own packets take the paths that mrcd sprays over.
"""

import json
import shutil
import subprocess
from pathlib import Path

from labkit.cluster.api import Lab
from mrcd.errors import MachineError

_CLIENTS, _PEERS = 2379, 2380  # ports
PREFIX = "/mrcd"


class EtcdMembers:
    """The members of one etcd cluster, by their hosts."""

    def __init__(self, lab: Lab, hosts: list[str]) -> None:
        self._lab, self.hosts = lab, hosts
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @staticmethod
    def missing() -> str | None:
        """Return why etcd cannot run here; None if it can."""
        found = [name for name in ("etcd", "etcdctl") if shutil.which(name) is None]
        return f"{' and '.join(found)} not installed: make set-up" if found else None

    @property
    def endpoints(self) -> list[str]:
        """Return the URLs for clients."""
        return [self._url(host, _CLIENTS) for host in self.hosts]

    @property
    def section(self) -> str:
        """Return [fleet] for the cluster file."""
        return f"\n[fleet]\netcd = {json.dumps(self.endpoints)}\n"

    def start(self, *hosts: str) -> None:
        """Start the members that do not run, and wait until etcd answers."""
        if (why := self.missing()) is not None:
            raise MachineError(why)
        for host in hosts or self.hosts:
            if host not in self._running:
                self._running[host] = self._start(host)
        self.ctl("endpoint", "health", "--dial-timeout=10s")

    def kill(self, *hosts: str) -> None:
        """Kill members; those of all hosts without any."""
        for host in hosts or tuple(self._running):
            member = self._running.pop(host)
            member.kill()
            member.wait()

    def ctl(self, *words: str, given: str | None = None) -> str:
        """Run etcdctl on the first member's host, with `given` as its input. Returns its output."""
        alive = [self._url(host, _CLIENTS) for host in self._running]
        argv = ["env", "ETCDCTL_API=3", "etcdctl", f"--endpoints={','.join(alive)}", *words]
        return self._lab.exec(self.hosts[0], argv, check=True, input=given).stdout

    def _start(self, host: str) -> "subprocess.Popen[bytes]":
        directory = self._directory(host)
        directory.mkdir(parents=True, exist_ok=True)
        members = ",".join(f"{h}={self._url(h, _PEERS)}" for h in self.hosts)
        argv = [
            *("etcd", "--name", host, "--data-dir", str(directory / "data"), "--logger", "zap"),
            *("--listen-client-urls", self._url(host, _CLIENTS), "--advertise-client-urls", self._url(host, _CLIENTS)),
            *("--listen-peer-urls", self._url(host, _PEERS), "--initial-advertise-peer-urls", self._url(host, _PEERS)),
            *("--initial-cluster", members, "--initial-cluster-state", "new"),
        ]
        with (directory / "log").open("ab") as log:
            return self._lab.popen(host, argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _directory(self, host: str) -> Path:
        return self._lab.run_dir(host) / "etcd"

    def _url(self, host: str, port: int) -> str:
        return f"http://{self._lab.fabric.address(host)}:{port}"
