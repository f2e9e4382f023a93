# SPDX-License-Identifier: BSD-2-Clause
"""Tests the container image under podman: the commands of docs/containers.md, and a replaced container under traffic.

`make test-image` builds the image and runs this. podman's storage is in the test's directory; its cgroups and
mounts are in a mount namespace of its own.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labkit.bench import lifecycle
from labkit.cluster.api import Lab
from labkit.measure import evorder
from labkit.traffic import candidates
from labkit.traffic.stream import Stream
from mrcd.kernel.object_file import OVERRIDE
from tests.lab.conftest import TWO_HOSTS, all_good, gone, own_name, wait_until
from tests.pages import ROOT, blocks

HOSTS = ("h0", "h1")
PAGE = ROOT / "docs/containers.md"
# The mounts of the page stay in this namespace. crun refuses a machine with both versions of cgroups.
HOLD = """
set -e
mount --make-rprivate /
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
    umount --recursive --lazy /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
fi
echo ready
exec sleep infinity
"""
# A test's machine may lack the right to raise limits, or to make cgroups.
SETTINGS = '[containers]\ncgroups = "disabled"\ndefault_ulimits = ["nofile=8192:8192", "nproc=4096:4096"]\n'


class Podman:
    """podman with a storage of its own. Use as a context manager, which removes all its containers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "containers.conf").write_text(SETTINGS)
        self._run = Path(tempfile.mkdtemp(prefix="mrcd-", dir="/run"))  # podman wants a short name
        (directory / "bin").mkdir()
        wrapper = directory / "bin/podman"
        own = f"--root {directory}/storage --runroot {self._run} --cgroup-manager cgroupfs"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("podman")} {own} "$@"\n')
        wrapper.chmod(0o755)

    def __enter__(self) -> "Podman":
        argv = ["unshare", "--mount", "bash", "-c", HOLD]
        self._holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.shell("podman rm --all --force --time 2; podman rmi --all --force", check=False)
        self._holder.kill()
        self._holder.communicate()
        shutil.rmtree(self._run)

    def shell(self, script: str, *arguments: str, check: bool = True) -> str:
        """Runs a script of bash in the repository; returns what it prints. `$1`, … are the arguments."""
        environment = os.environ | {
            "CONTAINERS_CONF": str(self._directory / "containers.conf"),
            "PATH": f"{self._directory / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(self._directory),
        }
        argv = ["nsenter", f"--target={self._holder.pid}", "--mount", "--wd=/", "bash", "-ec", f'cd "$0"\n{script}']
        done = subprocess.run(
            [*argv, str(ROOT), *arguments], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    """podman, with the mounts of this moment."""
    if shutil.which("podman") is None or shutil.which("crun") is None:
        pytest.skip("podman or crun is not installed: `make test-image` installs them")
    if not list((ROOT / "build").glob("mrcd-image_*.tar")):
        pytest.skip("there is no image in build/: `make test-image` makes it")
    with Podman(tmp_path) as made:
        yield made


def page_commands() -> list[str]:
    """Returns the page's blocks of bash."""
    return [text for language, text in blocks(PAGE) if language == "bash"]


def test_the_commands_of_the_page_work(podman: Podman, record_property: Callable[[str, object], None]) -> None:
    try:
        out = podman.shell("SECONDS=0\n" + "\n".join(page_commands()) + "\necho it took $SECONDS s")
    finally:
        for name in ("gpu1", "gpu2", "pod1"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    pings = re.findall(r"(\d+) packets transmitted, (\d+) received", out)
    assert pings == [("20", "20")] * 3, out
    assert len(re.findall(r"^gpu2 .*GOOD", out, re.M)) == 2, out
    record_property("measured", [f"docs/containers.md: {out.splitlines()[-1]}"])


@pytest.fixture
def bare() -> Iterator[Lab]:
    """Two hosts without mrcd, and without the routes that would stand for it."""
    lab = Lab(name := own_name("image"), say=lambda _: None)
    lab.down()
    try:
        lab.up(**TWO_HOSTS, daemon=False)
        for host in HOSTS:
            lab.exec(host, ["ip", "-6", "route", "flush", "proto", "boot"], check=True)  # mrcd makes these routes
        yield lab
    finally:
        lab.down()
    assert gone(name)


def agent(podman: Podman, image: str, lab: Lab, host: str, *options: str) -> None:
    """Runs the page's `agent` for a host of the lab."""
    (function,) = re.findall(r"^agent\(\).*?^\}\n", PAGE.read_text(), re.M | re.S)
    of_lab = {"$dir/mrcd.toml": lab.state.cluster_file, "$dir/secrets": lab.state.secrets}
    of_lab |= {"$dir/$1/bpf": lab.state.bpffs(host), "$dir/$1/run": lab.run_dir(host), "$dir/$1/lib": lab.run_dir(host)}
    for name, path in of_lab.items():
        function = function.replace(name, str(path))
    function = function.replace("/run/netns/$1", f"/run/netns/{lab.ns(host)}")
    podman.shell(f'image={image}\n{function}\nagent "$@"', host, *options)


def test_replacing_the_container_loses_nothing(
    bare: Lab, podman: Podman, record_property: Callable[[str, object], None]
) -> None:
    file = bare.state.cluster_file
    file.write_text(file.read_text().replace('secret_file = "secrets"\n', ""))
    image = podman.shell("podman load --quiet --input build/mrcd-image_*.tar").split()[-1]
    for host in HOSTS:
        agent(podman, image, bare, host)
    wait_until("mrcd runs", lambda: all((bare.run_dir(h) / "mrcd.sock").exists() for h in HOSTS), 60)
    wait_until("all EVs are GOOD", lambda: all_good(bare), 60)

    with (
        lifecycle.another_build() as other,
        evorder.watching(bare, "h0", "h1") as order,
        Stream(bare, candidates.overlay(bare, 4), rate=lifecycle.RATE, burst=lifecycle.BURST) as stream,
    ):
        wait_until("the flow is sprayed", lambda: order.read().evs == 4)
        before = order.read()
        # Killed: nothing runs, and the flow goes on.
        for host in HOSTS:
            podman.shell("podman kill mrcd-$1; podman wait mrcd-$1; podman rm mrcd-$1", host)
        killed = stream.mark()
        wait_until("a second's packets are sent without mrcd", lambda: stream.mark() > killed + lifecycle.RATE)
        # Replaced by other programs, then by the first.
        with_other = ("--volume", f"{other}:/other.o:ro", "--env", f"{OVERRIDE}=/other.o")
        for options in (with_other, ()):
            limits = order.read().hop_limits
            for host in HOSTS:
                podman.shell("podman rm --force --ignore --time 10 mrcd-$1", host)
                agent(podman, image, bare, host, *options)
            wait_until("the new programs send", lambda limits=limits: not limits & order.read().hop_limits)  # type: ignore[misc]
        wait_until("all EVs are GOOD", lambda: all_good(bare), 60)
        result = stream.finish()
        wire = order.read().since(before)
    assert (result.lost(), result.twice, result.socket_drops) == (0, 0, 0)
    assert wire.reordered == 0
    text = f"{result.sent} packets at {result.packets_per_s:,.0f}/s over a killed and two replaced containers per host"
    record_property("measured", [f"{text}: 0 lost, 0 reordered within an EV"])
