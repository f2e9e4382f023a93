"""The first moments of mrcctl: ^C ends it at once while its modules are read, without a traceback."""

import signal


def main() -> None:
    """Entry point."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as below nohup
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mrcd.ctl.main import main as commands

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    commands()
