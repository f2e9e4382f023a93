# SPDX-License-Identifier: BSD-2-Clause
"""Names the keys of the cluster file that must be equal on all hosts, and makes the fingerprint by which they compare.

Probes carry the fingerprint. So a host learns that a peer has another file while some of the peer's packets arrive.
"""

import hashlib
import json

from mrcd.config.cluster_file import Cluster

# These define EV numbers, addresses and headers, so a packet's sender and receiver must have the same.
AGREED = ("block", "underlay", "planes", "evs_per_peer", "encapsulation", "udp_port")
# With another of these a host knows paths that do not exist, or does not use all that do.
FABRIC = ("t0s", "t1s")


def fingerprint(cluster: Cluster) -> int:
    """Returns 16 bits of these keys' values, never 0; the same on hosts of all versions that have these keys."""
    values = cluster.model_dump(mode="json", include={*AGREED, *FABRIC})
    digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % 0xFFFF
