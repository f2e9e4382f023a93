# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl capture`: the tcpdump command that it prints, and usage. test_wireshark.py tests the filters."""

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from mrcd.ctl.packets import capture
from mrcd.ctl.packets.capture import filter_expression
from tests.unit.canned_daemon import PEER, STATUS, Daemon

PORT = 4797
NIC: dict[str, Any] = STATUS["planes"][0]  # type: ignore[index]


@pytest.fixture(autouse=True)
def answers(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.answers |= {"/v1/status": (200, STATUS | {"udp_port": PORT}), "/v1/peers": (200, [PEER])}
    monkeypatch.setattr(capture, "name_of", lambda ifindex, otherwise: otherwise)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["tcpdump", "-n", "-i", "any", "-l", filter_expression(PORT)]),
        (
            ["--plane", str(NIC["plane"]), "-c", "3", "-w", "x.pcap", "--snap", "200"],
            ["tcpdump", "-n", "-i", NIC["interface"], "-c", "3", "-w", "x.pcap", "-s", "200",
             filter_expression(PORT, may_be_tagged=True)],
        ),
        (
            [PEER["peer"], "--ev", "6", "--type", "reply", "--seconds", "0.5"],
            ["timeout", "--preserve-status", "--signal=INT", "0.5", "tcpdump", "-n", "-i", "any", "-l",
             filter_expression(PORT, ev=6, kind="reply", host=2)],
        ),
        (["77"], ["tcpdump", "-n", "-i", "any", "-l", filter_expression(PORT, host=77)]),
    ],
    ids=str,
)  # fmt: skip
def test_the_command(mrcctl: Callable[..., Result], arguments: list[str], expected: list[str]) -> None:
    assert shlex.split(mrcctl("capture", *arguments, "--print").stdout) == expected
    assert json.loads(mrcctl("capture", *arguments, "--json").stdout)["command"] == expected


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["h9"], 1, "h9"),
        (["--plane", "77"], 1, "there is no plane 77\n  hint: planes: "),
        (["--type", "ack"], 1, "Invalid value for '--type'"),
    ],
)
def test_wrong_usage(mrcctl: Callable[..., Result], arguments: list[str], status: int, message: str) -> None:
    result = mrcctl("capture", *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr


def test_without_tcpdump_the_error_has_a_remedy(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    result = mrcctl("capture")
    assert result.exit_code == 2
    assert result.stderr.startswith("mrcctl: tcpdump is not installed\n  hint: install the package tcpdump")


def test_planes_on_vlans_are_captured_one_by_one(
    mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "name_of", lambda ifindex, otherwise: "eth0")
    assert "give a --plane" in mrcctl("capture", "--print").stderr
    assert "-i eth0 " in mrcctl("capture", "--print", "--plane", str(NIC["plane"])).stdout
