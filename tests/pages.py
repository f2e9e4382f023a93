# SPDX-License-Identifier: BSD-2-Clause
"""Reads README.md and docs/: their code blocks, what is in backticks, and the table of mrcctl's commands."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, *DOCS]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
SYNOPSIS = re.compile(r"^\| (`[a-z].*?) \| ", re.M)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns the language and the text of each code block of a page."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def prose(page: Path) -> str:
    """Returns a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """Returns what is in backticks in the prose of a page; a line break counts as a space."""
    text = prose(page)
    if page.name == "changes.md":
        text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.M)  # the first column has names that are no more
    return [" ".join(s.split()).replace(r"\|", "|") for s in SPAN.findall(text)]


def shell_commands(page: Path) -> list[str]:
    """Returns the lines of a page's shell blocks, without comments and the `&` of the background."""
    lines = [line for language, block in blocks(page) if language == "sh" for line in block.splitlines()]
    return [command for line in lines if (command := re.sub(r"(^| +)#.*| &( *#.*)?$", "", line).strip())]


def synopses() -> list[str]:
    """Returns the first column of the table of mrcctl's commands, in backticks."""
    table = (ROOT / "docs/mrcctl.md").read_text(encoding="utf-8").partition("\n## ")[0]
    return [row.replace(r"\|", "|") for row in SYNOPSIS.findall(table)]
