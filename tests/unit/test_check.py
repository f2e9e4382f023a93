# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcd --check`: it validates, prints the plan, and changes nothing; errors are one message and an exit code."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mrcd.main import main
from mrcd.main import mrcd as command
from tests.cluster_files import dual, host

HOSTS = dual(0, 0, 0) + host(1) + host(2, t0=1, port=0, prefixes='["10.99.0.3/32", "10.98.0.0/24"]')
FABRIC = '[cluster]\nname = "east"\nplanes = 2\nt0s = 2\nt1s = 3\nmtu = 9000\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(FABRIC + HOSTS)
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(command, [str(a) for a in args])


def spawn(*args: object) -> "subprocess.Popen[str]":
    """Runs the command as a process of its own, as a user or a script sees it."""
    command_line = [sys.executable, "-c", "from mrcd.main import main; main()", *map(str, args)]
    return subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def plan(file: Path, *args: str) -> dict[str, Any]:
    result = run("--config", file, "--host", "h0", "--check", "--json", *args)
    assert result.exit_code == 0
    document: dict[str, Any] = json.loads(result.stdout)
    return document


# ---- output ----


def test_the_plan_for_reading(file: Path) -> None:
    result = run("--config", file, "--host", "h0", "--check")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "host h0 (id 0) of cluster east: usid, burst granularity"
    assert lines[1] == "inner MTU 8920 = plane MTU 9000 − 80 bytes of headers"
    rows = [line.split() for line in lines]
    assert ["0", "p0", "fd10::1", "5f00:0:c000::"] in rows
    assert ["1", "p1", "fd10:0:1::1", "5f00:0:c400::"] in rows
    assert ["h1", "2", "1,1", "10.99.0.2/32"] in rows
    assert ["h2", "6", "3,3", "10.99.0.3/32,", "10.98.0.0/24"] in rows
    assert lines[-1] == "The configuration is valid; nothing was changed."


def test_the_plan_as_json(file: Path) -> None:
    document = plan(file)
    assert {k: v for k, v in document.items() if k not in ("planes", "peers")} == {
        "schema_version": 2,
        "host": "h0",
        "host_id": 0,
        "encapsulation": "usid",
        "granularity": "burst",
        "inner_mtu": 8920,
        "overhead": 80,
    }
    assert document["planes"][1] == {
        "plane": 1,
        "interface": "p1",
        "address": "fd10:0:1::1",
        "sid": "5f00:0:c400::",
    }
    h1, h2 = document["peers"]
    assert (h1["peer"], len(h1["paths"])) == ("h1", 2)
    assert h2["prefixes"] == ["10.99.0.3/32", "10.98.0.0/24"]
    assert h2["paths"][4] == {
        "ev": 129,
        "plane": 1,
        "t1": 1,
        "segments": ["5f00:0:4800:8801:4801:c400::"],
    }


def test_host_and_file_by_option_environment_or_hostname(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h2")
    environment = {"MRCD_CONFIG": str(file), "MRCD_HOST": "h1"}
    options = ["--config", str(file), "--host", "h0"]
    for env, args, name in (({}, options[:2], "h2"), (environment, [], "h1"), (environment, options, "h0")):
        result = CliRunner(env=env).invoke(command, ["--check", "--json", *args])
        assert json.loads(result.stdout)["host"] == name


def test_checking_changes_nothing(file: Path, tmp_path: Path) -> None:
    """No lock, socket, mounts or pins: it may run beside the daemon, and without its rights."""
    run_dir, bpffs = tmp_path / "run", tmp_path / "bpf"
    mounts = Path("/proc/self/mounts").read_text()
    result = run("--config", file, "--host", "h0", "--check", "--run-dir", run_dir, "--bpffs", bpffs)
    assert result.exit_code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["cluster.toml"]
    assert Path("/proc/self/mounts").read_text() == mounts


# ---- exit codes: 0 ok, 1 usage or configuration ----


PATH = '[[paths]]\nsource = "h0"\npeer = "h2"\nplane = 0\nsegments = ["5f00:0:1::"]\n'


@pytest.mark.parametrize(
    ("text", "args", "words"),
    [
        ("[cluster\n" + HOSTS, [], ["mrcd: {file}: ", "not valid TOML", "line 1", "hint: "]),
        ("[cluster]\nplaness = 2\n" + HOSTS, [], ["mrcd: {file}: ", "cluster.planess: unknown key", "hint: "]),
        ('[cluster]\nplanes = "two"\n' + HOSTS, [], ["mrcd: {file}: ", "cluster.planes", "integer", "hint: "]),
        ("[cluster]\nt0s = 1\n" + HOSTS, [], ["mrcd: {file}: ", "h2", "t0 = 1", "t0s = 1", "hint: "]),
        (FABRIC + "evs_per_peer = 4\n" + HOSTS + PATH * 3, [], ["more than 2 paths h0 → h2 on plane 0"]),
        (FABRIC + HOSTS, ["--host", "h7"], ["no host named 'h7'", "h0, h1, h2"]),
        (FABRIC + HOSTS, ["--config", "/none.toml"], [
            "mrcd: /none.toml: No such file or directory\n  hint: name the cluster file (mrcd: --config FILE); "
            "scripts/deploy/mrcd.toml is a commented example\n",
        ]),
        (FABRIC + HOSTS, ["--chek"], ["--chek"]),
        (FABRIC + HOSTS, ["--config"], ["--config"]),
        (FABRIC + HOSTS, ["surplus"], ["surplus"]),
    ],
)  # fmt: skip
def test_an_error_is_one_message_on_stderr(
    file: Path,
    text: str,
    args: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["mrcd", "--config", str(file), "--host", "h0", "--check", *args])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (1, "")
    assert "Traceback" not in err
    for word in words:
        assert word.format(file=file) in err


def test_a_closed_pipe_causes_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    hosts = "".join(host(i, t0=i) for i in range(40))
    file.write_text("[cluster]\nt0s = 40\nt1s = 16\n" + hosts)
    child = spawn("--config", file, "--host", "h0", "--check", "--json")
    assert child.stdout is not None
    assert child.stdout.readline() == "{\n"
    child.stdout.close()
    _, err = child.communicate(timeout=30)
    assert "Traceback" not in err


@pytest.mark.parametrize(("host", "code"), [(None, 1), ("h9", os.EX_CONFIG)])
def test_a_machine_may_get_its_own_name_later(file: Path, tmp_path: Path, host: str | None, code: int) -> None:
    """systemd starts mrcd again after any status but EX_CONFIG; --host will not change."""
    program = "import socket; socket.gethostname = lambda: 'image'; from mrcd.main import main; main()"
    options = ["--config", file, "--run-dir", tmp_path / "run", "--state-dir", tmp_path]
    options += ["--host", host] if host else []
    done = subprocess.run([sys.executable, "-c", program, *map(str, options)], capture_output=True, text=True)
    assert (done.returncode, "the configuration has no host named" in done.stderr) == (code, True)
