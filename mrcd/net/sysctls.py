# SPDX-License-Identifier: BSD-2-Clause
"""Names the directory of the network sysctls."""

import os
from pathlib import Path

NET = Path(os.environ.get("MRCD_NET_SYSCTLS", "/proc/sys/net"))
"""A container's own /proc/sys is read-only: there this is a mount of the host's. It shows the reader's namespace."""
