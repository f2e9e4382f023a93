# SPDX-License-Identifier: BSD-2-Clause
"""Brings a lab up and down.

`up` makes the namespaces, their sysctls (before any interface, so that each interface starts
with them), the links, then each node's addresses and routes, then the daemons. `down` removes in
an order in which nothing reappears: daemons, mounts (with the pins on them), namespaces, directory.
Both read the actual state of the machine, so they also clean up after a crash.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

from labkit.cluster import netns, processes, render
from labkit.cluster.fabric import Fabric, Parameters, build
from labkit.cluster.patience import patience
from labkit.cluster.state import BASE, State
from labkit.faults import inject
from labkit.places import REPOSITORY
from mrcd.auth import secrets_file
from mrcd.errors import MachineError
from mrcd.net.netlink import set_offload

VENV = REPOSITORY / ".venv"
DAEMON_PATIENCE_S = patience(30.0)
LOG_TAIL = 15

Say = Callable[[str], None]


def up(state: State, parameters: Parameters, say: Say) -> None:
    """Makes the lab match `parameters`, from any earlier state. Raises UsageError, MachineError."""
    fabric = build(state.name, parameters)  # validates the parameters before anything changes
    _check_machine(parameters)
    began = time.monotonic()
    with state.locked():
        known = state.read()
        changed = known[0].differences(parameters) if known else {}
        if known and known[1] == "up" and not changed and _intact(state, fabric):
            say(f"lab {state.name} is up already: kept")
        else:
            _explain(state, known is not None, known is not None and known[1] == "up", changed, say)
            tear_down(state, say)
            _build(state, fabric)
        started = start_daemons(state, fabric) if parameters.daemon else []
        state.write(parameters, "up")
    p = parameters
    planes = f"{p.planes} planes" + (" without switches" if p.direct else f" of {p.t0s} T0s and {p.t1} T1s")
    say(
        f"lab {state.name}: {p.hosts} hosts, {planes}, encapsulation {p.encapsulation}, "
        f"{p.granularity}, MTU {p.mtu}; {f'{len(started)} mrcd started' if p.daemon else 'no mrcd'}; "
        f"{time.monotonic() - began:.1f} s"
    )


def down(state: State, say: Say) -> None:
    """Removes the lab with all that it started. Says so if there is none."""
    if not state.root.exists() and not state.namespaces():
        say(f"lab {state.name} is not up: nothing to do")
        return
    with state.locked():
        tear_down(state, say)
    say(f"lab {state.name} is gone")


def tear_down(state: State, say: Say) -> None:
    """Removes all parts of a lab that exist; the caller holds the lock."""
    killed = processes.end(state.processes())
    for process in killed:
        say(f"process {process.pid} did not end on SIGTERM and was killed")
    netns.unmount_below(state.root)
    namespaces = state.namespaces()
    for namespace, pid, command in processes.inhabitants(namespaces):
        if pid != os.getpid():
            say(
                f"process {pid} ({command}) still runs inside {namespace}: not ended; the namespace stays until it ends"
            )
    netns.batch(("ip",), (f"netns del {n}" for n in namespaces))
    state.clear()


def _check_machine(parameters: Parameters) -> None:
    if os.geteuid() != 0:
        raise MachineError("the lab makes network namespaces", hint="run it as root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise MachineError(f"{tool} is not installed", hint="make set-up")
    if parameters.daemon and not (VENV / "bin/mrcd").exists():
        raise MachineError(f"{VENV}/bin/mrcd is missing", hint="make set-up, or lab up --no-daemon for a bare fabric")


def _explain(state: State, known: bool, whole: bool, changed: dict[str, tuple[object, object]], say: Say) -> None:
    if changed:
        words = ", ".join(f"{k} {old} → {new}" for k, (old, new) in changed.items())
        say(f"lab {state.name} is up with other parameters ({words}): rebuilding")
    elif known and whole:
        say(f"lab {state.name} is damaged: rebuilding")
    elif known or state.namespaces():
        say(f"lab {state.name}: removing what an interrupted command left")


def _intact(state: State, fabric: Fabric) -> bool:
    """Returns whether all namespaces, interfaces and mounts exist."""
    if set(state.namespaces()) != set(fabric.namespaces.values()):
        return False
    if not all(os.path.ismount(m) for m in _mounts(state, fabric)):
        return False
    for node in fabric.nodes.values():
        with netns.inside(fabric.namespace(node.name)):
            if not {p.name for p in node.ports} <= netns.interfaces():
                return False
    return True


def _mounts(state: State, fabric: Fabric) -> list[Path]:
    """Returns the mount points: one bpffs for the faults, one per host for its mrcd."""
    return [state.pins, *(state.bpffs(h) for h in fabric.hosts)]


def _build(state: State, fabric: Fabric) -> None:
    """Builds everything but the daemons. On a failure nothing stays."""
    p = fabric.parameters
    try:
        state.write(p, "building")
        state.cluster_file.write_text(fabric.toml, encoding="utf-8")
        secrets_file.write(state.secrets, [secrets_file.new(1)])
        for path in _mounts(state, fabric):
            netns.mount_bpffs(path)
        netns.batch(("ip",), (f"netns add {n}" for n in fabric.namespaces.values()))
        with netns.congestion_control_allowed(render.CONGESTION_CONTROL, BASE):
            for node in fabric.nodes.values():
                with netns.inside(fabric.namespace(node.name)):
                    netns.write_sysctls(render.sysctls(node))
        netns.batch(("ip",), render.create_links(fabric))
        for node in fabric.nodes.values():
            netns.batch_in(fabric.namespace(node.name), ("ip", "-6"), render.configure(node))
        inject.apply_ports(fabric, {}, inject.desired(fabric, {}))  # --rate
        if p.hook.startswith("xdp"):
            _checksum_in_software(fabric)
        inject.settle(fabric, fabric.links)
    except BaseException:
        tear_down(state, lambda _: None)
        raise


def _checksum_in_software(fabric: Fabric) -> None:
    """Turns off checksum offload at the T0: XDP has no partial checksum, so packets must leave the T0 complete."""
    for link in fabric.links:
        for sender, receiver in ((link.upper, link.lower), (link.lower, link.upper)):
            if fabric.nodes[receiver.node].kind == "host":
                with netns.inside(fabric.namespace(sender.node)):
                    set_offload(sender.port, {"tx-checksum-ip-generic": False, "tx-checksum-sctp": False})


def start_daemons(state: State, fabric: Fabric) -> list[str]:
    """Starts every mrcd that does not run, and waits for all. Returns the hosts whose daemon was started."""
    started: dict[str, Popen[bytes]] = {}
    for host in fabric.hosts:
        record = state.daemon(host)
        if record and processes.alive(record):
            continue
        started[host] = start_daemon(state, host, fabric.namespace(host))
    await_daemons(state, started)
    return list(started)


def await_daemons(state: State, started: Mapping[str, Popen[bytes]]) -> None:
    """Waits until the daemons of these hosts answer. Raises MachineError."""
    waiting = dict(started)
    deadline = time.monotonic() + DAEMON_PATIENCE_S
    while waiting:
        for host, child in list(waiting.items()):
            if child.poll() is not None:
                raise MachineError(
                    f"mrcd of {host} ended with code {child.returncode}:\n{_tail(state.log(host))}",
                    hint=f"the whole log is {state.log(host)}",
                )
            if answers(state.socket(host)):
                del waiting[host]
        if time.monotonic() > deadline:
            host = next(iter(waiting))
            raise MachineError(
                f"mrcd of {', '.join(waiting)} does not answer after {DAEMON_PATIENCE_S:.0f} s; {host} said:\n"
                f"{_tail(state.log(host))}",
                hint=f"see {state.log(host)}",
            )
        time.sleep(0.02)


def start_daemon(state: State, host: str, namespace: str) -> Popen[bytes]:
    """Starts a host's mrcd in its network namespace, in a session of its own."""
    argv = [str(VENV / "bin/mrcd"), "--config", str(state.cluster_file), "--host", host]
    argv += ["--run-dir", str(state.run_dir(host)), "--bpffs", str(state.bpffs(host))]
    with state.log(host).open("ab") as log, netns.inside(namespace):
        return Popen(
            argv,
            env=environment(state, host),
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            start_new_session=True,
            # The child records itself, so no daemon is unrecorded even if the lab is killed here.
            preexec_fn=lambda: processes.record_self(state.daemon_record(host)),
        )


def answers(path: Path) -> bool:
    """Returns whether a daemon speaks HTTP on this unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(1.0)
        try:
            s.connect(str(path))
            s.sendall(b"GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
            return s.recv(5) == b"HTTP/"
        except OSError:
            return False


def environment(state: State, host: str | None) -> dict[str, str]:
    """Returns the environment of commands in the lab; `host` is None in a switch."""
    env = dict(os.environ)
    env["PATH"] = f"{VENV / 'bin'}:{env.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"
    if host is not None:
        env |= {
            "MRCD_RUN_DIR": str(state.run_dir(host)),
            "MRCD_CONFIG": str(state.cluster_file),
            "MRCD_HOST": host,
            "CREDENTIALS_DIRECTORY": str(state.root),
        }
    return env


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(f"    {line}" for line in lines[-LOG_TAIL:]) or "    (it said nothing)"
