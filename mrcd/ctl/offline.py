"""What can be said without the daemon: the tables are pinned in the kernel and go on counting."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrcd.ctl.base import Options
from mrcd.ctl.client import Client, DaemonDown, Json
from mrcd.errors import DaemonError, MachineError, MrcdError
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION

if TYPE_CHECKING:
    from mrcd.view.documents import View

_RUNNING = "running.json"  # as mrcd.view.RUNNING_FILE, which comes with numpy
_BPFFS = Path("/sys/fs/bpf")


def open_view(run_dir: Path, down: DaemonDown) -> "View":
    """The pinned tables of the daemon that is down. Raises DaemonDown if they cannot be read either."""
    try:
        # Only now: numpy alone takes longer to import than mrcctl to answer.
        from mrcd.view.documents import open_pinned

        return open_pinned(run_dir)
    except MrcdError as e:
        raise DaemonDown(f"mrcd is not running, and {e.args[0]}", hint=down.hint) from None
    except ImportError as e:
        raise DaemonDown(f"mrcd is not running, and its tables cannot be read: {e}", hint=down.hint) from None


def read(
    options: Options,
    from_daemon: Callable[[Client], Json],
    from_tables: Callable[["View"], Json],
    *,
    quiet: bool = False,
) -> tuple[Json, str]:
    """Ask the daemon; if it is down, the pinned tables, and say so unless `quiet`.

    Returns the document, and whose it is: "daemon" or "tables".
    """
    try:
        return from_daemon(options.client), "daemon"
    except DaemonDown as down:
        view = open_view(options.run_dir, down)
        document = from_tables(view)
        if not quiet:
            click.echo("mrcctl: mrcd is not running; from the pinned tables", err=True)
        return document, "tables"


def envelope(name: str, rows: Json, source: str) -> dict[str, Json]:
    """A list as mrcctl prints it: {"schema_version", "source", name: […]}. Raises DaemonError if it is none."""
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise DaemonError(
            f"mrcd's {name} are not a list of objects",
            hint="are mrcctl and mrcd of the same version? see `mrcctl version`",
        )
    return {"schema_version": SCHEMA_VERSION, "source": source, name: rows}


def pins_gone(directory: object) -> bool:
    """Whether there are no pins in the mounts of this process; those of the daemon may be others."""
    try:
        return not Path(str(directory), "links").exists()
    except PermissionError:
        return False


def pins(run_dir: Path) -> tuple[Path, dict[str, int]]:
    """Where this host's maps are pinned, and its peers' host ids by name; works with and without the daemon.

    Without the file that mrcd leaves beside its socket: the default place, and no names. Raises MachineError.
    """
    path = run_dir / _RUNNING
    try:
        document = json.loads(path.read_text())
        found = Path(document["pins"])
        names = {str(h["name"]): int(h["id"]) for h in document["config"]["hosts"] if h["name"] != document["host"]}
    except FileNotFoundError:
        found, names = _BPFFS / "mrcd" / f"abi{ABI_VERSION}", {}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise MachineError(f"{path}: {e}", hint="`systemctl restart mrcd` writes it anew") from None
    try:
        there = found.is_dir()
    except PermissionError:
        raise MachineError(f"{found}: permission denied", hint="run mrcctl as root") from None
    if not there:
        raise MachineError(
            f"nothing is pinned at {found}", hint="mrcd has not run on this host yet, or runs with another --run-dir"
        )
    return found, names
