# SPDX-License-Identifier: BSD-2-Clause
"""Runs the Ansible role on the hosts of a lab, in two racks: changes under traffic, and what takes them back."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster import bringup, processes
from labkit.cluster.api import Lab
from labkit.monitoring.prometheus import Prometheus
from labkit.traffic.stream import streams
from mrcd.auth import secrets_file
from tests.lab.conftest import a_lab, all_good, mrcctl, wait_until

ROOT = Path(__file__).parents[2]
PLAYBOOK = ROOT / "scripts/deploy/ansible/site.yml"
RATE = 5_000  # packets per second, of each flow
SETTING = "\n[health]\noverdue_ms = 11\n"
CONTROL = "Package: mrcd\nVersion: {}\nArchitecture: all\nMaintainer: none <root@localhost>\nDescription: of a test\n"
VENV = bringup.VENV
RACKS = {"rack1": ["h0", "h1"], "rack2": ["h2", "h3"]}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ansible") is None, reason="there is no ansible-core: `scripts/set-up --ansible`"
)


def played(inventory: Path, **variables: object) -> "subprocess.CompletedProcess[str]":
    """Runs the playbook with variables."""
    argv = [str(VENV / "bin/ansible-playbook"), "-i", str(inventory), str(PLAYBOOK)]
    for name, value in variables.items():
        argv += ["-e", json.dumps({name: str(value)})]
    env = os.environ | {"ANSIBLE_HOME": f"{inventory.parent}/home", "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    return subprocess.run(argv, env=env, cwd=inventory.parent, capture_output=True, text=True, timeout=600)


class Racks:
    """A lab whose hosts have their own files, as hosts on a disk of their own, and an inventory of them."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab, self.directory = lab, directory
        self.text = lab.state.cluster_file.read_text()
        self.file, self.secrets = directory / "mrcd.toml", directory / "secrets"
        shutil.copy(lab.state.secrets, self.secrets)
        self.inventory = directory / "inventory.ini"
        lines = []
        for rack, hosts in RACKS.items():
            lines.append(f"[{rack}]")
            for host in hosts:
                etc = self.etc(host)
                etc.mkdir()
                (etc / "mrcd.toml").write_text(self.text)
                shutil.copy(self.secrets, etc / "secrets")
                for name in ("info", "updates"):
                    (etc / "root/var/lib/dpkg" / name).mkdir(parents=True)
                (etc / "root/var/lib/dpkg/status").touch()
                # Modules of Ansible run in this interpreter, and so in the host's network namespace.
                python = etc / "python"
                words = ["scripts/lab", "exec", "--name", lab.state.name, host, "--", "env", *self._env(host)]
                python.write_text(f'#!/bin/sh\ncd {ROOT} && exec {" ".join([*words, sys.executable])} "$@"\n')
                python.chmod(0o755)
                lines.append(f"{host} etc={etc} ansible_python_interpreter={python}")
                self.start(host)
        lines += [
            *("[all:vars]", "ansible_connection=local", "ansible_become=false", f"mrcd_file={self.file}"),
            *("mrcd_file_path={{ etc }}/mrcd.toml", "mrcd_secrets_path={{ etc }}/secrets", "mrcd_owner=root"),
            *("mrcd_package_directory={{ etc }}/packages", "mrcd_watch_seconds=3", "mrcd_enable_command="),
            "mrcd_reload_command=mrcctl reload",
            'mrcd_install_command="dpkg --log=/dev/null --root={{ etc }}/root --install"',
        ]
        self.inventory.write_text("\n".join(lines) + "\n")

    def etc(self, host: str) -> Path:
        """Returns the directory of a host's files."""
        return self.directory / host

    def _env(self, host: str) -> list[str]:
        return [f"MRCD_CONFIG={self.etc(host)}/mrcd.toml", f"CREDENTIALS_DIRECTORY={self.etc(host)}"]

    def start(self, host: str) -> None:
        """Replaces the daemon of a host by one that reads the host's own files."""
        state = self.lab.state
        if old := state.daemon(host):
            processes.end([old])
        argv = [str(VENV / "bin/mrcd"), "--bpffs", str(state.bpffs(host))]
        env = bringup.environment(state, host) | dict(word.split("=", 1) for word in self._env(host))
        with state.log(host).open("ab") as log:
            self.lab.popen(host, argv, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(f"mrcd of {host} answers", lambda: bringup.answers(state.socket(host)))

    def play(self, text: str, **variables: object) -> "subprocess.CompletedProcess[str]":
        """Runs the playbook with a cluster file and variables."""
        self.file.write_text(text)
        return played(self.inventory, **variables)

    def package(self, version: str) -> Path:
        """Returns a package with a file that names its version. dpkg can install it below any directory."""
        tree = self.directory / f"tree{version}"
        if not (made := tree.with_suffix(".deb")).exists():
            for name, text in (("DEBIAN/control", CONTROL.format(version)), ("usr/share/mrcd/version", version)):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).write_text(text)
            subprocess.run(["dpkg-deb", "--build", tree, made], check=True, capture_output=True)
        return made

    def keep_package(self, package: Path) -> None:
        """Copies a package to each host, as that which is installed there."""
        for host in self.lab.fabric.hosts:
            kept = self.etc(host) / "packages/installed.deb"
            kept.parent.mkdir()
            kept.write_bytes(package.read_bytes())

    def installed(self, host: str) -> str:
        """Returns the version of the package that a host has."""
        return (self.etc(host) / "root/usr/share/mrcd/version").read_text()

    def files(self) -> dict[str, str]:
        """Returns the cluster file of each host."""
        return {host: (self.etc(host) / "mrcd.toml").read_text() for host in self.lab.fabric.hosts}

    def overdue(self) -> dict[str, bool]:
        """Returns the hosts whose daemon runs a file with SETTING."""
        shown = {h: self.lab.exec(h, ["mrcctl", "config", "show"], check=True).stdout for h in self.lab.fabric.hosts}
        return {host: "overdue_ms = 11" in text for host, text in shown.items()}

    def reloads(self, host: str) -> int:
        """Returns how often a host's daemon has read its file, or refused to."""
        return len([e for e in mrcctl(self.lab, host, "events") if e["reason"] in ("reloaded", "reload_refused")])


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Racks]:
    with a_lab("ansible", hosts=4, planes=2, t1=2) as lab:
        made = Racks(lab, tmp_path)
        wait_until("all EVs are GOOD", lambda: all_good(lab))
        yield made


def test_good_files_and_secrets_reach_rack_after_rack_without_a_lost_packet(racks: Racks) -> None:
    lab, text = racks.lab, racks.text + SETTING
    secrets_file.write(racks.secrets, [*secrets_file.read(racks.secrets), secrets_file.new(2)])
    with streams(lab, RATE) as load:
        done = racks.play(text, mrcd_secrets=racks.secrets)
        load.go_on()
        _, lost = load.finish()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lost == 0
    assert set(racks.files().values()) == {text}
    assert all(racks.overdue().values())
    times = {
        h: [e["monotonic_ns"] for e in mrcctl(lab, h, "events") if e["reason"] == "reloaded"] for h in racks.files()
    }
    assert max(times["h0"] + times["h1"]) < min(times["h2"] + times["h3"])
    for host in lab.fabric.hosts:
        kept = racks.etc(host) / "secrets"
        assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (racks.secrets.read_bytes(), 0o600)
        assert not list(racks.etc(host).glob("*.before"))
    again = racks.play(text, mrcd_secrets=racks.secrets, rack="rack2", mrcd_watch_seconds=0)
    assert set(re.findall(r"^(h\d) .*changed=0 .*failed=0", again.stdout, re.MULTILINE)) == {"h2", "h3"}, again.stdout


def test_a_bad_file_is_refused_before_anything_changes(racks: Racks) -> None:
    done = racks.play(racks.text.replace("[cluster]", "[cluster]\nplanets = 4"))
    assert done.returncode != 0
    assert "cluster.planets: unknown key; did you mean planes?" in done.stdout + done.stderr
    assert set(racks.files().values()) == {racks.text}
    assert {racks.reloads(host) for host in racks.files()} == {0}


def test_a_file_that_the_daemons_refuse_is_taken_back(racks: Racks) -> None:
    done = racks.play(racks.text.replace("[cluster]", "[cluster]\nudp_port = 4798"))
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert re.search(r"h0, h1 went back to what they had: h0: Reload the service: mrcctl: .*cluster\.udp_port", said), (
        said
    )
    assert set(racks.files().values()) == {racks.text}
    assert [racks.reloads(host) for host in racks.files()] == [1, 1, 0, 0]  # the second reload finds no difference


def test_a_file_that_costs_peers_is_taken_back_on_the_first_rack_and_the_run_ends(racks: Racks) -> None:
    tables = racks.text.split("[[hosts]]")
    (far,) = (n for n, table in enumerate(tables) if 'name = "h3"' in table)
    tables[far] = re.sub(r"port = \d+", "port = 77", tables[far])  # there is no host at that port
    bad = "[[hosts]]".join(tables)
    racks.keep_package(old := racks.package("1"))
    done = racks.play(bad, mrcd_package=racks.package("2"))
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "h0, h1 went back to what they had: h0: has lost h3; h1: has lost h3" in said, said
    assert set(racks.files().values()) == {racks.text}
    assert [racks.reloads(host) for host in racks.files()] == [2, 2, 0, 0]
    for host in RACKS["rack1"]:
        assert racks.installed(host) == "1"
        assert (racks.etc(host) / "packages/installed.deb").read_bytes() == old.read_bytes()
    assert not (racks.etc("h2") / "packages/new.deb").exists()
    wait_until("all EVs are GOOD", lambda: all_good(racks.lab))


def test_prometheus_is_asked_before_and_after_each_rack(racks: Racks, tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    with Prometheus(racks.lab, racks.lab.fabric.hosts, tmp_path / "prometheus") as server:
        asked = [str(VENV / "bin/mrcctl"), "fleet", "check", "--hosts", "h[0-3]", "--prometheus", server.url]
        wait_until("all hosts are ready", lambda: subprocess.run(asked, capture_output=True).returncode == 0)
        good = racks.play(racks.text + SETTING, mrcd_prometheus=server.url)
        # A detached host still answers its peers, and is not ready for a job.
        detaches = "sh -c 'mrcctl reload && mrcctl detach'"
        bad = racks.play(racks.text, mrcd_prometheus=server.url, mrcd_reload_command=detaches)
        for host in RACKS["rack1"]:
            racks.lab.exec(host, ["mrcctl", "attach"], check=True)
    unknown = racks.play(racks.text, mrcd_prometheus=server.url)
    assert good.returncode == 0, good.stdout + good.stderr
    assert re.search(r"h0, h1 went back to what they had: not ready: h0, h1\b", bad.stdout + bad.stderr), (
        bad.stdout + bad.stderr
    )
    assert "Prometheus" in unknown.stderr + unknown.stdout
    assert unknown.returncode != 0
    assert set(racks.files().values()) == {racks.text + SETTING}
