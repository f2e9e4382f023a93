# SPDX-License-Identifier: BSD-2-Clause
"""Tests that `scripts/lab up` on a lab that is up leaves its daemons alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.cluster import bringup, processes, state


def test_a_running_daemon_keeps_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "BASE", tmp_path)
    lab, fabric = state.State("lab"), cast(Any, SimpleNamespace(hosts=["h0"], namespace=lambda host: host))
    lab.run_dir("h0").mkdir(parents=True)
    lab.socket("h0").touch()
    processes.record_self(lab.daemon_record("h0"))
    monkeypatch.setattr(processes, "start_in", lambda *given, **options: pytest.fail("it runs already"))
    assert bringup.start_daemons(lab, fabric) == []
    assert lab.socket("h0").exists()
