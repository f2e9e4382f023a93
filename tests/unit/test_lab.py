# SPDX-License-Identifier: BSD-2-Clause
"""Tests what labs and the matrix of kernels are made of: fabrics, faults, daemons, gaps in goodput, packages."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.cluster import bringup, processes, render, state
from labkit.cluster.fabric import Parameters, build, owns, parse_setting
from labkit.faults import targets
from labkit.kernels import fresh_debian, matrix, packages
from labkit.measure import goodput
from labkit.measure.goodput import BIN_NS
from mrcd.errors import MachineError, MrcdError, UsageError
from mrcd.fabric import topology


def test_settings_of_health_and_overlay_reach_the_cluster_file() -> None:
    settings = dict(map(parse_setting, ("hold_down_ms=150", "loss_ratio=0.1", "loss_rule=any")))
    overlay = dict(map(parse_setting, ("dup_ack_us=0", "source_check=off")))
    parameters = Parameters(health=settings, overlay=overlay, rate_bits_per_s=1_000_000_000)
    found = build("x", parameters).config
    assert (found.health.hold_down_ms, found.health.loss_ratio, found.health.loss_rule) == (150, 0.1, "any")
    assert (found.overlay.dup_ack_us, found.overlay.burst_bytes, found.overlay.source_check) == (0, 65_535, "off")
    assert Parameters(**parameters.as_json()) == parameters
    assert "[health]" not in build("x", Parameters()).toml
    for wrong in ("hold_down_ms", "hold_down_ms=", "=1"):
        with pytest.raises(UsageError, match="not a setting"):
            parse_setting(wrong)
    with pytest.raises(MrcdError, match="hold_down_ms"):
        build("x", Parameters(health=dict([parse_setting("hold_down_ms=soon")])))
    with pytest.raises(MrcdError, match="unknown key"):
        build("x", Parameters(health={"patience": 1}))


def test_hosts_back_to_back_reach_each_other_s_own_sid() -> None:
    fabric = build("x", Parameters(direct=True, hosts=9, mtu=1500))
    assert fabric.hosts == list(fabric.nodes) == ["h0", "h1"]
    assert [(k.upper, k.lower) for k in fabric.links] == [(("h0", f"p{p}"), ("h1", f"p{p}")) for p in range(4)]
    sids = topology.plan(fabric.config, "h1").sids
    evs = topology.plan(fabric.config, "h0").peers[0].evs
    assert [(e.plane, e.segments) for e in evs] == [(p, (sids[p],)) for p in range(4)]
    assert [p.gateway_mac for p in fabric.nodes["h0"].ports] == [p.mac for p in fabric.nodes["h1"].ports]
    with pytest.raises(UsageError, match="no switches"):
        targets.parse(fabric, "nic:h0:0")
    ecmp = build("x", Parameters(direct=True, encapsulation="ecmp")).config
    assert [e.ev for e in topology.plan(ecmp, "h0").peers[0].evs] == [0, 1, 2, 3]


def test_a_lab_owns_exactly_its_namespaces_and_stays_in_its_directory() -> None:
    for name in ("", "-a", "A", "a/b", "..", "a" * 32):
        with pytest.raises(UsageError):
            build(name, Parameters())
    assert owns("a", "mrc-a-h0")
    assert owns("a", "mrc-a-t1-0-12")
    for name in ("mrc-ab-h0", "mrc-a-t0-h0", "mrc-a-t0-t0-1-2", "mrc-a-h0-h0", "mrc-a-x", "a-h0"):
        assert not owns("a", name)
    assert owns("a-t0", "mrc-a-t0-t0-1-2")


def test_a_node_is_configured_around_ports_that_are_down() -> None:
    lines = render.configure(build("x", Parameters()).nodes["t0-0-0"], down={"t1-2", "h1"})
    assert not any(word in ("t1-2", "h1") for line in lines for word in line.split())
    assert any("nexthop" in line for line in lines)


# ---- daemons ----


def test_a_running_daemon_keeps_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "BASE", tmp_path)
    lab, fabric = state.State("lab"), cast(Any, SimpleNamespace(hosts=["h0"], namespace=lambda host: host))
    lab.run_dir("h0").mkdir(parents=True)
    lab.socket("h0").touch()
    processes.record_self(lab.daemon_record("h0"))
    monkeypatch.setattr(bringup, "start_daemon", lambda *given: pytest.fail("it runs already"))
    assert bringup.start_daemons(lab, fabric) == []
    assert lab.socket("h0").exists()


# ---- goodput ----


S = 1_000_000_000
BEGIN = 500 * BIN_NS
RATE = 8e9
FULL = int(RATE / 8 * BIN_NS / S)


def flow(seconds: float, *holes: tuple[float, float]) -> dict[int, int]:
    """Returns 8 Gbit/s from BEGIN on, with nothing in the gaps (seconds after BEGIN)."""
    starts = range(BEGIN, BEGIN + int(seconds * S), BIN_NS)
    return {t: FULL for t in starts if not any(a <= (t - BEGIN) / S < b for a, b in holes)}


def test_mean_is_over_whole_bins_inside() -> None:
    bins = flow(2.0, (0.5, 1.0))
    assert goodput.mean(bins, BEGIN, BEGIN + 2 * S) == RATE * 0.75
    assert goodput.mean(bins, BEGIN + 1, BEGIN + BIN_NS) is None
    # Measured from the middle of a bin, the bins cut in two do not count.
    assert goodput.mean(flow(1.0), BEGIN + BIN_NS // 2, BEGIN + 10 * BIN_NS + 7) == RATE


@pytest.mark.parametrize(
    ("bins", "begin", "end", "hole"),  # in bins
    [
        (flow(3.0, (0.5, 0.58), (1.0, 1.2), (2.0, 2.1)), 0, 150, (50, 10)),
        (flow(3.0, (0.5, 0.58), (1.0, 1.2), (2.0, 2.1)), 100, 150, (100, 5)),
        (flow(1.0) | {BEGIN + 10 * BIN_NS: int(FULL * 0.04), BEGIN + 20 * BIN_NS: int(FULL * 0.06)}, 0, 50, (10, 1)),
        (flow(1.0), 0, 150, (50, 100)),  # it never returns
    ],
)
def test_the_longest_hole(bins: dict[int, int], begin: int, end: int, hole: tuple[int, int]) -> None:
    found = goodput.longest_hole(bins, BEGIN + begin * BIN_NS, BEGIN + end * BIN_NS, RATE)
    assert found == (BEGIN + hole[0] * BIN_NS, hole[1] * BIN_NS)


# ---- kernels ----


def test_the_newest_is_by_number_and_neither_cloud_nor_rt() -> None:
    names = """
        linux-image-6.1.0-9-amd64-unsigned
        linux-image-6.1.0-56-amd64-unsigned
        linux-image-6.1.0-57-cloud-amd64-unsigned
        linux-image-6.1.0-57-rt-amd64-unsigned
        linux-image-6.1.0-58-amd64
        linux-image-6.12.9+deb12-amd64-unsigned
        linux-image-6.12.117+deb12-amd64-unsigned
        linux-image-6.12.118+deb12-arm64-unsigned
        linux-image-6.12.118+deb12-cloud-arm64-unsigned
        linux-image-6.12.117+deb12-arm64-16k-unsigned
    """
    assert packages.newest(names.split(), "6.1") == "linux-image-6.1.0-56-amd64-unsigned"
    assert packages.newest(names.split(), "6.12") == "linux-image-6.12.117+deb12-amd64-unsigned"
    assert packages.newest(names.split(), "6.12-arm64") == "linux-image-6.12.118+deb12-arm64-unsigned"
    assert packages.newest(names.split(), "6.12-arm64-16k") == "linux-image-6.12.117+deb12-arm64-16k-unsigned"
    assert packages.newest(names.split(), "6.6") is None


class Apt:
    """Stands in for apt: its packages before and after an update of its lists, and whether it can download."""

    def __init__(self, before: str, after: str, *, serves: str = "") -> None:
        self.known, self._after, self._serves = before, after, serves
        self.updates = 0

    def __call__(self, argv: list[str], cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        status = 0
        if "update" in argv:
            self.known, self.updates = self._after, self.updates + 1
        elif "download" in argv:
            assert cwd is not None
            (cwd / "it.deb").touch()
            status = 100 * (self._serves != argv[-1])
        elif argv[0] == "dpkg":
            (Path(argv[-1]) / "lib/modules" / Path(argv[-1]).name).mkdir(parents=True)
        return subprocess.CompletedProcess(argv, status, self.known, "404 Not Found" if status else "")


OLD, NEW = "linux-image-6.1.0-56-amd64-unsigned", "linux-image-6.1.0-60-amd64-unsigned"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "CACHE", tmp_path)
    packages.update_lists.cache_clear()
    return tmp_path


def test_old_package_lists_are_updated(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt(OLD, NEW, serves=NEW)
    monkeypatch.setattr(packages, "completed", apt)
    assert packages.kernel("6.1").release == "6.1.0-60-amd64"
    assert apt.updates == 1


def test_the_newest_fetched_kernel_replaces_an_unavailable_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.117+deb12-amd64", "6.1.0-60-amd64"):
        (cache / release / "lib/modules" / release).mkdir(parents=True)
        (cache / release / "complete").touch()
    (cache / "6.1.0-60-amd64/complete").unlink()
    monkeypatch.setattr(packages, "completed", Apt(NEW, NEW))
    assert packages.kernel("6.1").release == "6.1.0-56-amd64"
    with pytest.raises(MachineError, match="knows no kernel"):
        packages.kernel("6.6")


def test_a_new_machine_shares_the_directories_of_pip_and_none_of_the_system() -> None:
    file = "[global]\nfind-links = /opt/wheels\nextra-index-url = file:///srv/simple https://pypi.org/simple\n"
    environment = {"PIP_FIND_LINKS": "/mnt/more", "PIP_CERT": "/etc/ssl/certs/all.crt", "HOME": "/media/user/x"}
    assert fresh_debian.directories(environment, [file]) == ["/mnt", "/opt", "/srv"]
    assert fresh_debian.directories({}, []) == []


@pytest.mark.parametrize(
    ("parts", "is_ok", "status", "error"),
    [
        (("smoke",), True, 0, ""),
        (("smoke",), False, 1, ""),  # the check says why
        (("smoke",), True, 137, "exit status 137"),  # it died after its last ok
        (("smoke", "life", "packets"), True, 0, "nothing was reported of life, packets"),
    ],
)
def test_checks_that_end_early_are_no_success(parts: tuple[str, ...], is_ok: bool, status: int, error: str) -> None:
    checks = ({"part": "smoke usid", "check": "ping", "ok": is_ok, "words": "why"},)
    found = matrix.judge("6.1", parts, checks, status, "")
    assert (error in found.error, bool(found.error)) == (True, bool(error))
    assert found.ok == (is_ok and not error)
