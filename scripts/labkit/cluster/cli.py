# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/lab`: the command line. Every command calls api.Lab."""

import json
from typing import Any, get_args

import click

from labkit import entry
from labkit.cluster.api import Lab
from labkit.cluster.fabric import parse_setting
from labkit.faults import inject
from labkit.faults.fault_program import RATIOS
from labkit.faults.targets import DIRECTIONS
from mrcd.config.sections import Granularity
from mrcd.errors import UsageError

_named = click.option("--name", default="default", show_default=True, help="name of the lab; several can run at once")


def main() -> None:
    """Entry point."""
    entry.main("scripts/lab", lab)


def _say(message: str) -> None:
    print(message, flush=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """A cluster on this machine: hosts, SRv6 switches and faults, in network namespaces."""


@lab.command()
@_named
@click.option("--hosts", default=4, show_default=True, help="h0, h1, …; h0 has 10.99.0.1 and fd00:99::1")
@click.option("--hosts-per-t0", default=2, show_default=True)
@click.option("--planes", default=4, show_default=True)
@click.option("--rails", default=1, show_default=True, help="NICs of a host that share T1s")
@click.option("--t1", default=4, show_default=True, help="T1 switches per plane")
@click.option("--mtu", default=9100, show_default=True, help="MTU of every link, bytes")
@click.option("--rate", metavar="RATE", help="rate of every link, e.g. 1gbit  [default: unlimited]")
@click.option("--granularity", type=click.Choice(get_args(Granularity)), default="burst", show_default=True)
@click.option("--encapsulation", type=click.Choice(["usid", "srh", "ecmp"]), default="usid", show_default=True)
@click.option("--hook", type=click.Choice(["auto", "xdp", "xdp-generic", "tc"]), default="auto", show_default=True)
@click.option("--auth", type=click.Choice(["off", "permissive", "required"]), default="required", show_default=True)
@click.option("--health", metavar="KEY=VALUE", multiple=True, help="a key of the cluster file's [health]; repeatable")
@click.option("--overlay", metavar="KEY=VALUE", multiple=True, help="a key of the cluster file's [overlay]; repeatable")
@click.option("--direct", is_flag=True, help="h0 and h1 back to back, without switches; ignores --hosts and --t1")
@click.option("--no-daemon", is_flag=True, help="a bare fabric: hosts with plane addresses, without mrcd")
def up(
    name: str, rate: str | None, no_daemon: bool, health: tuple[str, ...], overlay: tuple[str, ...], **parameters: Any
) -> None:
    """Bring the lab up, or change it to match the options."""
    bits = inject.parse_rate(rate) if rate is not None else None
    settings = {"health": dict(map(parse_setting, health)), "overlay": dict(map(parse_setting, overlay))}
    Lab(name, _say).up(rate_bits_per_s=bits, daemon=not no_daemon, **settings, **parameters)


@lab.command()
@_named
def down(name: str) -> None:
    """Remove the lab with everything it started."""
    Lab(name, _say).down()


@lab.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_named
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND in a host (h0) or a switch (t0:P:T, t1:P:S).

    In a host, mrcctl talks to that host's daemon. The exit code is the command's.
    """
    argv = command[1:] if command[0] == "--" else command
    if not argv:
        raise UsageError("no command to run", hint="scripts/lab exec h0 -- ping 10.99.0.3")
    try:
        Lab(name).replace_self(node.replace(":", "-"), argv)
    except OSError as e:
        raise UsageError(f"{argv[0]}: {e.strerror}", hint="the command is looked up in PATH") from None


@lab.command()
@_named
@click.argument("target")
@click.option("--drop", metavar="PERCENT", help="drop this share of the packets, silently [default: 100%]")
@click.option("--down", is_flag=True, help="take the link's carrier away (of a switch: of all its links)")
@click.option("--rate", metavar="RATE", help="limit the link, e.g. 50mbit")
@click.option("--delay", metavar="TIME", help="delay packets on the link, e.g. 5ms")
@click.option("--mtu", type=int, help="MTU of the switch ports, bytes")
@click.option("--ce", metavar="PERCENT", help="mark this share of the ECN-capable packets as congestion experienced")
@click.option("--damage", metavar="PERCENT", help="flip a bit in the last byte of this share of the packets")
@click.option(
    "--trim", metavar="PERCENT", help="cut this share of mrcd's packets after 256 bytes, as congested switches do"
)
@click.option(
    "--direction",
    type=click.Choice(DIRECTIONS),
    default="both",
    show_default=True,
    help="only packets from the hosts to the core (up), or from the core to the hosts (down); not for a T1",
)
def fail(name: str, target: str, **effects: Any) -> None:
    """Break TARGET: t1:P:S or t0:P:T (a switch), link:P:T:S (T0–T1), nic:HOST:P (NIC–T0).

    Prints one JSON object with target, what and monotonic_ns. A second fault on the same target
    replaces the first.
    """
    for ratio in RATIOS:
        if effects[ratio] is not None:
            effects[ratio] = inject.parse_percent(effects[ratio])
    print(json.dumps(Lab(name).fail(target, **effects)))


@lab.command()
@_named
@click.argument("target", required=False)
@click.option("--all", "everything", is_flag=True, help="every target")
def heal(name: str, target: str | None, everything: bool) -> None:
    """Heal TARGET, or everything. Prints the healed targets with their last counters as a JSON list."""
    if everything == (target is not None):
        raise UsageError("give one target, or --all", hint="scripts/lab status shows what is broken")
    print(json.dumps(Lab(name).heal(*([target] if target else []))))


@lab.command()
@_named
@click.option("--json", "as_json", is_flag=True, help="one JSON document")
def status(name: str, as_json: bool) -> None:
    """Show hosts, switches and faults."""
    found = Lab(name).status()
    if as_json:
        entry.print_json(found)
        return
    if found["state"] != "up":
        print(f"lab {name} is {'incomplete' if found['state'] == 'building' else 'not up'}")
        return
    p = found["parameters"]
    print(
        f"lab {name}: {p['planes']} planes, {p['t1']} T1s each, {p['encapsulation']}, {p['granularity']}, "
        f"MTU {p['mtu']}; TCP on the hosts: {found['tcp_congestion_control']}"
    )
    for host in found["hosts"]:
        daemon = host["daemon"]
        word = f"mrcd {daemon['pid']}{'' if daemon['alive'] else ' is DEAD'}" if daemon else "no mrcd"
        print(f"  {host['name']:<5} {'  '.join(host['addresses']):<28} {word}{_missing(host)}")
    missing = [s["name"] for s in found["switches"] if not s["exists"]]
    print(f"  {len(found['switches'])} switches" + (f"; MISSING: {', '.join(missing)}" if missing else ""))
    if not found["faults"]:
        print("  no faults")
    for fault in found["faults"]:
        counts = ", ".join(
            f"{count} {key.removesuffix('_skbs')}" for key, count in fault.items() if key.endswith("_skbs")
        )
        print(f"  {fault['target']} is broken: {fault['what']} ({counts})")


def _missing(entry: dict[str, Any]) -> str:
    return "" if entry["exists"] else " (namespace MISSING)"
