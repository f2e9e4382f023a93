# SPDX-License-Identifier: BSD-2-Clause
"""Tests that secrets are removed from reports, and other text is kept."""

import pytest

from mrcd.ctl.commands.bugreport import from_document, from_text


@pytest.mark.parametrize(
    "text",
    [
        'auth_key = "hunter2"',
        "auth_key = 'hunter2'",
        'auth-keys = ["hunter2", "hunter2"]',
        'key = { h0 = "hunter2" }',
        'token = """\nhunter2\n"""',
        "tls_key: hunter2",
        "PASSWORD=hunter2 quiet",
        '{"api_token": "hunter2"}',
        "Authorization: Bearer hunter2",
        "http://admin:hunter2@10.0.0.1/metrics",
        "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2",
        'secret_file = "hunter2"',
    ],
)
def test_secrets_are_removed(text: str) -> None:
    clean, removed = from_text(f"before = 1\n{text}\n")
    assert "hunter2" not in clean
    assert "REMOVED" in clean
    assert clean.startswith("before = 1\n")
    assert removed >= 1


@pytest.mark.parametrize(
    "text",
    [
        'name = "h0"\nprefixes = ["10.0.0.1/32"]\n[health]\nprobe_gap_us = 300',
        "keyboard = 1, monkey: 2, keyed = 3",
        "fe80::1 dev p0 lladdr 02:00:00:00:00:01 REACHABLE",
        "evidence: silent_reports 6",
        "http://127.0.0.1:9479/metrics",
        '"bytes_key": 4, "bytes_value": 128',
        'secret_file = "/etc/mrcd/secrets"',
        '"secret_file": "/etc/mrcd/secrets"',
    ],
)
def test_text_without_secrets_is_kept(text: str) -> None:
    assert from_text(text) == (text, 0)


@pytest.mark.parametrize("line", ["7 {}", "7\t{}  # old", "bad line 3: 7 {}", '"{}"'])
def test_the_secrets_of_a_secrets_file_are_removed(line: str) -> None:
    secret = "0123456789abcDEF" * 4
    clean, removed = from_text(line.format(secret))
    assert (clean, removed) == (line.format("REMOVED"), 1)
    for kept in (secret[:-1], secret + "0", secret[:-1] + "g"):
        assert from_text(kept) == (kept, 0)


def test_a_secret_in_place_of_its_file_is_removed() -> None:
    secret = "0123456789abcDEF" * 4
    assert from_text(f'secret_file = "{secret}"')[0] == 'secret_file = "REMOVED"'
    assert from_document({"secret_file": secret}) == ({"secret_file": "REMOVED"}, 1)


def test_documents_at_any_depth() -> None:
    for kept in ({"key_bytes": 4}, {"auth": {"secret_file": "/etc/mrcd/secrets"}}):
        assert from_document(kept) == (kept, 0)
    document = {"host": "h0", "auth": {"keys": {"h1": "hunter2"}}, "log": ["password=hunter2", 7, None], "token": None}
    clean, removed = from_document(document)
    assert clean == {"host": "h0", "auth": {"keys": "REMOVED"}, "log": ['password="REMOVED"', 7, None], "token": None}
    assert removed == 2
