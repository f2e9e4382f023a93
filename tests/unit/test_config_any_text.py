# SPDX-License-Identifier: BSD-2-Clause
"""Tests the cluster file with texts that Hypothesis generates: each is accepted, or refused with a place and a hint."""

import contextlib
import datetime
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mrcd.config import cluster_file, toml_text
from mrcd.config.cluster_file import Config
from mrcd.config.sections import Auth, Fleet, Switches
from mrcd.errors import ConfigError
from mrcd.fabric import topology
from tests.cluster_files import TWO, host, path

SECTIONS: dict[str, type[BaseModel]] = {
    "cluster": cluster_file.Cluster,
    "interfaces": cluster_file.Interfaces,
    "overlay": cluster_file.Overlay,
    "health": cluster_file.Health,
    "auth": Auth,
    "metrics": cluster_file.Metrics,
    "fleet": Fleet,
    "hosts": cluster_file.Host,
    "switches": Switches,
    "paths": cluster_file.Path_,
    "classes": cluster_file.Class,
}
KEYS = sorted({key for model in SECTIONS.values() for key in model.model_fields} | set(SECTIONS))
VALID = [
    TWO,
    f'[cluster]\nt0s = 2\nencapsulation = "srh"\n{host(0)}{host(1, t0=1)}',
    f'[overlay]\nrps_cpus = "0-3"\n[auth]\nmode = "required"\n{TWO}{path()}',
    '[[hosts]]\nname = "h[0-1]"\nid = 0\nport = 0\nper_t0 = 2\nprefixes = ["10.99.0.1/32"]\n',
    f'{TWO}[[classes]]\npolicy = "pinned"\nports = ["6000-6010", 80]\n',
]
profile = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))

_texts = st.text(max_size=12) | st.sampled_from([
    "10.99.0.1/32", "::/0", "fd00::/64", "::ffff:10.0.0.0/104", "5f00::/32", "fe80::1%p0", "usid", "h0", "h1",
    "h[0-9]", "h[1-0]", "h[0", "]", "h[00-5]x", "h[0-999999999]", "h[0-1][0-1]",
    "6000-1", "0-3,8", "²", "127.0.0.1:9479", "https://[::1]:2379", "/mrcd", "mrc0", "spray", "required", "9" * 5000,
    "\x7f", "0x1",
])  # fmt: skip
_integers = st.integers(-2, 70_000) | st.sampled_from([2**63, 10**4000])
_scalars = st.one_of(_integers, _texts, st.booleans(), st.floats(), st.dates())
_keys = (
    st.sampled_from(KEYS) | st.sampled_from(["", "a-b", "udp-port", "é", "x y", "\n", "int", "0"]) | st.text(max_size=6)
)
_values: st.SearchStrategy[Any] = st.recursive(
    _scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(_keys, v, max_size=2), max_leaves=4
)


HUGE = 2**63
"""Stands for a number that Python cannot print, as Hypothesis prints what it generates."""


def _toml(value: Any) -> str:
    """Returns a value as TOML, with tables in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value.encode("utf-8", "ignore").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if value == HUGE:
        return f"0x{'f' * 5000}"
    return value.isoformat() if isinstance(value, datetime.date) else repr(value)


def _is_named(message: str) -> bool:
    """Returns whether an error names a line, a key or a host's place in the file."""
    return bool(re.search(r"\bline \d+|at end of document|: unknown key|recursion", message)) or any(
        re.search(rf"\b{key}\b", message) for key in KEYS
    )


def _check_refusal(error: ConfigError) -> None:
    message = str(error.args[0])
    assert message.startswith("mrcd.toml: "), message
    assert _is_named(message.removeprefix("mrcd.toml: ")), message
    assert error.hint


def check(text: str) -> None:
    """Asserts that a text is refused by ConfigError, or means the same when it is written again and makes a plan."""
    try:
        config = cluster_file.parse(text, "mrcd.toml")
    except ConfigError as e:
        _check_refusal(e)
        return
    assert cluster_file.parse("\n".join(toml_text.lines(toml_text.given(config), defaults=False))) == config
    with contextlib.suppress(ConfigError):  # of more paths than EVs, for example
        topology.plan(config, config.hosts[0].name)


@settings(profile, max_examples=50)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_any_text(text: str) -> None:
    check(text)


@settings(profile, max_examples=100)
@given(
    st.sampled_from(VALID),
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 6), st.text(max_size=3) | st.sampled_from("[]{}\"'=.,#\n-_09")),
        min_size=1,
        max_size=4,
    ),
)
def test_a_valid_file_with_changed_characters(text: str, changes: list[tuple[int, int, str]]) -> None:
    for at, length, instead in changes:
        at %= len(text)
        text = text[:at] + instead + text[at + length :]
    check(text)


@settings(profile, max_examples=60)
@given(st.dictionaries(_keys, _values, max_size=3), st.booleans())
def test_any_document(document: dict[str, Any], has_hosts: bool) -> None:
    lines = "".join(f"{_toml(key)} = {_toml(value)}\n" for key, value in document.items())
    check(lines + TWO * (has_hosts and "hosts" not in document))


@settings(profile, max_examples=100)
@given(st.data())
def test_any_values_of_known_keys(data: st.DataObject) -> None:
    text = ""
    for section in data.draw(st.lists(st.sampled_from(sorted(SECTIONS)), max_size=3, unique=True)):
        keys = st.sampled_from(sorted(SECTIONS[section].model_fields)) | _keys
        values = data.draw(st.dictionaries(keys, _values | st.lists(_texts, max_size=4), max_size=3))
        text += f"[[{section}]]\n" if section in ("hosts", "paths", "classes") else f"[{section}]\n"
        text += "".join(f"{_toml(key)} = {_toml(value)}\n" for key, value in values.items())
    check(text + TWO)


@pytest.mark.parametrize("depth", [100, 5000])
@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ("{a = ", "}")])
def test_deep_nesting_is_refused(depth: int, open_: str, close: str) -> None:
    check(f"x = {open_ * depth}{close * depth}\n{TWO}")
    check("[" + ".".join("a" * depth) + "]\n" + TWO)


def test_all_sections_are_known() -> None:
    assert set(SECTIONS) == set(Config.model_fields)
