# SPDX-License-Identifier: BSD-2-Clause
"""Reloads the cluster file under a running data plane: applies the difference, and changes nothing else.

An invalid file, or one that the kernel refuses, changes nothing. [health] is changed in the running programs. Their
constants are fixed when they are loaded: if these change, new programs are loaded and replace the old ones in place.
Tables of the same sizes stay, with all states and counters.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from mrcd.auth import secrets_file
from mrcd.auth.keyring import cut_off
from mrcd.auth.secrets_file import Secret
from mrcd.daemon import config_diff
from mrcd.daemon.daemon import Daemon, read_secrets
from mrcd.errors import ConfigError, MachineError, MrcdError, TakesRestart, UsageError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.fleet.source import FileSource
from mrcd.kernel import enums
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.pinned import Tables
from mrcd.net import hooks

log = logging.getLogger("mrcd.daemon.reload")
_MOST_NAMES = 10  # of peers, in one message
_STOP_S = 5.0

T = TypeVar("T")


class Reloader:
    """Reloads the file on request. One per daemon."""

    def __init__(self, daemon: Daemon, source: FileSource) -> None:
        self.source = source
        self._daemon = daemon
        self._tasks: set[asyncio.Task[Any]] = set()

    async def reload(self, *, force: bool = False) -> dict[str, Any]:
        """Apply the file. Returns the difference as a document, with a message.

        Raises UsageError for an invalid file, or one that a reload cannot apply; MachineError if the kernel refuses.
        The running configuration stays in force then. The end of the caller does not end the reload: `stop` does.
        """
        try:
            return await asyncio.shield(self._begin(self._reload(force)))
        except MrcdError as e:
            what = str(e.args[0])
            self._daemon.events.add("daemon", reason="reload_refused", evidence={"error": what})
            if isinstance(e, ConfigError):
                e.hint = f"the running configuration stays in force; {e.hint or 'correct the file'}"
            raise

    async def examine(self, text: str, *, force: bool = False) -> dict[str, Any]:
        """Return the difference that a file would make, and change nothing. Raises MrcdError as `reload` would.

        Not for what takes a restart: the next start runs it.
        """
        before = self._daemon.plan
        plan = await asyncio.to_thread(lambda: topology.plan(self.source.read(text), before.host.name, before))
        secrets = await asyncio.to_thread(read_secrets, plan)
        difference = await asyncio.to_thread(config_diff.compare, before, plan)
        if not force:
            self.check_secrets(plan, secrets)
        with contextlib.suppress(TakesRestart):
            difference.check(detached=self._daemon.detached, force=force)
        await self._check_interfaces(plan)
        return difference.document()

    def on_signal(self) -> None:
        """Reload on SIGHUP, and log errors."""
        self._begin(self._try())

    async def stop(self) -> None:
        """Wait for a running reload, detach or attach. A reload that takes longer than _STOP_S is undone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S), self._daemon.admin_lock:
                return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _try(self) -> None:
        try:
            await self.reload()
        except MrcdError as e:
            log.error("%s; the running configuration stays", e)
        except Exception:
            log.exception("reload")

    async def _reload(self, force: bool) -> dict[str, Any]:
        async with self._daemon.admin_lock:
            return await self._reload_locked(force)

    async def _reload_locked(self, force: bool) -> dict[str, Any]:
        daemon, before = self._daemon, self._daemon.plan
        loaded = await asyncio.to_thread(self.source.load)
        plan = await asyncio.to_thread(topology.plan, loaded.config, before.host.name, before)
        secrets = await asyncio.to_thread(read_secrets, plan)
        difference = await asyncio.to_thread(config_diff.compare, before, plan)
        generation = loaded.file.generation if loaded.file else None
        name = str(self.source.path) if loaded.file is None else f"generation {generation} in etcd"
        document = difference.document() | {"file": name, "host": plan.host.name}
        if not force:
            self.check_secrets(plan, secrets)
        if not difference.anything and secrets != daemon.keyring.wanted:
            daemon.use_secrets(plan, secrets)
            self.source.adopted(loaded)
            ids = " and ".join(map(str, daemon.keyring.ids))
            daemon.events.add("daemon", reason="reloaded", evidence={"secrets": daemon.keyring.ids})
            log.info("reloaded the secrets: %s", ids)
            return document | {"changed": True, "message": f"reloaded the secrets: this host accepts {ids}"}
        if not difference.anything:
            self.source.adopted(loaded)
            return document | {"message": "nothing to change: the file equals the running configuration"}
        difference.check(detached=daemon.detached, force=force)
        await self._check_interfaces(plan)
        await self.apply(plan, difference, secrets)
        self.source.adopted(loaded)
        by = {} if generation is None else {"generation": generation}
        daemon.events.add("daemon", reason="reloaded", evidence=_summary(difference) | by)
        log.info("reloaded %s", name)
        done = [s for s in difference.steps() if not difference.agreed]
        return document | {"message": "; ".join(["reloaded", *done])}

    def check_secrets(self, plan: Plan, secrets: Sequence[Secret]) -> None:
        """Raises UsageError if reachable peers and this host would refuse each other's packets."""
        daemon, mode = self._daemon, enums.AuthMode[plan.config.auth.mode.upper()]
        s, names = daemon.view.snapshot(), {p.host.id: p.host.name for p in plan.peers}
        stays = np.array([names.get(p.host.id) == p.host.name for p in daemon.plan.peers], bool)
        rows, reachable = s.rows[stays], s.is_reachable[stays]
        records = daemon.tables.peers[rows]
        lost = cut_off(mode, daemon.keyring.wanted, secrets, records, rows) & reachable
        untimed = np.zeros_like(lost)
        if mode is enums.AuthMode.REQUIRED and daemon.keyring.mode is not mode:
            untimed = (daemon.tables.auths["clock_ns"][rows] == 0) & reachable
        if not (lost | untimed).any():
            return
        untagged = lost & ~records["key_ids"].any(axis=1)
        if mode is enums.AuthMode.OFF:
            why = "they take no packet without a tag"
            hint = 'first set mode = "permissive" there and reload'
        elif untagged.any():
            lost, why = untagged, "they send packets without tags"
            hint = 'first set mode = "permissive" here and there and reload'
        elif not lost.any():
            lost, why = untimed, "their clocks are unknown, so their first packets would be refused as stale"
            hint = 'set mode = "permissive" here first; a second after that reload the clocks are known'
        else:
            why = f"no secret in {secrets_file.path_of(plan.config.auth.secret_file)} is in use there"
            hint = (
                "first put the new file on these peers (keys generate --pairs: to each its own), with the old secret "
                "and the new one under a new id, and run `mrcctl keys rotate` there"
            )
        found = [names[row] for row in rows[lost].tolist()]
        raise UsageError(
            f"{', '.join(found[:_MOST_NAMES])}{', …' if len(found) > _MOST_NAMES else ''} would be cut off: {why}; "
            "nothing was changed",
            hint=f"{hint}; or `mrcctl reload --force`",
        )

    async def _check_interfaces(self, plan: Plan) -> None:
        async with self._daemon.netlink_lock:  # the kernel refuses a second dump on one socket
            links = await self._daemon.netlink.links()
        if not hooks.ports(plan.interfaces, links):
            raise MachineError(
                f"none of the plane NICs {', '.join(plan.interfaces)} exists; nothing was changed",
                hint="name them in [interfaces] names, or in the host's interfaces",
            )

    async def apply(self, plan: Plan, difference: config_diff.Difference, secrets: Sequence[Secret]) -> None:
        """Put the plan in force, or restore the one before if that fails."""
        daemon = self._daemon
        old, old_tables = daemon.dataplane, daemon.tables
        new, tables = old, old_tables
        try:
            if difference.programs:
                new = old.successor(plan)
                await load_programs(new)
            if not new.is_committed:
                tables = Tables(new.tables, writable=True)
            await daemon.adopt(plan, new, tables, secrets)
        except MrcdError:
            raise
        except Exception as e:
            raise MachineError(f"unexpected {type(e).__name__}: {e}; the configuration before is back") from e
        finally:
            if daemon.dataplane is old:
                old.remove_staged()
            for unused in {new, old} - {daemon.dataplane}:
                unused.close()
            for mapped in {tables, old_tables} - {daemon.tables}:
                mapped.close()


async def load_programs(dataplane: Dataplane) -> None:
    """Loads the programs in a thread, because the verifier takes seconds.

    If the daemon stops, this is cancelled, but still waits: the object must not be closed while it is being loaded.
    """
    loading = asyncio.get_running_loop().run_in_executor(None, dataplane.load)  # no task, which would be cancelled too
    try:
        await asyncio.shield(loading)
    finally:
        while not loading.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({loading})


def _summary(d: config_diff.Difference) -> dict[str, Any]:
    """Return the difference in numbers, for the event log."""
    found = {
        "settings": len(d.settings),
        "hosts_added": len(d.hosts_added),
        "hosts_removed": len(d.hosts_removed),
        "hosts_changed": len(d.hosts_changed),
        "evs_added": sum(p.added for p in d.peers),
        "evs_removed": sum(p.removed for p in d.peers),
        "evs_changed": sum(p.changed for p in d.peers),
    }
    return {k: v for k, v in found.items() if v} | {"programs": d.programs, "tables": d.tables}
