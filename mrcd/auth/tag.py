# SPDX-License-Identifier: BSD-2-Clause
"""Makes and checks tags in Python, for the diagnostic probes of mrcctl; bpf/auth.h does that for all other packets.

It imports no numpy, which takes mrcctl long.
"""

import errno
import hmac
import os
import struct
from pathlib import Path

from mrcd.errors import KernelError, MachineError
from mrcd.kernel import libbpf

TAG_BYTES = 8
RECORD_BYTES = 128  # struct mrc_auth
_KEY_BYTES, _KEY_IDS = 16, 2
_TX_IDS, _TX_KEYS = 4, 8  # offsets of tx_id and tx_key; tx_slot is the first word
_MODE, _RX_IDS, _RX_KEYS = 64, 65, 72  # offsets of mode, rx_id and rx_key
_OFF, _REQUIRED = 0, 2  # enum mrc_auth_mode


def tag(key: bytes, message: bytes) -> bytes:
    """Returns the TAG_BYTES of a tag: SipHash-2-4 under a key of 16 bytes."""
    from siphash24 import siphash24

    return bytes(siphash24(message, key=key).digest())


class Signer:
    """Tags packets of this host, and checks those of its peers, by the keys in the pinned table."""

    def __init__(self, pins: Path) -> None:
        """Opens the table. Raises MachineError if there is none, or another version of mrcd has made it."""
        path = pins / "mrc_auths"
        try:
            self._fd = libbpf.get(path)
        except KernelError as e:
            if e.errno != errno.ENOENT:
                raise
            raise MachineError(f"no table is pinned at {path}", hint="start mrcd; it creates the tables") from None
        _, size, _ = libbpf.map_info(self._fd)
        if size != RECORD_BYTES:
            self.close()
            raise MachineError(
                f"table mrc_auths has entries of {size} bytes, this version knows {RECORD_BYTES}",
                hint="another version of mrcd made the tables; use the mrcctl of that version",
            )

    def close(self) -> None:
        """Closes the table."""
        os.close(self._fd)

    def key(self, receiver: int) -> tuple[int, bytes]:
        """Returns the id and the key with which this host sends to another one; (0, b"") if it sends without tags."""
        record = self._record(receiver)
        slot = struct.unpack_from("I", record)[0] % _KEY_IDS
        key_id = record[_TX_IDS + slot]
        return (key_id, _key(record, _TX_KEYS, slot)) if key_id else (0, b"")

    def is_believed(self, sender: int, key_id: int, message: bytes, found: bytes) -> bool:
        """Returns whether a packet of another host is to be believed, as receiving_key() in bpf/auth.h decides.

        `message` are its bytes under the tag `found`.
        """
        record = self._record(sender)
        if record[_MODE] == _OFF:
            return True
        if not key_id:
            return record[_MODE] != _REQUIRED
        slot = record.find(key_id, _RX_IDS, _RX_IDS + _KEY_IDS) - _RX_IDS
        return slot >= 0 and hmac.compare_digest(tag(_key(record, _RX_KEYS, slot), message), found)

    def _record(self, host_id: int) -> bytes:
        """Returns the struct mrc_auth of a host; zeros for one that is not in the table."""
        return libbpf.lookup_elem(self._fd, struct.pack("I", host_id), RECORD_BYTES) or bytes(RECORD_BYTES)


def _key(record: bytes, begin: int, slot: int) -> bytes:
    return record[begin + slot * _KEY_BYTES :][:_KEY_BYTES]
