# SPDX-License-Identifier: BSD-2-Clause
"""Keeps the state of a lab between two commands, in /run/mrcd-lab/NAME.

    lab.json             parameters, and whether `up` got to its end
    mrcd.toml            the cluster file
    secrets              the secrets of [auth]
    faults/SLUG.json     one file per active fault
    bpf/                 bpffs: the fault programs' links and maps
    exec/PID             commands started by `lab exec`
    h0/ …                one host: its mrcd's socket, log, process record and bpffs
The directory is made first and removed last, so the next command finds whatever a crash leaves.
"""

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from labkit.cluster import fabric, netns
from labkit.cluster.processes import Process, alive, read_record
from mrcd.errors import MachineError, UsageError

BASE = Path("/run/mrcd-lab")
Stage = Literal["building", "up"]


class State:
    """The runtime directory of one lab: `root`, and the files in it that are of no host.

    `cluster_file` is read by every mrcd, `secrets` are those of all hosts, `pins` is the bpffs of the fault programs,
    `exec_dir` has records of commands started by `lab exec`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = BASE / name
        self.cluster_file = self.root / "mrcd.toml"
        self.secrets = self.root / fabric.SECRETS
        self.pins = self.root / "bpf"
        self.exec_dir = self.root / "exec"

    def run_dir(self, host: str) -> Path:
        """Returns a host's MRCD_RUN_DIR."""
        return self.root / host

    def bpffs(self, host: str) -> Path:
        """Returns the bpffs of a host's daemon."""
        return self.run_dir(host) / "bpf"

    def socket(self, host: str) -> Path:
        """Returns the socket of a host's daemon."""
        return self.run_dir(host) / "mrcd.sock"

    def log(self, host: str) -> Path:
        """Returns the log of a host's daemon."""
        return self.run_dir(host) / "mrcd.log"

    def daemon_record(self, host: str) -> Path:
        """Returns the record of a host's daemon (processes.py)."""
        return self.run_dir(host) / "mrcd.pid"

    def daemon(self, host: str) -> Process | None:
        """Returns a host's daemon, dead or alive; None if none was started."""
        return read_record(self.daemon_record(host))

    def read(self) -> tuple[fabric.Parameters, Stage] | None:
        """Returns the parameters of the last `up` and its stage; None if there is no lab."""
        try:
            data = json.loads((self.root / "lab.json").read_text(encoding="utf-8"))
            return fabric.Parameters(**data["parameters"]), data["stage"]
        except (FileNotFoundError, ValueError, KeyError, TypeError, UsageError):  # also written by another version
            return None

    def write(self, parameters: fabric.Parameters, stage: Stage) -> None:
        """Records parameters and stage."""
        write_whole(self.root / "lab.json", {"parameters": parameters.as_json(), "stage": stage})

    def require(self) -> fabric.Fabric:
        """Returns the fabric of a lab that is up. Raises UsageError if it is not."""
        known = self.read()
        if known is None:
            raise UsageError(f"lab {self.name} is not up", hint=f"scripts/lab up{self.option}")
        parameters, stage = known
        if stage != "up":
            raise UsageError(f"lab {self.name} is not complete", hint=f"scripts/lab up{self.option} rebuilds it")
        return fabric.build(self.name, parameters)

    @property
    def option(self) -> str:
        """Returns the command-line option that names this lab."""
        return "" if self.name == "default" else f" --name {self.name}"

    def faults(self) -> dict[str, dict[str, Any]]:
        """Returns the active faults: target → the record that `fail` wrote."""
        found = {}
        for path in sorted((self.root / "faults").glob("*.json")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:  # another command healed it
                continue
            found[str(record["target"])] = record
        return found

    def fault_file(self, slug: str) -> Path:
        """Returns the file of a fault's record."""
        return self.root / "faults" / f"{slug}.json"

    def processes(self) -> list[Process]:
        """Returns all recorded processes that are alive, without this one."""
        records = [*self.root.glob("h*/mrcd.pid"), *self.exec_dir.glob("*")]
        known = (read_record(r) for r in records)
        return [p for p in known if p is not None and p.pid != os.getpid() and alive(p)]

    def namespaces(self) -> list[str]:
        """Returns the lab's existing namespaces, complete or not."""
        return [n for n in netns.existing() if fabric.owns(self.name, n)]

    def clear(self) -> None:
        """Empties the directory, and keeps it while it is locked: the lock is on it."""
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A block under the lock of the lab's directory, which is made if missing and removed if left empty."""
        fd = self._lock()
        try:
            yield
        finally:
            try:
                self.root.rmdir()
                BASE.rmdir()
            except OSError:
                pass  # the directory has a lab
            os.close(fd)

    @contextmanager
    def changing(self) -> Iterator[fabric.Fabric]:
        """A block with the fabric of a lab that is up, locked. Raises UsageError if it is not up."""
        self.require()  # before the lock, which would make the directory of a lab that does not exist
        with self.locked():
            yield self.require()

    def _lock(self) -> int:
        while True:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:  # another command's `down` removed it meanwhile
                continue
            except PermissionError:
                raise MachineError(f"{self.root}: permission denied", hint="the lab needs root") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"lab: waiting for another command on lab {self.name}", file=sys.stderr)
                fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                if self.root.stat().st_ino == os.fstat(fd).st_ino:
                    os.set_inheritable(fd, True)  # inherited by the `ip -batch` of netns.py, not by daemons
                    return fd
            except FileNotFoundError:
                pass
            os.close(fd)  # the locked directory was removed: try again


def write_whole(path: Path, data: dict[str, Any]) -> None:
    """Writes JSON atomically: a reader, or a crash, sees the old document or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
