# SPDX-License-Identifier: BSD-2-Clause
"""Makes the keys of pairs of hosts from the secret of the cluster. Pure.

The key of a pair has a direction: packets of one host to another. HKDF with SHA-256 (RFC 5869) makes it, with the two
host ids as context.
"""

import struct

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

KEY_BYTES = 16  # SipHash's
_CONTEXT = b"mrcd packets 1"


def pair_key(secret: bytes, sender: int, receiver: int) -> bytes:
    """Returns the 16 bytes under which host `sender` tags packets to host `receiver`. `secret` is 32 random bytes."""
    context = _CONTEXT + struct.pack("!HH", sender, receiver)
    return HKDFExpand(SHA256(), KEY_BYTES, context).derive(secret)


def as_words(key: bytes) -> NDArray[np.uint64]:
    """Returns a key as the two words of the programs' tables (mrc_auth.tx_key), in the order of memory."""
    return np.frombuffer(key, np.uint64)
