# SPDX-License-Identifier: BSD-2-Clause
"""Prints a configuration as TOML, with every default filled in or with none. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from mrcd.config.cluster_file import Config

_DEFAULT = "  # default"


def effective(config: Config) -> dict[str, Any]:
    """Returns the whole configuration in the shape of the cluster file. Values that mrcd computes are filled in.

    A key whose value depends on the peer (ev_min_active) or on the host is None if it is not set.
    """
    document = config.model_dump(mode="json")
    granularity = config.cluster.granularity
    document["health"]["probe_packets"] = config.health.packets_per_report(granularity)
    document["health"]["probe_late_ms"] = config.health.late_ms(granularity)
    if not config.interfaces.names:
        document["interfaces"]["names"] = [f"p{p}" for p in range(config.cluster.planes)]
    return document


def given(config: Config) -> dict[str, Any]:
    """Returns the keys that differ from their defaults."""
    return config.model_dump(mode="json", exclude_defaults=True)


def lines(document: dict[str, Any], defaults: bool) -> list[str]:
    """Returns a document of `effective` or `given` as lines of TOML. `defaults`: mark the values that are defaults."""
    default_document = _default_document() if defaults else {}
    found: list[str] = []
    for section, keys in document.items():
        if isinstance(keys, dict):
            found += ["", f"[{section}]", *_keys(keys, default_document.get(section, {}))]
    for section, entries in document.items():
        if isinstance(entries, list):
            for entry in entries:
                found += ["", f"[[{section}]]", *_keys(entry, {})]
    return found[1:]


def _default_document() -> dict[str, Any]:
    """Returns the default of every key outside [[hosts]], [[paths]] and [[classes]]."""
    empty = Config.model_construct(hosts=[])
    return empty.model_dump(mode="json", exclude={"hosts", "paths", "classes"})


def _keys(keys: dict[str, Any], default_keys: dict[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        is_default = key in default_keys and (default_keys[key] == value or default_keys[key] in (None, []))
        if value is not None:
            yield f"{key} = {_value(value)}{_DEFAULT if is_default else ''}"
        elif default_keys:
            yield f"# {key} is not set"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes; TOML escapes DEL too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
