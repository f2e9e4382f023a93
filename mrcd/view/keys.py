# SPDX-License-Identifier: BSD-2-Clause
"""Makes the document of authentication: the mode, and by peer which secrets are in use. It has no key. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.tables import abi


def document(auths: NDArray[np.void], peers: NDArray[np.void], names: Mapping[int, str]) -> dict[str, Any]:
    """Returns GET /v1/keys. `auths` (rows,) abi.AUTH, `peers` (rows,) abi.PEER; `names`: host id → name of a peer."""
    found = []
    for row, name in names.items():
        auth, peer = auths[row], peers[row]
        found.append(
            {
                "peer": name,
                "sent_with": int(auth["tx_id"][int(auth["tx_slot"]) % abi.KEY_IDS]) or None,
                "accepted_by_peer": [int(i) for i in peer["key_ids"][: abi.KEY_IDS] if i],
                "untagged_packets": int(auth["untagged"]),
                "clock_known": bool(auth["clock_ns"]),
            }
        )
    first = auths[next(iter(names), 0)]
    return {
        "mode": abi.AuthMode(int(first["mode"])).name.lower(),
        "accepted": [int(i) for i in first["rx_id"][: abi.KEY_IDS] if i],
        "peers": found,
    }
