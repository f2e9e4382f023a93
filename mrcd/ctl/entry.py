# SPDX-License-Identifier: BSD-2-Clause
"""Starts mrcctl. Until it can handle ^C without a traceback, ^C ends the process at once."""

import contextlib
import signal
import sys

import mrcd


def main() -> None:
    """Run mrcctl; the entry point of setup.cfg."""
    if sys.argv[1:] == ["--version"]:  # without click: scripts ask for it often
        with contextlib.suppress(OSError):  # which click reports
            print(f"mrcctl {mrcd.__version__}", flush=True)
            return
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup ignores SIGINT
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mrcd.ctl.main import main as commands

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    commands()
