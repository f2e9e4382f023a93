# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl job env`: what libraries of training jobs must be told about mrc0."""

import shlex
import socket

import click

from mrcd.ctl.base import Commands, Options, command, common, emit
from mrcd.errors import MachineError

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
    try:
        socket.if_nametoindex(interface)
    except OSError as e:
        raise MachineError(f"{interface}: {e}", hint="name another by --interface, or start mrcd") from None
    lines = [f"export {name}={value if slurm else _quoted(value)}" for name, value in environment(interface).items()]
    emit(options, environment(interface), lambda *_, **__: lines)
