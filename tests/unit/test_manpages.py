# SPDX-License-Identifier: BSD-2-Clause
"""Tests the command that writes the man pages."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def manpages(*args: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, str(ROOT / "scripts/deploy/manpages.py"), *args]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_pages_explain_states_files_and_examples(tmp_path: Path) -> None:
    done = manpages(str(tmp_path / "new" / "man"))
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "new" / "man" / "mrcctl.1").read_text()
    for section in ("EV STATES", "REASONS", "DROPS", "FILES", "EXAMPLES"):
        assert f".SH {section}\n" in page
    assert r"\fBASSUMED_BAD\fR" in page
    assert ".SH FILES\n" in (tmp_path / "new" / "man" / "mrcd.8").read_text()
    assert (tmp_path / "new" / "man" / "mrcd.toml.5").exists()


def test_wrong_arguments_are_no_traceback() -> None:
    assert manpages("--help").stdout.startswith("Usage: manpages.py [OPTIONS] DIRECTORY")
    done = manpages()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
