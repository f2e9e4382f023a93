# SPDX-License-Identifier: BSD-2-Clause
"""Makes the document of authentication: the mode, and by peer which secrets are in use. It has no key. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.kernel import abi, enums


def document(
    auths: NDArray[np.void], peers: NDArray[np.void], names: Mapping[int, str], reachable: NDArray[np.bool_], mode: str
) -> dict[str, Any]:
    """Returns GET /v1/keys without the order of the secrets, which the tables do not tell.

    `auths` (rows,) abi.AUTH, `peers` (rows,) abi.PEER; `names`: host id → name of a peer; `reachable` (peers,) in the
    order of `names`; `mode`: of a host without peers.
    """
    found = []
    for (row, name), is_reachable in zip(names.items(), reachable.tolist(), strict=True):
        auth = auths[row]
        found.append(
            {
                "peer": name,
                "reachable": is_reachable,
                "sent_with": int(auth["tx_id"][int(auth["tx_slot"]) % abi.KEY_IDS]) or None,
                "accepted_by_peer": _ids(peers[row]["key_ids"]),
                "accepted_from_peer": _ids(auth["rx_id"]),
                "untagged_packets": int(auth["untagged"]),
                "clock_known": bool(auth["clock_ns"]),
            }
        )
    first = auths[next(iter(names))] if names else None
    return {
        "mode": mode if first is None else enums.AuthMode(int(first["mode"])).name.lower(),
        "accepted": sorted({i for p in found for i in p["accepted_from_peer"]}),
        "newest": None,
        "peers": found,
    }


def _ids(of_slots: NDArray[np.uint8]) -> list[int]:
    return [int(i) for i in of_slots[: abi.KEY_IDS] if i]
