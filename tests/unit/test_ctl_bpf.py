# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl bpf` without pins, or with unexpected ones."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mrcd.tables.enums import AuthMode
from tests.unit.arrays import Arrays

COMMANDS = [("bpf", "maps"), ("bpf", "progs"), ("bpf", "dump"), ("bpf", "dump", "h2", "5")]


def running(run_dir: Path, pins: Path) -> None:
    document = {
        "host": "h0",
        "pins": str(pins),
        "config": {"hosts": [{"name": "h0", "id": 0}, {"name": "h2", "id": 2}]},
    }
    (run_dir / "running.json").write_text(json.dumps(document))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_pins_the_error_has_a_hint(
    mrcctl: Callable[..., Result], run_dir: Path, command: tuple[str, ...]
) -> None:
    running(run_dir, run_dir / "pins")
    result = mrcctl(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"mrcctl: nothing is pinned at {run_dir}/pins\n  hint: mrcd has not run")


def test_a_dump_never_shows_a_key(
    mrcctl: Callable[..., Result], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Arrays(4, 8)
    tables.auths["tx_key"] = tables.auths["rx_key"] = 0x1122334455667788
    tables.auths["mode"], tables.auths["rx_id"][:, :2] = AuthMode.REQUIRED, (1, 2)
    monkeypatch.setattr("mrcd.ctl.commands.bpf.pinned_tables", lambda directory: tables)
    (run_dir / "links").mkdir()
    running(run_dir, run_dir)
    result = mrcctl("bpf", "dump", "h2")
    assert result.exit_code == 0
    assert "mrc_auths[2]  h2\n" in result.stdout
    for line in ("tx_key           never shown", "rx_key           never shown", "mode             2  (required)"):
        assert f"  {line}\n" in result.stdout
    document = mrcctl("bpf", "dump", "h2", "--json").stdout
    (auth,) = (r for r in json.loads(document)["records"] if r["table"] == "mrc_auths")
    assert {f["field"]: f["value"] for f in auth["fields"]} == {
        "tx_slot": 0, "tx_id": "00000000", "tx_key": None, "status": 0, "sent": 0, "mode": 2, "rx_id": "010200",
        "rx_key": None, "clock_ns": 0, "untagged": 0,
    }  # fmt: skip
    for number in (str(0x1122334455667788), "1122334455667788", "8877665544332211"):
        assert number not in result.stdout + document


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"pins": 3}', '{"pins": "/x", "host": "h0", "config": {}}'])
def test_a_broken_file_beside_the_socket(mrcctl: Callable[..., Result], run_dir: Path, text: str) -> None:
    (run_dir / "running.json").write_text(text)
    result = mrcctl("bpf", "maps")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"mrcctl: {run_dir}/running.json: ")
    assert "\n  hint: " in result.stderr


def test_a_pin_that_is_no_bpf_object_is_an_error(mrcctl: Callable[..., Result], run_dir: Path) -> None:
    (run_dir / "mrc_peers").write_text("")
    running(run_dir, run_dir)
    for command in COMMANDS:
        result = mrcctl(*command)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert result.stderr.startswith(f"mrcctl: open the pin {run_dir}/"), command
