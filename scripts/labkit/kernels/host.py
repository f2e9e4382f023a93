# SPDX-License-Identifier: BSD-2-Clause
"""Runs a virtual machine that stays up: the guest agent runs commands in it, QMP pulls its cables.

with host.booted(kernel, directory, "h0", nics) as h0:      # in the network namespace that has the taps
    h0.run(["ip", "link"])
    h0.pull("p0")
"""

import base64
import contextlib
import itertools
import json
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from labkit.cluster.bringup import VENV
from labkit.kernels import machine
from labkit.kernels.packages import Kernel
from labkit.places import REPOSITORY
from mrcd.errors import MachineError

BOOT_S = 180.0
PATIENCE_S = 120.0
_AGENT = "org.qemu.guest_agent.0"
# By the kernel's names: /dev/virtio-ports is made by udev only, which may not run there.
_SERVE = f"""\
modprobe -a virtio_net vmxnet3 e1000e
port=$(grep -lx {_AGENT} /sys/class/virtio-ports/*/name)
exec qemu-ga -m virtio-serial -p "/dev/$(basename "$(dirname "$port")")" -t /run"""
_PATH = f"{VENV / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = ["env", f"PATH={_PATH}", f"PYTHONPATH={REPOSITORY / 'scripts'}:{REPOSITORY}"]


@dataclass(frozen=True)
class Nic:
    """A network card of the machine."""

    model: str  # qemu's name: "virtio-net-pci", "vmxnet3", "e1000e"
    tap: str
    mac: str
    queues: int = 1  # queue pairs; only virtio-net can have more than one

    def options(self, number: int) -> str:
        """Returns qemu's options. The id of the card is the name of its tap."""
        several = f",mq=on,vectors={2 * self.queues + 2}" if self.queues > 1 else ""
        netdev = f"-netdev tap,id=net-{self.tap},ifname={self.tap},script=no,downscript=no"
        netdev += f",queues={self.queues}" if self.queues > 1 else ""
        # Slots far from those of vng's own devices, because udev names interfaces by their slot.
        slot = f"addr={16 + number:#x}"
        return f"{netdev} -device {self.model},id={self.tap},netdev=net-{self.tap},mac={self.mac},{slot}{several}"


class _Channel:
    """A socket with JSON lines, for QMP and for the guest agent."""

    def __init__(self, path: Path, until: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError:  # qemu has not created it yet
                if time.monotonic() > until:
                    self._socket.close()
                    raise MachineError(f"{path}: no process listens") from None
                time.sleep(0.1)
        self._lines = self._socket.makefile("rb")

    def ask(self, command: str, arguments: dict[str, Any] | None = None, timeout_s: float = 30.0) -> Any:
        """Returns the answer. Raises MachineError."""
        self._socket.settimeout(timeout_s)
        request = {"execute": command, "arguments": arguments or {}}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            for line in self._lines:
                answer = json.loads(line)
                if "error" in answer:
                    raise MachineError(f"{command}: {answer['error'].get('desc')}")
                if "return" in answer:
                    return answer["return"]
        except OSError as e:
            raise MachineError(f"{command}: {e}") from None
        raise MachineError(f"{command}: the machine has ended")

    def close(self) -> None:
        """Closes the socket."""
        self._lines.close()
        self._socket.close()


class Host:
    """A booted machine. All paths are the same in it; `directory` is writable on both sides."""

    def __init__(self, name: str, directory: Path, nics: Sequence[Nic], qmp: _Channel, agent: _Channel) -> None:
        self.name, self.directory, self.nics = name, directory, tuple(nics)
        self._qmp, self._agent = qmp, agent
        self._numbers = itertools.count(1)

    @classmethod
    def reach(cls, name: str, directory: Path, nics: Sequence[Nic], child: "subprocess.Popen[bytes]") -> Self:
        """Waits until it has booted. Raises MachineError."""
        until = time.monotonic() + BOOT_S
        qmp = _Channel(directory / "qmp", until)
        qmp.ask("qmp_capabilities")
        agent = _Channel(directory / "agent", until)
        try:
            agent.ask("guest-ping", timeout_s=BOOT_S)
        except MachineError:
            words = machine.tail(directory / "console") + f" ({'runs' if child.poll() is None else 'has ended'})"
            raise MachineError(f"{name} did not boot within {BOOT_S:.0f} s:\n{words}") from None
        return cls(name, directory, nics, qmp, agent)

    def close(self) -> None:
        """Closes the channels; the machine stays up."""
        self._qmp.close()
        self._agent.close()

    def start(self, argv: Sequence[str], output: str | None = None) -> int:
        """Starts a command as root. Returns its pid there; its output goes to a file of `directory`."""
        if output is not None:
            argv = ["sh", "-c", f"exec {shlex.join(argv)} >{self.directory / output} 2>&1"]
        words = [*_ENVIRONMENT, *argv]
        request = {"path": words[0], "arg": words[1:], "capture-output": output is None}
        answer = self._agent.ask("guest-exec", request)
        return int(answer["pid"])

    def result(self, pid: int, timeout_s: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        """Returns the result of a started command. Raises MachineError if it does not end."""
        until = time.monotonic() + timeout_s
        while not (found := self._agent.ask("guest-exec-status", {"pid": pid}))["exited"]:
            if time.monotonic() > until:
                raise MachineError(f"{self.name}: command {pid} has not ended after {timeout_s:.0f} s")
            time.sleep(0.05)
        out, err = (base64.b64decode(found.get(k, "")).decode(errors="replace") for k in ("out-data", "err-data"))
        return subprocess.CompletedProcess([], int(found.get("exitcode", -1)), out, err)

    def run(self, argv: Sequence[str], timeout_s: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        """Runs a command to its end."""
        return self.result(self.start(argv), timeout_s)

    def do(self, script: str, timeout_s: float = PATIENCE_S) -> str:
        """Runs a shell script. Returns its output. Raises MachineError if it fails."""
        done = self.run(["sh", "-ec", script], timeout_s)
        if done.returncode:
            words = done.stderr.strip() or done.stdout.strip()
            raise MachineError(f"{self.name}: {script}: {words or f'exit status {done.returncode}'}")
        return done.stdout

    def pull(self, tap: str) -> None:
        """Unplugs a card's cable."""
        self._qmp.ask("set_link", {"name": tap, "up": False})

    def plug(self, tap: str) -> None:
        """Plugs a card's cable in again."""
        self._qmp.ask("set_link", {"name": tap, "up": True})


@contextlib.contextmanager
def booting(
    kernel: Kernel, directory: Path, name: str, nics: Sequence[Nic], *, kvm: bool
) -> Iterator["subprocess.Popen[bytes]"]:
    """A block with a starting machine; `Host.reach` waits for it. Its taps are in the caller's network namespace."""
    more = f"-qmp unix:{directory / 'qmp'},server=on,wait=off -device virtio-serial-pci,id=control "
    more += f"-chardev socket,path={directory / 'agent'},server=on,wait=off,id=agent "
    more += f"-device virtserialport,bus=control.0,chardev=agent,name={_AGENT} "
    more += " ".join(nic.options(n) for n, nic in enumerate(nics))
    with machine.started(kernel, ["sh", "-c", _SERVE], directory, more, kvm=kvm, name=name) as child:
        yield child
