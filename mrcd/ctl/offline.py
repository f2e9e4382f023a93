"""What can be said without the daemon: the tables are pinned in the kernel and go on counting."""

from pathlib import Path
from typing import TYPE_CHECKING

from mrcd.ctl.client import DaemonDown
from mrcd.errors import MrcdError

if TYPE_CHECKING:
    from mrcd.view import View


def open_view(run_dir: Path, down: DaemonDown) -> "View":
    """The pinned tables of the daemon that is down. Raises DaemonDown if they cannot be read either."""
    try:
        # Only now: numpy alone takes longer to import than mrcctl to answer.
        from mrcd.view import open_pinned

        return open_pinned(run_dir)
    except MrcdError as e:
        raise DaemonDown(f"mrcd is not running, and {e.args[0]}", hint=down.hint) from None
    except ImportError as e:
        raise DaemonDown(f"mrcd is not running, and its tables cannot be read: {e}", hint=down.hint) from None
