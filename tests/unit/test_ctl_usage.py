"""How mrcctl is called: usage errors, help, completion, and a quick start."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.unit.canned_daemon import Daemon


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["deny"], "deny what?"),
        (["allow", "--json"], "allow what?"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["paths", "--state", "WELL"], "Invalid value for '--state'"),
        (["paths", "--plane", "-1"], "Invalid value for '--plane'"),
        (["deny", "--ev", "x"], "Invalid value for '--ev'"),
        (["status", "--timeout", "0"], "Invalid value for '--timeout'"),
        (["status", "h2"], "Got unexpected extra argument"),
        (["config", "check"], "Missing argument 'FILE'"),
        (["config", "check", "/nowhere/mrcd.toml"], "/nowhere/mrcd.toml: no such file"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_usage_errors(mrcctl: Callable[..., Result], args: list[str], message: str) -> None:
    result = mrcctl(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"mrcctl: {message}")
    assert "\n  hint: " in result.stderr


def test_help(mrcctl: Callable[..., Result]) -> None:
    assert mrcctl("--help").exit_code == 0
    bare = mrcctl()
    assert (bare.exit_code, bare.stdout) == (1, "")
    assert bare.stderr.startswith("Usage: mrcctl ")


# ---- completion ----


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(mrcctl: Callable[..., Result], shell: str) -> None:
    result = mrcctl("completion", shell)
    assert result.exit_code == 0
    assert f"_MRCCTL_COMPLETE={shell}_complete" in result.stdout


def complete(monkeypatch: pytest.MonkeyPatch, mrcctl: Callable[..., Result], words: str) -> list[str]:
    monkeypatch.setenv("_MRCCTL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    result = mrcctl()
    assert result.stderr == ""
    return [line.split(",")[1] for line in result.stdout.splitlines() if line]


def test_completion_of_values(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, daemon: Daemon) -> None:
    daemon.answers["/v1/peers"] = (200, [{"peer": "h2"}, {"peer": "h3"}, {"peer": "store1"}])
    assert complete(monkeypatch, mrcctl, "mrcctl paths --peer h") == ["h2", "h3"]
    assert complete(monkeypatch, mrcctl, "mrcctl paths --state AS") == ["ASSUMED_BAD"]


def test_completion_without_a_daemon_is_silent(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(monkeypatch, mrcctl, "mrcctl deny --peer ") == []


# ---- start-up ----


def test_starts_without_the_heavy_modules(run_dir: Path) -> None:
    code = (
        "import sys; from mrcd.ctl.main import cli\n"
        "heavy = {'bcc', 'pydantic', 'aiohttp', 'numpy', 'scapy', 'pyroute2'}\n"
        "try: cli(['version'])\n"
        "except SystemExit: print(sorted(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "MRCD_RUN_DIR": str(run_dir)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
