# SPDX-License-Identifier: BSD-2-Clause
"""Tests requested changes of state, over emulated programs."""

import pytest

from mrcd.errors import MachineError
from tests.unit.emulated_programs import Bench


def test_an_ev_is_denied_and_allowed() -> None:
    b = Bench()
    assert b.monitor.set_denied(1, 5, True, {"target": "t1:1:1", "denial_reason": "fan"})
    assert b.changed == [1]  # its routes
    b.monitor.log_events()
    assert [(e["to"], e["reason"], e["evidence"]) for e in b.said()] == [
        ("DENIED", "admin", {"target": "t1:1:1", "denial_reason": "fan"})
    ]
    assert not b.monitor.set_denied(1, 5, True, {})
    assert b.monitor.set_denied(1, 5, False, {})
    assert not b.monitor.set_denied(1, 5, False, {})
    b.monitor.log_events()
    assert (b.said()[-1]["to"], b.said()[-1]["evidence"]) == ("UNKNOWN", {})


def test_a_concurrent_change_does_not_prevent_a_denial(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Bench()
    once, set_state = iter([False]), b.programs.set_state
    monkeypatch.setattr(b.programs, "set_state", lambda *args: next(once, True) and set_state(*args))
    assert b.monitor.set_denied(1, 5, True, {})
    monkeypatch.setattr(b.programs, "set_state", lambda *args: False)
    with pytest.raises(MachineError, match="h1 EV 6"):
        b.monitor.set_denied(1, 6, True, {})
