# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl job` (env, topology): what libraries of training jobs must be told about mrc0."""

import platform
import shlex
import socket
from collections.abc import Mapping

import click

from mrcd.ctl.base import Commands, Options, command, common, emit
from mrcd.ctl.documents import read
from mrcd.ctl.phrases import some
from mrcd.errors import MachineError

_NCCL_ARCHS = {"aarch64": "arm64"}
_CPUINFO = {"vendor_id", "cpu family", "model"}
_EXTENDED = 15  # CPUID: the extended family counts from here

_interface = click.option(
    "--interface", default="mrc0", show_default=True, metavar="NAME", help="[overlay] interface of the cluster file."
)


@click.group(cls=Commands, short_help="Print what the libraries of a training job need.")
@common
def job() -> None:
    """Print what the libraries of a training job need, so that they send over mrc0."""


def environment(interface: str) -> dict[str, str]:
    """Return the variables of NCCL, RCCL, Gloo, Open MPI, MPICH and UCX. Pure. Sources: docs/training-jobs.md."""
    return {
        "NCCL_SOCKET_IFNAME": f"={interface}",  # "=": this name exactly; RCCL reads NCCL's variables
        "NCCL_NET": "Socket",
        "GLOO_SOCKET_IFNAME": interface,
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self,vader",  # Open MPI 5 takes the old name of shared memory, too
        "OMPI_MCA_btl_tcp_if_include": interface,
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": interface,
        "UCX_TLS": "^ib",  # all but RDMA verbs, which bypass mrc0
        "UCX_NET_DEVICES": interface,
    }


def cpu_of_node(node: str, cpumap: str | None, machine: str, cpuinfo: str) -> dict[str, str]:
    """Return the attributes that NCCL would give a NUMA node's CPU. Pure.

    All are needed: NCCL fills in those that are missing only where a process has its GPU at this node, and then takes
    the nodes of different processes for different ones.
    """
    found = {"numaid": node} | ({"affinity": cpumap} if cpumap else {}) | {"arch": _NCCL_ARCHS.get(machine, machine)}
    if machine == "x86_64":
        lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
        first = {name.strip(): value.removeprefix(" ") for name, _, value in lines}
        if not first.keys() >= _CPUINFO or not first["cpu family"].isdecimal():
            raise MachineError("/proc/cpuinfo does not name the CPU", hint="run it outside of the sandbox")
        family = int(first["cpu family"])
        family = family if family < _EXTENDED else _EXTENDED + (family - _EXTENDED << 4)  # as NCCL counts
        found |= {"vendor": first["vendor_id"], "familyid": str(family), "modelid": first["model"]}
    return found


def topology_lines(interface: str, mbit: int, cpu: Mapping[str, str]) -> list[str]:
    """Return an NCCL topology file. Pure. NCCL's parser takes no prolog, and one space before each attribute."""
    attributes = " ".join(f'{name}="{value}"' for name, value in cpu.items())
    net = f'<nic><net name="{interface}" speed="{mbit}"/></nic>'
    return ['<system version="1">', f"  <cpu {attributes}>", f"    {net}", "  </cpu>", "</system>"]


def _require(interface: str) -> None:
    try:
        socket.if_nametoindex(interface)
    except OSError as e:
        raise MachineError(f"{interface}: {e}", hint="name another by --interface, or start mrcd") from None


def _quoted(value: str) -> str:
    return shlex.quote(value) if not value.startswith("=") else f"'{value}'"  # zsh replaces =NAME by a command's path


@command("Print the environment that a job needs.", group=job)
@_interface
@click.option("--slurm", is_flag=True, help="Print as Slurm's TaskProlog reads it: `export NAME=VALUE`, unquoted.")
def env(options: Options, interface: str, slurm: bool) -> None:
    """Print lines for a shell: `eval "$(mrcctl job env)"`. Works without mrcd, and for any user.

    The variables are NCCL's (and RCCL's), Gloo's, Open MPI's, libfabric's (MPICH, Intel MPI) and UCX's. A library
    ignores those of others.
    """
    _require(interface)
    lines = [f"export {name}={value if slurm else _quoted(value)}" for name, value in environment(interface).items()]
    emit(options, environment(interface), lambda *_, **__: lines)


@command("Print an NCCL topology file with the planes' speed.", group=job)
@_interface
def topology(options: Options, interface: str) -> None:
    """Print a file for NCCL_TOPO_FILE, in which the interface has the sum of the plane NICs' speeds.

    NCCL reads 10 Gbit/s for mrc0, as for every veth. The file is for this host only: it has the CPU of the NUMA node of
    the first plane's NIC.
    """
    from mrcd.ctl.examine.machine import Machine
    from mrcd.net import hooks

    _require(interface)
    machine = Machine()
    interfaces = tuple(plane["interface"] for plane in read(options, "status").document["planes"])
    ports = hooks.ports(interfaces, machine.links()).values()
    speeds = {port.physical.name: machine.speed_mbit(port.physical.name) for port in ports}  # VLANs share a NIC
    unknown = [nic for nic, speed in speeds.items() if not speed] if speeds else list(interfaces)
    if unknown:
        hint = "is the link up? For a virtual NIC write the file by hand"
        raise MachineError(f"{some(unknown)}: the driver does not say the link's speed", hint=hint)
    mbit = sum(filter(None, speeds.values()))
    node = machine.text(f"/sys/class/net/{next(iter(speeds))}/device/numa_node") or "-1"
    cpumap, cpuinfo = machine.text(f"/sys/devices/system/node/node{node}/cpumap"), machine.text("/proc/cpuinfo")
    lines = topology_lines(interface, mbit, cpu_of_node(node, cpumap, platform.machine(), cpuinfo or ""))
    document = {"interface": interface, "speed_mbit": mbit, "topology": "\n".join(lines)}
    emit(options, document, lambda *_, **__: lines)
