# SPDX-License-Identifier: BSD-2-Clause
"""Starts mrcctl. Until it can handle ^C without a traceback, ^C ends the process at once."""

import signal


def main() -> None:
    """Run mrcctl; the entry point of setup.cfg."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup ignores SIGINT
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mrcd.ctl.main import main as commands

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    commands()
