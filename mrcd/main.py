# SPDX-License-Identifier: BSD-2-Clause
"""Implements the command `mrcd`: checks a configuration, or runs the daemon."""

import asyncio
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrcd import __version__, heap
from mrcd.config import cluster_file
from mrcd.daemon.systemd import notify, report
from mrcd.errors import ConfigError, MachineError, MrcdError, UnknownHost
from mrcd.fabric import topology
from mrcd.file_thread import LogThread
from mrcd.partial_imports import import_in_part
from mrcd.state_dir import directory
from mrcd.versions import SCHEMA_VERSION

if TYPE_CHECKING:
    from mrcd.daemon.run_dir import RunDir
    from mrcd.fleet.source import FileSource, Loaded

DEFAULT_CONFIG = Path("/etc/mrcd/mrcd.toml")
DEFAULT_RUN_DIR = Path("/run/mrcd")
DEFAULT_BPFFS = Path("/sys/fs/bpf")

log = logging.getLogger("mrcd")

_NICE = 10
_WORKERS = 4  # threads that make documents and read files; by default there would be as many as CPUs, and more


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, envvar="MRCD_CONFIG",
    show_default=True, help="The cluster file.",
)  # fmt: skip
@click.option("--host", envvar="MRCD_HOST", help="This host's name in the cluster file.  [default: its hostname]")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), default=DEFAULT_RUN_DIR, envvar="MRCD_RUN_DIR",
    show_default=True, help="Directory of the control socket.",
)  # fmt: skip
@click.option(
    "--state-dir", type=click.Path(path_type=Path), envvar="MRCD_STATE_DIR",
    help="Directory of denials and events.  [default: /var/lib/mrcd; with another --run-dir, that directory]",
)  # fmt: skip
@click.option(
    "--bpffs", type=click.Path(path_type=Path, readable=False), default=DEFAULT_BPFFS, show_default=True,
    help="The BPF file system for the pins; mrcd mounts it if it is not mounted.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Validate the file and print this host's plan; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --check: print the plan as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Log route changes too.")
@click.version_option(__version__, message="mrcd %(version)s")
def mrcd(
    config_path: Path,
    host: str | None,
    run_dir: Path,
    state_dir: Path | None,
    bpffs: Path,
    check: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run the daemon: install paths, watch them, and leave those that fail.

    The data plane keeps forwarding when the daemon stops; `mrcctl detach` takes it down.
    """
    name = host or own_name()
    if check:
        plan = topology.plan(cluster_file.load(config_path), name)
        click.echo(json.dumps(plan_document(plan), indent=2) if as_json else plan_text(plan))
        return
    stamp = "" if os.environ.get("JOURNAL_STREAM") else "%(asctime)s "  # the journal adds its own time
    logging.getLogger("mrcd").setLevel(logging.DEBUG if verbose else logging.INFO)
    # No deadline depends on this process. On a busy host it must not delay packets or ksoftirqd.
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    heap.use_one_arena()  # before any thread: also that of the log, which has this priority
    handlers = [LogThread(sys.stderr.fileno())]
    logging.basicConfig(level=logging.WARNING, format=stamp + "%(levelname)s %(message)s", handlers=handlers)
    faulthandler.enable()  # systemd's watchdog sends SIGABRT to a daemon that hangs: the log then shows the stacks
    for package in ("aiohttp", "pyroute2"):
        import_in_part(package)
    from mrcd.daemon.run_dir import RunDir  # numpy
    from mrcd.fleet.source import FileSource, first_file

    try:
        with RunDir(run_dir) as locked:
            source = FileSource(config_path, directory(run_dir, state_dir))
            loaded = asyncio.run(first_file(source, name))
            asyncio.run(serve(source, loaded, name, locked, bpffs, state_dir))
    except ConfigError as e:
        # Not 1, with which Python ends at errors that may pass: systemd tries again then. So it does if the file has no
        # host of this machine's name: early in a boot that may be an image's.
        if host or not isinstance(e, UnknownHost):
            e.exit_code = os.EX_CONFIG
        raise


def own_name() -> str:
    """Returns this machine's host name. Raises MachineError while it has none, as early in a boot."""
    name = socket.gethostname()
    if name.partition(".")[0] in ("", "localhost", "(none)"):
        raise MachineError(
            f"this machine has no name of its own yet: it is {name!r}",
            hint="set it by `hostnamectl hostname NAME`, or start mrcd with --host NAME",
        )
    return name


async def serve(
    source: "FileSource", loaded: "Loaded", host: str, run_dir: "RunDir", bpffs: Path, state_dir: Path | None
) -> None:
    """Runs the daemon until a signal ends it, or an error of one of its parts, which it raises."""
    # Imported here so that --check does not load bcc and aiohttp.
    from mrcd.api.server import Servers
    from mrcd.daemon.daemon import running
    from mrcd.daemon.reload import Reloader
    from mrcd.daemon.run_dir import keep_run_dir
    from mrcd.fleet.member import FleetMember

    plan = topology.plan(loaded.config, host)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_WORKERS, "worker"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # ignored until the daemon can reload
    async with (
        running(plan, run_dir.path, bpffs, state_dir) as daemon,
        Servers(
            daemon,
            run_dir.path,
            plan.config.metrics,
            reloader := Reloader(daemon, source),
            member := FleetMember(
                lambda: daemon.plan.host.name, source, reloader.reload, daemon.denials, daemon.events, daemon.reached
            ),
        ) as servers,
    ):
        source.put = daemon.files.put
        source.adopted(loaded)
        loop.add_signal_handler(signal.SIGHUP, reloader.on_signal)
        work = asyncio.create_task(daemon.run())
        keeping = asyncio.create_task(keep_run_dir(run_dir, servers.restore_socket, daemon.save_files, daemon.events))
        following = asyncio.create_task(member.run())
        watchdog = asyncio.create_task(report(daemon.routed))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({work, keeping, following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        notify("STOPPING=1")
        stopping.cancel()
        if not work.done():
            await reloader.stop()
        watchdog.cancel()
        tasks = (work, keeping, following)
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, watchdog, return_exceptions=True)
        for task in ended:
            task.result()
    log.info("stopped; the data plane keeps forwarding")


def plan_document(plan: topology.Plan) -> dict[str, object]:
    """Returns what this host would install, as a document for JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "host": plan.host.name,
        "host_id": plan.host.id,
        "encapsulation": plan.config.cluster.encapsulation,
        "granularity": plan.config.cluster.granularity,
        "inner_mtu": plan.inner_mtu,
        "overhead": plan.overhead,
        "planes": [
            {"plane": i, "interface": n, "address": str(plan.addresses[i]), "sid": str(plan.sids[i])}
            for i, n in enumerate(plan.interfaces)
        ],
        "peers": [
            {
                "peer": p.host.name,
                "prefixes": [str(n) for n in p.host.prefixes],
                "paths": [
                    {"ev": e.ev, "plane": e.plane, "t1": e.t1, "segments": [str(s) for s in e.segments]} for e in p.evs
                ],
            }
            for p in plan.peers
        ],
    }


def plan_text(plan: topology.Plan) -> str:
    """Returns what this host would install, as text."""
    c = plan.config.cluster
    lines = [
        f"host {plan.host.name} (id {plan.host.id}) of cluster {c.name}: "
        f"{c.encapsulation}, {c.granularity} granularity",
        f"inner MTU {plan.inner_mtu} = plane MTU {c.mtu} − {plan.overhead} bytes of headers",
        "",
        "plane  interface     address                  SID",
    ]
    for i, name in enumerate(plan.interfaces):
        lines.append(f"{i:<6} {name:<13} {plan.addresses[i]!s:<24} {plan.sids[i]}")
    lines += ["", "peer             EVs  per plane       prefixes"]
    for p in plan.peers:
        spread = ",".join(str(n) for n in p.evs_per_plane)
        lines.append(f"{p.host.name:<16} {p.ev_count:>3}  {spread:<15} {', '.join(str(n) for n in p.host.prefixes)}")
    lines += ["", "The configuration is valid; nothing was changed."]
    return "\n".join(lines)


def main() -> None:
    """Runs the command, and prints an error as one message.

    Exits with 1 for usage, --check and a host name that the file lacks, 78 for the configuration of a daemon, 2 for the
    machine.
    """
    try:
        code = mrcd(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as e:
        e.show()
        code = 1
    except MrcdError as e:
        _say(f"mrcd: {e}")
        code = e.exit_code
    except Exception as e:  # exit status 2 makes systemd restart the daemon
        while isinstance(e, ExceptionGroup):
            e = e.exceptions[0]
        log.debug("", exc_info=e)
        what = e if isinstance(e, MrcdError) else f"unexpected {type(e).__name__}: {e}"
        _say(f"mrcd: {what}\n  hint: --verbose logs the traceback; the data plane keeps forwarding")
        code = 2
    sys.exit(code or 0)


def _say(text: str) -> None:
    """Prints an error behind what was logged before."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    click.echo(text, err=True)
