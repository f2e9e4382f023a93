# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fabric check --running`: what FRR, SONiC and the Linux kernel report, against the plan.

switches/running/ has what FRR 10.3 of Debian 13 and its kernel printed after each had loaded the configuration that
`mrcctl fabric config --format frr` writes: `frr` and `linux-of-frr`. In `frr-restarting` FRR was restarted while sr0
was down, in `frr-sid-absent` there was no sr0, and in `frr-port-down` swp5 was down. No SONiC switch was there: its
CONFIG_DB is what the planner writes, among other tables.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mrcd.config import cluster_file
from mrcd.errors import UsageError
from mrcd.planner.compare import Comparison
from mrcd.planner.switches import running, sonic
from mrcd.planner.switches.formats import FORMATS

Mrcctl = Callable[..., Result]
CLUSTER = Path(__file__).with_name("switches") / "cluster.toml"
REPORTS = CLUSTER.parent / "running"
SONIC = FORMATS["sonic"].switches(cluster_file.load(CLUSTER))
NAMES = ("t0-0-0", "t0-0-1", "t1-0-0", "t1-0-1")
T0_SID, T1_ROUTE = "5f00:0:4000::/48", "5f00:0:8000::/48"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Returns a directory with the reports of four FRR switches that run what is planned."""
    shutil.copytree(REPORTS / "frr", tmp_path / "reports")
    return tmp_path / "reports"


@pytest.fixture
def check(mrcctl: Mrcctl, reports: Path) -> Callable[..., Any]:
    """Returns a function that checks `reports` and returns the document."""

    def checked(*options: str) -> Any:
        argv = ("fabric", "check", "--running", "--evs", "500", str(reports), str(CLUSTER))
        result = mrcctl(*argv, *options, "--json")
        document = json.loads(result.stdout)
        assert (result.exit_code, result.stderr) == (not document["correct"], "")
        return document

    return checked


def faults(document: Any) -> dict[tuple[str, str | None], str]:
    """Returns (switch, prefix) → fault."""
    return {(found["switch"], found["prefix"]): found["fault"] for found in document["findings"]}


def config_db(name: str, **changes: Any) -> str:
    """Returns the CONFIG_DB of a SONiC switch: the planner's tables among those that it does not write."""
    tables = json.loads(sonic.text(SONIC.switch(name)))
    tables["DEVICE_METADATA"] = {"localhost": {"hostname": name, "type": "LeafRouter"}}
    tables["BGP_NEIGHBOR"] = {"10.0.0.1": {"asn": "65100"}}
    tables["INTERFACE"]["Ethernet60|10.0.0.0/31"] = {}
    tables["PORT"]["Ethernet60"] = {"lanes": "60", "speed": "100000"}
    tables["STATIC_ROUTE"] |= {
        "mgmt|::/0": {"nexthop": "fd00::1", "ifname": "eth0"},
        "default|10.0.0.0/8": {"nexthop": "10.0.0.1", "ifname": "Ethernet60"},
        "::/0": {"nexthop": "fd00::1"},
    }
    if "ACL_RULE" in tables:
        tables["ACL_RULE"]["CTRLPLANE|RULE_1"] = {"PRIORITY": "1", "PACKET_ACTION": "DROP", "L4_SRC_PORT": "1"}
    for table, change in changes.items():
        tables[table] = change(tables[table])
    return json.dumps(tables)


@pytest.mark.parametrize("system", ["frr", "linux-of-frr", "sonic"])
def test_switches_that_run_what_is_planned_have_no_finding(check: Any, reports: Path, system: str) -> None:
    for name in NAMES:
        text = config_db(name) if system == "sonic" else (REPORTS / system / f"{name}.json").read_text()
        (reports / f"{name}.json").write_text(text)
    document = check(*(("--format", "frr") if system == "linux-of-frr" else ()))
    assert (document["findings"], document["mistakes"], document["correct"]) == ([], [], True)
    assert document["reports"] == {system.removesuffix("-of-frr").replace("linux", "iproute2"): 4}
    assert document["followed"] >= 500


def test_systems_may_differ_by_switch(check: Any, reports: Path) -> None:
    (reports / "t1-0-1.json").unlink()
    (reports / "t1-0-1.txt").write_text(config_db("t1-0-1"))
    assert (check()["reports"], check()["correct"]) == ({"frr": 3, "sonic": 1}, True)


def test_a_sid_that_frr_lost_in_a_restart_is_named_with_its_traffic(check: Any, mrcctl: Mrcctl, reports: Path) -> None:
    """FRR knows it, but its interface was down. All else is there."""
    shutil.copy(REPORTS / "frr-restarting" / "t0-0-0.json", reports)
    document = check()
    assert document["findings"] == [
        {
            "switch": "t0-0-0",
            "fault": "SID missing",
            "prefix": T0_SID,
            "planned": "uN",
            "runs": None,
            "affects": "all EVs from and to a in plane 0",
            "cause": "FRR knows it, but has not installed it: sr0 is down or absent",
        }
    ]
    assert [m["mistake"] for m in document["mistakes"]] == ["lost"]
    lines = mrcctl("fabric", "check", "--running", "--evs", "500", str(reports), str(CLUSTER)).stdout.splitlines()
    assert lines[0] == "reports of 4 of 4 switches (4 frr): 1 difference"
    assert lines[2] == f"t0-0-0: SID missing {T0_SID}"
    assert "  cause     FRR knows it, but has not installed it: sr0 is down or absent" in lines


def test_a_sid_without_its_interface_is_named(check: Any, reports: Path) -> None:
    shutil.copy(REPORTS / "frr-sid-absent" / "t0-0-0.json", reports)
    (found,) = check()["findings"]
    assert (found["fault"], found["prefix"]) == ("SID missing", T0_SID)
    assert "sr0" in found["cause"]


def test_a_port_that_is_down_takes_its_routes_along(check: Any, reports: Path) -> None:
    """Of the route over all uplinks one path is left."""
    shutil.copy(REPORTS / "frr-port-down" / "t0-0-0.json", reports)
    document = check()
    assert faults(document) == {
        ("t0-0-0", "fd10:0:0:8000::/64"): "route missing",
        ("t0-0-0", T1_ROUTE): "route missing",
        ("t0-0-0", "fd10::/48"): "route differs",
    }
    assert document["findings"][2]["cause"] == "swp5 is down"
    assert document["findings"][1]["affects"] == "EVs of a through t1-0-0"


def test_a_switch_without_a_report_is_named_and_taken_as_planned(check: Any, reports: Path) -> None:
    (reports / "t1-0-0.json").unlink()
    document = check()
    assert (faults(document), document["mistakes"]) == ({("t1-0-0", None): "no report"}, [])
    assert document["correct"] is False


def test_ports_of_another_system_are_differences(check: Any, reports: Path) -> None:
    """No next hop leads anywhere, and the check says so. --format frr is the remedy."""
    shutil.rmtree(reports)
    shutil.copytree(REPORTS / "linux-of-frr", reports)
    document = check()
    found = next(f for f in document["findings"] if f["prefix"] == T1_ROUTE)
    assert (found["fault"], found["planned"], found["runs"]) == ("route differs", "fe80::1:0 t1-0", "fe80::1:0 swp5")
    assert "next hop without cable" in [m["mistake"] for m in document["mistakes"]]


# ---- kernel routes, one by one ----

SID_ROW = {
    "dst": T0_SID, "encap": "seg6local", "action": "End", "flavors": ["next-csid"], "lblen": 32, "nflen": 16,
    "dev": "sr0", "metric": 20, "flags": [],
}  # fmt: skip
ROUTE_ROW = {"dst": T1_ROUTE, "gateway": "fe80::1:0", "dev": "swp5", "metric": 20, "flags": []}


@pytest.mark.parametrize(
    ("prefix", "row", "fault", "runs"),
    [
        (T0_SID, None, "SID missing", None),
        (T0_SID, SID_ROW | {"flavors": ["psp"]}, "SID differs", "End"),
        (T0_SID, SID_ROW | {"action": "End.DT6"}, "SID differs", "End.DT6"),
        (T0_SID, SID_ROW | {"lblen": 48}, "SID differs", "uN of 48 + 16 bits"),
        (T0_SID, SID_ROW | {"flags": ["dead", "linkdown"]}, "SID missing", None),
        (T0_SID, SID_ROW | {"table": "100"}, "SID missing", None),
        (T0_SID, ROUTE_ROW | {"dst": T0_SID}, "SID differs", "fe80::1:0 swp5"),
        (T1_ROUTE, None, "route missing", None),
        (T1_ROUTE, ROUTE_ROW | {"dev": "swp6"}, "route differs", "fe80::1:0 swp6"),
        (T1_ROUTE, ROUTE_ROW | {"flags": ["linkdown"]}, "route missing", None),
        (T1_ROUTE, {"type": "blackhole", "dst": T1_ROUTE, "dev": "lo"}, "route differs", "unreachable"),
        ("5f00:0:8002::/48", ROUTE_ROW | {"dst": "5f00:0:8002::/48"}, "route unexpected", "fe80::1:0 swp5"),
        ("5f00:0:9000::/48", SID_ROW | {"dst": "5f00:0:9000::/48"}, "SID unexpected", "uN"),
        ("fd10::9/128", ROUTE_ROW | {"dst": "fd10::9"}, "route unexpected", "fe80::1:0 swp5"),
    ],
)
def test_each_difference_of_kernel_routes(prefix: str, row: dict[str, Any] | None, fault: str, runs: str) -> None:
    """The route of a prefix is replaced by `row` in what the kernel of t0-0-0 has."""
    rows = json.loads((REPORTS / "linux-of-frr" / "t0-0-0.json").read_text())
    changed = [r for r in rows if r["dst"] != prefix] + ([row] if row else [])
    f = FORMATS["frr"]
    config = cluster_file.load(CLUSTER)
    switch = f.switches(config).switch("t0-0-0")
    report = running.read(json.dumps(changed))
    (found,) = Comparison(config).findings(switch, f.read(f.text(switch)), report)
    assert (found.switch, found.prefix, found.fault, found.runs) == ("t0-0-0", prefix, fault, runs)
    assert found.affects
    if row and row.get("flags"):
        assert found.cause == f"{row['dev']} is down"


def test_the_route_of_the_lowest_metric_counts() -> None:
    rows = [ROUTE_ROW | {"dev": "swp9", "metric": 1024}, ROUTE_ROW, {"dst": "default", "gateway": "fe80::9"}]
    assert running.read(json.dumps(rows)).reading.routes == {T1_ROUTE: [("fe80::1:0", "swp5")]}


def test_routes_outside_of_the_fabric_are_left_out(check: Any, reports: Path) -> None:
    for name in NAMES:
        rows = json.loads((REPORTS / "linux-of-frr" / f"{name}.json").read_text())
        rows.append({"type": "local", "dst": "2001:db8::/64", "dev": "lo", "table": "local"})
        rows += [ROUTE_ROW | {"dst": prefix, "dev": "eth0"} for prefix in ("2001:db8::/32", "default", "::/1")]
        (reports / f"{name}.json").write_text(json.dumps(rows))
    assert check("--format", "frr")["correct"]


@pytest.mark.parametrize("name", NAMES)
def test_evs_are_lost_without_any_sid_or_usid_route(check: Any, reports: Path, name: str) -> None:
    """Takes each out of the report of a switch: it alone is named, and followed EVs end there."""
    whole = json.loads((REPORTS / "frr" / f"{name}.json").read_text())
    for prefix in [p for p in whole if p.startswith("5f00:")]:
        (reports / f"{name}.json").write_text(json.dumps({p: r for p, r in whole.items() if p != prefix}))
        document = check()
        assert list(faults(document)) == [(name, prefix)]
        assert [m["mistake"] for m in document["mistakes"]] == ["lost"]


def test_findings_say_what_they_affect(check: Any, reports: Path) -> None:
    for name in ("t0-0-0", "t1-0-0"):
        (reports / f"{name}.json").write_text("{}")
    assert {(f["switch"], f["prefix"]): f["affects"] for f in check()["findings"]} == {
        ("t0-0-0", "5f00:0:4000::/48"): "all EVs from and to a in plane 0",
        ("t0-0-0", "5f00:0:c003::/48"): "all EVs to a in plane 0",
        ("t0-0-0", "5f00:0:8000::/48"): "EVs of a through t1-0-0",
        ("t0-0-0", "5f00:0:8001::/48"): "EVs of a through t1-0-1",
        ("t0-0-0", "fd10::1/128"): "ICMPv6 errors to a in plane 0",
        ("t0-0-0", "fd10:0:0:8000::/64"): "packets to addresses of t1-0-0",
        ("t0-0-0", "fd10:0:0:8001::/64"): "packets to addresses of t1-0-1",
        ("t0-0-0", "fd10::/48"): "ICMPv6 errors from t0-0-0 to hosts under other T0s",
        ("t0-0-0", "fd10::/64"): "packets to hosts that do not exist, which circulate between t0-0-0 and T1s",
        ("t1-0-0", "5f00:0:8000::/48"): "all EVs through t1-0-0",
        ("t1-0-0", "5f00:0:4000::/48"): "EVs through t1-0-0 to a",
        ("t1-0-0", "5f00:0:4001::/48"): "EVs through t1-0-0 to b",
        ("t1-0-0", "fd10::/64"): "ICMPv6 errors through t1-0-0 to a",
        ("t1-0-0", "fd10:0:0:1::/64"): "ICMPv6 errors through t1-0-0 to b",
        ("t1-0-0", "fd10:0:0:4000::/64"): "packets to addresses of t0-0-0",
        ("t1-0-0", "fd10:0:0:4001::/64"): "packets to addresses of t0-0-1",
    }


# ---- SONiC ----


@pytest.mark.parametrize(
    ("changes", "fault", "cause"),
    [
        ({"SRV6_MY_SIDS": lambda _: {}}, "SID missing", None),
        ({"SRV6_MY_LOCATORS": lambda _: {}}, "SID missing", "CONFIG_DB has the SID, but not its locator MRC"),
        (
            {"SRV6_MY_LOCATORS": lambda _: {"MRC": {"prefix": "5f00:0:4009::"}}},
            "SID missing",
            "CONFIG_DB has the SID, but its locator MRC is 5f00:0:4009::",
        ),
        ({"SRV6_MY_SIDS": lambda t: {k: v | {"action": "uDT46"} for k, v in t.items()}}, "SID differs", None),
    ],
)
def test_sids_of_sonic(check: Any, reports: Path, changes: dict[str, Any], fault: str, cause: str | None) -> None:
    (reports / "t0-0-0.json").write_text(config_db("t0-0-0", **changes))
    (found,) = check()["findings"]
    assert (found["switch"], found["prefix"], found["fault"], found["cause"]) == ("t0-0-0", T0_SID, fault, cause)


def test_ports_and_filters_of_sonic_are_checked_too(check: Any, reports: Path) -> None:
    def small(ports: dict[str, Any]) -> dict[str, Any]:
        return {name: port | {"mtu": "1500"} for name, port in ports.items()}

    (reports / "t0-0-0.json").write_text(config_db("t0-0-0", PORT=small, ACL_RULE=lambda _: {}))
    document = check()
    assert document["findings"] == []
    assert {m["mistake"] for m in document["mistakes"]} == {"MTU too small", "no source filter"}


# ---- what cannot be read ----


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("% Unknown command", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("1", "is no report that is known"),
        ('{"locators": {}}', "is no report that is known"),
        ('{"locators": [{}]}', "is not understood"),
        ('{"x": [{}]}', "is not understood"),
        ('[{"dst": "x"}]', "is not understood"),
        ("[1]", "is not understood"),
        ('[{"dst": "fd10::/64", "metric": []}]', "is not understood"),
        ('{"PORT": []}', "is not understood"),
        ('{"STATIC_ROUTE": {"default|fd10::/64": {"nexthop": "fe80::x", "ifname": "a"}}}', "is not understood"),
    ],
)
def test_what_is_no_report_is_one_error_with_the_commands(mrcctl: Mrcctl, reports: Path, text: str, words: str) -> None:
    (reports / "t0-0-1.json").write_text(text)
    result = mrcctl("fabric", "check", "--running", str(reports), str(CLUSTER))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"mrcctl: {reports}/t0-0-1.json {words}")
    assert "show ipv6 route json" in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t0-0-9.json", b"[]", "the cluster has no switch 't0-0-9'"),
        ("t0-0-0.txt", b"[]", "are of one switch"),
        ("t0-0-1.json", b"\x1f\x8b\xff", "is not text"),
    ],
)
def test_files_that_are_of_no_switch(mrcctl: Mrcctl, reports: Path, name: str, content: bytes, words: str) -> None:
    (reports / name).write_bytes(content)
    result = mrcctl("fabric", "check", "--running", str(reports), str(CLUSTER))
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert "hint: " in result.stderr


def test_an_empty_directory_and_a_missing_format_are_usage_errors(mrcctl: Mrcctl, tmp_path: Path) -> None:
    result = mrcctl("fabric", "check", "--running", str(tmp_path), str(CLUSTER))
    assert (result.exit_code, "has no files" in result.stderr) == (1, True)
    result = mrcctl("fabric", "check", str(tmp_path), str(CLUSTER))
    assert (result.exit_code, "--format is missing" in result.stderr) == (1, True)


def test_empty_tables_are_reports_without_routes() -> None:
    for text, system in (("[ ]", "iproute2"), ("{}", "frr")):
        report = running.read(text)
        assert (report.system, report.reading.sids, report.reading.routes) == (system, {}, {})
    with pytest.raises(UsageError):
        running.read("null")
