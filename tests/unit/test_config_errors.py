# SPDX-License-Identifier: BSD-2-Clause
"""Tests errors in a cluster file: each names its place and has a hint."""

import pytest

from mrcd.config import cluster_file
from mrcd.errors import ConfigError
from tests.cluster_files import TWO, host, path

# ---- errors: (text, words of the message) ----

SYNTAX = {
    "open bracket": ("[cluster\n", ["not valid TOML", "toml.io"]),
    "thousands of open brackets": ("a = " + "[" * 5000, ["not valid TOML"]),
    "thousands of digits": ("a = " + "1" * 5000, ["not valid TOML"]),
    "key twice": ("[cluster]\nplanes = 1\nplanes = 2\n" + TWO, ["not valid TOML", "line 3"]),
    "no value": ("[cluster]\nplanes =\n" + TWO, ["not valid TOML", "line 2"]),
    "unquoted": ("[cluster]\nencapsulation = usid\n" + TWO, ["not valid TOML", "line 2"]),
    "control character": ('[cluster]\nname = "\x01"\n' + TWO, ["not valid TOML", "line 2"]),
}
UNKNOWN_KEYS = {
    "table": ("[clusters]\n" + TWO, ["line 1: clusters: unknown key", "did you mean cluster?"]),
    "far from any": ("[cluster]\nzzz = 4\n" + TWO, ["line 2: cluster.zzz: unknown key", "spelling"]),
    "near": (TWO + path(segmnts='["5f00::1"]'), ["paths[0].segmnts: unknown key; did you mean segments?"]),
    "with a dash": (
        "[cluster]\nudp-port = 1\n" + TWO,
        ["line 2: cluster.udp-port: unknown key", "did you mean udp_port?"],
    ),
    "with a dash, before all tables": ("a-b = 1\n" + TWO, ["mrcd.toml: a-b: unknown key"]),
    "empty": ('"" = 1\n' + TWO, ['mrcd.toml: "": unknown key']),
    "second host": (host(0) + host(1, more='prefix = "x"'), ["hosts[1].prefix: unknown key"]),
    "former name": ('[cluster]\nsteering = "srh"\n' + TWO, ["cluster.steering: this key is called encapsulation now"]),
}
WRONG_TYPES = {
    "word for a number": ('[cluster]\nplanes = "four"\n' + TWO, ["line 2: cluster.planes", "integer, not 'four'"]),
    "number for a prefix": (host(0, prefixes="[1]"), ["hosts[0].prefixes[0]"]),
    "number of thousands of digits": (
        f"[cluster]\nplanes = 0x{'f' * 5000}\n{TWO}",
        ["line 2: cluster.planes", "not a number of thousands of digits"],
    ),
    "number in quotes": ('[cluster]\nplanes = "4"\n' + TWO, ["cluster.planes", "integer, not '4'"]),
    "fraction": ("[cluster]\nmtu = 1500.5\n" + TWO, ["cluster.mtu", "integer"]),
    "not a table": ("cluster = 4\n" + TWO, ["cluster", "dictionary"]),
    "hosts not a list": ('hosts = "h0"\n', ["hosts", "list"]),
    "one prefix without brackets": (host(0, prefixes='"10.0.0.1/32"'), ["hosts[0].prefixes", "list"]),
    "no network": (host(0, prefixes='["ten"]'), ["hosts[0].prefixes[0]", "network"]),
    "host bits": (host(0) + host(1, prefixes='["10.0.0.1/24"]'), ["hosts[1].prefixes[0]", "host bits"]),
    "block with host bits": ('[cluster]\nblock = "5f00::1/32"\n' + TWO, ["cluster.block", "prefix"]),
    "IPv4 block": ('[cluster]\nblock = "10.0.0.0/8"\n' + TWO, ["cluster.block", "prefix"]),
    "IPv4 segment": (TWO + path(segments='["10.0.0.1"]'), ["paths[0].segments[0]", "IPv6 address"]),
    "encapsulation": (
        '[cluster]\nencapsulation = "srv6"\n' + TWO,
        ["cluster.encapsulation", "'usid'", "'srh'", "'ecmp'"],
    ),
    "hook of a host": (host(0, more='hook = "XDP"'), ["hosts[0].hook", "'xdp'"]),
}
NAMES = {
    "control character": (host(0, name=r'"h\u001b[2J"'), ["hosts[0].name: a name begins with a letter", r"'h\x1b[2J'"]),
    "two lines": (host(0, name=r'"h\nh"'), ["hosts[0].name: a name begins with a letter"]),
    "slash": (host(0, name='"a/b"'), ["hosts[0].name: a name begins with"]),
    "blank": (host(0, name='"a b"'), ["hosts[0].name: a name begins with"]),
    "semicolon": (host(0, name='"a;b"'), ["hosts[0].name: a name begins with"]),
    "two dots": (host(0, name='".."'), ["hosts[0].name: a name begins with"]),
    "empty name": (host(0, name='""'), ["hosts[0].name: a name begins with a letter"]),
    "name of the cluster": ('[cluster]\nname = "\\u001b"\n' + TWO, ["cluster.name: control characters in"]),
    "label": (TWO + path(label=r'"\u009b"'), ["paths[0].label: control characters in"]),
}
MISSING = {
    "empty file": ("", ["hosts", "required"]),
    "host without name": ('[[hosts]]\nid = 0\nport = 0\nprefixes = ["10.0.0.1/32"]\n', ["hosts[0].name", "required"]),
    "host without id": (
        host(0) + '[[hosts]]\nname = "x"\nport = 1\nprefixes = ["10.0.0.1/32"]\n',
        ["hosts[1].id", "required"],
    ),
    "host without prefix": (host(0, prefixes="[]"), ["hosts[0].prefixes", "at least 1"]),
}
CONTRADICTIONS = {
    "more prefixes than the kernel's table holds": (
        host(0, prefixes=str([f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}/32" for n in range(1 << 16)])) + host(1),
        ["65,537 prefixes", "room for 65,536"],
    ),
    "id twice": (host(0) + host(1, id=0), ["hosts", "id 0", "twice", "h0", "h1"]),
    "name twice": (host(0) + host(1, name='"h0"'), ["hosts", "name h0", "twice", "id 0", "id 1"]),
    "port twice": (host(0) + host(1, port=0), ["hosts", "(t0, port)", "(0, 0)", "h0", "h1"]),
    "same prefix": (
        host(0) + host(1, prefixes='["10.99.0.1/32"]'),
        ["10.99.0.1/32 of h0", "10.99.0.1/32 of h1", "give each host its own"],
    ),
    "prefix inside another": (
        host(0, prefixes='["10.0.0.0/8"]') + host(1) + host(2, prefixes='["fd00::/64"]'),
        ["10.0.0.0/8 of h0", "10.99.0.2/32 of h1", "give each host its own"],
    ),
    "nested far apart": (
        host(0, prefixes='["10.0.0.0/8"]')
        + host(1, prefixes='["9.0.0.0/8", "11.0.0.0/8"]')
        + host(2, prefixes='["10.255.255.255/32"]'),
        ["10.0.0.0/8 of h0", "10.255.255.255/32 of h2"],
    ),
    "prefix in the block": (host(0, prefixes='["5f00:0:1::/48"]'), ["5f00:0:1::/48 of h0", "5f00::/32", "use another"]),
    "prefix around the underlay": (host(0, prefixes='["fd00::/8"]'), ["fd00::/8 of h0", "fd10::/32", "use another"]),
    "t0 out of range": (host(0) + host(1, t0=1), ["h1", "t0 = 1", "t0s = 1"]),
    "interfaces of the cluster": ('[interfaces]\nnames = ["a", "b", "c"]\n' + TWO, ["interfaces.names", "3", "4"]),
    "interfaces of a host": (host(0, more='interfaces = ["a", "b"]'), ["h0", "2 interfaces", "4 planes"]),
    "block too long": ('[cluster]\nblock = "5f00::/48"\n' + TWO, ["5f00::/48", "/32", "RFC 9800"]),
    "underlay too long": ('[cluster]\nunderlay = "fd10::/64"\n' + TWO, ["underlay fd10::/64", "/32"]),
    "block is the underlay": ('[cluster]\nblock = "fd10::/32"\n' + TWO, ["fd10::/32", "overlap", "different"]),
    "fewer EVs than planes": ("[cluster]\nevs_per_peer = 3\n" + TWO, ["evs_per_peer 3", "planes 4"]),
    "hold-down order": ("[health]\nhold_down_ms = 60001\n" + TWO, ["health", "hold_down_max_ms", "hold_down_ms"]),
    "back-off order": ("[health]\nprobe_backoff_ms = 10\n" + TWO, ["probe_backoff_ms", "probe_interval_ms"]),
    "gap order": ("[health]\nprobe_gap_us = 1001\n" + TWO, ["probe_late_ms", "probe_gap_us"]),
    "window of nothing": ("[health]\nreorder_us = 20000\n" + TWO, ["overdue_ms", "reorder_us", "reordered"]),
    "no room for reports": ("[health]\nloss_samples = 1000\nloss_window_ms = 10\n" + TWO, ["loss_window_ms", "room"]),
    "interval order": ("[health]\nprobe_interval_ms = 101\n" + TWO, ["health", "idle_interval_ms"]),
    "metric order": ("[overlay]\nmetric = 4000\n" + TWO, ["overlay", "metric", "fallback_metric"]),
    "interface of the cluster twice": ('[interfaces]\nnames = ["a", "b", "c", "a"]\n' + TWO, ["twice"]),
    "overlay with a slash": ('[overlay]\ninterface = "a/b"\n' + TWO, ["overlay.interface"]),
    "overlay on a plane": ('[overlay]\ninterface = "p1"\n' + TWO, ["overlay interface"]),
    "open range of CPUs": ('[overlay]\nrps_cpus = "0-"\n' + TWO, ['write "0-3,8", "all" or "none"']),
    "word for CPUs": ('[overlay]\nrps_cpus = "auto"\n' + TWO, ["'auto' is not a CPU", 'write "0-3,8"']),
    "path to itself": (TWO + path(peer='"h0"'), ["both source and peer"]),
    "mapped IPv4": (host(0, prefixes='["::ffff:10.0.0.0/104"]'), ["is reserved for IPv4"]),
    "no T1": ("[cluster]\nt0s = 2\nt1s = 0\n" + host(0) + host(1, t0=1), ["t1s = 0", "T0"]),
    "path from nowhere": (TWO + path(source='"h7"'), ["paths", "source 'h7'"]),
    "path on a missing plane": (TWO + path(plane=4), ["paths", "plane 4", "h0 → h1", "4 planes"]),
    "too many segments": (
        TWO + path(segments=str(["5f00:0:1::"] * 7).replace("'", '"')),
        ["paths[0].segments", "at most 6", "7"],
    ),
} | {
    f"metrics address {bad!r}": (f'[metrics]\naddress = "{bad}"\n' + TWO, ["metrics", repr(bad), "127.0.0.1:9479"])
    for bad in ("", "9479", ":9479", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "::1:x", "a:-1")
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(*case, id=f"{kind}-{name}")
        for kind, cases in (
            ("syntax", SYNTAX),
            ("unknown", UNKNOWN_KEYS),
            ("type", WRONG_TYPES),
            ("names", NAMES),
            ("missing", MISSING),
            ("contradiction", CONTRADICTIONS),
        )
        for name, case in cases.items()
    ],
)
def test_an_error_names_the_file_the_place_and_a_remedy(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_file.parse(text, "mrcd.toml")
    message = str(caught.value)
    assert message.startswith("mrcd.toml: ")
    for word in words:
        assert word in message
    assert not [word for word in ("lax", "function-") if word in message]  # pydantic's own
    assert caught.value.exit_code == 1
    assert caught.value.hint


# ---- all errors at once, in the user's words ----


def test_all_errors_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_file.parse('[cluster]\nplanes = 17\nmtu = 1\ncolour = "red"\n' + host(0, id=-1, prefixes="[]"))
    for place in ("cluster.planes", "cluster.mtu", "cluster.colour", "hosts[0].id", "hosts[0].prefixes"):
        assert f"{place}: " in str(caught.value)


def test_an_unknown_host_error_lists_the_known_hosts() -> None:
    c = cluster_file.parse("".join(host(i) for i in range(7)))
    with pytest.raises(ConfigError) as caught:
        c.host("gpu9")
    assert "'gpu9'" in str(caught.value)
    assert caught.value.hint is not None
    assert "h0, h1, h2, h3, h4, …" in caught.value.hint
    assert "--host" in caught.value.hint
    assert caught.value.exit_code == 1
