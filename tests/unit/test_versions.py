# SPDX-License-Identifier: BSD-2-Clause
"""Tests the versions of documents."""

import re
from pathlib import Path

import mrcd

_OF_ITS_OWN = re.compile(r"""^SCHEMA_VERSION\b[^=\n]*=|["']schema_version["']: *\d""", re.MULTILINE)


def test_all_documents_have_one_schema_version() -> None:
    """A reader of --json checks one number, for every command."""
    sources = Path(mrcd.__file__).parent.rglob("*.py")
    assert [p.name for p in sources if _OF_ITS_OWN.search(p.read_text())] == ["versions.py"]
