# SPDX-License-Identifier: BSD-2-Clause
"""Reads the layouts of the tables' records from the object's BTF as numpy dtypes; defines the constants of the headers.

EV is struct mrc_ev of bpf/mrc_abi.h, with its fields' names and offsets, and so on. BTF has no constants and enums.py
has the enums: a test compares both with the headers.
"""

import sys
from pathlib import Path

import numpy as np

from mrcd.config.sizes import BALLAST as BALLAST
from mrcd.config.sizes import KEY_IDS as KEY_IDS
from mrcd.config.sizes import MAX_PLANES as MAX_PLANES
from mrcd.config.sizes import SPORT_BASE as SPORT_BASE
from mrcd.config.sizes import SRH_MAX as SRH_MAX
from mrcd.errors import MachineError
from mrcd.kernel import btf
from mrcd.kernel.object_file import object_path
from mrcd.versions import ABI_VERSION as ABI_VERSION
from mrcd.versions import WIRE_VERSION as WIRE_VERSION

EV_WORDS = 4
REPORT_EVS = 128
TIMER_NS = 1_000_000
MERGE_QUEUES = 16
EVENT_IDLE_TIMEOUT = 0xFFFF
REPORTS_KEPT = 4
REPORT_SLOTS = 8
WEIGHT_FULL = 8
HEARD_AGAIN = 2
DST_ENTRIES = 4096
BUCKETS = 256
STATUS_DETACHED = 0x1
STATUS_PLAIN = 0x2
STATUS_TAGS_ONLY = 0x4
STATUS_WIRE = 8
REPLAY_WORDS = 64

Layout = np.dtype[np.void]
EV: Layout
PATH_STATS: Layout
RX: Layout
SRH: Layout
PEER: Layout
AUTH: Layout
REPLAY: Layout
COPIES: Layout
REPORTS: Layout
WATCH: Layout
CLOCK: Layout
PLANE: Layout
LINK: Layout
NODE: Layout
PREFIX: Layout
ROTATION: Layout
SETTINGS: Layout
HEALTH: Layout
PACE: Layout
CLASSES: Layout
EVENT: Layout
CHANGES: Layout


def __getattr__(name: str) -> Layout:
    """Reads all layouts when the first is used, so that importing this module needs no object. Raises MachineError."""
    names = sys.modules[__name__].__annotations__
    if name not in names:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    path = object_path()
    with btf.of_object(path) as types:
        check_version(types, path)
        globals().update({n: btf.struct(types, f"mrc_{n.lower()}") for n in names})
    found: Layout = globals()[name]
    return found


def check_version(types: int, path: Path) -> None:
    """Raises MachineError if the BTF of an object is of another ABI version."""
    version = btf.enumerators(types, "mrc_version").get("MRC_VERSION_ABI")
    if version != ABI_VERSION:
        raise MachineError(
            f"{path} has tables of ABI version {version or 'unknown'}, this mrcd needs {ABI_VERSION}",
            hint="another version of mrcd built the object: run `make build`, or reinstall; nothing was changed",
        )
