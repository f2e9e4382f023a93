# SPDX-License-Identifier: BSD-2-Clause
"""Attaches and detaches the data planes of all hosts of a lab."""

import time

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from mrcd.errors import MachineError

ATTACHED, DETACHED = "attached", "detached"
SWITCH_S = patience(15.0)


def switch(lab: Lab, way: str) -> None:
    """Attaches or detaches every host, and waits until each knows that all others did. Raises MachineError."""
    hosts = lab.fabric.hosts
    for host in hosts:
        observe.client(lab, host).post(f"/v1/{way.removesuffix('ed')}", {})
    until = time.monotonic() + SWITCH_S
    for host in hosts:
        while late := [p["peer"] for p in observe.client(lab, host).get("/v1/peers") if p["status"] != way]:
            if time.monotonic() > until:
                raise MachineError(f"{host} does not know after {SWITCH_S:.0f} s that {', '.join(late)} is {way}")
            time.sleep(0.02)
    if way == ATTACHED:
        observe.wait_until_good(lab, hosts)
