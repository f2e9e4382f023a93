# SPDX-License-Identifier: BSD-2-Clause
"""Tests the command line of mrcctl: usage errors, help, completion, and a quick start."""

import importlib
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from mrcd.ctl import commands, glossary
from mrcd.ctl.main import cli
from mrcd.kernel.enums import Drop, EvState, Reason
from tests.lists import compare
from tests.unit.canned_daemon import EVENT, Daemon


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["deny"], "deny needs a target"),
        (["allow", "--json"], "allow needs a target"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["paths", "--state", "WELL"], "Invalid value for '--state'"),
        (["paths", "--plane", "-1"], "Invalid value for '--plane'"),
        (["deny", "--ev", "x"], "Invalid value for '--ev': 'x' is not a whole number"),
        (["status", "--timeout", "x"], "Invalid value for '--timeout': 'x' is not a number"),
        (["status", "--timeout", "0"], "Invalid value for '--timeout'"),
        (["status", "h2"], "Got unexpected extra argument"),
        (["events", "--since", "yesterday"], "Invalid value for '--since'"),
        (["events", "--since", "1e9d"], "Invalid value for '--since'"),
        (["watch", "--interval", "0"], "Invalid value for '--interval'"),
        (["top", "--lines", "0"], "Invalid value for '--lines'"),
        (["keys", "frobnicate"], "No such command 'frobnicate'"),
        (["completion", "csh"], "Invalid value for '{bash|zsh|fish}'"),
        (["config", "check", "/nowhere/mrcd.toml"], "/nowhere/mrcd.toml: No such file or directory"),
        (["de"], "'de' is ambiguous: denials, deny, detach"),
        (["help", "frobnicate"], "there is no command 'frobnicate'"),
        (["help", "paths", "x"], "there is no command 'paths x'"),
        (["paths", "h2", "--peer", "h3"], "two peers are named: h2 and h3"),
        (["paths", "--bad", "--state", "GOOD"], "--bad and --state exclude each other"),
        (["events", "--kind", "x"], "Invalid value for '--kind'"),
        (["paths", "--decode", "-i", "1"], "--decode and --interval exclude each other"),
        (["allow", "--all", "t1:1:2"], "--all and a target exclude each other"),
        (["fleet", "deny"], "fleet deny needs a target"),
        (["fleet", "drain"], "fleet drain needs a target"),
        (["fleet", "allow"], "fleet allow needs a target"),
        (["fleet", "put", "/nowhere"], "/nowhere: No such file or directory"),
        (["fleet", "put", "/bin/true"], "/bin/true: not UTF-8 text"),
        (["status", "--chek"], "No such option"),
        (["trace"], "Missing argument 'PEER'"),
        (["trace", "h2", "--ev", "x"], "Invalid value for '--ev'"),
        (["fabric", "plan"], "Missing option '--hosts'"),
        (["fabric", "plan", "--hosts", "x"], "Invalid value for '--hosts': 'x' is not a whole number"),
        (["fabric", "plan", "--hosts", "4096"], "this fabric cannot be wired"),
        (["fabric", "plan", "--hosts", "8", "--planes", "17"], "this fabric cannot be wired"),
        (["fabric", "plan", "--hosts", "8", "--prefix", "10.0.0.1/24"], "--prefix: 10.0.0.1/24 has host bits set"),
        (["fabric", "config"], "Missing option '--format'"),
        (["fabric", "config", "--format", "nxos"], "Invalid value for '--format': 'nxos' is not one of"),
        (["fabric", "config", "--format", "frr"], "a cluster has many switches: name one, or a directory"),
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


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["help"], "Usage: mrcctl [OPTIONS] COMMAND"),
        (["help", "trace"], "Usage: mrcctl trace [OPTIONS] [PEER]"),
        (["help", "config", "check"], "Usage: mrcctl config check [OPTIONS] [FILE]"),
        (["help", "conf", "ch"], "Usage: mrcctl config check [OPTIONS] [FILE]"),
        (["help", "words"], "EV states:\n  GOOD                     carries data\n"),
    ],
    ids=str,
)
def test_the_help_of_a_command(mrcctl: Callable[..., Result], args: list[str], shown: str) -> None:
    result = mrcctl(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(shown)


def test_the_words_are_those_of_the_code() -> None:
    assert list(glossary.STATES) == ["GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNKNOWN"]
    assert glossary.STATES.keys() == EvState.__members__.keys()
    assert glossary.REASONS.keys() >= {reason.text for reason in Reason}
    compare(
        glossary.DROPS,
        (reason.text for reason in Drop if reason is not Drop.NONE),
        in_file="DROPS in mrcd/ctl/glossary.py",
        known_from="Drop in mrcd/kernel/enums.py",
        ordered=True,
    )
    page = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text(encoding="utf-8")
    page = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", page).replace("`", "")
    for word, meaning in glossary.DROPS.items():
        program, _, text = meaning.partition(": ")
        is_same = f"| {word} | {program} | {text}" in page
        assert is_same, f"docs/troubleshooting.md says of {word} another thing than mrcd/ctl/glossary.py: {meaning!r}"
    for width, indent in ((40, 13), (80, 26)):
        assert max(map(len, glossary.lines(width))) <= width
        assert max(len(line) - len(line.lstrip()) for line in glossary.lines(width)) == indent


def test_commands_may_be_abbreviated(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    assert mrcctl("pee", "--json").stdout == mrcctl("peers", "--json").stdout
    assert mrcctl("k", "st").stdout == mrcctl("keys", "status").stdout
    assert mrcctl("st", "-b").stdout == mrcctl("status", "-b").stdout


@pytest.mark.parametrize(
    ("command", "path"),
    [("paths", "/v1/paths"), ("doctor", "/v1/paths"), ("top -i 0.1", "/v1/paths"), ("watch -c 1 --json", "/v1/paths")],
)
def test_a_peer_is_an_argument_or_an_option(
    mrcctl: Callable[..., Result], daemon: Daemon, command: str, path: str
) -> None:
    for peer in (["h2"], ["--peer", "h2"], ["h2", "--peer", "h2"]):
        daemon.requests.clear()
        mrcctl(*command.split(), *peer)
        assert [given["peer"] for _, where, given in daemon.requests if where == path][:1] == ["h2"], peer


def test_a_full_disk_is_one_line(daemon: Daemon) -> None:
    code = "from mrcd.ctl.entry import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "paths"],
            env={**os.environ, "MRCD_RUN_DIR": str(daemon.run_dir)},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "mrcctl: No space left on device\n")


# ---- completion ----


# In each shell: load the script, complete "mrcctl pat", print the result; and what the result has.
SHELLS = {
    "bash": (
        "source <(mrcctl completion bash); COMP_WORDS=(mrcctl pat); COMP_CWORD=1; _mrcctl_completion mrcctl\n"
        'echo "${COMPREPLY[@]}"; complete -p mrcctl',
        ["paths", "_mrcctl_completion"],
    ),
    "zsh": (
        "autoload -U compinit; compinit -D -u; source <(mrcctl completion zsh); print ${_comps[mrcctl]}",
        ["_mrcctl_completion"],
    ),
    "fish": ('mrcctl completion fish | source; complete --do-complete "mrcctl pat"', ["paths"]),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_works_in_each_shell(mrcctl: Callable[..., Result], shell: str, tmp_path: Path) -> None:
    assert f"_MRCCTL_COMPLETE={shell}_complete" in mrcctl("completion", shell).stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    query, words = SHELLS[shell]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MRCD_RUN_DIR": str(tmp_path)}
    done = subprocess.run([shell, "-c", query], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert [word for word in words if word not in done.stdout] == []


def test_completion_of_values(complete: Callable[..., list[str]], daemon: Daemon) -> None:
    daemon.answers["/v1/peers"] = (200, [{"peer": "h2"}, {"peer": "h3"}, {"peer": "store1"}])
    assert complete(*["mrcctl", "paths", "--peer", "h"]) == ["h2", "h3"]
    assert complete(*["mrcctl", "paths", "--state", "AS"]) == ["ASSUMED_BAD"]


def test_completion_of_abbreviated_commands(complete: Callable[..., list[str]]) -> None:
    assert complete(*["mrcctl", "tra", "--coun"]) == ["--count"]
    assert complete(*["mrcctl", "de", "--forc"]) == []


@pytest.mark.parametrize("answer", [(500, {"error": "no"}), (200, [{"other": 1}]), (200, 7), None], ids=str)
def test_completion_shows_no_errors(complete: Callable[..., list[str]], daemon: Daemon, answer: Any) -> None:
    if answer is None:
        daemon.stop()
    daemon.answers |= dict.fromkeys(("/v1/peers", "/v1/paths", "/v1/denials"), answer)
    for words in ("mrcctl deny --peer ", "mrcctl deny t", "mrcctl allow t"):
        assert complete(*words.split(" ")) == []


# ---- start-up ----


ONLINE = [
    *("status", "status -b", "peers", "paths --decode", "events --since 1h", "histograms", "links", "version"),
    *("watch --json -c 1", "top -i 0.1", "deny --peer h2", "attach", "completion zsh", "keys status"),
    *("keys status --json", "keys rotate", "denials", "allow --all", "detach", "reload", "help paths"),
    "job env --interface lo",
]
UNLIMITED = {
    *("bugreport", "capture", "config", "doctor", "fabric", "fleet", "preflight", "probe", "trace"),  # import more
    *("drain", "undrain"),  # as deny and allow
}
"""Commands whose imports are not tested."""


def test_every_command_is_tested_for_its_imports_or_may_import_more() -> None:
    compare(
        sorted({command.split()[0] for command in ONLINE} | UNLIMITED),
        sorted(cli.list_commands(click.Context(cli))),
        in_file="ONLINE in tests/unit/test_ctl_usage.py",
        known_from="_MODULES in mrcd/ctl/main.py",
    )


def test_daemon_commands_import_no_heavy_modules(daemon: Daemon) -> None:
    """numpy would add 100 ms to each command, too much for use in a loop."""
    daemon.answers |= {
        "/v1/histograms": (200, []),
        "/v1/links": (200, []),
        "/v1/events": (200, {"events": [EVENT], "last_id": 1}),
        "/v1/deny": (200, {"message": "done", "changed": 1}),
        "/v1/allow": (200, {"message": "done", "changed": 1}),
        "/v1/denials": (200, {"denials": [], "warning": None}),
        "/v1/attach": (200, {"message": "done"}),
        "/v1/detach": (200, {"message": "done"}),
        "/v1/reload": (200, {"message": "done", "changed": False}),
    }
    code = (
        "import contextlib, os, sys\n"
        "from mrcd.ctl.main import cli\n"
        "heavy = {'bcc', 'pydantic', 'aiohttp', 'numpy', 'scapy', 'pyroute2', 'rich', 'asyncio', 'subprocess'}\n"
        "heavy |= {'siphash24', 'cryptography'}\n"
        f"for command in {ONLINE!r}:\n"
        "    with contextlib.redirect_stdout(open(os.devnull, 'w')):\n"
        "        try: cli(command.split())\n"
        "        except SystemExit as e: code = e.code\n"
        "    print(command, code, sorted(heavy & set(sys.modules)))\n"
    )
    env = {**os.environ, "MRCD_RUN_DIR": str(daemon.run_dir)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{command} 0 []" for command in ONLINE], done.stderr


def test_an_early_ctrl_c_is_no_traceback() -> None:
    """The interrupt comes during the imports."""
    code = (
        "import os, signal, sys\n"
        "from mrcd.ctl.entry import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_during_completion_is_no_traceback() -> None:
    """The interrupt comes while the module of a command is imported, to complete its options."""
    code = (
        "import os, signal, sys\n"
        "from mrcd.ctl.entry import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'mrcd.ctl.commands.measure': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "main()\n"
    )
    words = {"COMP_WORDS": "mrcctl probe --", "COMP_CWORD": "2", "_MRCCTL_COMPLETE": "bash_complete"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def commands_of(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands_of(command)


def test_every_command_belongs_to_mrcctl() -> None:
    written = [
        command
        for module in pkgutil.iter_modules(commands.__path__)
        for command in vars(importlib.import_module(f"{commands.__name__}.{module.name}")).values()
        if isinstance(command, click.Command)
    ]
    assert {id(c) for c in written} <= {id(c) for c in commands_of(cli)}, [c.name for c in written]
