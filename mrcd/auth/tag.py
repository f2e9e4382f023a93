# SPDX-License-Identifier: BSD-2-Clause
"""Makes tags in Python, for the diagnostic probes of mrcctl; bpf/auth.h makes those of all other packets.

It imports no numpy, which takes mrcctl long.
"""

import os
import struct
from pathlib import Path

from mrcd.bpf import libbpf

RECORD_BYTES = 128  # struct mrc_auth
_IDS, _KEYS, _KEY_BYTES = 4, 8, 16  # offsets of tx_id and tx_key; tx_slot is the first word


def tag(key: bytes, message: bytes) -> bytes:
    """Returns the 8 bytes of a tag: SipHash-2-4 under a key of 16 bytes."""
    from siphash24 import siphash24

    return bytes(siphash24(message, key=key).digest())


class Signer:
    """Tags packets of this host by the keys in the pinned table."""

    def __init__(self, pins: Path) -> None:
        self._fd = libbpf.get(pins / "mrc_auths")

    def close(self) -> None:
        """Closes the table."""
        os.close(self._fd)

    def key(self, receiver: int) -> tuple[int, bytes]:
        """Returns the id and the key with which this host sends to another one; (0, b"") if it sends without tags."""
        record = libbpf.lookup_elem(self._fd, struct.pack("I", receiver), RECORD_BYTES)
        if not record:
            return 0, b""
        slot = struct.unpack_from("I", record)[0] & 1
        begin = _KEYS + slot * _KEY_BYTES
        key_id = record[_IDS + slot]
        return (key_id, record[begin : begin + _KEY_BYTES]) if key_id else (0, b"")
