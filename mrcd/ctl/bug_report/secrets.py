# SPDX-License-Identifier: BSD-2-Clause
"""Removes secrets from texts and documents. Pure."""

import re
from typing import Any

REMOVED = "REMOVED"
# Matches whole words of a key (tls_key, api-token, PASSWORD), not parts of words (keyboard, monkey).
_WORDS = "keys?|passw(?:or)?d|passphrase|secrets?|tokens?|credentials?|psk|bearer|authorization"
_NAME = rf"(?:[A-Za-z0-9]+[_-])*(?:{_WORDS})(?:[_-][A-Za-z0-9]+)*"
_IS_SECRET = re.compile(_NAME, re.IGNORECASE)
# key = "value", key: value, key=value. The value ends with its quoted text, list or word.
_PAIR = re.compile(
    rf"""(?P<key>(?<![A-Za-z0-9_-])"?{_NAME}"?\s*[=:]\s*)
    (?P<value>\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\]]*\]|\{{[^}}]*\}}|(?:(?:Basic|Bearer)\s+)?[^\s,;}}]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])")  # as in a secrets file, and some hashes
_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")


_COUNT = re.compile(r"\d{1,9}")  # not secrets: the size of a map's keys, a number of keys


def _is_path(key: str, value: object) -> bool:
    """Return whether a pair says where a secret is: secret_file = "/etc/mrcd/secrets"."""
    return key.rstrip('"=: \t').endswith("_file") and isinstance(value, str) and value.lstrip("\"'").startswith("/")


def _of_pair(match: re.Match[str]) -> str:
    counted = "key" in match["key"].lower() and _COUNT.fullmatch(match["value"])
    return match[0] if counted or _is_path(match["key"], match["value"]) else f'{match["key"]}"{REMOVED}"'


def from_text(text: str) -> tuple[str, int]:
    """Remove the values of secret keys, private keys and passwords in URLs from TOML, logs and command lines.

    Returns the text and the number of secrets removed. A secret under a key with another name is not found, unless it
    has the form of one in a secrets file.
    """
    before = text.count(REMOVED)
    text = _PEM.sub(REMOVED, text)
    text = _PAIR.sub(_of_pair, text)
    text = _HEX.sub(REMOVED, text)
    text = _URL.sub(REMOVED, text)
    return text, text.count(REMOVED) - before


def from_document(document: Any) -> tuple[Any, int]:
    """Return a JSON document without the values of secret keys, and the number of values removed."""
    if isinstance(document, dict):
        found, removed = {}, 0
        for key, value in document.items():
            is_secret = _IS_SECRET.fullmatch(str(key)) and not _is_path(str(key), value)
            if is_secret and value is not None and not isinstance(value, int):
                found[key], n = REMOVED, 1
            else:
                found[key], n = from_document(value)
            removed += n
        return found, removed
    if isinstance(document, list):
        pairs = [from_document(x) for x in document]
        return [x for x, _ in pairs], sum(n for _, n in pairs)
    return from_text(document) if isinstance(document, str) else (document, 0)
