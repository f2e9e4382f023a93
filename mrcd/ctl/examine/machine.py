# SPDX-License-Identifier: BSD-2-Clause
"""Reads this machine for the checks: files, netlink, ethtool, bpf(2). It changes nothing permanently."""

import asyncio
import ctypes as ct
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pyroute2.ethtool.ioctl import EthtoolError, IoctlEthtool
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket

from mrcd.errors import MachineError, MrcdError
from mrcd.kernel import features, libbpf
from mrcd.kernel.attachments import program_name
from mrcd.kernel.object_file import object_path
from mrcd.kernel.verify import MAX_INSTRUCTIONS, verify
from mrcd.net import drivers, other_programs, rps
from mrcd.net.drivers import Device
from mrcd.net.messages import Link
from mrcd.net.netlink import Netlink

T = TypeVar("T")

_SCHED_CLS, _RINGBUF, _ARRAY, _TIMER_INIT = 3, 27, 2, 169  # of enum bpf_prog_type, bpf_map_type, bpf_func_id
_F_MMAPABLE = 1 << 10
_LOOPBACK = 1
_QUEUE = re.compile(r"rx[_-]?(?:queue[_-]?)?(\d+)[_.-](?:packets|pkts|xdp_packets)")
_TIME_ERROR = 5  # adjtimex(2)
_UNKNOWN_SPEED = (0, 0xFFFF, 0xFFFFFFFF)

# Commands and attributes of the generic netlink family netdev (linux/netdev.h).
_DEV_GET, _QSTATS_GET = 1, 12
_IFINDEX, _XDP_FEATURES = "1", "3"
_QUEUE_TYPE, _QUEUE_ID, _SCOPE, _RX_PACKETS = "2", "3", "4", "8"  # of QSTATS_GET
_BY_QUEUE, _RECEIVE = 1, 0
_SIOCETHTOOL, _GET_HASH, _UDP_OVER_IPV6, _BOTH_PORTS = 0x8946, 0x29, 0x06, 0xC0  # linux/ethtool.h: ETHTOOL_GRXFH

_SEG6_TEST = (
    "ip link set lo up && ip -6 route add 5f00:0:1::/48 encap seg6 mode encap segs 5f00:0:2:: dev lo"
    " && ip link add v0 type veth peer name v1 && ip link set v0 up"
    " && ip -6 route add 5f00:0:2::/64 encap seg6local action End.DT6 table 255 dev v0"
)


class _Netdev(genlmsg):  # type: ignore[misc]
    """A message of the family netdev. Its numbers have four or eight bytes, as they need."""

    nla_map = tuple((str(attribute), "cdata") for attribute in range(32))


class _MapOpts(ct.Structure):
    """The first fields of struct bpf_map_create_opts."""

    _fields_ = [("sz", ct.c_size_t), ("_btf", ct.c_uint32 * 5), ("map_flags", ct.c_uint32), ("_rest", ct.c_byte * 40)]


class Machine:
    """This machine in this network namespace. `settings` configure the programs for `try_programs`."""

    def __init__(self, settings: bytes = b"") -> None:
        self._settings = settings

    def text(self, path: str) -> str | None:
        """Return a file without surrounding blanks; None if it is missing or unreadable."""
        try:
            return Path(path).read_text().strip()
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        return Path(path).exists()

    def uname(self) -> tuple[str, str]:
        """Return the release and the build of the kernel."""
        return platform.release(), platform.version()

    def module(self, name: str) -> bool:
        """Return whether Python finds a module. It is not imported."""
        return importlib.util.find_spec(name) is not None

    def library(self, name: str) -> str:
        """Return why a shared library cannot be loaded; empty if it can."""
        try:
            ct.CDLL(name)
        except OSError as e:
            return str(e)
        return ""

    def clock_synchronised(self) -> bool | None:
        """Return whether CLOCK_REALTIME is synchronised; None if the kernel does not know."""
        state = ct.CDLL(None, use_errno=True).adjtimex(ct.create_string_buffer(256))
        return None if state < 0 else bool(state != _TIME_ERROR)

    # ---- links ----

    @cached_property
    def _links(self) -> dict[str, Link]:
        return asyncio.run(_ask(Netlink.links))

    def links(self) -> dict[str, Link]:
        """Return all interfaces by name."""
        return self._links

    def neighbours(self, gateway: str) -> dict[int, str]:
        """Return the MACs of a resolved first hop by ifindex."""
        return asyncio.run(_ask(lambda netlink: netlink.neighbours(gateway)))

    def device(self, link: Link) -> Device:
        """Return a NIC's driver and its offloads."""
        return drivers.read_device(link)

    def offloads(self, name: str) -> dict[str, bool]:
        """Return the offloads by their ethtool names."""
        try:
            features = IoctlEthtool(name).get_features()
            return {key: bool(features[key]) for key in features.keys()}  # noqa: SIM118 - not a dictionary
        except (EthtoolError, OSError) as e:
            raise MachineError(f"ethtool cannot read the offloads of {name}: {e}") from None

    def speed_mbit(self, name: str) -> int | None:
        """Return the link speed; None if the driver does not know it."""
        try:
            found = IoctlEthtool(name).get_cmd()
        except (EthtoolError, OSError):
            return None
        speed = int(found["speed"]) | int(found["speed_hi"]) << 16
        return None if speed in _UNKNOWN_SPEED else speed

    def receive_queues(self, name: str) -> dict[int, int]:
        """Return the packets by receive queue; empty if the driver does not count them."""
        link = self._links.get(name)
        asked = {_IFINDEX: link.ifindex, _SCOPE: _BY_QUEUE} if link else {}
        counted = _netdev(_QSTATS_GET, NLM_F_REQUEST | NLM_F_DUMP, asked) if link else []  # Linux 6.10
        found = {q[_QUEUE_ID]: q[_RX_PACKETS] for q in counted if q[_QUEUE_TYPE] == _RECEIVE and _RX_PACKETS in q}
        if found:
            return found
        try:
            statistics = IoctlEthtool(name).get_statistics()
        except (EthtoolError, OSError):
            return {}
        for key, value in statistics:
            match = _QUEUE.fullmatch(key.decode() if isinstance(key, bytes) else str(key))
            if match:
                found[int(match[1])] = max(int(value), found.get(int(match[1]), 0))
        return found

    def hashes_ports(self, name: str) -> bool | None:
        """Return whether receive-side scaling hashes the ports of UDP over IPv6; None if the driver does not tell."""
        asked = ct.create_string_buffer(struct.pack("=II", _GET_HASH, _UDP_OVER_IPV6), 256)
        request = struct.pack("16sP16x", name.encode(), ct.addressof(asked))
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                fcntl.ioctl(s, _SIOCETHTOOL, request)
        except OSError:
            return None
        fields: int = struct.unpack_from("=Q", asked, 8)[0]
        return fields & _BOTH_PORTS == _BOTH_PORTS if fields else None

    def xdp_features(self, ifindex: int) -> int | None:
        """Return the NETDEV_XDP_ACT_* bits of a driver; None if the kernel has no such query (before Linux 6.3)."""
        found = _netdev(_DEV_GET, NLM_F_REQUEST, {_IFINDEX: ifindex})
        return found[0].get(_XDP_FEATURES) if found else None

    # ---- programs ----

    def programs(self, ifindex: int, where: str) -> list[str]:
        """Return the names of the programs at a hook ("xdp", "ingress", "egress") in the order in which they run."""
        if os.geteuid():
            raise MachineError("only root may list attached programs")
        found = other_programs.programs(ifindex, where)
        names = [name or program_name(number) for number, name in found]
        if None in names:  # a container's root
            raise MachineError("only a process with CAP_SYS_ADMIN may read the names of attached programs")
        return [str(name) for name in names]

    def kernel_lacks(self) -> list[str]:
        """Return the missing kernel features of mrcd/kernel/features.py, in words."""
        return features.lacking(features.kernel_has(), features.refused_programs(), has_rps=rps.has_default_mask())

    def feature(self, name: str) -> bool | None:
        """Return whether the kernel has "tcx", "timer", "ringbuf" or "mmapable"; None unless root."""
        if os.geteuid():
            return None
        lib = libbpf.lib()
        if name == "ringbuf":
            return bool(lib.libbpf_probe_bpf_map_type(_RINGBUF, None) == 1)
        if name == "timer":
            return bool(lib.libbpf_probe_bpf_helper(_SCHED_CLS, _TIMER_INIT, None) == 1)
        if name == "mmapable":
            opts = _MapOpts(sz=ct.sizeof(_MapOpts), map_flags=_F_MMAPABLE)
            fd = lib.bpf_map_create(_ARRAY, b"mrc_test", 4, 8, 1, ct.byref(opts))
            if fd >= 0:
                os.close(fd)
            return bool(fd >= 0)
        try:
            other_programs.tcx(_LOOPBACK, "ingress")
        except MrcdError:
            return False
        return True

    def try_programs(self) -> tuple[bool | None, str]:
        """Have the kernel verify each program without pinning or attaching it.

        Returns whether it accepts all, and the verifier's words on the first refused one. None: not possible.
        """
        if os.geteuid():
            return None, "only root can load programs"
        try:
            verdicts = verify(object_path(), self._settings)
        except MrcdError as e:
            return False, e.args[0].replace("\n", "; ")
        for v in verdicts:
            if v.error:
                return False, f"{v.program}: {v.error}".replace("\n", "; ")
        most = max(verdicts, key=lambda v: v.instructions)
        return True, f"{most.instructions} of {MAX_INSTRUCTIONS} instructions verified at most, for {most.program}"

    def try_seg6(self) -> tuple[bool | None, str]:
        """Add SRv6 routes in a temporary network namespace. Returns success and errors; None: not possible."""
        if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
            return None, "only root, with unshare and iproute2, can try SRv6 routes"
        done = subprocess.run(["unshare", "-n", "sh", "-c", _SEG6_TEST], capture_output=True, text=True, timeout=10)
        return done.returncode == 0, "; ".join(done.stderr.split("\n")).strip("; ")


async def _ask(question: Callable[[Netlink], Awaitable[T]]) -> T:
    async with Netlink() as netlink:
        return await question(netlink)


def _netdev(command: int, flags: int, asked: dict[str, int]) -> list[dict[str, int]]:
    """Return the numbers of each answer of the family netdev; empty if the kernel lacks the command."""
    message = _Netdev()
    message["cmd"], message["version"] = command, 1
    message["attrs"] = [(key, value.to_bytes(4, sys.byteorder)) for key, value in asked.items()]
    try:
        with GenericNetlinkSocket() as s:
            s.bind("netdev", _Netdev)
            answers = s.nlm_request(message, msg_type=s.prid, msg_flags=flags)
            return [
                {key: int.from_bytes(value, sys.byteorder) for key, value in a["attrs"] if isinstance(value, bytes)}
                for a in answers
            ]
    except (NetlinkError, OSError):
        return []
