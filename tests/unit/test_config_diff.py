# SPDX-License-Identifier: BSD-2-Clause
"""Tests the differences of two cluster files, and which of them a running daemon can apply."""

import re

import pytest

from mrcd.config import cluster_file
from mrcd.daemon.config_diff import Difference, PeerChange, Setting, compare
from mrcd.errors import UsageError
from mrcd.fabric import topology
from mrcd.versions import SCHEMA_VERSION
from tests.cluster_files import host

TEXT = f"""
[cluster]
planes = 2
t0s = 2
t1s = 3
evs_per_peer = 8
[health]
overdue_ms = 10
[overlay]
metric = 100
{host(0)}{host(1)}{host(2, t0=1, port=0)}"""
H3 = host(3, t0=1, port=1)


def difference(*changes: tuple[str, str], more: str = "", host: str = "h0") -> Difference:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    before, after = (topology.plan(cluster_file.parse(t), host) for t in (TEXT, text + more))
    found = compare(before, after)
    assert found == compare(before, topology.plan(after.config, host, before))  # which takes over equal paths
    return found


@pytest.mark.parametrize("changes", [[], [("planes = 2\nt0s = 2", "# a note\nt0s = 2\nplanes = 2")]])
def test_the_same_file_makes_no_difference(changes: list[tuple[str, str]]) -> None:
    found = difference(*changes)
    assert not found.anything
    assert found.document() | {"steps": []} == {
        "schema_version": SCHEMA_VERSION,
        "changed": False,
        "settings": [],
        "hosts": {"added": [], "removed": [], "changed": []},
        "evs": [],
        "programs": False,
        "tables": False,
        "all_hosts": [],
        "steps": [],
    }


PORT_5 = ("t0 = 1\nport = 0", "t0 = 1\nport = 5")


@pytest.mark.parametrize(
    ("changes", "more", "fields"),
    [
        ([("planes = 2\nt0s = 2", "# a note\nt0s = 2\nplanes = 2")], "", {"anything": False}),
        ([], H3, {"hosts_added": ("h3",), "peers": (), "programs": False, "tables": False}),
        ([(host(1), "")], "", {"hosts_removed": ("h1",)}),
        ([("t1s = 3", "t1s = 4")], "", {"peers": (PeerChange("h2", 2, 0, 0),)}),
        ([("t1s = 3", "t1s = 1")], "", {"peers": (PeerChange("h2", 0, 4, 0),)}),
        ([PORT_5], "", {"hosts_changed": (("h2", ("port",)),), "peers": (PeerChange("h2", 0, 0, 6),)}),
        # The host's own prefix: its peers route to it, and it has the address.
        ([("10.99.0.1/32", "10.99.7.1/32")], "", {"hosts_changed": (("h0", ("prefixes",)),), "anything": True}),
    ],
)
def test_hosts_and_evs(changes: list[tuple[str, str]], more: str, fields: dict[str, object]) -> None:
    found = difference(*changes, more=more)
    assert {name: getattr(found, name) for name in fields} == fields
    if more:
        assert found.steps() == []


def test_a_host_beyond_the_tables_takes_new_ones() -> None:
    found = difference(more=host(64, t0=1))
    assert (found.programs, found.tables) == (True, True)
    assert any("states of EVs are kept" in step for step in found.steps())


@pytest.mark.parametrize(
    ("old", "new", "key", "programs"),
    [
        ("overdue_ms = 10", "overdue_ms = 11", "health.overdue_ms", False),  # a variable of the programs
        ("overdue_ms = 10", "hold_down_ms = 2000", "health.hold_down_ms", False),
        ("overdue_ms = 10", "idle_interval_ms = 2000", "health.idle_interval_ms", False),  # a table has it
        ("overdue_ms = 10", "grey_ratio = 0.002", "health.grey_ratio", False),  # used by the daemon only
        ("metric = 100", "metric = 101", "overlay.metric", False),
        ("metric = 100", 'metric = 100\nsource_check = "off"', "overlay.source_check", True),
        ("t1s = 3", 't1s = 3\ngranularity = "packet"', "cluster.granularity", True),
        ("t1s = 3", "t1s = 3\nmtu = 9000", "cluster.mtu", True),
        ("metric = 100", 'metric = 100\n[[classes]]\npolicy = "pinned"\ndscp = [46]', "classes", True),
        ("metric = 100", 'metric = 100\n[[classes]]\npolicy = "pinned"\nprefixes = ["10.99.0.2/32"]', "classes", False),
    ],
)
def test_settings(old: str, new: str, key: str, programs: bool) -> None:
    found = difference((old, new))
    (setting,) = found.settings
    assert isinstance(setting, Setting)
    assert (setting.key, found.programs, found.tables) == (key, programs, False)
    in_place = [s for s in found.steps() if "changed in the running programs" in s]
    assert bool(in_place) == (key in ("health.overdue_ms", "health.hold_down_ms"))
    assert setting.before != setting.after
    found.check(detached=False, force=False)


@pytest.mark.parametrize(
    "change",
    [
        ("planes = 2", "planes = 1"),
        ("evs_per_peer = 8", "evs_per_peer = 16"),
        ("t1s = 3", 't1s = 3\nencapsulation = "srh"'),
        ("t1s = 3", "t1s = 3\nudp_port = 4798"),
        ("t1s = 3", 't1s = 3\nblock = "5f01::/32"'),
        ("t1s = 3", 't1s = 3\nunderlay = "fd11::/32"'),
    ],
    ids=lambda c: c[1].splitlines()[-1],
)
def test_cluster_wide_settings_are_refused_while_attached(change: tuple[str, str]) -> None:
    found = difference(change)
    key = "cluster." + change[1].splitlines()[-1].split(" = ")[0]
    assert found.agreed == [key]
    with pytest.raises(UsageError, match=re.escape(key)) as refused:
        found.check(detached=False, force=False)
    assert "nothing was changed" in refused.value.args[0]
    assert "mrcctl detach" in (refused.value.hint or "")
    found.check(detached=True, force=False)
    found.check(detached=False, force=True)


def test_another_label_of_a_path_is_a_difference() -> None:
    path = '\n[[paths]]\nsource = "h0"\npeer = "h2"\nplane = 0\nsegments = ["5f00:0:1::"]\nlabel = "{}"\n'
    before, after = (topology.plan(cluster_file.parse(TEXT + path.format(n)), "h0") for n in ("old", "new"))
    found = compare(before, after)
    assert found.anything
    assert (found.peers, found.programs, found.steps()) == ((), False, ["paths are shown with other labels"])


@pytest.mark.parametrize(
    ("new", "said", "hint"),
    [
        (
            'interface = "mrc1"',
            "overlay.interface mrc0 → mrc1",
            "`systemctl restart mrcd`, then `ip link del mrc0; ip link del tmrc0`",
        ),
        (
            'rps_cpus = "none"',
            "overlay.rps_cpus all → none",
            "`systemctl restart mrcd`, then `ip link del` the overlay's interface: mrcd makes it anew",
        ),
        (
            'metric = 100\n[metrics]\naddress = "[::1]:9479"',
            "metrics.address 127.0.0.1:9479 → [::1]:9479",
            "`systemctl restart mrcd`",
        ),
        (
            'metric = 100\n[metrics]\nweb_config = "/etc/mrcd/web.yml"',
            "metrics.web_config unset → /etc/mrcd/web.yml",
            "`systemctl restart mrcd`",
        ),
    ],
)
def test_settings_read_at_the_start_need_a_restart(new: str, said: str, hint: str) -> None:
    """A reload that seemed to enable TLS would leave the metrics open to all."""
    found = difference(("metric = 100", new))
    with pytest.raises(UsageError, match=re.escape(f"{said} takes a restart; nothing was changed")) as refused:
        found.check(detached=True, force=True)
    assert refused.value.hint == hint
