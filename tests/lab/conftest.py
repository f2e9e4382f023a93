# SPDX-License-Identifier: BSD-2-Clause
"""Provides labs for the end-to-end tests: real namespaces, real daemons, the kernel's own SRv6 as switches."""

import contextlib
import fcntl
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.ctl.client import DaemonDown
from mrcd.kernel import libbpf

TWO_HOSTS = {"hosts": 2, "hosts_per_t0": 1, "planes": 2, "t1": 2}
"""The smallest lab that sprays: four EVs from one T0 to the other."""


def wait_until(what: str, true: Callable[[], Any], timeout_s: float = 300.0, every_s: float = 0.02) -> Any:
    """Polls until `true()` is true, and returns it; fails with `what` otherwise.

    The limit is wide: a test says what happens, and `scripts/bench` measures how soon.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        value = true()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s: {what}")
        pause.wait(every_s)


def mrcctl(lab: Lab, host: str, command: str, *options: str) -> Any:
    """Returns the JSON that mrcctl prints in that host; for lists like `mrcctl paths`, the list alone.

    Requests to a running daemon use mrcctl's own client: waits poll often, and starting mrcctl each time would keep
    a CPU busy.
    """
    if command in ("status", "peers", "paths", "events"):
        query: dict[str, Any] = {o.removeprefix("--"): v for o, v in zip(options[::2], options[1::2], strict=True)}
        with contextlib.suppress(DaemonDown):
            document = observe.client(lab, host).get(f"/v1/{command}", **query)
            return document["events"] if command == "events" else document
    document = json.loads(lab.exec(host, ["mrcctl", command, *options, "--json"], check=True).stdout)
    return document.get(command, document)


def states(lab: Lab, host: str, peer: str) -> dict[int, str]:
    """Returns EV → state, by `mrcctl paths`."""
    return {p["ev"]: p["state"] for p in mrcctl(lab, host, "paths", "--peer", peer)}


def all_good(lab: Lab) -> bool:
    """Returns whether every EV of every host is GOOD."""
    for host in lab.fabric.hosts:
        evs = mrcctl(lab, host, "status")["evs"]
        if {k for k, v in evs.items() if v} != {"GOOD"}:
            return False
    return True


def out_of_use(lab: Lab) -> list[str]:
    """Returns the EVs of all hosts that are neither GOOD nor SKIP: a short lag is no failure."""
    return [
        f"{host} → {p['peer']} EV {p['ev']} is {p['state']}: {p['reason']}"
        for host in lab.fabric.hosts
        for p in mrcctl(lab, host, "paths")
        if p["state"] not in ("GOOD", "SKIP")
    ]


def withdrawn(lab: Lab, host: str) -> list[tuple[int, int]]:
    """Returns when a host set which EV to ASSUMED_BAD: (monotonic_ns, EV)."""
    return [(e["monotonic_ns"], e["ev"]) for e in mrcctl(lab, host, "events") if e["to"] == "ASSUMED_BAD"]


def event_times(lab: Lab, host: str, peer: str, to: str, since_ns: int) -> dict[int, int]:
    """Returns EV → monotonic_ns of its first transition to `to` after `since_ns`."""
    found: dict[int, int] = {}
    for e in mrcctl(lab, host, "events"):
        if e["kind"] == "ev" and e["peer"] == peer and e["to"] == to and e["monotonic_ns"] >= since_ns:
            found.setdefault(e["ev"], e["monotonic_ns"])
    return found


def own_name(name: str) -> str:
    """Returns a lab's name that no other pytest worker uses."""
    return f"{name}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"


@contextlib.contextmanager
def a_lab(name: str, **parameters: Any) -> Iterator[Lab]:
    """A block with a lab whose EVs are all GOOD; nothing is left of it afterwards."""
    lab = Lab(name := own_name(name), say=lambda _: None)
    lab.down()
    try:
        lab.up(**parameters)
        wait_until(f"all EVs of {name} are GOOD", lambda: all_good(lab), 60)
        yield lab
    finally:
        lab.down()
    assert gone(name)


def gone(name: str) -> bool:
    """Returns whether nothing of the lab is left: namespaces, mounts, files."""
    mounts = Path("/proc/mounts").read_text()
    return (
        not any(Path("/run/netns").glob(f"mrc-{name}-*"))
        and f"/run/mrcd-lab/{name}/" not in mounts
        and not Path("/run/mrcd-lab", name).exists()
    )


@pytest.fixture(scope="session", autouse=True)
def _needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the lab makes network namespaces, which needs root")
    libbpf.use_bcc()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The default lab: 4 hosts, 4 planes × 4 T1s, usid, burst. Shared by a module's tests."""
    with a_lab("pytest") as made:
        yield made


@pytest.fixture
def healthy(lab: Lab) -> Iterator[Lab]:
    """The shared lab without faults, before and after."""
    lab.heal()
    lab.up()
    wait_until("all EVs are GOOD again", lambda: all_good(lab), 60)
    yield lab
    lab.heal()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a DESTDIR with the files of `make install`, made once for all workers."""
    base = tmp_path_factory.getbasetemp()
    tree = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "installed"
    with tree.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            repository = Path(__file__).parents[2]
            argv = ["make", "-C", str(repository), "install-python", "install-files", f"DESTDIR={tree}.new"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr
            Path(f"{tree}.new").rename(tree)
    return tree
