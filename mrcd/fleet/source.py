# SPDX-License-Identifier: BSD-2-Clause
"""Chooses the cluster file of a host: its own, or that from etcd. Keeps the latter on disk for the next start.

[fleet] is always read from the host's own file: a file from etcd cannot lead hosts away from their etcd.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mrcd import state_dir
from mrcd.config import cluster_file
from mrcd.config.cluster_file import Config
from mrcd.config.sections import Fleet
from mrcd.errors import ConfigError, MachineError, MrcdError
from mrcd.fabric import topology
from mrcd.file_thread import Put, put_now
from mrcd.fleet.etcd import Etcd
from mrcd.fleet.keys import FleetFile, Keys, digest

log = logging.getLogger("mrcd.fleet.source")

FILE = "fleet.toml"
_HEAD = re.compile(r"# mrcd wrote this: generation (\d+) in etcd cluster (\d+)\n")


class NoFile(ConfigError):
    """The host's own file has nothing but [fleet], and no file from etcd is on its disk."""


@dataclass(frozen=True)
class Loaded:
    """A configuration, and the file from etcd that it is of; None: the host's own file."""

    config: Config
    text: str
    file: FleetFile | None


@dataclass(frozen=True)
class Refusal:
    """A file from etcd that this host does not run, and why. `takes_restart`: the next start runs it."""

    file: FleetFile
    why: str
    takes_restart: bool = False


class FileSource:
    """The files of one host.

    `path` is its own file. `wanted` is the newest file from etcd, `trial` one that is run in its place for a time;
    `refusal` tells whether the host refuses it. `cluster` is the id of the etcd cluster, "" if none was ever read.
    """

    def __init__(self, path: Path, state_dir: Path) -> None:
        self.put: Put = put_now
        """Has a file written."""
        self.path, self.kept_path = path, state_dir / FILE
        self.fleet = Fleet()
        self.changed = asyncio.Event()  # set when a configuration is adopted
        self.cluster, self.wanted = self._kept()
        self.trial: FleetFile | None = None
        self.is_on_trial = False  # a file runs, or ran last, that others do not have
        self._before: FleetFile | None = None  # the file that ran before that; None: the host's own
        self.running: Loaded | None = None
        self.refusal: Refusal | None = None
        self._on_disk: tuple[str, FleetFile | None] | None = (self.cluster, self.wanted)  # or soon; None: not known
        self._disk_error = ""  # of the last write

    @property
    def newest(self) -> FleetFile | None:
        """The file from etcd to run; None: the host's own."""
        if self.trial is not None or not self.is_on_trial:
            return self.trial or self.wanted
        is_refused = self.refusal is not None and self.refusal.file == self.wanted
        return self._before if is_refused else self.wanted

    @property
    def goes_back(self) -> bool:
        """Whether the file to run is the one that ran before a trial."""
        return self.is_on_trial and self.trial is None and self.newest == self._before

    def load(self) -> Loaded:
        """Return the configuration to run, out of the newest files. Raises ConfigError."""
        own = cluster_file.read(self.path)
        fleet, has_more = cluster_file.parse_fleet(own, str(self.path))
        if fleet.etcd and (wanted := self.newest) is not None:
            config = cluster_file.parse(wanted.text, f"generation {wanted.generation} in etcd")
            return Loaded(config.model_copy(update={"fleet": fleet}), wanted.text, wanted)
        if fleet.etcd and not has_more:
            raise NoFile(
                f"{self.path} has only [fleet], and etcd has not given this host a cluster file yet",
                hint="`mrcctl fleet put FILE` on another host, or give this host the whole file",
            )
        return Loaded(cluster_file.parse(own, str(self.path)), own, None)

    def read(self, text: str) -> Config:
        """Return the configuration of a text as it would be if etcd had it. Raises ConfigError."""
        return cluster_file.parse(text, "the file").model_copy(update={"fleet": self.fleet})

    def note(self, cluster: str, file: FleetFile | None, trial: FleetFile | None = None) -> bool:
        """Note what etcd has: None, if the key was deleted or never there. Returns whether it has a new file."""
        self.cluster, self.trial = cluster, trial
        self.wanted = file or self.wanted
        return file is not None and self.has_news

    @property
    def has_news(self) -> bool:
        """Whether the newest file from etcd neither runs nor was refused, or a trial is over."""
        before = self.refusal.file if self.refusal else self.running.file if self.running else None
        return self.newest != before

    def adopted(self, loaded: Loaded) -> None:
        """Note that this configuration runs, and keep its file. A file on disk goes with the last endpoint of etcd."""
        before, self.running, self.fleet = self.running, loaded, loaded.config.fleet
        if loaded.file is None or loaded.file != self.trial:
            self.is_on_trial, self._before = False, None
        elif not self.is_on_trial:
            self.is_on_trial, self._before = True, before.file if before else None
        if loaded.file == self.newest:
            self.refusal = None
        self.keep()
        self.changed.set()

    def refused(self, file: FleetFile | None, why: str, *, takes_restart: bool = False) -> None:
        """Note that this host does not run a file from etcd."""
        if file is not None:
            self.refusal = Refusal(file, why, takes_restart)

    def keep(self) -> None:
        """Write the file that the next start is to run to the disk, if it is not there. Logs errors."""
        if not self.fleet.etcd:
            self.cluster, self.wanted, self.trial, self.refusal = "", None, None, None
        file = self.running.file if self.running else None
        if self.is_on_trial:
            file = self._before
        elif self.refusal and self.refusal.takes_restart and self.refusal.file != self.trial:
            file = self.refusal.file
        if self._on_disk == (self.cluster, file):
            return
        self._on_disk = self.cluster, file
        if not self.put(partial(self._write, self.cluster, file)):
            self._on_disk = None

    def _write(self, cluster: str, file: FleetFile | None) -> None:
        try:
            if cluster:
                head = f"# mrcd wrote this: generation {file.generation if file else 0} in etcd cluster {cluster}\n"
                state_dir.replace(self.kept_path, head + (file.text if file else ""))
            else:
                self.kept_path.unlink(missing_ok=True)
        except (MrcdError, OSError) as e:
            if str(e) != self._disk_error:
                log.error("a restart without etcd would take an older cluster file: %s", e)
            self._disk_error, self._on_disk = str(e), None
        else:
            self._disk_error = ""

    @property
    def running_path(self) -> Path:
        """Return the path of the file that runs: its own, or the copy of that from etcd."""
        return self.kept_path if self.running and self.running.file else self.path

    @property
    def sha256(self) -> str:
        """Return the digest of the file that runs."""
        return digest(self.running.text) if self.running else ""

    def _kept(self) -> tuple[str, FleetFile | None]:
        try:
            text = self.kept_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return "", None
        except (OSError, UnicodeDecodeError) as e:
            log.error("%s: %s: mrcd starts with the file of this host", self.kept_path, e)
            return "", None
        head = _HEAD.match(text)
        if head is None:
            log.error("%s: it does not begin as mrcd writes it: mrcd starts with the file of this host", self.kept_path)
            return "", None
        generation = int(head[1])
        return head[2], FleetFile(generation, text[head.end() :]) if generation else None


# ---- the start ----


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
        if not source.note(snapshot.cluster, file):
            raise
        return await asyncio.to_thread(_checked, source, host)


def _checked(source: FileSource, host: str) -> Loaded:
    """Return the newest file, after making a plan of it."""
    loaded = source.load()
    topology.plan(loaded.config, host)
    return loaded
