# SPDX-License-Identifier: BSD-2-Clause
"""Attaches and detaches the data planes of all hosts of a lab."""

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.patience import wait_for

ATTACHED, DETACHED = "attached", "detached"


def switch(lab: Lab, way: str) -> None:
    """Attaches or detaches every host, and waits until each knows that all others did. Raises MachineError."""
    clients = [observe.client(lab, host) for host in lab.fabric.hosts]
    for client in clients:
        client.post(f"/v1/{way.removesuffix('ed')}", {})
    words = f"all hosts know that all others are {way}"
    wait_for(words, lambda: all(p["status"] == way for c in clients for p in c.get("/v1/peers")), 15.0)
    if way == ATTACHED:
        observe.wait_until_good(lab, lab.fabric.hosts)
