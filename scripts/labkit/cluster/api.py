# SPDX-License-Identifier: BSD-2-Clause
"""Controls a lab from programs: tests, demo, bench.

lab = Lab("test1")
lab.up(hosts=4, planes=4, t1=4, encapsulation="usid")
lab.exec("h0", ["ping", "-c1", "10.99.0.3"], check=True)
with lab.inside("t1-0-2"): ...                    # this thread opens its sockets in that switch
lab.fail("t1:0:2"); lab.fail("link:1:0:3", drop=0.2, direction="up")
lab.heal(); lab.down()
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from labkit.cluster import bringup, netns, processes, render
from labkit.cluster.fabric import Fabric, Parameters, check_name
from labkit.cluster.state import State
from labkit.faults import inject
from labkit.faults.inject import Fault
from labkit.faults.targets import Direction


def _to_stderr(message: str) -> None:
    print(f"lab: {message}", file=sys.stderr)


class Lab:
    """One lab by its name, up or not. Every method raises the errors of mrcd.errors."""

    def __init__(self, name: str = "default", say: bringup.Say = _to_stderr) -> None:
        self.state = State(check_name(name))
        self._say = say

    def up(self, **parameters: Any) -> None:
        """Brings the lab up, or changes it to `parameters` (fields of fabric.Parameters). Restarts dead daemons."""
        bringup.up(self.state, Parameters(**parameters), self._say)

    def down(self) -> None:
        """Removes the lab; no error if it is not up."""
        bringup.down(self.state, self._say)

    @property
    def fabric(self) -> Fabric:
        """Returns the fabric as data. Raises UsageError if the lab is not up."""
        return self.state.require()

    def ns(self, node: str) -> str:
        """Returns the network namespace of a host (`h0`) or switch (`t0-0-1`, `t1-0-2`)."""
        return self.fabric.namespace(node)

    def inside(self, node: str) -> AbstractContextManager[None]:
        """A block that runs in a node's network namespace (this thread only)."""
        return netns.inside(self.ns(node))

    def run_dir(self, host: str) -> Path:
        """Returns a host's MRCD_RUN_DIR: mrcd.sock, mrcd.log, bpf/."""
        return self.state.run_dir(host)

    def daemon_pid(self, host: str) -> int | None:
        """Returns the pid of a host's mrcd; None if it does not run."""
        process = self.state.daemon(host)
        return process.pid if process and processes.alive(process) else None

    def popen(self, node: str, argv: Sequence[str], **kw: Any) -> "subprocess.Popen[Any]":
        """Starts a command in a node. `down` ends it if it still runs."""
        fabric = self.fabric
        namespace = fabric.namespace(node)
        kw.setdefault("env", bringup.environment(self.state, node if node in fabric.hosts else None))
        with netns.inside(namespace):
            return subprocess.Popen(argv, preexec_fn=self._record, **kw)

    def exec(
        self,
        node: str,
        argv: Sequence[str],
        *,
        check: bool = False,
        timeout: float | None = 300.0,
        input: str | None = None,  # the name that subprocess.run uses
        **kw: Any,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command in a node to its end, and captures its output as text."""
        kw = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | kw
        kw.setdefault("stdin", subprocess.DEVNULL if input is None else subprocess.PIPE)
        with self.popen(node, argv, **kw) as child:
            try:
                out, err = child.communicate(input, timeout)
            except BaseException:
                child.kill()
                raise
        done = subprocess.CompletedProcess(list(argv), child.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def replace_self(self, node: str, argv: Sequence[str]) -> None:
        """Replaces this process by a command in a node, for `lab exec`. Returns only by an OSError."""
        fabric = self.fabric
        env = bringup.environment(self.state, node if node in fabric.hosts else None)
        netns.enter(fabric.namespace(node))
        self._record()
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec(2) keeps that
            signal.signal(ignored, signal.SIG_DFL)
        os.execvpe(argv[0], list(argv), env)

    def _record(self) -> None:
        """Records this process, so that `down` ends it; forgets records of ended processes."""
        for path in self.state.exec_dir.glob("*"):
            old = processes.read_record(path)
            if old is None or not processes.alive(old):
                path.unlink(missing_ok=True)
        processes.record_self(self.state.exec_dir / str(os.getpid()))

    def fail(
        self,
        target: str,
        *,
        drop: float | None = None,
        ce: float | None = None,
        damage: float | None = None,
        trim: float | None = None,
        rate: str | None = None,
        delay: str | None = None,
        mtu: int | None = None,
        down: bool = False,
        direction: Direction = "both",
    ) -> dict[str, Any]:
        """Breaks a target. Ratios are 0 to 1, `rate` is like "50mbit", `delay` like "5ms".

        Without any of these all packets are dropped.

        `direction` (targets.py) limits the fault to packets `up` to the core or `down` from it.

        Returns the fault's record: `target`, `what`, `monotonic_ns` (CLOCK_MONOTONIC, when it began), …
        """
        effects = {
            "drop": drop,
            "ce": ce,
            "damage": damage,
            "trim": trim,
            "rate_bits_per_s": None if rate is None else inject.parse_rate(rate),
            "delay_s": None if delay is None else inject.parse_time(delay),
            "mtu": mtu,
            "down": down or None,
        }
        given: dict[str, Any] = {name: value for name, value in effects.items() if value is not None}
        fault = Fault(**(given or {"drop": 1.0}), direction=direction)
        with self.state.changing() as fabric:
            return inject.fail(self.state, fabric, target, fault)

    def heal(self, *targets: str) -> list[dict[str, Any]]:
        """Heals the targets, or everything. Returns a record with the last counters per healed target."""
        with self.state.changing() as fabric:
            return inject.heal(self.state, fabric, targets or None)

    def status(self) -> dict[str, Any]:
        """Returns the document of `lab status --json`."""
        known = self.state.read()
        head: dict[str, Any] = {"name": self.state.name, "state": known[1] if known else "down"}
        if known is None or known[1] != "up":
            empty: dict[str, Any] = {"parameters": known[0].as_json() if known else None}
            return {**head, **empty, "hosts": [], "switches": [], "faults": []}
        fabric = self.fabric
        existing = set(self.state.namespaces())
        hosts, switches = [], []
        for node in fabric.nodes.values():
            namespace = fabric.namespace(node.name)
            entry: dict[str, Any] = {"name": node.name, "namespace": namespace, "exists": namespace in existing}
            if node.kind == "host":
                hosts.append(entry | self._host(node.name))
            else:
                switches.append(entry)
        return {
            **head,
            "parameters": known[0].as_json(),
            "config": str(self.state.cluster_file),
            "tcp_congestion_control": render.CONGESTION_CONTROL,
            "hosts": hosts,
            "switches": switches,
            "faults": inject.listing(self.state, fabric),
        }

    def _host(self, name: str) -> dict[str, Any]:
        host = self.fabric.config.host(name)
        process = self.state.daemon(name)
        daemon = {"pid": process.pid, "alive": processes.alive(process)} if process else None
        prefixes = [str(p.network_address) for p in host.prefixes if p.prefixlen == p.max_prefixlen]
        return {"addresses": prefixes, "run_dir": str(self.run_dir(name)), "daemon": daemon}
