# SPDX-License-Identifier: BSD-2-Clause
"""Explains the faults that pydantic finds in a cluster file: their line, their place, the value and a remedy. Pure."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

_RENAMED = {"steering": "encapsulation", "twin_us": "dup_ack_us"}
"""Keys that had other names (docs/changes.md)."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w-]+)\s*\]")
_KEY = re.compile(r"\s*\"?([\w-]+)\"?\s*=")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # that TOML does not quote


def explain(fault: Mapping[str, Any], text: str, model: type[BaseModel]) -> str:
    """Return a fault of pydantic's ValidationError.errors() as text. `text` is the file, `model` its whole."""
    *loc, last = fault["loc"] or ("",)
    # pydantic's own names of validators and unions are no identifiers. An unknown key may be any text.
    parts = [p for p in loc if isinstance(p, int) or p.isidentifier()]
    if fault["type"] == "extra_forbidden" or isinstance(last, int) or last.isidentifier():
        parts.append(last)
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{_written(p)}" for p in parts).lstrip(".")
    words = _words(fault, parts, model)
    line = line_of(text, parts)
    return (f"line {line}: " if line else "") + (f"{place}: {words}" if place else words)


def _words(fault: Mapping[str, Any], parts: Sequence[int | str], model: type[BaseModel]) -> str:
    if fault["type"] == "extra_forbidden":
        if (now := _RENAMED.get(str(parts[-1]))) is not None:
            return f"this key is called {now} now; rename it"
        near = difflib.get_close_matches(str(parts[-1]), _keys(model, parts[:-1]), 1)
        return f"unknown key; did you mean {near[0]}?" if near else "unknown key; remove it or check its spelling"
    if fault["type"] == "missing":
        return "required: the file has no [[hosts]]" if list(parts) == ["hosts"] else "required, but missing"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if message.startswith("Input should"):
        value = fault["input"]
        message = message.replace("Input should", "must", 1)
        return f"{message}, not {_shown(value)}" if isinstance(value, str | int | float) else message
    return message


def _written(key: str) -> str:
    """Return a key as TOML writes it."""
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _shown(value: str | int | float) -> str:
    try:
        return repr(value)
    except ValueError:  # TOML's hexadecimal numbers may have more digits than Python prints
        return "a number of thousands of digits"


def line_of(text: str, parts: Sequence[int | str]) -> int | None:
    """Return the number of the line with a key, or else with the header of its section; None if there is neither."""
    if not parts:
        return None
    section, index = str(parts[0]), parts[1] if len(parts) > 1 and isinstance(parts[1], int) else 0
    key = next((str(p) for p in parts[1:] if isinstance(p, str)), None)
    count, found, inside = -1, None, False
    for number, line in enumerate(text.splitlines(), 1):
        header, assigned = _HEADER.match(line), _KEY.match(line)
        if header:
            is_ours = header[2] == section
            count += is_ours
            inside = is_ours and (header[1] == "[" or count == index)
            if inside:
                found = number
        elif inside and assigned and assigned[1] == key:
            return number
    return found


def _keys(model: type[BaseModel], parts: Sequence[int | str]) -> list[str]:
    """Return the keys of the section at `parts`."""
    for part in parts:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        models = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
