"""A configuration as TOML that says the same, with every default filled in. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from mrcd.config.cluster_file import Config

_DEFAULT = "  # default"


def effective(config: Config) -> dict[str, Any]:
    """The whole configuration as one host takes it: what is left to mrcd is worked out where that is one value.

    Shape of the cluster file; a key whose value depends on the peer (ev_min_active) or the host is None if unset.
    """
    document = config.model_dump(mode="json")
    granularity = config.cluster.granularity
    document["health"]["probe_packets"] = config.health.packets_per_report(granularity)
    document["health"]["probe_late_ms"] = config.health.late_ms(granularity)
    if not config.interfaces.names:
        document["interfaces"]["names"] = [f"p{p}" for p in range(config.cluster.planes)]
    return document


def given(config: Config) -> dict[str, Any]:
    """Only what is not as it would be without a word."""
    return config.model_dump(mode="json", exclude_defaults=True)


def lines(document: dict[str, Any], defaults: bool) -> list[str]:
    """A document of `effective` or `given` as TOML. `defaults`: values that are those of an empty file say so."""
    plain = _plain() if defaults else {}
    found: list[str] = []
    for section, keys in document.items():
        if isinstance(keys, dict):
            found += ["", f"[{section}]", *_keys(keys, plain.get(section, {}))]
    for section, entries in document.items():
        if isinstance(entries, list):
            for entry in entries:
                found += ["", f"[[{section}]]", *_keys(entry, {})]
    return found[1:]


def _plain() -> dict[str, Any]:
    """What every key outside [[hosts]], [[paths]] and [[classes]] is without a word in the file."""
    empty = Config.model_construct(hosts=[])
    return empty.model_dump(mode="json", exclude={"hosts", "paths", "classes"})


def _keys(keys: dict[str, Any], plain: dict[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        unsaid = key in plain and (plain[key] == value or plain[key] in (None, []))
        if value is not None:
            yield f"{key} = {_value(value)}{_DEFAULT if unsaid else ''}"
        elif plain:
            yield f"# {key} is not set"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        # TOML's basic strings escape as JSON's do, and DEL besides.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
