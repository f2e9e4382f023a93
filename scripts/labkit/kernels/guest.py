# SPDX-License-Identifier: BSD-2-Clause
"""Runs the checks of one kernel, on that kernel, and writes a line of JSON for each to $LAB_RESULTS/checks.

python -m labkit.kernels.guest PART…, in the guest of machine.py, or on the machine itself. A part is imported when it
runs: an emulated CPU takes half a minute to import what the labs need.
"""

import json
import os
import pkgutil
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

PARTS = {
    "programs": "labkit.kernels.programs:programs",
    "packets": "labkit.kernels.programs:packets",
    "smoke": "labkit.kernels.labs:smoke",
    "package": "labkit.kernels.labs:package",
    "lab": "labkit.kernels.labs:lab",
    "life": "labkit.kernels.labs:life",
    "tunnels": "labkit.kernels.labs:tunnels",
    "stacked": "labkit.kernels.stacked:stacked",
    "shaped": "labkit.kernels.shaped:shaped",
    "lockdown": "labkit.kernels.labs:lockdown",  # the last: it cannot be undone
}


def main() -> None:
    """Runs the named parts; exit status 1 if a check failed."""
    results = Path(os.environ["LAB_RESULTS"])
    signal.signal(signal.SIGTERM, _interrupt)
    failed = False
    with (results / "checks").open("a", encoding="utf-8") as out:

        def say(part: str, check: str, ok: bool, words: str, **more: Any) -> None:
            nonlocal failed
            failed |= not ok
            record = {"part": part, "check": check, "ok": ok, "words": words, **more}
            out.write(json.dumps(record) + "\n")
            out.flush()
            print(f"{'ok  ' if ok else 'FAIL'} {part}: {check}: {words}", flush=True)

        for part in sys.argv[1:]:
            began = time.monotonic()
            try:
                pkgutil.resolve_name(PARTS[part])(say, results)
            except Exception as e:
                traceback.print_exc()
                say(part, "ran to its end", False, f"{type(e).__name__}: {e}")
            print(f"     {part} took {time.monotonic() - began:.0f} s", flush=True)
    sys.exit(failed)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
