# SPDX-License-Identifier: BSD-2-Clause
"""Runs the commands of README.md and docs/ in a lab: shell blocks, prose, and the table of mrcctl's commands."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.api import Lab
from labkit.cluster.etcd import EtcdMembers
from tests.lab.conftest import mrcctl, wait_until
from tests.pages import PAGES, ROOT, shell_commands, spans, synopses

PROGRAMS = {"mrcd", "mrcctl", "make", "scripts/lab", "scripts/bench", "scripts/demo", "scripts/kernels"} | {
    *("scripts/demo-training", "mpirun", "nvme"),
    *("apt", "apt-get", "bpftool", "ethtool", "grep", "ip", "iperf3", "journalctl", "ls", "man"),
    *("reuse", "scripts/screenshots", "systemctl", "systemd-analyze", "systemd-sysusers", "tcpdump"),
}
"""In prose, words in backticks that begin with one of these are a command."""
SECONDS = 30

SWITCHES = ROOT / "tests/unit/switches"
"""Files of switches, and the cluster file to which they belong."""

NOT_RUN = {
    r"apt": "changes the packages of this machine",
    r"mrcctl fleet$": "names a group of commands",
    r"mrcctl (fleet )?(allow|deny|drain|put)$": "names a command without its target or file",
    r"mrcctl fleet check(?! --help)": "needs a Prometheus: tests/lab/test_fleet_check.py",
    r"mrcctl fleet links(?! --help)": "needs a Prometheus: tests/lab/test_fleet_links.py",
    r"firewall-cmd|nft add|nft 'add|sed -i .* /etc/firewalld": "needs firewalld: tests/lab/test_firewalld.py runs it",
    r"GOLDEN_UPDATE=1 make test": "writes files of the repository",
    r"bpftool map (dump|lookup)": "names a map of a host outside the lab, or none",
    r"mrcctl capture -w": "writes packets until it is stopped: tests/lab/test_tools.py",
    r"ethtool -L": "a veth of the lab has one queue",
    r"ethtool -[nN] p0 rx-flow-hash": "a veth hashes no packets",
    r"ethtool --show-tunnels": "a veth has no table of tunnels",
    r"install -D": "writes to /etc",
    r"ip link del mrc0": "takes a restart of mrcd: tests/lab/test_daemon_restarts.py",
    r"ip link set down": "names a command without its interface",
    r"ip route … encap seg6": "names a command without its addresses",
    r"journalctl": "needs systemd",
    r"make bench": "takes minutes",
    r"make rpm": "takes a minute; make test-rpm does it",
    r"dnf install": "needs a system with dnf",
    r"ip link add \w+ link mrc0 .* ipvlan": "this kernel has no ipvlan: `make test-kernels` has",
    r"make deb": "takes half a minute; make test-deb does it",
    r"make demo": "takes a minute",
    r"make fuzz": "takes a minute: tests/fuzz/test_fuzz.py runs each target",
    r"make image": "takes half a minute; make test-image does it",
    r"make install": "writes to /usr/local: tests/lab/test_install.py has a directory of its own",
    r"mpirun": "Open MPI is not installed",
    r"mrcctl keys generate": "writes to /etc",
    r"make check": "takes minutes",
    r"make lint": "takes half a minute",
    r"make mutants": "takes most of an hour",
    r"make set-up": "installs packages",
    r"make test": "runs this test",
    r"make uninstall": "removes files: tests/lab/test_install.py has a directory of its own",
    r"man ": "the pages are not installed: tests/lab/test_install.py",
    r"mrcctl detach; systemctl": "needs systemd; mrcctl detach alone is run",
    r"mrcctl paths --json \| jq": "make set-up does not install jq",
    r"mrcd --state-dir": "names an option",
    r"nvme connect": "needs nvme-cli and a storage target",
    r"reuse lint": "make lint does it",
    r"scripts/bench (--short )?\w": "takes minutes",
    r"scripts/kernels": "takes minutes, in virtual machines",
    r"scripts/lab exec h0 -- chromium": "needs a display",
    r"scripts/screenshots": "takes three minutes, and needs a browser",
    r"systemctl": "needs systemd: tests/lab/test_service.py has a machine of its own",
    r"systemd-sysusers": "adds a user to this machine",
}
"""Beginning of a command that is not run → reason."""

SYNOPSES = {
    "`status [--brief]`": "mrcctl status --brief",
    "`status --check`": "mrcctl status --check",
    "`help [COMMAND]`, `help words`": "mrcctl help paths && mrcctl help words",
    "`peers [PEER] [-i SECONDS]`": "mrcctl peers h2 -i 0.2",
    "`job env [--slurm] [--interface NAME]`": "mrcctl job env && mrcctl job env --slurm --interface lo",
    "`job topology [--interface NAME]`": "mrcctl job topology",
    "`keys status`": "mrcctl keys status",
    "`keys rotate [--wait SECONDS]`": "mrcctl keys rotate --wait 20",
    "`keys generate [--add] [FILE]`": "mrcctl keys generate new_secrets && mrcctl keys generate --add new_secrets",
    "`keys generate --pairs DIRECTORY [--add]`": (
        "mrcctl keys generate --pairs pairs && mrcctl keys generate --pairs pairs --add"
    ),
    "`paths [PEER] [--plane N] [--state S] [-i SECONDS]`": "mrcctl paths h2 --plane 1 --state GOOD -i 0.2",
    "`paths --bad`": "mrcctl paths --bad",
    "`paths --decode`": "mrcctl paths --decode",
    "`links [--plane N] [-i SECONDS]`": "mrcctl links --plane 3 -i 0.2",
    "`watch [PEER] [-i SECONDS]`": "mrcctl watch h2 -i 0.5",
    "`top [PEER] [-i SECONDS]`": "mrcctl top h2 -i 0.5",
    "`events [PEER] [--since 10m] [--follow] [--kind KIND] [--plane N] [--ev N] [-n N]`": (
        "mrcctl events h2 --since 10m --kind ev --plane 1 --ev 4 -n 3 && mrcctl events --follow"
    ),
    "`histograms`": "mrcctl histograms",
    "`bugreport [-o FILE]`": "mrcctl bugreport -o report.tar.gz",
    "`deny`, `drain` `TARGET… [--for 30m] [--reason TEXT] [--force]`": (
        "mrcctl deny t1:1:2 --for 30m --reason test --force && mrcctl drain nic:h2:0 --for 30m --reason test --force"
    ),
    "`allow`, `undrain` `TARGET… | --all`": "mrcctl allow t1:1:2 && mrcctl undrain --all",
    "`denials`": "mrcctl denials",
    "`probe PEER [--ev N] [--count N] [--size BYTES]`": "mrcctl probe h2 --ev 1 --count 3 --size 1000",
    "`trace PEER [--ev N]`": "mrcctl trace h2 --ev 1 && mrcctl trace h2",
    "`capture [PEER] [--plane N] [--ev N] [--type TYPE] [--count N] [-w FILE] [--print]`": (
        "mrcctl capture --plane 1 --count 3 -w packets.pcap && mrcctl capture h2 --ev 0 --type reply --print"
    ),
    "`preflight [--config FILE]`": "mrcctl preflight --config cluster.toml",
    "`doctor [PEER]`": "mrcctl doctor h2",
    "`detach`, `attach`": "mrcctl detach && mrcctl attach",
    "`config check [FILE]`, `config diff [FILE]`, `config show [--effective]`": (
        "mrcctl config check cluster.toml && mrcctl config diff cluster.toml && mrcctl config show --effective"
    ),
    "`fabric plan --hosts N [--planes N] [--radix N] [--evs N] [--output FILE]`": (
        "mrcctl fabric plan --hosts 9 --planes 2 --radix 8 --evs 8 --output nine.toml"
    ),
    "`fabric config --format FORMAT [--switch NAME] [--output DIRECTORY] [FILE]`": (
        "mrcctl fabric config --format sonic --switch t0-0-1 && "
        "mrcctl fabric config --format eos --output all cluster.toml"
    ),
    "`fabric check --format FORMAT DIRECTORY [FILE]`": "mrcctl fabric check --format eos all",
    "`fabric check --running DIRECTORY [--format FORMAT] [FILE]`": (
        f"mrcctl fabric check --running --evs 1000 --format frr {SWITCHES}/running/linux-of-frr {SWITCHES}/cluster.toml"
    ),
    "`reload [--force]`": "mrcctl reload --force",
    "`fleet status [--all]`": "mrcctl fleet status --all",
    "`fleet deny`, `fleet drain` `TARGET… [--for 2h] [--reason TEXT] [--force] [--wait SECONDS]`": (
        "mrcctl fleet deny t1:1:2 --for 2h --reason test --force --wait 20 && "
        "mrcctl fleet drain nic:h2:0 --for 2h --reason test --force --wait 20"
    ),
    "`fleet allow` `TARGET… | --all`": "mrcctl fleet allow t1:1:2 && mrcctl fleet allow --all",
    "`fleet put FILE [--if-generation N] [--force] [--first N] [--watch SECONDS] [--wait SECONDS]`": (
        "mrcctl fleet put cluster.toml --force && mrcctl fleet put cluster.toml --first 1 --watch 1 --wait 20"
    ),
    "`fleet get`": "mrcctl fleet get",
    # with a Prometheus: tests/lab/test_fleet_check.py
    "`fleet check --hosts LIST --prometheus URL [--strict] [--max-age SECONDS] [--least-evs PERCENT]`": (
        "mrcctl fleet check --help"
    ),
    # with a Prometheus: tests/lab/test_fleet_links.py
    "`fleet links --prometheus URL [--http-config FILE] [--window SECONDS]`": "mrcctl fleet links --help",
    "`version`, `completion bash|zsh|fish`": (
        "mrcctl version && mrcctl completion bash && mrcctl completion zsh && mrcctl completion fish"
    ),
}
"""Row of the table in docs/mrcctl.md → commands that are run for it."""

NAMES = [
    (r"\bNIC\b", "p0"),
    (r"\bFILE\b", "cluster.toml"),
    (r"\bNAME\b", "h0"),
    (r"--peer P\b", "--peer h2"),
    (r"\bCOMMAND\b", "paths"),
    (r"^ethtool -k$", "ethtool -k p0"),
    (r"^(mrcctl fleet .*)t1:2:17", r"\1t1:2:1"),
    (r"^(mrcctl fleet put) /etc/mrcd/mrcd.toml", r"\1 cluster.toml --watch 0"),
    (r"^(mrcctl fleet put new.toml)$", r"\1 --watch 0"),
    (r"^mrcctl config check --json", "mrcctl config check cluster.toml --json"),
    (r"^mrcctl deny --force$", "mrcctl deny t1:1:2 --force"),
    (r"^mrcctl fabric$", "mrcctl fabric --help"),
    (r"^mrcctl fabric plan$", "mrcctl fabric plan --hosts 8"),
    (r"^mrcctl fabric config( --format iproute2)?$", "mrcctl fabric config --format iproute2 --switch t0-0-0"),
    (r"^mrcctl fabric config --output$", "mrcctl fabric config --format frr --output lab"),
    (
        r"^mrcctl fabric check$",
        "mrcctl fabric config --format frr --output lab && mrcctl fabric check --format frr lab",
    ),
    (
        r"^mrcctl fabric check --running.*",
        f"mrcctl fabric check --running --evs 1000 {SWITCHES}/running/frr {SWITCHES}/cluster.toml",
    ),
    (r"^mrcctl probe\b", "mrcctl probe h2"),
    (r"^mrcctl trace(?! PEER)", "mrcctl trace h2 --ev 1"),
    (r"^mrcctl trace PEER$", "mrcctl trace h2"),
    (r"^scripts/lab fail$", "scripts/lab fail t1:1:2"),
    (r"^systemd-analyze security$", "systemd-analyze security --offline=true scripts/deploy/mrcd.service"),
    (r"(iperf3 -c \S+).*", r"\1 -t 1"),
    (r"(iperf3 -s) .*", r"\1"),
    (r"^(scripts/lab \w+)", r"\1 --name {lab}"),
]
"""Placeholders and what stands for them; the arguments that prose leaves out; {lab} for the name of the test's lab."""

AFTERWARDS = {
    "ethtool -K p0 rx off": "ethtool -K p0 rx on",
    "mrcctl deny t1:1:2 --force": "mrcctl allow --all",
    "mrcctl detach": "mrcctl attach",
    "mrcctl fleet drain": "mrcctl fleet allow --all",
    "scripts/lab fail": "scripts/lab heal --name {lab} --all",
}
"""Beginning of a command that changes the lab → command that undoes it."""

ENDLESS = re.compile(r"^tcpdump|mrcctl (capture|watch)( h2)?( --json| -i \S+)?$|--follow$")
SERVER = "scripts/lab exec --name {lab} h2 -- iperf3 -s"
DOWN = "scripts/lab down --name {lab}"


def documented() -> list[str]:
    """Returns the commands in the order of the pages."""
    found = []
    for page in PAGES:
        found += shell_commands(page)
        found += [span for span in spans(page) if " " in span and span.partition(" ")[0] in PROGRAMS]
    return found + synopses()


def with_names(command: str) -> str:
    """Returns what is run for a command of the pages."""
    if command in SYNOPSES:
        return SYNOPSES[command]
    for pattern, name in NAMES:
        command = re.sub(pattern, name, command)
    return command


def to_run() -> list[str]:
    """Returns each command to run once: SERVER first, because clients need it, and DOWN last."""
    chosen = [with_names(c) for c in documented() if not any(re.match(beginning, c) for beginning in NOT_RUN)]
    return sorted(dict.fromkeys(chosen), key=lambda c: (c != SERVER, c == DOWN))


@pytest.fixture(scope="module")
def directory(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a working directory with the lab's cluster file as cluster.toml."""
    made = tmp_path_factory.mktemp("docs")
    shutil.copy(lab.state.cluster_file, made / "cluster.toml")
    return made


@pytest.fixture(scope="module")
def etcd(lab: Lab) -> Iterator[None]:
    """An etcd that all hosts of the lab follow."""
    if (why := EtcdMembers.missing()) is not None:
        pytest.skip(why)
    members, file = EtcdMembers(lab, ["h0", "h1", "h2"]), lab.state.cluster_file
    members.start()
    file.write_text(file.read_text() + members.section)
    for host in lab.fabric.hosts:
        mrcctl(lab, host, "reload")
    for host in lab.fabric.hosts:
        wait_until("it is connected", lambda h=host: mrcctl(lab, h, "status")["fleet"]["connected"])  # type: ignore[misc]
    yield
    members.kill()


def run(lab: Lab, directory: Path, command: str) -> tuple[int, str]:
    """Runs a command of the repository in its root, any other in h0; returns its exit status and what it prints.

    An endless command is ended when it has printed something; its status is 0.
    """
    argv = ["timeout", "--signal=INT", str(SECONDS), "bash", "-c", command.replace("{lab}", lab.state.name)]
    with tempfile.TemporaryFile("w+", errors="replace") as out:  # no pipe: SERVER would hold it open
        if command.startswith(("scripts/", "make ", "grep ", "export ", "systemd-analyze ")):
            child = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        else:
            child = lab.popen("h0", argv, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        if ENDLESS.search(command):
            wait_until(f"{command} prints", lambda: os.fstat(out.fileno()).st_size or child.poll() is not None)
            with pytest.raises(subprocess.TimeoutExpired):  # else it printed an error and ended
                child.wait(0.5)
            child.terminate()
            child.wait(SECONDS)
        status = 0 if ENDLESS.search(command) else child.wait(SECONDS + 10)
        out.seek(0)
        return status, out.read()


@pytest.mark.parametrize("command", to_run())
def test_the_command_works(lab: Lab, directory: Path, command: str, request: pytest.FixtureRequest) -> None:
    if command.startswith("mrcctl fleet "):
        request.getfixturevalue("etcd")
    status, printed = run(lab, directory, f"{command} &" if command == SERVER else command)
    for beginning, ending in AFTERWARDS.items():
        if command.startswith(beginning):
            assert run(lab, directory, ending)[0] == 0, ending
    assert status == 0, f"exit status {status}\n{printed}"
    assert "Traceback" not in printed
    if command == SERVER:
        wait_until("iperf3 listens", lambda: lab.exec("h2", ["ss", "-Htln", "sport = 5201"]).stdout)


def test_every_row_of_the_table_of_mrcctl_is_run() -> None:
    assert set(SYNOPSES) == set(synopses())


@pytest.mark.parametrize("beginning", NOT_RUN)
def test_every_command_that_is_not_run_is_in_the_docs(beginning: str) -> None:
    assert any(re.match(beginning, c) for c in documented())
