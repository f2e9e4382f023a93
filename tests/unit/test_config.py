"""The cluster file at the edge: what is accepted, and that every kind of error names its place and a remedy."""

import itertools
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import pytest

from mrcd import config
from mrcd.errors import ConfigError, UsageError

EXAMPLE = Path(__file__).parents[2] / "scripts" / "deploy" / "mrcd.toml"


def host(n: int, **other: object) -> str:
    """One [[hosts]] table; `other` replaces its values, as TOML; `more` is added as it is."""
    values = {"name": f'"h{n}"', "id": n, "t0": 0, "port": n, "prefixes": f'["10.99.0.{n + 1}/32"]'} | other
    more = values.pop("more", "")
    return "[[hosts]]\n" + "".join(f"{k} = {v}\n" for k, v in values.items()) + f"{more}\n"


def path(**other: object) -> str:
    """One [[paths]] table; `other` replaces its values, as TOML."""
    values = {"source": '"h0"', "peer": '"h1"', "plane": 0, "segments": '["5f00:0:1::"]'} | other
    return "[[paths]]\n" + "".join(f"{k} = {v}\n" for k, v in values.items())


TWO = host(0) + host(1)


# ---- what is accepted ----


def test_hosts_alone_make_a_usable_file() -> None:
    c = config.parse(TWO)
    assert c.cluster.block == IPv6Network("5f00::/32")
    assert c.cluster.underlay == IPv6Network("fd10::/32")
    assert (c.cluster.planes, c.cluster.t0s, c.cluster.t1s) == (4, 1, 4)
    assert (c.cluster.steering, c.cluster.granularity) == ("usid", "burst")
    assert c.cluster.ev_min_active is None
    assert c.interface_names(c.host("h0")) == ["p0", "p1", "p2", "p3"]
    assert c.interfaces.gateway == IPv6Address("fe80::1")
    assert c.hook(c.host("h0")) == "auto"
    assert c.metrics.address == "127.0.0.1:9479"  # loopback unless asked
    assert c.host("h1").prefixes == [IPv4Network("10.99.0.2/32")]


@pytest.mark.parametrize(
    ("planes", "evs_per_peer", "per_plane"), [(4, 256, 64), (8, 256, 32), (3, 256, 85), (4, 10, 2), (1, 1, 1)]
)
def test_a_peer_s_evs_are_shared_equally_by_the_planes(planes: int, evs_per_peer: int, per_plane: int) -> None:
    c = config.parse(f"[cluster]\nplanes = {planes}\nevs_per_peer = {evs_per_peer}\n" + TWO)
    assert c.cluster.evs_per_plane == per_plane


def test_the_host_s_own_settings_go_before_the_cluster_s() -> None:
    text = (
        '[cluster]\nplanes = 2\n[interfaces]\nnames = ["eth0", "eth1"]\nhook = "xdp"\n'
        + host(0)
        + host(1, more='interfaces = ["a", "b"]\nhook = "tc"')
    )
    c = config.parse(text)
    assert c.interface_names(c.host("h0")) == ["eth0", "eth1"]
    assert c.hook(c.host("h0")) == "xdp"
    assert c.interface_names(c.host("h1")) == ["a", "b"]
    assert c.hook(c.host("h1")) == "tc"


def test_tables_have_a_row_for_the_highest_host_id() -> None:
    assert config.parse(host(0) + host(1, id=41)).max_peers == 42


@pytest.mark.parametrize("address", ["127.0.0.1:9479", "[::1]:9479", "0.0.0.0:1", "localhost:65535"])
def test_metrics_addresses(address: str) -> None:
    assert config.parse(f'[metrics]\naddress = "{address}"\n' + TWO).metrics.address == address


def test_neighbouring_prefixes_do_not_overlap() -> None:
    text = host(0, prefixes='["10.0.0.0/25", "fd00:1::/64"]') + host(1, prefixes='["10.0.0.128/25", "fd00:1:0:1::/64"]')
    assert len(config.parse(text).hosts) == 2


# ---- errors: (text, words that the message must have) ----

SYNTAX = {
    "open bracket": ("[cluster\n", ["not valid TOML", "toml.io"]),
    "key twice": ("[cluster]\nplanes = 1\nplanes = 2\n" + TWO, ["not valid TOML", "line 3"]),
    "no value": ("[cluster]\nplanes =\n" + TWO, ["not valid TOML", "line 2"]),
    "unquoted": ("[cluster]\nsteering = usid\n" + TWO, ["not valid TOML", "line 2"]),
    "control character": ('[cluster]\nname = "\x01"\n' + TWO, ["not valid TOML", "line 2"]),
}
UNKNOWN_KEYS = {
    "table": ("[clusters]\n" + TWO, ["clusters: unknown key", "spelling"]),
    "cluster": ("[cluster]\nplane = 4\n" + TWO, ["cluster.plane: unknown key"]),
    "interfaces": ('[interfaces]\nname = ["a"]\n' + TWO, ["interfaces.name: unknown key"]),
    "overlay": ("[overlay]\nmtu = 9000\n" + TWO, ["overlay.mtu: unknown key"]),
    "health": ("[health]\nprobe_interval = 20\n" + TWO, ["health.probe_interval: unknown key"]),
    "metrics": ("[metrics]\nport = 9479\n" + TWO, ["metrics.port: unknown key"]),
    "second host": (host(0) + host(1, more='prefix = "x"'), ["hosts[1].prefix: unknown key"]),
    "path": (TWO + path(via='"x"'), ["paths[0].via: unknown key"]),
}
WRONG_TYPES = {
    "word for a number": ('[cluster]\nplanes = "four"\n' + TWO, ["cluster.planes", "integer"]),
    "fraction": ("[cluster]\nmtu = 1500.5\n" + TWO, ["cluster.mtu", "integer"]),
    "number for a word": ("[cluster]\nname = 7\n" + TWO, ["cluster.name", "string"]),
    "number for an address": ("[metrics]\naddress = 9479\n" + TWO, ["metrics.address", "string"]),
    "not a table": ("cluster = 4\n" + TWO, ["cluster", "dictionary"]),
    "hosts not a list": ('hosts = "h0"\n', ["hosts", "list"]),
    "host not a table": ("hosts = [1]\n", ["hosts[0]", "dictionary"]),
    "one prefix without brackets": (host(0, prefixes='"10.0.0.1/32"'), ["hosts[0].prefixes", "list"]),
    "one interface without brackets": (host(0, more='interfaces = "p0"'), ["hosts[0].interfaces", "list"]),
    "no network": (host(0, prefixes='["ten"]'), ["hosts[0].prefixes[0]", "network"]),
    "host bits": (host(0) + host(1, prefixes='["10.0.0.1/24"]'), ["hosts[1].prefixes[0]", "host bits"]),
    "block with host bits": ('[cluster]\nblock = "5f00::1/32"\n' + TWO, ["cluster.block", "prefix"]),
    "IPv4 block": ('[cluster]\nblock = "10.0.0.0/8"\n' + TWO, ["cluster.block", "prefix"]),
    "IPv4 gateway": ('[interfaces]\ngateway = "10.0.0.1"\n' + TWO, ["interfaces.gateway", "IPv6 address"]),
    "IPv4 segment": (TWO + path(segments='["10.0.0.1"]'), ["paths[0].segments[0]", "IPv6 address"]),
    "steering": ('[cluster]\nsteering = "srv6"\n' + TWO, ["cluster.steering", "'usid'", "'srh'", "'ecmp'"]),
    "loss rule": ('[health]\nloss_rule = "all"\n' + TWO, ["health.loss_rule", "'ratio'", "'any'"]),
    "granularity": ('[cluster]\ngranularity = "flow"\n' + TWO, ["cluster.granularity", "'burst'", "'packet'"]),
    "hook": ('[interfaces]\nhook = "native"\n' + TWO, ["interfaces.hook", "'auto'", "'xdp-generic'"]),
    "hook of a host": (host(0, more='hook = "XDP"'), ["hosts[0].hook", "'xdp'"]),
}
MISSING = {
    "empty file": ("", ["hosts", "required"]),
    "no hosts": ("hosts = []\n", ["hosts", "at least 1"]),
    "host without name": ('[[hosts]]\nid = 0\nport = 0\nprefixes = ["10.0.0.1/32"]\n', ["hosts[0].name", "required"]),
    "host without id": (
        host(0) + '[[hosts]]\nname = "x"\nport = 1\nprefixes = ["10.0.0.1/32"]\n',
        ["hosts[1].id", "required"],
    ),
    "host without prefix": (host(0, prefixes="[]"), ["hosts[0].prefixes", "at least 1"]),
    "empty name": (host(0, name='""'), ["hosts[0].name", "at least 1"]),
    "path without segments": (TWO + path(segments="[]"), ["paths[0].segments", "at least 1"]),
}
CONTRADICTIONS = {
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
    "IPv6 prefix inside another": (
        host(0, prefixes='["fd00::1/128"]') + host(1, prefixes='["fd00::/64"]'),
        ["fd00::/64 of h1", "fd00::1/128 of h0"],
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
    "no interfaces": (host(0, more="interfaces = []"), ["h0", "0 interfaces", "4 planes"]),
    "block too long": ('[cluster]\nblock = "5f00::/48"\n' + TWO, ["5f00::/48", "/32", "RFC 9800"]),
    "block too short": ('[cluster]\nblock = "5f00::/16"\n' + TWO, ["5f00::/16", "/32"]),
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
    "no T1": ("[cluster]\nt0s = 2\nt1s = 0\n" + host(0) + host(1, t0=1), ["t1s = 0", "T0"]),
    "path from nowhere": (TWO + path(source='"h7"'), ["paths", "source 'h7'"]),
    "path to nowhere": (TWO + path(peer='"h7"'), ["paths", "peer 'h7'"]),
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
            ("missing", MISSING),
            ("contradiction", CONTRADICTIONS),
        )
        for name, case in cases.items()
    ],
)
def test_an_error_names_the_file_the_place_and_a_remedy(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "mrcd.toml")
    message = str(caught.value)
    assert message.startswith("mrcd.toml: ")
    for word in words:
        assert word in message
    assert caught.value.exit_code == 1
    assert caught.value.hint


LIMITS = [
    ("cluster", "planes", 1, 8),
    ("cluster", "t0s", 1, 512),
    ("cluster", "t1s", 0, 512),
    ("cluster", "evs_per_peer", 4, 256),  # not fewer than the default's planes
    ("cluster", "ev_min_active", 1, 256),
    ("cluster", "mtu", 1500, 65000),
    ("cluster", "udp_port", 1, 65535),
    ("health", "probe_interval_ms", 1, 100),  # not more than the default's idle_interval_ms
    ("health", "idle_interval_ms", 20, 60_000),
    ("health", "probe_packets", 1, 65_535),
    ("health", "probe_gap_us", 1, 1000),  # not more than the default's probe_late_ms
    ("health", "probe_late_ms", 1, 10_000),
    ("health", "reorder_us", 50, 10_000),  # not more than the default's overdue_ms
    ("health", "overdue_ms", 1, 10_000),
    ("health", "skip_delay_us", 0, 10_000_000),
    ("health", "loss_samples", 1, 666),
    ("health", "loss_window_ms", 10, 60_000),
    ("health", "good_probes", 1, 1000),
    ("health", "ramp_ms", 0, 60_000),
    ("health", "probe_backoff_ms", 20, 60_000),  # not less than the default's probe_interval_ms
    ("health", "unanswered", 2, 100),
    ("health", "hold_down_ms", 1, 60_000),
    ("health", "hold_down_max_ms", 1000, 86_400_000),
    ("overlay", "metric", 1, 3999),
    ("overlay", "fallback_metric", 101, 65535),
    ("overlay", "reordering", 3, 10_000),
]


@pytest.mark.parametrize(("table", "key", "low", "high"), LIMITS, ids=[key for _, key, _, _ in LIMITS])
def test_numbers_have_limits(table: str, key: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(getattr(config.parse(f"[{table}]\n{key} = {value}\n" + TWO), table), key) == value
    for value in (low - 1, high + 1, -1):
        with pytest.raises(ConfigError, match=key):
            config.parse(f"[{table}]\n{key} = {value}\n" + TWO)


@pytest.mark.parametrize("key", ["loss_ratio", "grey_ratio"])
@pytest.mark.parametrize("value", ["0", "-0.1", "1.01", "nan", "inf"])
def test_a_loss_ratio_is_a_ratio(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"health\.{key}"):
        config.parse(f"[health]\n{key} = {value}\n" + TWO)


@pytest.mark.parametrize("value", ["0", "-1.0", "nan", "inf"])
def test_some_false_alarms_are_the_price_of_any_alarm(value: str) -> None:
    with pytest.raises(ConfigError, match=r"health\.grey_false_alarms"):
        config.parse(f"[health]\ngrey_false_alarms = {value}\n" + TWO)


@pytest.mark.parametrize(("key", "low", "high"), [("id", 0, 65534), ("port", 0, 1023), ("t0", 0, 511)])
def test_a_host_s_numbers_fit_their_places_in_addresses_and_packets(key: str, low: int, high: int) -> None:
    for value in (low, high):
        text = "[cluster]\nt0s = 512\n" + host(7, **{key: value})
        assert getattr(config.parse(text).hosts[0], key) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=rf"hosts\[0\]\.{key}"):
            config.parse("[cluster]\nt0s = 512\n" + host(7, **{key: value}))


def test_all_faults_of_a_file_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse('[cluster]\nplanes = 9\nmtu = 1\ncolour = "red"\n' + host(0, id=-1, prefixes="[]"))
    for place in ("cluster.planes", "cluster.mtu", "cluster.colour", "hosts[0].id", "hosts[0].prefixes"):
        assert f"{place}: " in str(caught.value)


def test_overlapping_prefixes_are_found_wherever_they_stand() -> None:
    """Against the definition: any two of them that share an address, in any order of the hosts."""
    pool = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.2.0.0/16", "11.0.0.0/8", "fd00::/16", "fd00:1::/32"]
    for chosen in itertools.permutations(pool, 3):
        text = "".join(host(i, prefixes=f'["{p}"]') for i, p in enumerate(chosen))
        nets = [IPv6Network(p) if ":" in p else IPv4Network(p) for p in chosen]
        overlap = any(
            (isinstance(a, IPv4Network) and isinstance(b, IPv4Network) and a.overlaps(b))
            or (isinstance(a, IPv6Network) and isinstance(b, IPv6Network) and a.overlaps(b))
            for a, b in itertools.combinations(nets, 2)
        )
        if overlap:
            with pytest.raises(ConfigError, match="overlaps"):
                config.parse(text)
        else:
            config.parse(text)


def test_a_host_that_is_not_in_the_file_is_told_who_is() -> None:
    c = config.parse("".join(host(i) for i in range(7)))
    with pytest.raises(ConfigError) as caught:
        c.host("gpu9")
    assert "'gpu9'" in str(caught.value)
    assert caught.value.hint is not None
    assert "h0, h1, h2, h3, h4, …" in caught.value.hint
    assert "--host" in caught.value.hint
    assert caught.value.exit_code == 1


# ---- files ----


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mrcd.toml"
    file.write_text(TWO)
    assert [h.name for h in config.load(file).hosts] == ["h0", "h1"]


def test_a_fault_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("[cluster]\nplanes = 0\n" + TWO)
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert str(caught.value).startswith(f"{file}: cluster.planes: ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "none.toml")
    assert f"{tmp_path}/none.toml: No such file" in str(caught.value)
    assert "--config" in str(caught.value)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        config.load(tmp_path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "mrcd.toml"
    file.write_bytes(b'[cluster]\nname = "\xff\xfe"\n')
    with pytest.raises(ConfigError, match=r"not UTF-8 text: .* at byte 18"):
        config.load(file)


def test_configuration_errors_are_the_user_s() -> None:
    assert issubclass(ConfigError, UsageError)


# ---- no text at all makes a traceback ----


def test_a_damaged_file_is_an_error_message_or_still_valid() -> None:
    """Every line of the example left out, doubled, cut off, or with its value made something else."""
    lines = EXAMPLE.read_text().splitlines()
    values = ["-1", "0", '"x"', "[]", "{}", "true", "1.5", "99999999999999999999", '["a", 1]', "1979-05-27"]
    faults = []
    for i, line in enumerate(lines):
        if not line or line.startswith("#"):
            continue
        damaged = [lines[:i] + lines[i + 1 :], lines[: i + 1] + lines[i:], [*lines[:i], line[: len(line) // 2]]]
        if " = " in line:
            key = line.split(" = ")[0]
            damaged += [[*lines[:i], f"{key} = {v}", *lines[i + 1 :]] for v in values]
        for text in damaged:
            try:
                config.parse("\n".join(text))
            except ConfigError as e:
                faults.append(e)
    assert len(faults) > 300
    for fault in faults:
        assert fault.hint
        assert str(fault).count("\n") == 1  # the message, the hint


@pytest.mark.parametrize("prefix", ["ten", "10.0.0.1/24"])
def test_a_wrong_prefix_is_told_in_the_user_s_words(prefix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(host(0, prefixes=f'["{prefix}"]'))
    assert "hosts[0].prefixes[0]: " in str(caught.value)
    assert "lax" not in str(caught.value)
    assert "function-" not in str(caught.value)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "1" * 5000], ids=["nested", "digits"])
def test_text_that_the_toml_parser_gives_up_on(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        '[cluster]\nplanes = "4"\n' + TWO,
        "[cluster]\nplanes = true\n" + TWO,
        "[cluster]\nmtu = 9100.0\n" + TWO,
        host(0, prefixes="[1]"),
        '[health]\nloss_ratio = "0.1"\n' + TWO,
    ],
)
def test_values_of_another_type_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        config.parse(text)


def test_a_host_s_own_address_may_lie_in_the_network_behind_it() -> None:
    config.parse(host(0, prefixes='["10.98.0.0/24", "10.98.0.1/32"]') + host(1))


def test_an_overlap_is_found_behind_a_host_s_own_nested_prefix() -> None:
    text = host(0, prefixes='["10.98.0.0/24", "10.98.0.1/32"]') + host(1, prefixes='["10.98.0.2/32"]')
    with pytest.raises(ConfigError, match="overlaps"):
        config.parse(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[interfaces]\nnames = ["a", "b", "c", "a"]\n' + TWO, "twice"),
        (host(0, more='interfaces = ["a", "b", "c", "a"]'), "twice"),
        ('[overlay]\ninterface = "a/b"\n' + TWO, "overlay.interface"),
        ('[overlay]\ninterface = "p1"\n' + TWO, "overlay interface"),
        (TWO + path(peer='"h0"'), "both source and peer"),
        (host(0, prefixes='["::ffff:10.0.0.0/104"]'), "stands for IPv4"),
    ],
)
def test_contradictions_are_refused(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        config.parse(text)
