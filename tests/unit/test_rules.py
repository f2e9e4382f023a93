# SPDX-License-Identifier: BSD-2-Clause
"""Tests the rules by Prometheus' own tools: syntax, and alerts."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "scripts/deploy/prometheus"

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: `make set-up` installs it with prometheus"
)


@pytest.mark.parametrize("what", [["check", "rules", "recording.yml", "alerts.yml"], ["test", "rules", "tests.yml"]])
def test_promtool(what: list[str]) -> None:
    done = subprocess.run(["promtool", *what], cwd=RULES, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_every_alert_is_tested() -> None:
    tests = (RULES / "tests.yml").read_text()
    alerts = re.findall(r"(?m)^ *- alert: (\w+)$", (RULES / "alerts.yml").read_text())
    assert len(alerts) == 15
    for alert in alerts:
        fires = f'alertname="{alert}", alertstate="firing"' in tests or f"- alertname: {alert}\n" in tests
        silent = f"{{alertname: {alert}, " in tests
        assert fires, alert
        assert silent, alert
