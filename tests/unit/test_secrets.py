# SPDX-License-Identifier: BSD-2-Clause
"""Tests that secrets are removed from reports, and other text is kept."""

import pytest

from mrcd.ctl.bug_report.secrets import from_document, from_text


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
    ],
)
def test_text_without_secrets_is_kept(text: str) -> None:
    assert from_text(text) == (text, 0)


def test_documents_at_any_depth() -> None:
    assert from_document({"key_bytes": 4}) == ({"key_bytes": 4}, 0)
    document = {"host": "h0", "auth": {"keys": {"h1": "hunter2"}}, "log": ["password=hunter2", 7, None], "token": None}
    clean, removed = from_document(document)
    assert clean == {"host": "h0", "auth": {"keys": "REMOVED"}, "log": ['password="REMOVED"', 7, None], "token": None}
    assert removed == 2
