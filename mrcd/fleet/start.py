# SPDX-License-Identifier: BSD-2-Clause
"""Finds the cluster file with which a daemon starts."""

import asyncio
import logging

from mrcd.config import cluster_file
from mrcd.errors import ConfigError, MachineError, MrcdError
from mrcd.fabric import topology
from mrcd.fleet.etcd import Etcd
from mrcd.fleet.keys import Keys
from mrcd.fleet.source import FileSource, Loaded, NoFile

log = logging.getLogger("mrcd.fleet.start")


async def first_file(source: FileSource, host: str) -> Loaded:
    """Return the newest file on disk; if this host cannot run it, that from etcd.

    etcd is not asked otherwise: a start must not depend on it. Raises ConfigError, or MachineError if only etcd could
    help and does not answer.
    """
    try:
        return await asyncio.to_thread(_checked, source, host)
    except ConfigError as e:
        fleet, _ = cluster_file.parse_fleet(cluster_file.read(source.path), str(source.path))
        if not fleet.etcd:
            raise
        log.warning("%s; asking etcd", e.args[0])
        try:
            async with Etcd(fleet) as etcd:
                snapshot = await etcd.read(Keys(fleet.prefix).file)
        except MrcdError as away:
            if not isinstance(e, NoFile):
                raise e from None
            raise MachineError(f"{e.args[0]}: {away.args[0]}", hint=e.hint) from None
        file = Keys(fleet.prefix).wanted(snapshot.values).file
        if not source.follow(snapshot.cluster, file):
            raise
        return await asyncio.to_thread(_checked, source, host)


def _checked(source: FileSource, host: str) -> Loaded:
    """Return the newest file, after making a plan of it."""
    loaded = source.load()
    topology.plan(loaded.config, host)
    return loaded
